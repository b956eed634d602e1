// 8-ary float64 sum tree (DESIGN 6): one cache line a node, parents recomputed from their children, never accumulated, so the root equals a fresh
// sum up to rounding. Whole batches go down and up level by level; AVX-512 or scalar code is chosen once at run time and gives the same bits.
// Not thread-safe: its owner's lock guards it.
//
//   T1 an inner entry is the sum of its node's 8 children, added as ((0+1)+(2+3))+((4+5)+(6+7))
//   T2 leaves are finite and >= 0, leaves from capacity on are 0; over every 64 leaves, and each level above, stands the smallest positive one
//   T3 from the third level on, beside the sums of a node stand its children's starts, the sums of the children before them; infinity where a child
//      is empty. Below, where most of the memory is, they are made when they are needed
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "random.h"

namespace memsvc {

// False: trees made from now on, in the whole process, use the scalar code (tests). True, as at the start: AVX-512 where the processor has it.
// Thread-safe.
void use_simd(bool on);

class SumTree {
 public:
  // Any capacity from 1 to 2^32 - 1. All weights are 0. simd = false, or use_simd(false), forces the scalar code (tests). Throws std::bad_alloc.
  explicit SumTree(size_t capacity, bool simd = true);
  ~SumTree();
  SumTree(SumTree&&) noexcept;

  // What a tree of this capacity takes.
  static size_t bytes_for(size_t capacity);

  size_t capacity() const;
  size_t bytes() const;
  // Whether this tree runs on AVX-512.
  bool vectorised() const;
  double total() const;
  double weight(size_t index) const;
  // Smallest positive weight, 0 when there is none. O(1).
  double min_positive() const;
  void set(size_t index, double weight);
  // weights finite and >= 0 (asserted). Of duplicate indices the last counts. Returns how many more weights are positive than before.
  int64_t set(const uint32_t* indices, const double* weights, size_t n);
  // n draws with P(i) = w_i / total, stratified (one in each equal slice of the total) or independent. Only leaves with w > 0 come out: a
  // descent that rounding carries past the end is clamped to the last non-empty child. False when total is 0.
  bool draw(size_t n, bool stratified, Random& random, uint32_t* indices) const;
  // The leaf where the running sum passes `mass` in [0, total). total() > 0.
  size_t find(double mass) const;
  // T1, T2's mins and T3 over every node (tests).
  bool consistent() const;

 private:
  struct Levels;
  std::unique_ptr<Levels> levels_;
};

}  // namespace memsvc
