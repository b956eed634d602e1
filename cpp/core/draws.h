// Stage one's draws, waiting in order of arrival: one preallocated pool of entries for all queues of a table, an entry a draw.
// Popping only moves the queue's front; commit() frees what was popped, rollback() puts it back. Not thread-safe.
//
//   I7 entries in use are exactly those that the queues link; a queue's length counts them
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "arena.h"
#include "fetch.h"
#include "index.h"

namespace memsvc {

struct Queue {
  uint32_t front = kNone;
  uint32_t back = kNone;
  uint32_t length = 0;
};

class Draws {
 public:
  void place(Arena* arena, uint32_t capacity) {
    capacity_ = capacity;
    entries_ = arena->take<Entry>(capacity);
    if (!arena->mapped()) return;
    for (uint32_t entry = 0; entry < capacity; ++entry) entries_[entry].next = entry + 1 < capacity ? entry + 1 : kNone;
    free_ = 0;
  }

  uint32_t capacity() const { return capacity_; }
  uint32_t used() const { return used_; }

  // At the end of the queue: a draw of `item` with the weight that it had then, of this segment, after so many of its actor's steps. False when the
  // pool is used up.
  bool append(Queue* queue, uint32_t item, double weight, uint32_t segment, uint64_t steps) {
    if (free_ == kNone) return false;
    const uint32_t entry = free_;
    free_ = entries_[entry].next;
    ++used_;
    entries_[entry] = {weight, item, kNone, segment, static_cast<uint32_t>(steps)};
    if (queue->back != kNone) entries_[queue->back].next = entry;
    if (queue->front == kNone) queue->front = entry;
    queue->back = entry;
    ++queue->length;
    return true;
  }

  // The first draw. The queue is not empty.
  uint32_t item(const Queue& queue) const { return entries_[queue.front].item; }
  double weight(const Queue& queue) const { return entries_[queue.front].weight; }
  uint32_t segment(const Queue& queue) const { return entries_[queue.front].segment; }
  // How many steps its actor has gone on since, 0 where it says less than then; right below 2^31.
  uint64_t age(const Queue& queue, uint64_t steps) const {
    return static_cast<uint64_t>(std::max(static_cast<int32_t>(static_cast<uint32_t>(steps) - entries_[queue.front].steps), 0));
  }
  void pop(Queue* queue) const {
    queue->front = entries_[queue->front].next;
    --queue->length;
  }

  // For those who look ahead of the front: an entry's item, and the entry behind it or kNone. `entry` is of a queue.
  uint32_t item_of(uint32_t entry) const { return entries_[entry].item; }
  uint32_t behind(uint32_t entry) const { return entries_[entry].next; }
  MEMSVC_FETCHES void prefetch(uint32_t entry) const {
    if (entry != kNone) __builtin_prefetch(&entries_[entry], 1);
  }

  // Frees what was popped since `before` was copied from the queue; gone(item) is called for each.
  template <typename Gone>
  void commit(Queue* queue, const Queue& before, const Gone& gone) {
    for (uint32_t entry = before.front; entry != queue->front;) entry = release(entry, gone);
    if (queue->front == kNone) queue->back = kNone;
  }
  // Puts back what was popped since `before` was copied.
  void rollback(Queue* queue, const Queue& before) const { *queue = before; }

  // Takes all draws of `item` out of the queue, or those of items for which which(item) is true; returns how many.
  template <typename Gone>
  uint64_t erase(Queue* queue, uint32_t item, const Gone& gone) {
    return erase_if(queue, [item](uint32_t one) { return one == item; }, gone);
  }
  template <typename Which, typename Gone>
  uint64_t erase_if(Queue* queue, const Which& which, const Gone& gone) {
    const uint64_t before = queue->length;
    uint32_t last = kNone;
    for (uint32_t entry = queue->front; entry != kNone;) {
      if (!which(entries_[entry].item)) {
        last = entry;
        entry = entries_[entry].next;
        continue;
      }
      const uint32_t next = release(entry, gone);
      (last == kNone ? queue->front : entries_[last].next) = next;
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
    for (uint32_t entry = queue.front; entry != kNone && seen <= capacity_; entry = entries_[entry].next, ++seen) {
      visit(entries_[entry].item, entries_[entry].segment);
    }
  }

  // For Saved: a copy, in which the queues that link into the original can be walked: visit(item, weight, segment, steps).
  void copy(const Draws& of) { std::memcpy(entries_, of.entries_, capacity_ * sizeof(Entry)); }
  template <typename Visit>
  void walk(const Queue& queue, const Visit& visit) const {
    uint32_t entry = queue.front;
    for (uint32_t i = 0; i < queue.length; ++i, entry = entries_[entry].next)
      visit(entries_[entry].item, entries_[entry].weight, entries_[entry].segment, entries_[entry].steps);
  }

 private:
  struct Entry {
    double weight;
    uint32_t item, next, segment;
    uint32_t steps;  // modulo 2^32
  };

  // Frees an entry; returns the one behind it.
  template <typename Gone>
  uint32_t release(uint32_t entry, const Gone& gone) {
    const uint32_t next = entries_[entry].next;
    gone(entries_[entry].item);
    entries_[entry].next = free_;
    free_ = entry;
    --used_;
    return next;
  }

  Entry* entries_ = nullptr;
  uint32_t capacity_ = 0;
  uint32_t used_ = 0;
  uint32_t free_ = kNone;
};

}  // namespace memsvc
