// The items of one table: windows over rows of the step store, as arrays of fields (a table of 168-byte steps must not pay for padding).
// Tables with caches keep the items that no queued draw names in a list by last use; tables with select = "all" keep all in a ring by age.
// Not thread-safe: Replay's lock guards it.
//
//   I3 a row has one reference for every item whose window needs it (and one for every batch under way that reads it)
//   I4 every item is found under its key, which is its first row's key plus head; the index has no other entries
//   I5 all rows of every item's window are held
//   I6 an item is in the list exactly once, or pinned by one queued draw or more (a push under way pins too); free items are in neither
#pragma once

#include <cstdint>
#include <string>

#include "cache.h"
#include "index.h"
#include "store.h"
#include "window.h"

namespace memsvc {

class Items {
 public:
  explicit Items(const TableSpec& spec) : spec_(&spec), ring_(spec.select == Select::kAll) {}

  // Room for `capacity` items over `store`, which stays where it is. An unmapped arena is only counted.
  void place(Arena* arena, Store* store, uint32_t capacity);

  uint32_t capacity() const { return capacity_; }
  uint32_t count() const { return count_; }
  uint32_t free() const { return capacity_ - count_; }
  // Rows that the items' windows need, counted once an item: this table's share of the store.
  uint64_t window_rows() const { return window_rows_; }

  uint32_t find(uint64_t key) const {
    return index_.find(key, [this](uint32_t item) { return this->key(item); });
  }
  void prefetch(uint64_t key) const { index_.prefetch(key); }
  void prefetch_item(uint32_t item) const;

  bool live(uint32_t item) const { return first_[item] != kNone; }
  uint64_t key(uint32_t item) const { return store_->key(first_[item]) + head(item); }
  uint32_t first(uint32_t item) const { return first_[item]; }
  uint32_t span(uint32_t item) const { return span_ ? span_[item] : 1; }
  uint16_t head(uint32_t item) const { return head_ ? head_[item] : 0; }
  int64_t version(uint32_t item) const { return version_[item]; }
  const uint8_t* made(uint32_t item) const { return made_ + item * spec_->made_bytes; }
  Window window(uint32_t item) const { return window_of(*spec_, key(item), span(item), head(item)); }
  // Slots of the window's rows in the order of their keys, kNone where one is not held; returns how many. `slots` has room for them.
  uint32_t rows(const Window& window, uint32_t first_slot, uint32_t* slots) const;

  // w_now of a cache's item; the priority p of a union's.
  double value(uint32_t item) const { return value_[item]; }
  void set_value(uint32_t item, double value) { value_[item] = value; }
  // Number (modulo 2^32) of the last learners' feedback about a cache's item, 0 for none.
  uint32_t updated(uint32_t item) const { return updated_[item]; }
  void set_updated(uint32_t item, uint64_t number) { updated_[item] = static_cast<uint32_t>(number); }

  // A new item, pinned once; its rows get a reference each. All rows held, the key not among the items, free() > 0.
  uint32_t add(const ItemRecord& record, const uint8_t* made, const uint32_t* slots, uint32_t rows, double value);
  // Forgets an item that nothing pins; rows that nobody else needs are freed. In a ring only oldest() may go.
  void remove(uint32_t item);
  void pin(uint32_t item);
  // Without pins a cache's item becomes the most recently used of the list.
  void unpin(uint32_t item);
  // False while the push that brings a union's item is under way: its rows may not have been copied yet.
  bool published(uint32_t item) const { return !ring_ || !(pins_[item / 64] >> (item % 64) & 1); }
  // Draws (and pushes under way) that pin a cache's item.
  uint32_t pins(uint32_t item) const { return next_[item] == kPinned ? prev_[item] : 0; }
  // What to evict first: the least recently used, or the oldest; kNone when every item is pinned (the oldest is, in a ring).
  uint32_t oldest() const;

  // I4, I5 and I6; adds one to needs[slot] for every window that needs it (I3). The first broken one, or "".
  std::string check(uint32_t* needs) const;

 private:
  static constexpr uint32_t kPinned = 0xFFFFFFFE;  // in next_: prev_ counts pins instead of linking
  static constexpr uint32_t kFree = 0xFFFFFFFD;    // in prev_: next_ links free items

  void link(uint32_t item);
  void unlink(uint32_t item);

  const TableSpec* spec_;
  const bool ring_;
  Store* store_ = nullptr;
  Index index_;
  uint32_t* first_ = nullptr;
  uint32_t* span_ = nullptr;
  uint16_t* head_ = nullptr;
  int64_t* version_ = nullptr;
  double* value_ = nullptr;
  uint8_t* made_ = nullptr;
  uint32_t* updated_ = nullptr;
  uint32_t* prev_ = nullptr;  // lists only
  uint32_t* next_ = nullptr;  // lists only
  uint64_t* pins_ = nullptr;  // rings only: a bit an item
  uint32_t capacity_ = 0;
  uint32_t count_ = 0;
  uint32_t begin_ = kNone;  // list: least recently used; ring: place of the oldest
  uint32_t end_ = kNone;    // list: most recently used
  uint32_t free_ = kNone;   // list
  uint64_t window_rows_ = 0;
};

}  // namespace memsvc
