// The step store: single rows in preallocated slots, found by step key, counted by reference, freed one by one in any order.
// Slots are handed out next-fit in runs, so the rows of a window normally lie one behind the other. Not thread-safe: Replay's lock guards it;
// the bytes of a row that somebody holds may be read, and those of a row just taken written, without the lock.
//
//   I1 a slot is free (its bit 0, no references, no key), or used (its bit 1, at least one reference, found under its key)
//   I2 the index has one entry a used slot; used + free = capacity
#pragma once

#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <unordered_map>

#include "arena.h"
#include "fetch.h"
#include "index.h"

namespace memsvc {

class Store {
 public:
  static constexpr uint64_t kNoKey = ~uint64_t{0};  // read_cache lets no such key in
  static constexpr uint32_t kMostSlots = 0x7FFFFFF0;

  // Room for `capacity` rows of `stride` bytes. An unmapped arena is only counted.
  void place(Arena* arena, uint32_t capacity, size_t stride);

  uint32_t capacity() const { return capacity_; }
  uint32_t used() const { return used_; }
  uint32_t free() const { return capacity_ - used_; }
  uint64_t key(uint32_t slot) const { return keys_[slot]; }
  uint8_t* row(uint32_t slot) { return rows_ + slot * stride_; }
  const uint8_t* row(uint32_t slot) const { return rows_ + slot * stride_; }
  size_t stride() const { return stride_; }
  // How many hold the row.
  uint64_t references(uint32_t slot) const {
    if (references_[slot] < kMany) return references_[slot];
    const auto beyond = beyond_.find(slot);
    return kMany + (beyond == beyond_.end() ? 0 : beyond->second);
  }

  // The slot of a key, or kNone.
  uint32_t find(uint64_t key) const {
    return index_.find(key, [this](uint32_t slot) { return keys_[slot]; });
  }
  // The same, first guessing the slot behind `previous` (kNone: no guess): neighbours in time are mostly neighbours here.
  uint32_t find(uint64_t key, uint32_t previous) const {
    if (previous != kNone && previous + 1 < capacity_ && keys_[previous + 1] == key) return previous + 1;
    return find(key);
  }
  MEMSVC_FETCHES void prefetch(uint64_t key) const { index_.prefetch(key); }
  uint32_t guess(uint64_t key) const { return index_.guess(key); }
  MEMSVC_FETCHES void prefetch_slot(uint32_t slot) const {
    __builtin_prefetch(&keys_[slot]);
    __builtin_prefetch(&references_[slot], 1);
  }

  // A run of 1 to `want` free slots, which stay free until take(). want >= 1, free() >= 1. A whole run is looked for near the last one;
  // where there is none, what is free comes piece by piece.
  uint32_t run(uint32_t want, uint32_t* first);
  // A free slot becomes the row of `key`, which is not held, with one reference.
  void take(uint32_t slot, uint64_t key);
  // One reference more.
  void hold(uint32_t slot) {
    if (references_[slot] < kMany) {
      ++references_[slot];
    } else {
      ++beyond_[slot];
    }
  }
  // One reference less; the last one frees the slot.
  void drop(uint32_t slot);

  // For Saved: all slots in use are below this. O(slots that are free at the end / 64).
  uint32_t end() const;
  // Room for the keys of so many slots alone, and a copy of another store's: key() answers then, nothing else does.
  void mirror(Arena* arena, uint32_t slots) {
    capacity_ = slots;
    keys_ = arena->take<uint64_t>(slots);
  }
  void copy(const Store& of, uint32_t slots) { std::memcpy(keys_, of.keys_, slots * sizeof(*keys_)); }

  // I1 and I2; the first broken one's number and what broke it, or "".
  std::string check() const;

 private:
  static constexpr uint16_t kMany = std::numeric_limits<uint16_t>::max();

  bool taken(uint32_t slot) const { return bitmap_[slot / 64] >> (slot % 64) & 1; }
  uint32_t next_free(uint32_t from) const;
  uint32_t free_run(uint32_t from, uint32_t most) const;

  uint8_t* rows_ = nullptr;
  uint64_t* keys_ = nullptr;
  uint16_t* references_ = nullptr;
  std::unordered_map<uint32_t, uint64_t> beyond_;  // of rows with more than kMany references: how many more
  uint64_t* bitmap_ = nullptr;
  Index index_;
  size_t stride_ = 0;
  uint32_t capacity_ = 0;
  uint32_t used_ = 0;
  uint32_t cursor_ = 0;
};

}  // namespace memsvc
