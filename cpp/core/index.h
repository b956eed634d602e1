// An open-addressing hash table from 64-bit keys to places of an array that holds the keys itself: 4 bytes an entry, load at most 3/4.
// Linear probing; an erased entry leaves no tombstone (the entries behind it move back), so age does not slow it. Never grows. Not thread-safe.
// An entry is a place, and in the bits that places leave free how far it lies from its home and some bits of the hash: most probes, and nearly
// all moves, read no key. Distances beyond the largest that the bits can say are found out from the key.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "arena.h"
#include "fetch.h"

namespace memsvc {

constexpr uint32_t kNone = 0xFFFFFFFF;

class Index {
 public:
  // Room for `capacity` (< 2^31) places.
  void place(Arena* arena, uint32_t capacity) {
    size_ = static_cast<uint64_t>(capacity) + capacity / 3 + 8;
    bits_ = static_cast<uint32_t>(std::bit_width(static_cast<uint64_t>(capacity) + 1));
    const uint32_t far_bits = std::min<uint32_t>(6, (32 - bits_) / 2);
    most_far_ = (uint32_t{1} << far_bits) - 1;
    mask_ = static_cast<uint32_t>((uint64_t{1} << bits_) - 1);
    hash_shift_ = bits_ + far_bits;
    entries_ = arena->take<uint32_t>(size_);
  }

  // The place whose key_of(place) == key, or kNone.
  template <typename KeyOf>
  uint32_t find(uint64_t key, const KeyOf& key_of) const {
    const uint64_t hash = mix(key);
    uint32_t far = 0;
    for (uint64_t at = home(hash);; at = after(at), ++far) {
      const uint32_t entry = entries_[at];
      if (entry == 0) return kNone;
      if ((entry & ~mask_) == tag(hash, far) && key_of((entry & mask_) - 1) == key) return (entry & mask_) - 1;
    }
  }

  // The place that find() looks at first, to prefetch what it says there; kNone where there is none.
  uint32_t guess(uint64_t key) const {
    const uint64_t hash = mix(key);
    uint32_t far = 0;
    for (uint64_t at = home(hash); entries_[at] != 0; at = after(at), ++far) {
      if ((entries_[at] & ~mask_) == tag(hash, far)) return (entries_[at] & mask_) - 1;
    }
    return kNone;
  }

  // The key is not in the table, and the table not full.
  void insert(uint64_t key, uint32_t place) {
    const uint64_t hash = mix(key);
    uint64_t at = home(hash);
    uint32_t far = 0;
    for (; entries_[at] != 0; at = after(at)) ++far;
    entries_[at] = tag(hash, far) | (place + 1);
    ++count_;
  }

  // The key is in the table with this place; key_of still answers for every place in it.
  template <typename KeyOf>
  void erase(uint64_t key, uint32_t place, const KeyOf& key_of) {
    uint64_t hole = home(mix(key));
    while ((entries_[hole] & mask_) != place + 1) hole = after(hole);
    // An entry may move back into the hole unless its home lies behind the hole.
    uint32_t gap = 1;
    for (uint64_t at = after(hole); entries_[at] != 0; at = after(at), ++gap) {
      const uint32_t entry = entries_[at];
      uint32_t far = entry >> bits_ & most_far_;
      if (far == most_far_) far = static_cast<uint32_t>(distance(home(mix(key_of((entry & mask_) - 1))), at));
      if (far < gap) continue;
      entries_[hole] = (entry & ~(most_far_ << bits_)) | std::min(far - gap, most_far_) << bits_;
      hole = at;
      gap = 0;
    }
    entries_[hole] = 0;
    --count_;
  }

  MEMSVC_FETCHES void prefetch(uint64_t key) const { __builtin_prefetch(&entries_[home(mix(key))]); }
  size_t count() const { return count_; }

 private:
  static uint64_t mix(uint64_t x) {
    x = (x ^ (x >> 33)) * 0xFF51AFD7ED558CCDULL;
    x = (x ^ (x >> 33)) * 0xC4CEB9FE1A85EC53ULL;
    return x ^ (x >> 33);
  }
  uint64_t home(uint64_t hash) const { return static_cast<uint64_t>((static_cast<unsigned __int128>(hash) * size_) >> 64); }
  uint64_t after(uint64_t at) const { return at + 1 == size_ ? 0 : at + 1; }
  uint64_t distance(uint64_t from, uint64_t to) const { return to >= from ? to - from : to + size_ - from; }
  // home() reads the high bits of the hash, the tag its low ones.
  uint32_t tag(uint64_t hash, uint32_t far) const {
    return static_cast<uint32_t>(hash << hash_shift_) | static_cast<uint32_t>(uint64_t{std::min(far, most_far_)} << bits_);
  }

  uint32_t* entries_ = nullptr;
  uint64_t size_ = 0;
  uint32_t bits_ = 0;
  uint32_t mask_ = 0;      // of the place, counted from 1
  uint32_t most_far_ = 0;  // the largest distance an entry says: that or more
  uint32_t hash_shift_ = 0;
  size_t count_ = 0;
};

}  // namespace memsvc
