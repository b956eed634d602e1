#include "united.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "priority.h"

namespace memsvc {
namespace {

constexpr size_t kMostChanges = 1024;

}  // namespace

void United::place(const TableSpec& spec, Items* items, Arena* arena) {
  spec_ = &spec;
  items_ = items;
  if (spec.sampler == Sampler::kMax || spec.sampler == Sampler::kMin) order_.place(arena, items->places());
  if (spec.ordered() || bounded()) drawable_ = arena->take<bool>(items->places());
}

void United::grow() {
  if (!spec_->ordered()) tree_ = std::make_unique<SumTree>(items_->places());
}

Population United::population() const {
  if (!tree_) return {static_cast<double>(population_), population_, population_ > 0 ? 1.0 : 0.0};
  return {tree_->total(), population_, tree_->min_positive()};
}

Population United::population(int64_t version) const {
  if (version == kAnyVersion) return population();
  Population found;
  for (uint32_t item = 0; item < items_->places(); ++item) {
    if (!items_->live(item) || items_->version(item) < version || !drawable(item)) continue;
    const double w = tree_ ? weight(item) : 1;
    found.total += w;
    found.min_weight = found.count == 0 ? w : std::min(found.min_weight, w);
    ++found.count;
  }
  return found;
}

uint64_t United::available(int64_t version) const {
  if (spec_->ordered()) return population(version).count;
  if (!bounded()) return population(version).count > 0 ? UINT64_MAX : 0;
  if (version == kAnyVersion) return draws_left_;
  uint64_t sum = 0;
  for (uint32_t item = 0; item < items_->places(); ++item) {
    if (items_->live(item) && items_->version(item) >= version && drawable(item)) sum += left(item);
  }
  return sum;
}

double United::full_weight(uint32_t item) const {
  const double p = items_->value(item);
  return weighed(items_->factor(item), spec_->sampler == Sampler::kUniform ? p > 0 : weight_of(p, spec_->exponent));
}

void United::put(uint32_t item, double weight) {
  if (!tree_) return;
  changed_.push_back(item);
  weights_.push_back(weight);
  if (changed_.size() >= kMostChanges) flush();
}

// Enters or leaves the drawable items, before what `left` says of it changes or after.
void United::mark(uint32_t item, bool drawable) {
  if (!drawable_ || drawable_[item] == drawable) return;
  drawable_[item] = drawable;
  if (!tree_) population_ += drawable ? 1 : -1;
  if (bounded()) draws_left_ += drawable ? left(item) : -left(item);
}

void United::touch(uint32_t item) {
  const double w = weight(item);
  put(item, w);
  mark(item, w > 0);
  if (spec_->sampler != Sampler::kMax && spec_->sampler != Sampler::kMin) return;
  if (w > 0) {
    order_.set(item, spec_->sampler == Sampler::kMin ? items_->value(item) : -items_->value(item));
  } else {
    order_.erase(item);
  }
}

void United::touch_all() {
  for (uint32_t item = 0; item < items_->places(); ++item) {
    if (items_->live(item) && items_->published(item)) touch(item);
  }
}

void United::clear(uint32_t item) {
  put(item, 0);
  mark(item, false);
  if (spec_->sampler == Sampler::kMax || spec_->sampler == Sampler::kMin) order_.erase(item);
}

void United::flush() {
  if (changed_.empty()) return;
  population_ += static_cast<uint64_t>(tree_->set(changed_.data(), weights_.data(), changed_.size()));
  changed_.clear();
  weights_.clear();
}

bool United::draw(size_t batch, int64_t version, Random* random, uint32_t* items, double* weights, Population* from) {
  if (available(version) < batch) return false;
  *from = population(version);
  if (spec_->ordered()) {
    // What an order says is certain.
    *from = {1, from->count, 1};
    std::fill_n(weights, batch, 1.0);
    return draw_ordered(batch, version, items);
  }
  if (!(version == kAnyVersion ? draw_random(batch, random, items) : draw_recent(batch, version, random, items))) return false;
  // As of the beginning of the batch: what it takes and decays itself holds from the next one on.
  for (size_t i = 0; i < batch; ++i) weights[i] = bounded() ? full_weight(items[i]) : tree_->weight(items[i]);
  if (spec_->decay < 1) {
    for (size_t i = 0; i < batch; ++i) {
      decay(items[i]);
    }
    flush();
  }
  return true;
}

// Counts a draw of an item; false when it has been drawn as often as it may.
bool United::take(uint32_t item) {
  if (!bounded()) return true;
  if (left(item) == 0) return false;
  items_->count(item, 1, 1);
  --draws_left_;
  if (left(item) == 0) {
    clear(item);
    items_->set_aside(item);
  }
  return true;
}

bool United::draw_random(size_t batch, Random* random, uint32_t* items) {
  for (size_t done = 0; done < batch;) {
    const size_t many = batch - done;
    if (!tree_->draw(many, true, *random, items + done)) return false;
    if (!bounded()) return true;
    // Those beyond an item's last draw are drawn again, among what is left.
    const auto end = std::remove_if(items + done, items + batch, [this](uint32_t item) { return !take(item); });
    done = static_cast<size_t>(end - items);
    flush();
  }
  return true;
}

bool United::draw_recent(size_t batch, int64_t version, Random* random, uint32_t* items) {
  std::vector<uint32_t> recent;
  std::vector<double> upto;
  double sum = 0;
  for (uint32_t item = 0; item < items_->places(); ++item) {
    if (!items_->live(item) || items_->version(item) < version || !drawable(item)) continue;
    recent.push_back(item);
    upto.push_back(sum += weight(item));
  }
  for (size_t done = 0; done < batch;) {
    const size_t begin = done, many = batch - begin;
    const double slice = sum / static_cast<double>(many);
    for (size_t i = 0; i < many; ++i) {
      const double mass = (static_cast<double>(i) + random->uniform()) * slice;
      const size_t at = static_cast<size_t>(std::upper_bound(upto.begin(), upto.end() - 1, mass) - upto.begin());
      if (take(recent[at])) items[done++] = recent[at];
    }
    if (done == batch) break;
    sum = 0;
    for (size_t i = 0; i < recent.size(); ++i) upto[i] = sum += weight(recent[i]);
  }
  flush();
  return true;
}

bool United::draw_ordered(size_t batch, int64_t version, uint32_t* items) {
  size_t found = 0;
  const auto visit = [&](uint32_t item) {
    if (drawable_[item] && items_->version(item) >= version) items[found++] = item;
    return found < batch;
  };
  if (spec_->sampler == Sampler::kFifo) {
    for (uint32_t item = items_->first_arrived(); item != kNone && visit(item); item = items_->after(item)) {
    }
  } else if (spec_->sampler == Sampler::kLifo) {
    for (uint32_t item = items_->last_arrived(); item != kNone && visit(item); item = items_->before(item)) {
    }
  } else {
    order_.walk(visit);
  }
  for (size_t i = 0; i < found; ++i) take(items[i]);
  return found == batch;
}

bool United::confirm(uint32_t item) {
  items_->count(item, 0, -1);
  return items_->flying(item) == 0 && left(item) == 0;
}

bool United::use_up(uint32_t item) {
  if (left(item) == 0) return false;
  if (drawable_[item]) --draws_left_;
  items_->count(item, 1, 0);
  return left(item) == 0 && items_->flying(item) == 0;
}

void United::decay(uint32_t item) {
  items_->set_factor(item, std::max(items_->factor(item) * spec_->decay, 1 / kLargestFactor));
  touch(item);
}

void United::take_back(uint32_t item) {
  const bool served = left(item) == 0;
  if (drawable_[item]) ++draws_left_;
  items_->count(item, -1, -1);
  if (served) {
    items_->bring_back(item);
    touch(item);
  }
}

std::string United::check() const {
  uint64_t population = 0, draws = 0;
  for (uint32_t item = 0; item < items_->places(); ++item) {
    const double w = items_->live(item) ? weight(item) : 0;
    population += w > 0;
    if (tree_ && tree_->weight(item) != w) return "I9: the leaf of item " + std::to_string(item);
    if (drawable_ && drawable_[item] != (w > 0)) return "I9: whether item " + std::to_string(item) + " can be drawn";
    if (bounded() && w > 0) draws += left(item);
  }
  if (population != population_) return "I9: " + std::to_string(population) + " drawable items, counted " + std::to_string(population_);
  if (draws != draws_left_) return "I9: " + std::to_string(draws) + " draws left, counted " + std::to_string(draws_left_);
  const bool by_priority = spec_->sampler == Sampler::kMax || spec_->sampler == Sampler::kMin;
  if (by_priority && (order_.size() != population || !order_.consistent())) return "O1";
  return !tree_ || tree_->consistent() ? "" : "T1 or T3";
}

}  // namespace memsvc
