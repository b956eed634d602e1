// What learners have changed since a lane's queued draws were drawn (DEFINITIONS 7, stage two). Draws of a segment stand for the weights that its
// report had; items updated since by feedback that the report does not contain weigh w_now instead of their base, the weight before the first of
// these updates. What they gained is drawn from here, beside the queue; what they lost is thinned out of it.
// Not thread-safe: Replay's lock guards it.
//
//   R1 every item of the log is pinned once for each of its entries; entries of an item link forward, numbers never fall
//   R2 an item has a place exactly if it has an entry at the cursor or behind; its base is the `before` of the first of these
//   R3 leaves are max(0, w_now - base); deficit() is the sum of max(0, base - w_now)
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "fetch.h"
#include "items.h"
#include "tree.h"

namespace memsvc {

class Raised {
 public:
  // In places[item]: from here on the item has no place.
  static constexpr uint32_t kAbsent = 0x80000000;
  // Entries; beyond, the oldest are forgotten: their items count as unchanged until the actor's next report.
  static constexpr size_t kMost = size_t{1} << 18;

  // `places`, one an item of the table, are shared by its lanes, each of which owns other items; what is forgotten becomes `absent` (>= kAbsent).
  Raised(Items* items, uint32_t* places, uint32_t absent) : items_(items), places_(places), absent_(absent) {}

  bool empty() const { return log_.empty(); }
  size_t size() const { return log_.size(); }
  size_t bytes() const { return log_.size() * sizeof(Entry) + slots_.size() * sizeof(Slot); }
  bool has(uint32_t item) const { return places_[item] < kAbsent; }

  // What is read of it for every draw of its lane.
  MEMSVC_FETCHES void prefetch() const {
    const char* const begin = reinterpret_cast<const char*>(this);
    for (size_t at = 0; at < sizeof(Raised); at += 64) __builtin_prefetch(begin + at, 1);
  }
  // What add() of this item reads.
  MEMSVC_FETCHES void prefetch(uint32_t item) const {
    if (has(item)) __builtin_prefetch(&slots_[places_[item]], 1);
  }
  // A learner's update with feedback `number` has changed the weight of a held item from `before` to what it is now.
  void add(uint64_t number, uint32_t item, double before);
  // The item's w_now has changed otherwise.
  void follow(uint32_t item) {
    if (has(item)) weigh(places_[item]);
  }
  // Calls visit(number, before, after) for the item's updates beyond feedback `applied`.
  template <typename Visit>
  void visit(uint32_t item, uint64_t applied, const Visit& visit) const {
    if (!has(item)) return;
    for (uint64_t at = slots_[places_[item]].first;; at += entry(at).next) {
      const Entry& now = entry(at);
      const double after = now.next ? entry(at + now.next).before : items_->value(item);
      if (now.number > applied) visit(now.number, now.before, after);
      if (now.next == 0) return;
    }
  }

  // From here on, relative to draws whose report contains feedbacks up to `applied`; rollback() takes it back, commit() makes it last.
  void advance(uint64_t applied);
  void commit();
  void rollback();
  // Not between advance() and commit().
  void drop_oldest();
  void clear();

  double excess();                                     // sum of what items gained
  double deficit() const { return deficit_.value(); }  // sum of what items lost
  // An item by what it gained: where the running sum passes `mass` in [0, excess()). excess() > 0.
  uint32_t find(double mass) { return slots_[tree_->find(mass)].item; }

  // For Saved: the log, visit(number, item, before); and a log that is empty takes it entry by entry, w_now of its items is weighed at the end.
  template <typename Visit>
  void each(const Visit& visit) const {
    for (const Entry& entry : log_) visit(entry.number, entry.item, entry.before);
  }
  void put(uint64_t number, uint32_t item, double before);
  void weigh_all();

  // R1 (adds one to pins[item] for every entry), R2 and R3; what is broken, or "".
  std::string check(uint32_t* pins) const;

 private:
  struct Entry {
    uint64_t number;
    double before;
    uint32_t item;
    uint32_t next;  // distance to the item's next entry, 0 for none
  };
  struct Slot {
    uint32_t item;
    double base;
    uint64_t first, last;  // entries
    double excess, deficit;
  };
  // A sum that terms enter and leave: with the rounding errors beside it, what is left at the end is no residue of the large ones.
  struct Sum {
    double high = 0, low = 0;
    void add(double term);
    double value() const { return high + low; }
  };

  uint64_t end() const { return begin_ + log_.size(); }
  Entry& entry(uint64_t at) { return log_[at - begin_]; }
  const Entry& entry(uint64_t at) const { return log_[at - begin_]; }
  void enter(uint32_t item, uint64_t at);
  void weigh(uint32_t place);
  void lose(Slot* slot, double deficit);
  void pass(uint64_t at);
  void flush();

  Items* items_;
  uint32_t* places_;
  const uint32_t absent_;
  std::deque<Entry> log_;
  uint64_t begin_ = 0;   // number of the log's first entry
  uint64_t cursor_ = 0;  // entries before it are contained in the segment under way
  std::vector<Slot> slots_;
  std::vector<uint32_t> free_;  // last in, first out: rollback() finds every item's place again
  std::vector<uint32_t> changed_;
  std::vector<double> weights_;
  std::unique_ptr<SumTree> tree_;  // once something has gained
  Sum deficit_, deficit_before_;
  size_t lost_ = 0;  // places with a deficit
};

}  // namespace memsvc
