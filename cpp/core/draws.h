// Stage one's draws, waiting in order of arrival: one preallocated pool of entries for all queues of a table. An entry stands for `copies` equal
// draws in a row (DEFINITIONS 7: further copies go to the end as drawn with w_now), so splitting a draw a million times costs one entry.
// Popping only moves the queue's front; commit() frees what was popped, rollback() puts it back. Not thread-safe.
//
//   I7 entries in use are exactly those that the queues link; a queue's length is the sum of their copies, less those taken from the first
#pragma once

#include <algorithm>
#include <cstdint>

#include "arena.h"
#include "index.h"

namespace memsvc {

struct Queue {
  uint32_t front = kNone;
  uint32_t back = kNone;
  uint32_t taken = 0;   // copies already taken from the front entry
  uint64_t length = 0;  // draws
};

class Draws {
 public:
  void place(Arena* arena, uint32_t capacity) {
    capacity_ = capacity;
    item_ = arena->take<uint32_t>(capacity);
    next_ = arena->take<uint32_t>(capacity);
    copies_ = arena->take<uint32_t>(capacity);
    weight_ = arena->take<double>(capacity);
    if (!arena->mapped()) return;
    for (uint32_t entry = 0; entry < capacity; ++entry) next_[entry] = entry + 1 < capacity ? entry + 1 : kNone;
    free_ = 0;
  }

  uint32_t capacity() const { return capacity_; }
  uint32_t used() const { return used_; }

  // At the end of the queue; copies >= 1. False when the pool is used up.
  bool append(Queue* queue, uint32_t item, double weight, uint32_t copies) {
    if (free_ == kNone) return false;
    const uint32_t entry = free_;
    free_ = next_[entry];
    ++used_;
    item_[entry] = item;
    weight_[entry] = weight;
    copies_[entry] = copies;
    next_[entry] = kNone;
    if (queue->back != kNone) next_[queue->back] = entry;
    if (queue->front == kNone) queue->front = entry;
    queue->back = entry;
    queue->length += copies;
    return true;
  }

  // The queue is not empty.
  uint32_t item(const Queue& queue) const { return item_[queue.front]; }
  double weight(const Queue& queue) const { return weight_[queue.front]; }
  uint64_t equal(const Queue& queue) const { return copies_[queue.front] - queue.taken; }  // draws of the first entry that are left
  // Takes one draw, or up to `most` equal ones; returns how many.
  uint64_t pop(Queue* queue, uint64_t most = 1) const {
    const uint64_t many = std::min(most, equal(*queue));
    queue->taken += static_cast<uint32_t>(many);
    queue->length -= many;
    if (queue->taken == copies_[queue->front]) {
      queue->front = next_[queue->front];
      queue->taken = 0;
    }
    return many;
  }

  // Frees what was popped since `before` was copied from the queue; gone(item) is called for each entry.
  template <typename Gone>
  void commit(Queue* queue, const Queue& before, const Gone& gone) {
    free_chain(before.front, queue->front, gone);
    if (queue->front == kNone) queue->back = kNone;
  }

  // Puts back what was popped, and frees what was appended, since `before` was copied from the queue, which was not empty then.
  template <typename Gone>
  void rollback(Queue* queue, const Queue& before, const Gone& gone) {
    free_chain(next_[before.back], kNone, gone);
    next_[before.back] = kNone;
    *queue = before;
  }

  // Calls visit(item) for every entry that the queue links.
  template <typename Visit>
  void each(const Queue& queue, const Visit& visit) const {
    for (uint32_t entry = queue.front; entry != kNone; entry = next_[entry]) visit(item_[entry]);
  }

  // Entries that the queue links, and their draws (I7).
  void measure(const Queue& queue, uint64_t* entries, uint64_t* draws) const {
    uint64_t sum = 0;
    for (uint32_t entry = queue.front; entry != kNone && *entries <= capacity_; entry = next_[entry]) {
      ++*entries;
      sum += copies_[entry];
    }
    *draws = sum - queue.taken;
  }

 private:
  template <typename Gone>
  void free_chain(uint32_t from, uint32_t to, const Gone& gone) {
    while (from != to) {
      const uint32_t next = next_[from];
      gone(item_[from]);
      next_[from] = free_;
      free_ = from;
      --used_;
      from = next;
    }
  }

  uint32_t* item_ = nullptr;
  uint32_t* next_ = nullptr;
  uint32_t* copies_ = nullptr;
  double* weight_ = nullptr;
  uint32_t capacity_ = 0;
  uint32_t used_ = 0;
  uint32_t free_ = kNone;
};

}  // namespace memsvc
