#include "view.h"

#include <algorithm>
#include <cmath>

namespace memsvc {
namespace {

constexpr uint64_t kAhead = 8;  // items that are fetched ahead

}  // namespace

View::View(const Schema& schema, const TableSpec& spec, Episodes& episodes)
    : spec_(spec),
      episodes_(episodes),
      placement_(spec),
      quantities_(schema, spec, episodes),
      weighs_(spec.select != Select::kAll),
      computes_(spec.select != Select::kUniform && (spec.source == Source::kReturn || spec.source == Source::kTd)),
      normalises_(spec.select != Select::kUniform && spec.source == Source::kReturn),
      items_(episodes.capacity()),
      times_(spec.decay < 1 ? episodes.capacity() : 0),
      tree_(weighs_ ? std::make_unique<SumTree>(std::min<uint64_t>(episodes.capacity(), 4096)) : nullptr),
      versions_(episodes.capacity()),
      numbers_(spec.kind == Kind::kSequence ? spec.length : 1) {}

View::Progress& View::progress(uint32_t id) {
  if (id >= progress_.size()) progress_.resize(std::max<size_t>(episodes_.ids(), id + 1));
  return progress_[id];
}

uint64_t View::item_from(const Episode& e, const Progress& at, uint64_t from) const {
  const uint64_t start = placement_.item_from(e, from);
  if (weighs_ || start == kNever || start < at.forced || placement_.final(e, start)) return start;
  return kNever;
}

void View::grown(uint32_t id) {
  const Episode& e = episodes_.episode(id);
  if (weighs_) {
    ++coming_;  // a step completes one window at most, and an end that completes one leaves no tail
    return;
  }
  // A new step may be in the slot of a spent one.
  if (!e.ended) items_[e.slot(e.count - 1)].spent = false;
  Progress& at = progress(id);
  for (uint64_t s = item_from(e, at, at.queued); s != kNever; s = item_from(e, at, s + 1)) {
    const uint32_t slot = e.slot(s);
    if (!fresh(slot)) items_[slot].spent = true;
    if (!items_[slot].spent) queue_.push_back(slot);
    at.queued = s + 1;
    ++coming_;
  }
}

void View::ended(uint32_t id) {
  if (placement_.too_short(episodes_.episode(id))) ++short_;
}

double View::step_number(const Episode& e, uint64_t t) const {
  if (spec_.source == Source::kReturn) return std::abs(quantities_.advantage(e.slot(t)));
  if (spec_.source == Source::kTd) return quantities_.td_error(e, t);
  return episodes_.step(e.slot(t)).priority;
}

double View::priority(const Episode& e, uint64_t start) const {
  double p;
  if (spec_.kind == Kind::kSequence) {
    const uint32_t span = placement_.span(e, start);
    for (uint32_t i = 0; i < span; ++i) numbers_[i] = step_number(e, start + i);
    p = mix(numbers_.data(), span, spec_.burn_in, spec_.eta);
  } else {
    p = step_number(e, start);
  }
  // Rewards or values that are not numbers make an item that is never drawn, instead of a sum that is not one.
  return valid_priority(p) ? p : 0;
}

void View::set_priority(uint32_t slot, double p) {
  items_[slot].p = p;
  if (spec_.source == Source::kMax && spec_.select != Select::kUniform) largest_.push(p, slot);
  touch(slot);
}

void View::make(const Episode& e, uint64_t start) {
  const uint32_t slot = e.slot(start);
  double p = 1;
  if (spec_.select != Select::kUniform) {
    p = spec_.source == Source::kMax ? largest_.top([this](uint32_t s) { return living(s); }) : priority(e, start);
  }
  items_[slot].made = true;
  if (spec_.decay < 1) times_[slot] = 0;
  ++made_;
  ++inserted_;
  judge(slot);
  set_priority(slot, p);
}

void View::recompute(const Episode& e, const Progress& at, uint64_t changed) {
  for (uint64_t s = item_from(e, at, placement_.reaching(changed)); s < at.next; s = item_from(e, at, s + 1)) {
    const uint32_t slot = e.slot(s);
    if (items_[slot].learned) continue;
    const double p = priority(e, s);
    if (p != items_[slot].p) set_priority(slot, p);
  }
}

void View::look(uint32_t id) {
  const Episode& e = episodes_.episode(id);
  Progress& at = progress(id);
  const uint64_t T = e.steps();
  uint64_t changed = T;  // the oldest step whose number may be new
  if (quantities_.keeps_returns()) {
    changed = quantities_.update_returns(e, at.known);
    at.known = T;
  }
  // A td error looks n steps ahead, so those of the last n - 1 steps seen were not the last word; a termination changes no others.
  if (spec_.source == Source::kTd) changed = at.seen >= spec_.n_step ? at.seen - spec_.n_step + 1 : 0;
  at.seen = T;
  if (computes_) recompute(e, at, changed);
  if (spec_.episode_weights && e.ended && e.weight != 1 && !at.weighed) {
    for (uint64_t s = item_from(e, at, 0); s < at.next; s = item_from(e, at, s + 1)) touch(e.slot(s));
    at.weighed = true;
  }
  for (uint64_t s = item_from(e, at, at.next); s != kNever; s = item_from(e, at, s + 1)) {
    make(e, s);
    at.next = s + 1;
  }
  if (normalises_ && e.ended && !at.counted) {
    for (uint64_t t = e.first; t < T; ++t) normaliser_.add(quantities_.advantage(e.slot(t)));
    at.counted = true;
  }
}

uint64_t View::unsent_from(const Episode& e, Progress* at) {
  uint64_t start = placement_.item_from(e, at->sent);
  // What is too stale by now is spent for good: the steps under it may go before it would have been final.
  for (; start != kNever && (items_[e.slot(start)].spent || !fresh(e.slot(start))); start = placement_.item_from(e, at->sent)) {
    items_[e.slot(start)].spent = true;
    at->sent = start + 1;
  }
  return start;
}

bool View::unsent_in(uint32_t id, bool whole) {
  if (weighs_) return false;
  const Episode& e = episodes_.episode(id);
  Progress& at = progress(id);
  const uint64_t start = unsent_from(e, &at);
  if (start == kNever || (!whole && start >= placement_.whole_from(e.first + 1))) return false;
  if (item_from(e, at, start) != start) {
    at.forced = std::max(start + 1, e.first + e.present() / 2);
    grown(id);
    look(id);
  }
  return true;
}

bool View::spares_first(uint32_t id) {
  if (weighs_ || id >= progress_.size()) return false;
  const Episode& e = episodes_.episode(id);
  const uint64_t start = std::min(unsent_from(e, &progress_[id]), e.steps());
  return start >= placement_.whole_from(e.first + 1) + placement_.tail_reach();
}

bool View::unseen_at_first(uint32_t id) const {
  if (id >= progress_.size()) return true;
  const Episode& e = episodes_.episode(id);
  const Progress& at = progress_[id];
  return item_from(e, at, at.next) < placement_.whole_from(e.first + 1);
}

void View::lose_first(uint32_t id) {
  const Episode& e = episodes_.episode(id);
  Progress& at = progress(id);
  if (normalises_) normaliser_.add(quantities_.advantage(e.slot(e.first)));
  const uint64_t end = std::min(at.next, placement_.whole_from(e.first + 1));
  for (uint64_t s = item_from(e, at, 0); s < end; s = item_from(e, at, s + 1)) unmake(e, s, true);
}

void View::lose(uint32_t id) {
  const Episode& e = episodes_.episode(id);
  Progress& at = progress(id);
  for (uint64_t s = item_from(e, at, 0); s < at.next; s = item_from(e, at, s + 1)) {
    if (s + kAhead < e.count) prefetch(e.slot(s + kAhead));
    unmake(e, s, false);
  }
  at = Progress();
}

void View::unmake(const Episode& e, uint64_t start, bool rows_stay) {
  Item& item = items_[e.slot(start)];
  if (item.held) {
    // The server keeps its copy; what is not counted here is at worst sent twice.
    if (rows_stay) release(spec_, episodes_, e, e.key(start), item.span, item.head);
    --held_;
  }
  if (item.stale) {
    --stale_;
  } else if (spec_.max_staleness >= 0) {
    versions_.remove(e.slot(start), episodes_.step(e.slot(start)).version);
  }
  item.made = item.learned = item.held = item.asked = item.stale = item.spent = false;
  --made_;
  touch(e.slot(start));
}

}  // namespace memsvc
