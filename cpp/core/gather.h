// A batch on its way out: windows over the store become columns [B, ...] in one pass, row by row (DESIGN 6), in three steps:
// plan() under Replay's lock finds the rows, pins them and writes what is small; copy() without the lock moves the rows; release() under it.
#pragma once

#include <cstdint>
#include <vector>

#include "crew.h"
#include "items.h"
#include "schema.h"
#include "store.h"

namespace memsvc {

// What a batch says of its population (DEFINITIONS 7).
struct Population {
  double total = 0;       // W
  uint64_t count = 0;     // N
  double min_weight = 0;  // 0: none is known
};

class Gather {
 public:
  // `out`: spec.batch_bytes(batch) bytes at a multiple of 8; spec and schema outlive the gather.
  Gather(const TableSpec& spec, const Schema& schema, size_t batch, uint8_t* out);

  // items[batch] with weights w_now, which stay until copy() has returned; every item's rows get a reference, so that they outlive their items.
  void plan(const Items& items, const uint32_t* chosen, const double* weights, const Population& population, Store* store);
  // Large batches are shared out to the crew.
  void copy(const Store& store, Crew* crew) const;
  void release(Store* store) const;

 private:
  // One column that is copied from rows.
  struct Move {
    Origin origin;
    uint8_t* out;
    size_t item_bytes;  // of the column
    size_t offset;      // of the field in its row
    size_t bytes;       // of the field
    bool stream;        // past the caches
  };
  struct Place {
    size_t begin;  // in slots_
    uint32_t rows;
    uint32_t span;
    uint32_t head;
  };
  void scalars(const Items& items, const uint32_t* chosen);
  void chances() const;
  static void transfer(const Move& move, uint8_t* to, const uint8_t* row, const uint8_t* next);
  void copy_items(const Store& store, size_t begin, size_t end) const;
  void item(const Store& store, size_t i) const;

  const TableSpec& spec_;
  const size_t batch_;
  bool plain_;            // an item is one row, and every move a field of it
  bool streams_ = false;  // some move does
  std::vector<Move> moves_;
  std::vector<uint8_t*> columns_;  // begin of every column
  const double* weights_ = nullptr;
  Population population_;
  double beta_ = 0;  // as of plan(): it may change while running
  std::vector<Place> places_;
  std::vector<uint32_t> slots_;
};

}  // namespace memsvc
