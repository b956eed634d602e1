// Items by priority, for samplers "max" and "min": a binary heap that knows each item's place in it. Not thread-safe: Replay's lock guards it.
//
//   O1 a child does not come before its parent; place_[heap_[i]] == i, and every item that is not in the heap has no place
#pragma once

#include <algorithm>
#include <cstdint>
#include <queue>
#include <utility>
#include <vector>

#include "arena.h"
#include "index.h"

namespace memsvc {

class Order {
 public:
  // Smallest first; for the largest first give negative keys. An unmapped arena is only counted.
  void place(Arena* arena, uint32_t capacity) {
    heap_ = arena->take<uint32_t>(capacity);
    place_ = arena->take<uint32_t>(capacity);
    key_ = arena->take<double>(capacity);
    if (arena->mapped()) std::fill_n(place_, capacity, kNone);
  }

  uint32_t size() const { return size_; }

  // Puts the item where `key` belongs, whether it is in or not. O(log n).
  void set(uint32_t item, double key) {
    if (place_[item] == kNone) {
      place_[item] = size_;
      heap_[size_++] = item;
    }
    key_[item] = key;
    sink(rise(place_[item]));
  }

  // Takes the item out, if it is in. O(log n).
  void erase(uint32_t item) {
    const uint32_t at = place_[item];
    if (at == kNone) return;
    place_[item] = kNone;
    const uint32_t last = heap_[--size_];
    if (last == item) return;
    put(at, last);
    sink(rise(at));
  }

  // Calls visit(item) in order, ties in no particular one, until it returns false or all were visited. O(k log k) for k visits.
  template <typename Visit>
  void walk(const Visit& visit) const {
    const auto later = [this](uint32_t a, uint32_t b) { return key_[heap_[a]] > key_[heap_[b]] || (key_[heap_[a]] == key_[heap_[b]] && a > b); };
    std::priority_queue<uint32_t, std::vector<uint32_t>, decltype(later)> front(later);
    if (size_ > 0) front.push(0);
    while (!front.empty()) {
      const uint32_t at = front.top();
      front.pop();
      if (!visit(heap_[at])) return;
      for (uint32_t child = 2 * at + 1; child <= 2 * at + 2; ++child) {
        if (child < size_) front.push(child);
      }
    }
  }

  // O1 (tests).
  bool consistent() const {
    for (uint32_t at = 0; at < size_; ++at) {
      if (place_[heap_[at]] != at || (at > 0 && key_[heap_[at]] < key_[heap_[(at - 1) / 2]])) return false;
    }
    return true;
  }

 private:
  void put(uint32_t at, uint32_t item) {
    heap_[at] = item;
    place_[item] = at;
  }

  uint32_t rise(uint32_t at) {
    const uint32_t item = heap_[at];
    for (; at > 0 && key_[item] < key_[heap_[(at - 1) / 2]]; at = (at - 1) / 2) put(at, heap_[(at - 1) / 2]);
    put(at, item);
    return at;
  }

  void sink(uint32_t at) {
    const uint32_t item = heap_[at];
    for (uint32_t child; (child = 2 * at + 1) < size_; at = child) {
      if (child + 1 < size_ && key_[heap_[child + 1]] < key_[heap_[child]]) ++child;
      if (!(key_[heap_[child]] < key_[item])) break;
      put(at, heap_[child]);
    }
    put(at, item);
  }

  uint32_t* heap_ = nullptr;
  uint32_t* place_ = nullptr;
  double* key_ = nullptr;
  uint32_t size_ = 0;
};

}  // namespace memsvc
