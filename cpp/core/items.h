// The items of one table: windows over rows of the step store, as arrays of fields (a table of 168-byte steps must not pay for padding).
// Tables with caches keep the items that no queued draw names in a list by last use; tables with select = "all" list all by arrival.
// Where a table can have as many items as the store has rows, an item's place is the slot of the row that it begins with: neither an index of its
// own nor a list of free places is needed. Not thread-safe: Replay's lock guards it.
//
//   I3 a row has one reference for every item whose window needs it (and one for every batch under way that reads it)
//   I4 every item is found under its key, which is its own row's; an index of the table's own has no other entries
//   I5 all rows of every item's window are held
//   I6 an item is in the list exactly once, or pinned by one queued draw or more (a push under way pins too), or, of a union, set aside: drawn as
//      often as it may, and not all of that confirmed; free items are in none
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cache.h"
#include "fetch.h"
#include "index.h"
#include "store.h"
#include "wide.h"
#include "window.h"

namespace memsvc {

class Items {
 public:
  explicit Items(const TableSpec& spec) : spec_(&spec), whole_(spec.select == Select::kAll) {}

  // Room for `capacity` items over `store`, which stays where it is. An unmapped arena is only counted.
  void place(Arena* arena, Store* store, uint32_t capacity);

  uint32_t capacity() const { return most_; }
  // Every item's number is below this.
  uint32_t places() const { return places_; }
  uint32_t count() const { return count_; }
  uint32_t free() const { return most_ - count_; }
  // Rows that the items' windows need, counted once an item: this table's share of the store.
  uint64_t window_rows() const { return window_rows_; }

  uint32_t find(uint64_t key) const {
    if (own_) return index_.find(key, [this](uint32_t item) { return this->key(item); });
    const uint32_t item = store_->find(key);
    return item != kNone && live(item) ? item : kNone;
  }
  MEMSVC_FETCHES void prefetch(uint64_t key) const { own_ ? index_.prefetch(key) : store_->prefetch(key); }
  // Finds many keys: each step fetches what the next one, and in the end find(), will read.
  uint32_t guess(uint64_t key) const {
    const uint32_t item = own_ ? index_.guess(key) : store_->guess(key);
    if (item != kNone) prefetch_item(item);
    return item;
  }
  MEMSVC_FETCHES void prefetch_guess(uint32_t item) const {
    if (item != kNone && own_) store_->prefetch_slot(own_[item]);
  }
  void prefetch_item(uint32_t item) const;
  // The same without its value, which a batch does not read.
  void prefetch_window(uint32_t item) const;
  // What pin(), unpin() and an update write.
  MEMSVC_FETCHES void prefetch_links(uint32_t item) const {
    __builtin_prefetch(&prev_[item], 1);
    __builtin_prefetch(&next_[item], 1);
    if (updated_) __builtin_prefetch(&updated_[item], 1);
  }

  // What a cache's draw reads and unpins.
  MEMSVC_FETCHES void prefetch_draw(uint32_t item) const {
    __builtin_prefetch(&value_[item]);
    __builtin_prefetch(&prev_[item], 1);
    __builtin_prefetch(&next_[item], 1);
  }

  bool live(uint32_t item) const { return prev_[item] != kFree; }
  uint64_t key(uint32_t item) const { return store_->key(own(item)); }
  // The slot of the window's first row: `head` rows before the item's own, and mostly as many slots.
  uint32_t first(uint32_t item) const {
    const uint32_t slot = own(item), head = this->head(item);
    return head == 0 ? slot : store_->find(store_->key(slot) - head, slot > head ? slot - head - 1 : kNone);
  }
  uint32_t span(uint32_t item) const { return span_ ? span_[item] : 1; }
  uint16_t head(uint32_t item) const { return head_ ? head_[item] : 0; }
  int64_t version(uint32_t item) const { return versions_.number(version_[item]); }
  const uint8_t* made(uint32_t item) const { return made_ + item * spec_->made_bytes; }
  Window window(uint32_t item) const { return window_of(*spec_, key(item), span(item), head(item)); }
  // Slots of the window's rows in the order of their keys, kNone where one is not held; returns how many. `slots` has room for them.
  uint32_t rows(const Window& window, uint32_t first_slot, uint32_t* slots) const;

  // What the weight is multiplied by (TableSpec::factors).
  double factor(uint32_t item) const { return factor_ ? factor_[item] : 1; }
  void set_factor(uint32_t item, double factor) { factor_[item] = factor; }
  // Of its stream, modulo 2^16. Only with per_actor_episodes.
  uint16_t episode(uint32_t item) const { return episode_ ? episode_[item] : 0; }
  // How often a union's item was drawn, and how many of these draws no learner has confirmed. Only with max_times_sampled.
  uint16_t times(uint32_t item) const { return times_[item]; }
  uint16_t flying(uint32_t item) const { return flying_[item]; }
  void count(uint32_t item, int times, int flying) {
    times_[item] = static_cast<uint16_t>(times_[item] + times);
    flying_[item] = static_cast<uint16_t>(flying_[item] + flying);
  }

