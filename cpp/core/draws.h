// Stage one's draws, waiting in order of arrival: one preallocated pool of entries for all queues of a table, an entry a draw.
// Popping only moves the queue's front; commit() frees what was popped, rollback() puts it back. Not thread-safe.
//
//   I7 entries in use are exactly those that the queues link; a queue's length counts them
#pragma once

#include <cstdint>

#include "arena.h"
#include "index.h"

namespace memsvc {

struct Queue {
  uint32_t front = kNone;
  uint32_t back = kNone;
  uint64_t length = 0;
};

class Draws {
 public:
  void place(Arena* arena, uint32_t capacity) {
    capacity_ = capacity;
    item_ = arena->take<uint32_t>(capacity);
    next_ = arena->take<uint32_t>(capacity);
    segment_ = arena->take<uint32_t>(capacity);
    weight_ = arena->take<double>(capacity);
    if (!arena->mapped()) return;
    for (uint32_t entry = 0; entry < capacity; ++entry) next_[entry] = entry + 1 < capacity ? entry + 1 : kNone;
    free_ = 0;
  }

  uint32_t capacity() const { return capacity_; }
  uint32_t used() const { return used_; }

  // At the end of the queue: a draw of `item` with the weight that it had then, of this segment. False when the pool is used up.
  bool append(Queue* queue, uint32_t item, double weight, uint32_t segment) {
    if (free_ == kNone) return false;
    const uint32_t entry = free_;
    free_ = next_[entry];
    ++used_;
    item_[entry] = item;
    weight_[entry] = weight;
    segment_[entry] = segment;
    next_[entry] = kNone;
    if (queue->back != kNone) next_[queue->back] = entry;
    if (queue->front == kNone) queue->front = entry;
    queue->back = entry;
    ++queue->length;
    return true;
  }

  // The first draw. The queue is not empty.
  uint32_t item(const Queue& queue) const { return item_[queue.front]; }
  double weight(const Queue& queue) const { return weight_[queue.front]; }
  uint32_t segment(const Queue& queue) const { return segment_[queue.front]; }
  void pop(Queue* queue) const {
    queue->front = next_[queue->front];
    --queue->length;
  }

  // Frees what was popped since `before` was copied from the queue; gone(item) is called for each.
  template <typename Gone>
  void commit(Queue* queue, const Queue& before, const Gone& gone) {
    for (uint32_t entry = before.front; entry != queue->front;) entry = release(entry, gone);
    if (queue->front == kNone) queue->back = kNone;
  }
  // Puts back what was popped since `before` was copied.
  void rollback(Queue* queue, const Queue& before) const { *queue = before; }

  // Takes all draws of `item` out of the queue; returns how many.
  template <typename Gone>
  uint64_t erase(Queue* queue, uint32_t item, const Gone& gone) {
    const uint64_t before = queue->length;
    uint32_t last = kNone;
    for (uint32_t entry = queue->front; entry != kNone;) {
      if (item_[entry] != item) {
        last = entry;
        entry = next_[entry];
        continue;
      }
      const uint32_t next = release(entry, gone);
      (last == kNone ? queue->front : next_[last]) = next;
      --queue->length;
      entry = next;
    }
    queue->back = last;
    return before - queue->length;
  }

  // Calls visit(item, segment) for every entry that the queue links; no more than the pool has, whatever is linked.
  template <typename Visit>
  void each(const Queue& queue, const Visit& visit) const {
    uint64_t seen = 0;
    for (uint32_t entry = queue.front; entry != kNone && seen <= capacity_; entry = next_[entry], ++seen) visit(item_[entry], segment_[entry]);
  }

 private:
  // Frees an entry; returns the one behind it.
  template <typename Gone>
  uint32_t release(uint32_t entry, const Gone& gone) {
    const uint32_t next = next_[entry];
    gone(item_[entry]);
    next_[entry] = free_;
    free_ = entry;
    --used_;
    return next;
  }

  uint32_t* item_ = nullptr;
  uint32_t* next_ = nullptr;
  uint32_t* segment_ = nullptr;
  double* weight_ = nullptr;
  uint32_t capacity_ = 0;
  uint32_t used_ = 0;
  uint32_t free_ = kNone;
};

}  // namespace memsvc
