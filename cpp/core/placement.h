// Where a table's items begin in an episode, how far they reach, and from when on nothing about them changes (DEFINITIONS 1, 2, 4). Pure.
#pragma once

#include <cstdint>

#include "episodes.h"
#include "schema.h"

namespace memsvc {

constexpr uint64_t kNever = UINT64_MAX;

class Placement {
 public:
  explicit Placement(const TableSpec& spec);

  // The first item that begins at `from` or later, kNever when there is none. Steps and transitions begin at every step t < T; sequences at multiples
  // of the stride where they fit, and once more at the tail of an ended episode, where a multiple of the stride is left. Items whose stack would need
  // a lost step are not there. O(1).
  uint64_t item_from(const Episode& e, uint64_t from) const;
  // The first step whose items are whole when the episode's oldest step is `first`.
  uint64_t whole_from(uint64_t first) const { return first == 0 ? 0 : first + spec_.frame_stack - 1; }
  // m of a transition, real steps of a sequence, 1 of a step.
  uint32_t span(const Episode& e, uint64_t start) const;
  // Rows before the start that belong to its stack.
  uint32_t head(uint64_t start) const { return static_cast<uint32_t>(std::min<uint64_t>(spec_.frame_stack - 1, start)); }
  // Whether the episode has ended and has no item, however much of it is here.
  bool too_short(const Episode& e) const { return spec_.kind == Kind::kSequence && spec_.tail != Tail::kPad && e.ended && e.steps() < spec_.length; }
  // Whether span, quantities and factor stay as they are while the episode grows.
  bool final(const Episode& e, uint64_t start) const { return e.ended || (!needs_end_ && start + reach_ <= e.steps()); }
  // The first start whose item contains step t.
  uint64_t reaching(uint64_t t) const;
  // Steps before the next regular start that an item at the episode's end may still need.
  uint64_t tail_reach() const { return spec_.kind == Kind::kSequence ? spec_.length : 0; }
  // The length of steps of a stream that come with one more item, roughly: its new rows.
  uint64_t pace() const;

 private:
  const TableSpec& spec_;
  uint64_t reach_;  // steps that must be complete from the start on
  bool needs_end_;  // returns and episodes' weights are final at the end only
};

}  // namespace memsvc
