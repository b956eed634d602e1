// The half of Caches that faces learners: an actor by weight, then one of its items, from the queue or from what was raised beside it.
#include <algorithm>

#include "caches.h"

namespace memsvc {

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
  const Lanes::Sums& sums = lanes_->sums();
  touched_.clear();
  active_.clear();
  empty_.clear();
  touches_.assign(sums.total.size(), kNone);
  for (size_t i = 0; i < sums.total.size(); ++i) {
    const bool weighs = sums.total[i] > 0;
    if (sums.queued[i] > 0 && (weighs || !replaces())) active_.push_back({i, replaces() ? sums.total[i] : static_cast<double>(sums.queued[i])});
    if (sums.queued[i] == 0 && weighs) empty_.push_back(i);
  }
  size_t place = 0;
  while (place < batch && !active_.empty()) {
    double sum = 0;
    for (const Active& one : active_) sum += one.mass;
    const size_t start = place;
    const double slice = sum / static_cast<double>(batch - start);
    size_t at = 0;
    double upto = active_[0].mass;
    while (place < batch) {
      const double stratum = (static_cast<double>(place - start) + random_->uniform()) * slice;
      while (stratum >= upto && at + 1 < active_.size()) upto += active_[++at].mass;
      Touched& chosen = touch(active_[at].lane);
      if (take(&chosen, &items[place], &weights[place])) {
        ++chosen.drawn;
        ++place;
      }
      if (!replaces()) active_[at].mass = static_cast<double>(chosen.lane->queue.length);
      if (chosen.lane->queue.length == 0) {
        if (place < batch) chosen.starved = !chosen.lane->left;
        active_.erase(active_.begin() + static_cast<std::ptrdiff_t>(at));
        break;
      }
    }
  }
  return place;
}

Caches::Touched& Caches::touch(size_t lane) {
  if (touches_[lane] == kNone) {
    touches_[lane] = static_cast<uint32_t>(touched_.size());
    Lane* of = lanes_->all()[lane].get();
    touched_.push_back({of, of->queue, 0, 0, 0, 0, false});
  }
  return touched_[touches_[lane]];
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
    for (const size_t lane : empty_) lanes_->all()[lane]->fruitless = 0;
    undo();
    *random_ = before;
    return false;
  }
  for (const size_t i : empty_) {
    Lane* lane = lanes_->all()[i].get();
    lane->starved += !lane->left;
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
    lane->touch();
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

}  // namespace memsvc
