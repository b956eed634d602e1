#include "caches.h"

#include <algorithm>
#include <cmath>

namespace memsvc {
namespace {

constexpr double kMostCopies = 1e9;

}  // namespace

double weight_of(const TableSpec& spec, double p) {
  if (!(p > 0)) return 0;
  const bool uniform = spec.select == Select::kUniform || (spec.select == Select::kAll && spec.sampler == Sampler::kUniform);
  // Sums over a whole table stay finite, and what is positive stays so.
  return uniform ? 1 : std::clamp(std::pow(p, spec.exponent), 1e-200, 1e200);
}

uint64_t Caches::target(const Lane& lane) const {
  if (!lane.reported()) return spec_.cache;
  const double total = lanes_->total();
  if (lane.population() == 0 || !(total > 0)) return 0;
  const double share = std::ceil(static_cast<double>(expected_) * (lane.total() / total));
  return std::max<uint64_t>(spec_.cache, static_cast<uint64_t>(share));
}

uint64_t Caches::wanted(const Lane& lane) const {
  const uint64_t have = lane.queue.length + lane.waiting.size();
  const uint64_t want = lane.left ? 0 : target(lane);
  return want > have ? want - have : 0;
}

bool Caches::hungry(const Lane& lane) const { return !lane.left && 2 * (lane.queue.length + lane.waiting.size()) < target(lane); }

void Caches::queue(Lane* lane, uint32_t item, double weight) {
  if (!lane->pending(items_->updated(item))) items_->set_value(item, weight);
  queue_late(lane, item, weight);
}

void Caches::queue_late(Lane* lane, uint32_t item, double weight) {
  while (draws_.used() >= draws_.capacity() / 2 && give_way()) {
  }
  if (!draws_.append(&lane->queue, item, weight, 1)) {
    items_->unpin(item);
    ++given_way_;
  }
}

void Caches::drop_front(Lane* lane, uint64_t draws) {
  const Queue before = lane->queue;
  uint64_t left = std::min(draws, lane->queue.length);
  given_way_ += left;
  while (left > 0) left -= draws_.pop(&lane->queue, left);
  draws_.commit(&lane->queue, before, [this](uint32_t item) { items_->unpin(item); });
}

void Caches::trim(Lane* lane) {
  const uint64_t most = 2 * std::max<uint64_t>(target(*lane), spec_.cache);
  if (lane->queue.length > most) drop_front(lane, lane->queue.length - most);
  // A draw whose payload never comes must not hold a place for ever.
  if (lane->waiting.size() > most) {
    given_way_ += lane->waiting.size() - most;
    lane->waiting.erase(lane->waiting.begin(), lane->waiting.end() - static_cast<std::ptrdiff_t>(most));
  }
}

bool Caches::give_way() {
  Lane* richest = nullptr;
  double most = 0;
  const double total = lanes_->total();
  for (const auto& lane : lanes_->all()) {
    if (lane->queue.length == 0) continue;
    const double share = total > 0 ? lane->total() / total : 0;
    const double excess = static_cast<double>(lane->queue.length) - static_cast<double>(expected_) * share;
    if (!richest || excess > most) {
      richest = lane.get();
      most = excess;
    }
  }
  if (!richest) return false;
  Queue front = richest->queue;
  drop_front(richest, draws_.pop(&front, ~uint64_t{0}));
  return true;
}

void Caches::forget(Lane* lane) {
  drop_front(lane, lane->queue.length);
  lane->waiting.clear();
}

// One draw of a lane's queue, thinned or split. False when thinning used the queue up.
bool Caches::take(Lane* lane, uint32_t* item, double* weight) {
  while (lane->queue.length > 0) {
    const uint32_t next = draws_.item(lane->queue);
    const double now = items_->value(next);
    const double ratio = std::min(now / draws_.weight(lane->queue), kMostCopies);
    if (const uint64_t equal = draws_.equal(lane->queue); ratio < 1 && equal > 1) {
      // A split draw may stand for a billion: those that come to nothing before the next that does (a geometric number) go at once.
      const double failures = ratio > 0 ? std::floor(std::log1p(-random_->uniform()) / std::log1p(-ratio)) : HUGE_VAL;
      if (failures > 0) draws_.pop(&lane->queue, failures < static_cast<double>(equal) ? static_cast<uint64_t>(failures) : equal);
      if (failures >= static_cast<double>(equal)) continue;
      draws_.pop(&lane->queue);
      *item = next;
      *weight = now;
      return true;
    }
    draws_.pop(&lane->queue);
    const double whole = std::floor(ratio);
    // An unchanged weight, by far the most frequent case, needs no random number.
    uint32_t copies = static_cast<uint32_t>(whole);
    if (ratio > whole && random_->uniform() < ratio - whole) ++copies;
    if (copies == 0) continue;
    if (copies > 1 && draws_.append(&lane->queue, next, now, copies - 1)) items_->pin(next);
    *item = next;
    *weight = now;
    return true;
  }
  return false;
}

// Fills places until the queues are used up; returns how many. Strata are equal slices of the active actors' weight; when an actor's queue ends,
// the places that are left get strata of their own over the others, or those before the ended actor would get none of them.
size_t Caches::choose(size_t batch, uint32_t* items, double* weights) {
  touched_.clear();
  active_.clear();
  for (const auto& lane : lanes_->all()) {
    if (!(lane->total() > 0)) continue;
    const bool empty = lane->queue.length == 0;
    if (!empty) active_.push_back(touched_.size());
    touched_.push_back({lane.get(), lane->queue, 0, empty && !lane->left});
  }
  size_t place = 0;
  while (place < batch && !active_.empty()) {
    double sum = 0;
    for (const size_t i : active_) sum += touched_[i].lane->total();
    const size_t start = place;
    const double slice = sum / static_cast<double>(batch - start);
    size_t at = 0;
    double upto = touched_[active_[0]].lane->total();
    while (place < batch) {
      const double mass = (static_cast<double>(place - start) + random_->uniform()) * slice;
      while (mass >= upto && at + 1 < active_.size()) upto += touched_[active_[++at]].lane->total();
      Touched& chosen = touched_[active_[at]];
      if (take(chosen.lane, &items[place], &weights[place])) {
        ++chosen.drawn;
        ++place;
      }
      if (chosen.lane->queue.length == 0) {
        if (place < batch) chosen.starved = !chosen.lane->left;
        active_.erase(active_.begin() + static_cast<std::ptrdiff_t>(at));
        break;
      }
    }
  }
  return place;
}

void Caches::undo() {
  for (Touched& touched : touched_) {
    if (touched.before.length > 0) draws_.rollback(&touched.lane->queue, touched.before, [this](uint32_t item) { items_->unpin(item); });
  }
}

bool Caches::draw(size_t batch, uint32_t* items, double* weights) {
  if (batch > largest_) {
    largest_ = batch;
    expect(std::max<uint64_t>(batch, expected_));
  }
  const Random before = *random_;
  if (choose(batch, items, weights) < batch) {
    undo();
    *random_ = before;
    return false;
  }
  for (Touched& touched : touched_) {
    touched.lane->drawn += touched.drawn;
    touched.lane->starved += touched.starved;
    draws_.commit(&touched.lane->queue, touched.before, [this](uint32_t item) { items_->unpin(item); });
  }
  return true;
}

size_t Caches::available(size_t batch) {
  std::vector<uint32_t> items(batch);
  std::vector<double> weights(batch);
  const Random before = *random_;
  const size_t many = choose(batch, items.data(), weights.data());
  undo();
  *random_ = before;
  return many;
}

std::string Caches::check(uint32_t* pins) const {
  uint64_t entries = 0;
  for (const auto& lane : lanes_->all()) {
    uint64_t draws = 0;
    draws_.measure(lane->queue, &entries, &draws);
    if (draws != lane->queue.length) {
      return "I7: " + lane->name + " has " + std::to_string(draws) + " draws, not " + std::to_string(lane->queue.length);
    }
    draws_.each(lane->queue, [pins](uint32_t item) { ++pins[item]; });
    if (lane->total() < 0 || (lane->population() == 0 && lane->total() != 0)) return "I8: " + lane->name + " weighs " + std::to_string(lane->total());
  }
  if (entries != draws_.used()) return "I7: " + std::to_string(entries) + " entries queued, " + std::to_string(draws_.used()) + " in use";
  return "";
}

}  // namespace memsvc
