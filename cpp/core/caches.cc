#include "caches.h"

#include <algorithm>
#include <cmath>

#include "priority.h"

namespace memsvc {

double weight_of(const TableSpec& spec, double p, double exponent) { return spec.select == Select::kUniform ? p > 0 : weight_of(p, exponent); }

void Caches::place(Arena* arena, uint32_t entries, uint64_t holds) {
  draws_.place(arena, entries);
  places_ = arena->take<uint32_t>(items_->places());
  if (arena->mapped()) std::fill_n(places_, items_->places(), settled(nullptr));
  holds_ = holds;
  expect(kFirstStock);
}

Population Caches::population() const {
  if (replaces()) return {lanes_->total(), lanes_->population(), lanes_->min_weight()};
  uint64_t queued = 0;
  for (const uint64_t length : lanes_->sums().queued) queued += length;
  return {static_cast<double>(queued), queued, queued > 0 ? 1.0 : 0.0};
}

uint64_t Caches::drawable() const { return lanes_->population() + (replaces() ? 0 : population().count); }

uint64_t Caches::target(const Lane& lane, double total) const {
  if (!lane.reported()) return spec_.cache;
  if (lane.population() == 0 || !(total > 0)) return 0;
  const double share = std::ceil(static_cast<double>(expected_) * (lane.total() / total));
  return std::max<uint64_t>(spec_.cache, static_cast<uint64_t>(share));
}

uint64_t Caches::wanted(const Lane& lane) const {
  const uint64_t have = lane.stock();
  const uint64_t want = lane.left ? 0 : target(lane);
  return want > have ? want - have : 0;
}

bool Caches::hungry(const Lane& lane, double total) const { return !lane.left && 2 * lane.stock() < target(lane, total); }

void Caches::report(Lane* lane, const CacheHead& head) {
  // Without replacement a draw is the only one of its item, and nothing is weighed any more; uniform weights know no exponent.
  if (lane->reported() && spec_.select == Select::kPrioritized && head.exponent != lane->exponent()) {
    forget(lane);
    lane->raised.reset();
    lane->start_again();
  }
  lane->report(head);
  settle(lane);
}

void Caches::set(uint32_t item, const Lane* lane, double weight) {
  items_->set_value(item, weight);
  if (lane && lane->raised && lane->raised->has(item)) {
    lane->raised->follow(item);
  } else {
    places_[item] = settled(lane);
  }
}

bool Caches::queue(Lane* lane, uint32_t item, double weight) {
  // As the actor does: its weights stay positive.
  if (const double factor = items_->factor(item); spec_.decay < 1 && factor > 0)
    items_->set_factor(item, std::max(factor * spec_.decay, 1 / kLargestFactor));
  if (!spec_.fresh(items_->version(item), lane->newest)) {
    expire(lane, item);
  } else if (replaces() && !lane->pending(items_->updated(item))) {
    set(item, lane, weight);
  }
  return queue_late(lane, item, weight);
}

bool Caches::queue_late(Lane* lane, uint32_t item, double weight) {
  if (!(items_->value(item) > 0)) {
    items_->unpin(item);
    return false;
  }
  if (places_[item] >= Raised::kAbsent) places_[item] = settled(lane);
  while (draws_.used() >= draws_.capacity() / 2 && shorten()) {
  }
  lane->touch();
  if (draws_.append(&lane->queue, item, weight, lane->segment(), lane->steps)) {
    ++lane->segments.back().queued;
    return true;
  }
  items_->unpin(item);
  ++given_way_;
  settle(lane);
  return false;
}

// After the queue's front or the newest report has moved: what neither of them needs goes.
void Caches::settle(Lane* lane) {
  if (lane->queue.length == 0) {
    lane->segments.clear();
  } else {
    while (lane->segments.front().id != draws_.segment(lane->queue)) lane->segments.pop_front();
  }
  if (lane->raised) {
    lane->raised->advance(lane->segments.empty() ? lane->applied() : lane->segments.front().applied);
    lane->raised->commit();
  }
}

void Caches::drop_front(Lane* lane, uint64_t draws) {
  if (lane->queue.length == 0) return;
  const Queue before = lane->queue;
  const uint32_t many = static_cast<uint32_t>(std::min<uint64_t>(draws, lane->queue.length));
  given_way_ += many;
  lane->fruitless -= std::min(lane->fruitless, many);
  for (uint64_t i = 0; i < many; ++i) draws_.pop(&lane->queue);
  draws_.commit(&lane->queue, before, [this](uint32_t item) { items_->unpin(item); });
  lane->touch();
  settle(lane);
}

void Caches::trim(Lane* lane) {
  const uint64_t most = 2 * std::max<uint64_t>(target(*lane), spec_.cache);
  const uint64_t queued = lane->queue.length - std::min(lane->queue.length, lane->fruitless);
  if (replaces() && queued > most) drop_front(lane, lane->queue.length - most);
  // A draw whose payload never comes must not hold a place for ever.
  if (lane->waiting.size() > most) {
    given_way_ += lane->waiting.size() - most;
    lane->waiting.erase(lane->waiting.begin(), lane->waiting.end() - static_cast<std::ptrdiff_t>(most));
  }
}

// The oldest draw of the actor with the largest excess over its target goes. False when all queues are empty.
bool Caches::shorten() {
  const Lanes::Sums& sums = lanes_->sums();
  size_t richest = sums.total.size();
  double most = 0;
  const double total = lanes_->total();
  const double per_weight = total > 0 ? static_cast<double>(expected_) / total : 0;
  for (size_t i = 0; i < sums.total.size(); ++i) {
    if (sums.queued[i] == 0) continue;
    const double excess = static_cast<double>(sums.queued[i]) - sums.total[i] * per_weight;
    if (richest == sums.total.size() || excess > most) {
      richest = i;
      most = excess;
    }
  }
  if (richest == sums.total.size()) return false;
  drop_front(lanes_->all()[richest].get(), 1);
  return true;
}

bool Caches::give_way() {
  Raised* longest = nullptr;
  uint64_t logged = 0;
  for (const auto& lane : lanes_->all()) {
    if (!lane->raised || lane->raised->empty()) continue;
    logged += lane->raised->size();
    if (!longest || lane->raised->size() > longest->size()) longest = lane->raised.get();
  }
  if (logged <= draws_.used() && shorten()) return true;
  if (longest) longest->drop_oldest();
  return longest;
}

void Caches::forget(Lane* lane) {
  drop_front(lane, lane->queue.length);
  lane->waiting.clear();
  if (lane->raised) lane->raised->clear();
}

double Caches::weigh(const Lane* lane, uint32_t item, double p, double scale) const {
  const bool known = lane && lane->reported();
  return weighed(items_->factor(item),
                 weight_of(spec_, std::min(p * (known ? lane->scale() : scale), 1e300), known ? lane->exponent() : spec_.exponent));
}

void Caches::update(Lane* lane, uint32_t item, double weight) {
  const double before = items_->value(item);
  if (!replaces()) {
    // What was drawn is drawn: only what must not be delivered any more goes.
    if (weight > 0) return;
    items_->set_value(item, 0);
    if (lane && items_->pins(item) > 0) {
      draws_.erase(&lane->queue, item, [this](uint32_t gone) { items_->unpin(gone); });
      lane->touch();
      settle(lane);
    }
    return;
  }
  if (!lane) return items_->set_value(item, weight);
  if (!spec_.fresh(items_->version(item), lane->newest)) return;  // a new priority does not make it fresh
  const bool arriving = !items_->published(item);
  const bool comparable = arriving || places_[item] < Raised::kAbsent || places_[item] == settled(lane);
  items_->set_updated(item, lane->open());
  set(item, lane, weight);
  // A weight from before the exponent changed says nothing of the difference: the next report does.
  if (!comparable) return;
  lane->change(before, weight);
  // Of an item whose rows are not here yet nothing is drawn but by its draws, once they are queued.
  if (arriving || (weight == before && places_[item] >= Raised::kAbsent)) return;
  if (!lane->raised) lane->raised = std::make_unique<Raised>(items_, places_, settled(lane));
  lane->raised->add(lane->open(), item, before);
}

void Caches::lose(Lane* lane, uint32_t item) {
  if (items_->pins(item) == 0) return items_->remove(item);
  if (lane->raised && items_->updated(item) != 0) {
    lane->raised->visit(item, lane->applied(), [lane](uint64_t number, double before, double after) { lane->unchange(number, before, after); });
    items_->set_updated(item, 0);
  }
  set(item, lane, 0);
}

bool Caches::expire(Lane* lane, uint32_t item) {
  const double weight = items_->value(item);
  if (!replaces()) {
    update(lane, item, 0);
    return weight > 0;
  }
  if (lane->raised && items_->updated(item) != 0) {
    lane->raised->visit(item, lane->applied(), [lane](uint64_t number, double before, double after) { lane->void_change(number, before, after); });
    items_->set_updated(item, 0);  // said once
  }
  if (!(weight > 0)) return false;
  set(item, lane, 0);
  lane->age(weight);
  return true;
}

std::string Caches::check(uint32_t* pins) const {
  uint64_t entries = 0;
  for (const auto& lane : lanes_->all()) {
    uint64_t queued = 0;
    size_t at = 0;
    bool known = true;
    draws_.each(lane->queue, [&](uint32_t item, uint32_t segment) {
      ++pins[item];
      ++queued;
      while (at < lane->segments.size() && lane->segments[at].id != segment) ++at;
      known = known && at < lane->segments.size();
    });
    entries += queued;
    if (queued != lane->queue.length)
      return "I7: " + lane->name + " has " + std::to_string(queued) + " draws, not " + std::to_string(lane->queue.length);
    if (!known) return "I7: a draw of " + lane->name + " is of no segment";
    if (lane->segments.empty() != (queued == 0)) return "I7: " + lane->name + " has segments without draws";
    if (lane->total() < 0 || (lane->population() == 0 && lane->total() != 0)) return "I8: " + lane->name + " weighs " + std::to_string(lane->total());
    if (!lane->raised) continue;
    if (std::string broken = lane->raised->check(pins); !broken.empty()) return broken + " (" + lane->name + ")";
  }
  if (entries != draws_.used()) return "I7: " + std::to_string(entries) + " entries queued, " + std::to_string(draws_.used()) + " in use";
  return "";
}

}  // namespace memsvc
