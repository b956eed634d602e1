// The union of all actors' items in one tree (DEFINITIONS 7, select = "all"): each item is sent once and drawn by w_now, any number of times.
// Leaves of the tree are the places of the table's items. Not thread-safe: Replay's lock guards it.
//
//   I9 a published item's leaf is weight_of(its p); every other leaf is 0; population counts the positive ones
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "items.h"
#include "random.h"
#include "tree.h"

namespace memsvc {

class United {
 public:
  // Takes its own memory, SumTree::bytes_for(items->capacity()). Throws std::bad_alloc.
  United(const TableSpec& spec, Items* items) : spec_(spec), items_(items), tree_(items->capacity()) {}

  double total() const { return tree_.total(); }              // W
  uint64_t population() const { return population_; }         // N
  double min_weight() const { return tree_.min_positive(); }  // 0 for none

  // New priorities p (already scaled) for items, in order: they hold after flush().
  void set(uint32_t item, double p);
  // The item goes: its leaf is 0 after flush().
  void clear(uint32_t item);
  // Brings the tree up to date, a whole batch at once. Every public call of Replay flushes before it gives the lock back.
  void flush();
  // `batch` stratified draws with replacement and their weights. False when nothing can be drawn.
  bool draw(size_t batch, Random* random, uint32_t* items, double* weights) const;

  // I9, while no push is under way; what is broken, or "".
  std::string check() const;

 private:
  void put(uint32_t item, double weight);

  const TableSpec& spec_;
  Items* items_;
  SumTree tree_;
  uint64_t population_ = 0;
  std::vector<uint32_t> changed_;
  std::vector<double> weights_;
};

}  // namespace memsvc
