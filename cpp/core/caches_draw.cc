// The half of Caches that faces learners: an actor by weight, then one of its items, from the queue or from what was raised beside it.
#include <algorithm>

#include "caches.h"

namespace memsvc {
namespace {

constexpr uint64_t kTogether = 1024;  // draws whose memory is fetched together: about half of a second-level cache

}  // namespace

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
    const uint32_t next = draws_.item(lane->queue);
    const double now = replaces() ? items_->value(next) : 1;
    const double ratio = replaces() ? now / draws_.weight(lane->queue) : 1;
    const uint64_t age = draws_.age(lane->queue, lane->steps);
    draws_.pop(&lane->queue);
    if (now == 0 && places_[next] >= Raised::kAbsent) {
      // An item that the memory has lost, or that is too stale: others like it are part of T without the server knowing them, so the place is
      // decided anew, among all, instead of being the queue's.
      if (take_raised(touched, item, weight)) return true;
      continue;
    }
    // An unchanged weight, by far the most frequent case, needs no random number.
    if (ratio < 1 && !(random_->uniform() < ratio)) continue;
    touched->age_sum += age;
    ++touched->waiting;
    *item = next;
    *weight = now;
    return true;
  }
  return false;
}

// Fills places until the queues are used up; returns how many. Strata are equal slices of the lanes' weight. What the queues of some lanes were too
// short for is shared out anew over the others.
size_t Caches::choose(size_t batch, uint32_t* items, double* weights) {
  const Lanes::Sums& sums = lanes_->sums();
  const size_t lanes = sums.total.size();
  touched_.clear();
  empty_.clear();
  touches_.assign(lanes, kNone);
  masses_.resize(lanes);
  for (size_t i = 0; i < lanes; ++i) {
    const double mass = replaces() ? sums.total[i] : static_cast<double>(sums.queued[i]);
    masses_[i] = sums.queued[i] > 0 ? mass : 0;
    if (sums.queued[i] == 0 && sums.total[i] > 0) empty_.push_back(i);
  }
  size_t place = 0;
  while (place < batch && share_out(batch - place)) {
    place = take_runs(place, items, weights);
    if (place == batch) break;
    for (Touched& touched : touched_) {
      if (touched.lane->queue.length == 0) touched.starved = !touched.lane->left;
    }
  }
  return place;
}

// The lane of each place, by the masses: ascending. All lanes are known before the first draw is taken, so that memory can be fetched ahead.
bool Caches::share_out(size_t places) {
  runs_.clear();
  double sum = 0;
  size_t last = 0;
  upto_.resize(masses_.size());
  for (size_t i = 0; i < masses_.size(); ++i) {
    upto_[i] = sum += masses_[i];
    last = masses_[i] > 0 ? i : last;
  }
  if (!(sum > 0)) return false;
  const double slice = sum / static_cast<double>(places);
  const double* const upto = upto_.data();
  Run run{0, 0};
  for (size_t place = 0; place < places; ++place) {
    const double stratum = (static_cast<double>(place) + random_->uniform()) * slice;
    size_t at = run.lane;
    while (stratum >= upto[at] && at < last) ++at;
    if (at != run.lane) {
      if (run.places > 0) runs_.push_back(run);
      run = {at, 0};
      lanes_->all()[at]->prefetch();
    }
    ++run.places;
  }
  runs_.push_back(run);
  return true;
}

// The draws of all runs, from `place` on; returns the place behind the last one. A lane whose queue ends leaves places to others.
size_t Caches::take_runs(size_t place, uint32_t* items, double* weights) {
  size_t fetched = 0;
  for (size_t at = 0; at < runs_.size(); ++at) {
    if (at == fetched) fetched = fetch_runs(at);
    const Run& run = runs_[at];
    Touched& chosen = touch(run.lane);
    for (uint64_t taken = 0; taken < run.places && take(&chosen, &items[place], &weights[place]); ++taken) {
      ++chosen.drawn;
      ++place;
    }
    const uint64_t length = chosen.lane->queue.length;
    if (length == 0 || !replaces()) masses_[run.lane] = static_cast<double>(length);
  }
  return place;
}

// Fetches what the draws of some runs read, each step for all of them what the next one needs: the lanes themselves were fetched when they were
// chosen. Returns the run behind them.
size_t Caches::fetch_runs(size_t begin) const {
  size_t end = begin;
  for (uint64_t places = 0; end < runs_.size() && places < kTogether; places += runs_[end++].places) {
    const Lane& lane = *lanes_->all()[runs_[end].lane];
    draws_.prefetch(lane.queue.front);
    if (lane.raised) lane.raised->prefetch();
  }
  for (size_t at = begin; at < end; ++at) {
    uint32_t entry = lanes_->all()[runs_[at].lane]->queue.front;
    for (uint64_t i = 0; i < std::min<uint64_t>(runs_[at].places, kTogether) && entry != kNone; ++i) {
      items_->prefetch_draw(draws_.item_of(entry));
      entry = draws_.behind(entry);
    }
  }
  return end;
}

Caches::Touched& Caches::touch(size_t lane) {
  if (touches_[lane] == kNone) {
    touches_[lane] = static_cast<uint32_t>(touched_.size());
    Lane* of = lanes_->all()[lane].get();
    touched_.push_back({of, lane, of->queue, false, 0, 0, 0, 0});
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
      if (touched.lane->queue.length == 0) touched.lane->fruitless = touched.before.length - touched.waiting;
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
    if (touched.starved) ++lane->starved;
    lane->age_sum += static_cast<double>(touched.age_sum);
    lane->age_draws += touched.waiting;
    if (lane->queue.length == touched.before.length) continue;
    lane->fruitless -= std::min(lane->fruitless, touched.before.length - lane->queue.length - touched.waiting);
    draws_.commit(&lane->queue, touched.before, [this](uint32_t item) { items_->unpin(item); });
    lanes_->recount(touched.place, lane->queue.length);
    if (lane->raised || lane->queue.length == 0) settle(lane);  // else the next report does
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
