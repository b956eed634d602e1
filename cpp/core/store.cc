#include "store.h"

#include <algorithm>
#include <bit>

namespace memsvc {
namespace {

constexpr int kTries = 16;  // free runs looked at before a window is split

}  // namespace

void Store::place(Arena* arena, uint32_t capacity, size_t stride) {
  capacity_ = capacity;
  stride_ = stride;
  rows_ = arena->take<uint8_t>(capacity * stride);
  keys_ = arena->take<uint64_t>(capacity);
  references_ = arena->take<uint16_t>(capacity);
  bitmap_ = arena->take<uint64_t>((size_t{capacity} + 63) / 64);
  index_.place(arena, capacity);
  if (arena->mapped()) std::fill_n(keys_, capacity, kNoKey);
}

// The first free slot at or after `from`, or capacity. Bits beyond the capacity read as free, so the result is bounded here.
uint32_t Store::next_free(uint32_t from) const {
  const uint32_t words = (capacity_ + 63) / 64;
  uint32_t word = from / 64;
  if (word >= words) return capacity_;
  uint64_t open = ~bitmap_[word] & (~uint64_t{0} << (from % 64));
  while (open == 0 && ++word < words) open = ~bitmap_[word];
  return open == 0 ? capacity_ : std::min(capacity_, word * 64 + static_cast<uint32_t>(std::countr_zero(open)));
}

// Free slots from the free slot `from` on, at most `most`.
uint32_t Store::free_run(uint32_t from, uint32_t most) const {
  uint32_t length = 0;
  while (length < most && from + length < capacity_) {
    const uint32_t slot = from + length;
    const uint64_t word = bitmap_[slot / 64] >> (slot % 64);
    const uint32_t open = word ? static_cast<uint32_t>(std::countr_zero(word)) : 64;
    const uint32_t here = std::min(open, 64 - slot % 64);
    length += here;
    if (here < 64 - slot % 64) break;
  }
  return std::min({length, most, capacity_ - from});
}

uint32_t Store::run(uint32_t want, uint32_t* first) {
  uint32_t best = 0;
  uint32_t at = cursor_;
  bool wrapped = false;
  for (int tries = 0; tries < kTries && best < want;) {
    at = next_free(at);
    if (at >= capacity_) {
      if (wrapped) break;
      wrapped = true;
      at = 0;
      continue;
    }
    const uint32_t length = free_run(at, want);
    if (length > best) {
      best = length;
      *first = at;
    }
    at += length;
    ++tries;
  }
  cursor_ = *first + best;
  return best;
}

void Store::take(uint32_t slot, uint64_t key) {
  bitmap_[slot / 64] |= uint64_t{1} << (slot % 64);
  keys_[slot] = key;
  references_[slot] = 1;
  index_.insert(key, slot);
  ++used_;
}

void Store::drop(uint32_t slot) {
  if (references_[slot] == kMany) {
    if (const auto beyond = beyond_.find(slot); beyond != beyond_.end()) {
      if (--beyond->second == 0) beyond_.erase(beyond);
      return;
    }
  }
  if (--references_[slot] > 0) return;
  index_.erase(keys_[slot], slot, [this](uint32_t place) { return keys_[place]; });
  keys_[slot] = kNoKey;
  bitmap_[slot / 64] &= ~(uint64_t{1} << (slot % 64));
  --used_;
}

uint32_t Store::end() const {
  uint32_t words = (capacity_ + 63) / 64;
  while (words > 0 && bitmap_[words - 1] == 0) --words;
  return std::min(words * 64, capacity_);
}

std::string Store::check() const {
  uint32_t used = 0;
  for (uint32_t slot = 0; slot < capacity_; ++slot) {
    const std::string name = "slot " + std::to_string(slot);
    if (!taken(slot)) {
      if (references_[slot] != 0 || keys_[slot] != kNoKey) return "I1: free " + name + " has references or a key";
      continue;
    }
    ++used;
    if (references_[slot] == 0) return "I1: used " + name + " has no reference";
    if (find(keys_[slot]) != slot) return "I1: used " + name + " is not found under its key";
  }
  if (used != used_ || index_.count() != used_) return "I2: " + std::to_string(used) + " used slots, counted " + std::to_string(used_);
  return "";
}

}  // namespace memsvc