  // w_now of a cache's item; the priority p of a union's.
  double value(uint32_t item) const { return value_[item]; }
  void set_value(uint32_t item, double value) { value_[item] = value; }
  // Number (modulo 2^32) of the last learners' feedback about a cache's item, 0 for none.
  uint32_t updated(uint32_t item) const { return updated_ ? updated_[item] : 0; }
  void set_updated(uint32_t item, uint64_t number) { updated_[item] = static_cast<uint32_t>(number); }

  // A new item, not published, and of a cache pinned once; its rows get a reference each. All rows held, the key not among the items, free() > 0.
  uint32_t add(const ItemRecord& record, const uint8_t* made, double factor, const uint32_t* slots, uint32_t rows, double value);
  // Forgets an item that nothing pins; rows that nobody else needs are freed.
  void remove(uint32_t item);
  // A cache's item: one draw (or push) more, or less, needs it. Without pins it becomes the most recently used of the list.
  void pin(uint32_t item);
  void unpin(uint32_t item);
  // False while the push that brings an item is under way: its rows may not have been copied yet.
  bool published(uint32_t item) const { return !(arriving_[item / 64] >> (item % 64) & 1); }
  void publish(uint32_t item) { arriving_[item / 64] &= ~(uint64_t{1} << (item % 64)); }
  // Draws (and pushes under way) that pin a cache's item.
  uint32_t pins(uint32_t item) const { return next_[item] == kPinned ? prev_[item] : 0; }
  // What to evict first: the least recently used, or the oldest; kNone when every item is pinned.
  uint32_t oldest() const;
  // A union's list by arrival: its ends and neighbours, kNone past them. Items that a push under way brings are in it.
  uint32_t first_arrived() const { return begin_; }
  uint32_t last_arrived() const { return end_; }
  uint32_t after(uint32_t item) const { return next_[item]; }
  uint32_t before(uint32_t item) const { return prev_[item]; }
  // Takes a union's item out of the list, and back in at its place by arrival. Only with max_times_sampled.
  void set_aside(uint32_t item);
  void bring_back(uint32_t item);
  bool aside(uint32_t item) const { return whole_ && next_[item] == kPinned; }

  // For Saved: items are below this; O(places that are free at the end). Room for a copy of so many places whose keys `store` says; the copy, which
  // answers as the original for them, but for find(); and all published items, those that would be evicted first at the start.
  uint32_t end() const;
  void mirror(const Items& of, Store* store, Arena* arena, uint32_t places);
  void copy(const Items& of, uint32_t places);
  std::vector<uint32_t> in_order() const;

  // I4, I5 and I6; adds one to needs[slot] for every window that needs it (I3). The first broken one, or "".
  std::string check(uint32_t* needs) const;

 private:
  static constexpr uint32_t kPinned = 0xFFFFFFFE;  // in next_: not in the list; of a cache's item prev_ counts the pins
  static constexpr uint32_t kFree = 0xFFFFFFFD;    // in prev_: no item is here; next_ links such places, where items have slots of their own

  void take(Arena* arena, uint32_t capacity);
  // The slot of the row that the item begins with.
  uint32_t own(uint32_t item) const { return own_ ? own_[item] : item; }
  void link(uint32_t item, uint32_t after);
  void unlink(uint32_t item);

  const TableSpec* spec_;
  const bool whole_;
  Store* store_ = nullptr;
  Index index_;              // with own_
  uint32_t* own_ = nullptr;  // nullptr: an item's place is its own row's slot
  uint32_t* span_ = nullptr;
  uint16_t* head_ = nullptr;
  uint32_t* version_ = nullptr;  // codes of versions_
  Wide versions_;
  double* value_ = nullptr;
  uint8_t* made_ = nullptr;
  uint32_t* updated_ = nullptr;
  uint32_t* prev_ = nullptr;
  uint32_t* next_ = nullptr;
  uint64_t* arriving_ = nullptr;  // a bit an item
  double* factor_ = nullptr;
  uint16_t* episode_ = nullptr;
  uint16_t* times_ = nullptr;
  uint16_t* flying_ = nullptr;
  uint64_t* arrival_ = nullptr;  // number by arrival: with max_times_sampled
  uint32_t most_ = 0;
  uint32_t places_ = 0;
  uint32_t count_ = 0;
  uint32_t begin_ = kNone;  // least recently used, or the oldest
  uint32_t end_ = kNone;    // most recently used, or the newest
  uint32_t free_ = kNone;   // with own_
  uint64_t arrivals_ = 0;
  uint64_t window_rows_ = 0;
};

}  // namespace memsvc
