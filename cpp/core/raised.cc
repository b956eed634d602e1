#include "raised.h"

#include <algorithm>
#include <cmath>

namespace memsvc {
namespace {

constexpr size_t kMostChanges = 4096;

}  // namespace

void Raised::Sum::add(double term) {
  const double sum = high + term;
  const double part = sum - high;
  low += (high - (sum - part)) + (term - part);
  high = sum;
}

void Raised::enter(uint32_t item, uint64_t at) {
  uint32_t place = static_cast<uint32_t>(slots_.size());
  if (free_.empty()) {
    slots_.emplace_back();
  } else {
    place = free_.back();
    free_.pop_back();
  }
  slots_[place] = {item, entry(at).before, at, at, 0, 0};
  places_[item] = place;
}

void Raised::lose(Slot* slot, double deficit) {
  if (deficit == slot->deficit) return;
  deficit_.add(-slot->deficit);
  deficit_.add(deficit);
  lost_ += static_cast<size_t>(deficit > 0) - static_cast<size_t>(slot->deficit > 0);
  slot->deficit = deficit;
  if (lost_ == 0) deficit_ = {};
}

void Raised::weigh(uint32_t place) {
  Slot& slot = slots_[place];
  const double gain = items_->value(slot.item) - slot.base;
  const double excess = std::max(gain, 0.0);
  if (excess != slot.excess) {
    slot.excess = excess;
    changed_.push_back(place);
    if (changed_.size() >= kMostChanges) flush();  // learners may update for hours what nobody draws
  }
  lose(&slot, std::max(-gain, 0.0));
}

void Raised::add(uint64_t number, uint32_t item, double before) {
  if (log_.size() >= kMost) drop_oldest();
  if (has(item)) {
    Slot& slot = slots_[places_[item]];
    // Reports contain all of a feedback or nothing: its last word counts.
    if (entry(slot.last).number == number) return weigh(places_[item]);
    entry(slot.last).next = static_cast<uint32_t>(end() - slot.last);
    slot.last = end();
  }
  log_.push_back({number, before, item, 0});
  items_->pin(item);
  if (!has(item)) enter(item, end() - 1);
  weigh(places_[item]);
}

void Raised::put(uint64_t number, uint32_t item, double before) {
  if (has(item)) {
    Slot& slot = slots_[places_[item]];
    entry(slot.last).next = static_cast<uint32_t>(end() - slot.last);
    slot.last = end();
  }
  log_.push_back({number, before, item, 0});
  items_->pin(item);
  if (!has(item)) enter(item, end() - 1);
}

void Raised::weigh_all() {
  for (const Entry& entry : log_) weigh(places_[entry.item]);
}

// The entry at the cursor is contained from here on.
void Raised::pass(uint64_t at) {
  const Entry& gone = entry(at);
  const uint32_t place = places_[gone.item];
  Slot& slot = slots_[place];
  if (gone.next > 0) {
    slot.first = at + gone.next;
    slot.base = entry(slot.first).before;
    return weigh(place);
  }
  if (slot.excess > 0) changed_.push_back(place);
  slot.excess = 0;
  lose(&slot, 0);
  places_[gone.item] = absent_;
  free_.push_back(place);
}

void Raised::advance(uint64_t applied) {
  if (cursor_ == begin_) deficit_before_ = deficit_;
  for (; cursor_ < end() && entry(cursor_).number <= applied; ++cursor_) pass(cursor_);
}

void Raised::commit() {
  for (; begin_ < cursor_; ++begin_) {
    items_->unpin(log_.front().item);
    log_.pop_front();
  }
}

void Raised::rollback() {
  if (cursor_ == begin_) return;
  while (cursor_ > begin_) {
    const Entry& back = entry(--cursor_);
    if (has(back.item)) {
      Slot& slot = slots_[places_[back.item]];
      slot.first = cursor_;
      slot.base = back.before;
    } else {
      enter(back.item, cursor_);
    }
    weigh(places_[back.item]);
  }
  deficit_ = deficit_before_;  // bit for bit
}

void Raised::drop_oldest() {
  pass(cursor_++);
  commit();
}

void Raised::clear() {
  while (!log_.empty()) drop_oldest();
}

void Raised::flush() {
  if (changed_.empty()) return;
  if (const uint32_t highest = *std::max_element(changed_.begin(), changed_.end()); !tree_ || highest >= tree_->capacity()) {
    tree_ = std::make_unique<SumTree>(std::max<size_t>(64, 2 * slots_.size()));
    changed_.resize(slots_.size());
    for (uint32_t place = 0; place < changed_.size(); ++place) changed_[place] = place;
  }
  weights_.clear();
  for (const uint32_t place : changed_) weights_.push_back(slots_[place].excess);
  tree_->set(changed_.data(), weights_.data(), changed_.size());
  changed_.clear();
}

double Raised::excess() {
  flush();
  return tree_ ? tree_->total() : 0;
}

std::string Raised::check(uint32_t* pins) const {
  if (cursor_ != begin_) return "R2: the cursor was left inside the log";
  std::vector<uint64_t> first(slots_.size()), last(slots_.size());
  std::vector<bool> found(slots_.size());
  uint64_t number = 0;
  for (uint64_t at = begin_; at < end(); ++at) {
    const Entry& one = entry(at);
    const std::string name = "entry " + std::to_string(at - begin_) + " of item " + std::to_string(one.item);
    ++pins[one.item];
    if (one.number < number) return "R1: the number of " + name;
    number = one.number;
    if (!has(one.item) || slots_[places_[one.item]].item != one.item) return "R2: " + name + " has no place";
    const uint32_t place = places_[one.item];
    if (!found[place]) {
      first[place] = at;
    } else if (last[place] + entry(last[place]).next != at) {
      return "R1: " + name + " is not linked";
    }
    found[place] = true;
    last[place] = at;
  }
  double deficit = 0;
  for (uint32_t place = 0; place < slots_.size(); ++place) {
    const Slot& slot = slots_[place];
    const std::string name = "item " + std::to_string(slot.item);
    if (slot.excess != 0 || slot.deficit != 0) {
      if (!found[place]) return "R3: a free place weighs something";
    }
    if (!found[place]) continue;
    if (slot.first != first[place] || slot.last != last[place] || slot.base != entry(slot.first).before) return "R2: the base of " + name;
    const double gain = items_->value(slot.item) - slot.base;
    if (slot.excess != std::max(gain, 0.0) || slot.deficit != std::max(-gain, 0.0)) return "R3: the gain of " + name;
    deficit += slot.deficit;
  }
  if (std::count(found.begin(), found.end(), true) + free_.size() != slots_.size()) return "R2: places are lost";
  if (!(std::abs(deficit - deficit_.value()) <= 1e-9 * deficit)) return "R3: the deficit is " + std::to_string(deficit_.value());
  if (!changed_.empty() || !tree_) return "";
  for (uint32_t place = 0; place < slots_.size() && place < tree_->capacity(); ++place) {
    if (tree_->weight(place) != slots_[place].excess) return "R3: the leaf of item " + std::to_string(slots_[place].item);
  }
  return "";
}

}  // namespace memsvc
