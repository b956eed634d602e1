#include "caches.h"

#include <algorithm>
#include <cmath>

#include "priority.h"

namespace memsvc {

double weight_of(const TableSpec& spec, double p, double exponent) {
  if (!(p > 0)) return 0;
  const bool uniform = spec.select == Select::kUniform || (spec.select == Select::kAll && spec.sampler == Sampler::kUniform);
  // Sums over a whole table stay finite, and what is positive stays so.
  return uniform ? 1 : std::clamp(std::pow(p, exponent), 1e-200, 1e200);
}

void Caches::place(Arena* arena, uint32_t entries, uint64_t holds) {
  draws_.place(arena, entries);
  places_ = arena->take<uint32_t>(items_->capacity());
  if (arena->mapped()) std::fill_n(places_, items_->capacity(), settled(nullptr));
  holds_ = holds;
  expect(kFirstStock);
}

Population Caches::population() const {
  if (replaces()) return {lanes_->total(), lanes_->population(), lanes_->min_weight()};
  uint64_t queued = 0;
  for (const auto& lane : lanes_->all()) queued += lane->queue.length;
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
  if (const double factor = items_->factor(item); spec_.decay < 1 && factor > 0) items_->set_factor(item, std::max(factor * spec_.decay, 1e-100));
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
  if (draws_.append(&lane->queue, item, weight, lane->segment())) return true;
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
  lane->tidy();
}

void Caches::drop_front(Lane* lane, uint64_t draws) {
  if (lane->queue.length == 0) return;
  const Queue before = lane->queue;
  const uint64_t many = std::min(draws, lane->queue.length);
  given_way_ += many;
  lane->fruitless -= std::min(lane->fruitless, many);
  for (uint64_t i = 0; i < many; ++i) draws_.pop(&lane->queue);
  draws_.commit(&lane->queue, before, [this](uint32_t item) { items_->unpin(item); });
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
  if (richest) drop_front(richest, 1);
  return richest;
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

const Segment& Caches::front(Touched* touched) const {
  const Lane& lane = *touched->lane;
  while (lane.segments[touched->segment].id != draws_.segment(lane.queue)) ++touched->segment;
  return lane.segments[touched->segment];
}

// Whether this place belongs to what learners have raised since the queue's front was drawn: with probability E / T, by what each item gained.
bool Caches::take_raised(Touched* touched, uint32_t* item, double* weight) {
  Lane* lane = touched->lane;
  if (!lane->raised || lane->raised->empty() || lane->queue.length == 0) return false;
  const Segment& segment = front(touched);
  Raised& raised = *lane->raised;
  raised.advance(segment.applied);
  const double gained = raised.excess();
  if (!(gained > 0)) return false;
  const double rest = std::max(segment.total - raised.deficit(), 0.0);
  const double mass = random_->uniform() * (gained + rest);
  if (mass >= gained) return false;
  *item = raised.find(mass);
  *weight = items_->value(*item);
  // Nothing new comes from an actor that has left: what remains of it lasts no longer than its queue.
  if (lane->left) draws_.pop(&lane->queue);
  return true;
}

// One draw of a lane. False when thinning used the queue up.
bool Caches::take(Touched* touched, uint32_t* item, double* weight) {
  Lane* lane = touched->lane;
  if (replaces() && take_raised(touched, item, weight)) return true;
  while (lane->queue.length > 0) {
    const Segment& segment = front(touched);
    const uint32_t next = draws_.item(lane->queue);
    const double now = replaces() ? items_->value(next) : 1;
    const double ratio = replaces() ? now / draws_.weight(lane->queue) : 1;
    draws_.pop(&lane->queue);
    if (now == 0 && places_[next] >= Raised::kAbsent) {
      // An item that the memory has lost, or that is too stale: others like it are part of T without the server knowing them, so the place is
      // decided anew, among all, instead of being the queue's.
      if (take_raised(touched, item, weight)) return true;
      continue;
    }
    // An unchanged weight, by far the most frequent case, needs no random number.
    if (ratio < 1 && !(random_->uniform() < ratio)) continue;
    touched->age_sum += static_cast<double>(lane->head().steps - std::min(segment.steps, lane->head().steps));
    ++touched->age_draws;
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
    const bool empty = lane->queue.length == 0;
    if (!(lane->total() > 0) && (replaces() || empty)) continue;
    if (!empty) active_.push_back(touched_.size());
    touched_.push_back({lane.get(), lane->queue, 0, 0, 0, 0, empty && !lane->left});
  }
  size_t place = 0;
  while (place < batch && !active_.empty()) {
    double sum = 0;
    for (const size_t i : active_) sum += mass(*touched_[i].lane);
    const size_t start = place;
    const double slice = sum / static_cast<double>(batch - start);
    size_t at = 0;
    double upto = mass(*touched_[active_[0]].lane);
    while (place < batch) {
      const double stratum = (static_cast<double>(place - start) + random_->uniform()) * slice;
      while (stratum >= upto && at + 1 < active_.size()) upto += mass(*touched_[active_[++at]].lane);
      Touched& chosen = touched_[active_[at]];
      if (take(&chosen, &items[place], &weights[place])) {
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
    draws_.rollback(&touched.lane->queue, touched.before);
    if (touched.lane->raised) touched.lane->raised->rollback();
  }
}

bool Caches::draw(size_t batch, uint32_t* items, double* weights) {
  if (batch > largest_) {
    largest_ = batch;
    expect(std::max<uint64_t>(batch, expected_));
  }
  const Random before = *random_;
  if (choose(batch, items, weights) < batch) {
    // Else a queue of draws that learners have cut, or that are of items no longer there, would be stock enough for ever.
    for (const Touched& touched : touched_) {
      if (touched.lane->queue.length == 0) touched.lane->fruitless = touched.before.length - touched.age_draws;
    }
    undo();
    *random_ = before;
    return false;
  }
  for (Touched& touched : touched_) {
    Lane* lane = touched.lane;
    lane->drawn += touched.drawn;
    lane->starved += touched.starved;
    lane->age_sum += touched.age_sum;
    lane->age_draws += touched.age_draws;
    if (lane->queue.length == touched.before.length) continue;
    lane->fruitless -= std::min(lane->fruitless, touched.before.length - lane->queue.length - touched.age_draws);
    draws_.commit(&lane->queue, touched.before, [this](uint32_t item) { items_->unpin(item); });
    settle(lane);
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
