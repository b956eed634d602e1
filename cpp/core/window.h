// Keys, and which rows of a stream an item needs. Both sides use these few lines, so they agree on what is held.
#pragma once

#include <algorithm>
#include <cstdint>

#include "schema.h"

namespace memsvc {

// A key names a step of a stream for ever: 28 bits of stream, 36 bits of step number. An episode of T steps takes T + 1
// numbers: the last one is the final observation's row. An item's key is that of its first step.
constexpr int kStepBits = 36;
constexpr uint64_t kMaxStream = (1ULL << 28) - 1;
inline uint64_t make_key(uint64_t stream, uint64_t step) { return (stream << kStepBits) | step; }
inline uint64_t stream_of(uint64_t key) { return key >> kStepBits; }
inline uint64_t step_of(uint64_t key) { return key & ((1ULL << kStepBits) - 1); }

// The rows that an item needs, as at most two ranges [first, first + count) of keys; the second may be empty. They never overlap.
struct Window {
  uint64_t first[2] = {0, 0};
  uint32_t count[2] = {0, 0};
  uint32_t rows() const { return count[0] + count[1]; }
};

// span: m of a transition (DEFINITIONS 2), real steps of a sequence, 1 of a step.
// head: rows before the key that belong to its stack, min(frame_stack - 1, steps since the episode's start).
inline uint32_t next_head(const TableSpec& spec, uint32_t span, uint32_t head) { return std::min(spec.frame_stack - 1, head + span); }

inline Window window_of(const TableSpec& spec, uint64_t key, uint32_t span, uint32_t head) {
  Window w;
  w.first[0] = key - head;
  w.count[0] = head + (spec.kind == Kind::kSequence ? span : 1);
  if (spec.next.empty()) return w;
  if (spec.kind == Kind::kSequence) {
    w.count[0] += 1;
    return w;
  }
  uint64_t begin = key + span - next_head(spec, span, head);
  const uint64_t end = key + span + 1;
  if (begin <= key + 1) {
    w.count[0] = static_cast<uint32_t>(end - w.first[0]);
  } else {
    w.first[1] = begin;
    w.count[1] = static_cast<uint32_t>(end - begin);
  }
  return w;
}

}  // namespace memsvc
