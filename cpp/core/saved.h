// A Replay as bytes: what of it is copied under its lock, and what is made of that without it. Everything is said by key, of an item or a row, never
// by place or slot, so that it fits another memory size. Used by Replay::save and the restore of it (restore.h).
//
//   state := magic version stride  Actors  tables * (length  name shape Table::fields  names topics  lanes * (actor name topic Lane::fields draws
//   log))  checksum
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "actors.h"
#include "archive.h"
#include "arena.h"
#include "sizing.h"
#include "store.h"
#include "table.h"

namespace memsvc {

constexpr uint64_t kStateMagic = 0x4554415453564D4DULL;  // "MMVSTATE"
constexpr uint32_t kStateVersion = 1;

// One table's items, column by column, those that would be evicted first at the start.
struct SavedItems {
  std::vector<uint64_t> keys;
  std::vector<int64_t> versions;
  std::vector<double> values;
  std::vector<uint32_t> spans;
  std::vector<uint16_t> heads, episodes;
  std::vector<double> factors;
  std::vector<uint16_t> times;
  std::vector<uint32_t> updated, eras;
  std::vector<uint8_t> made;
};

struct Saved {
  std::vector<uint8_t> state;
  std::vector<SavedItems> items;   // by table
  std::vector<uint64_t> row_keys;  // sorted
};

// What must be equal for a table's items to fit it, and what its limiter counted for.
struct Shape {
  static constexpr bool kFlat = true;  // archive.h
  uint32_t kind, select, frame_stack, padding;
  uint64_t made_bytes, max_times_sampled;
  double samples_per_insert, tolerance;
};
Shape shape_of(const TableSpec& spec);

struct SavedDraw {
  static constexpr bool kFlat = true;
  uint64_t key;
  double weight;
  uint32_t segment, steps;
};
struct SavedChange {
  static constexpr bool kFlat = true;
  uint64_t number, key;
  double before;
};

// What belongs to streams, of actors that may be gone: whose quota their items count for, and the topic of their versions.
struct SavedStreams {
  std::unordered_map<uint64_t, std::string> names, topics;
  template <class A>
  void fields(A& archive) {
    archive(names, topics);
  }
};

// Windows of items as ranges of row keys. sorted(): their keys, each once.
class RowKeys {
 public:
  void add(const TableSpec& spec, uint64_t key, uint32_t span, uint32_t head) {
    const Window window = window_of(spec, key, span, head);
    for (int range = 0; range < 2; ++range) {
      if (window.count[range] > 0) ranges_.push_back({window.first[range], window.first[range] + window.count[range]});
    }
  }
  std::vector<uint64_t> sorted();

 private:
  std::vector<std::pair<uint64_t, uint64_t>> ranges_;
};

// A consistent copy of store and tables, in memory of its own that was touched before.
class Capture {
 public:
  // Under the lock: how much memory a copy takes. Without it: takes that. Under it again: the copy; false where it has become more meanwhile.
  void measure(const Store& store, const Tables& tables);
  Status allocate(const Tables& tables);
  bool copy(const Store& store, Actors* actors, const PushCounts& pushes, const Tables& tables);
  // Without it, what is said of `tables` being their settings that never change.
  void decode(const Tables& tables, size_t stride, Saved* out);

 private:
  struct Logged {
    uint64_t number;
    uint32_t item;
    double before;
  };
  struct OfLane {
    uint64_t actor;
    std::string name, topic;
    Queue queue;
    uint32_t segment, steps;  // of a draw that were queued now
    uint32_t era;
    size_t begin, end;    // of its fields, in bytes_
    size_t log, log_end;  // in log
  };
  struct OfTable {
    explicit OfTable(const TableSpec& spec) : items(spec) {}
    Items items;
    Draws draws;
    uint32_t* places = nullptr;
    size_t begin = 0, end = 0;  // of its fields, in bytes_
    std::vector<OfLane> lanes;
    std::vector<Logged> log;
    std::vector<uint64_t> open;  // keys of draws that learners have not confirmed, of caches
    Ages ages;
    SavedStreams streams;
  };
  void place(Arena* arena, const Tables& tables);
  void decode_items(OfTable* of, const TableSpec& spec, SavedItems* out, RowKeys* rows) const;
  void write_table(const OfTable& of, const TableSpec& spec, const std::unordered_map<uint64_t, uint64_t>& owners, std::vector<uint8_t>* out) const;

  uint32_t slots_ = 0;
  std::vector<uint32_t> places_;  // by table
  size_t lane_bytes_ = 0;
  Arena arena_;
  Store store_;
  std::vector<std::unique_ptr<OfTable>> tables_;
  std::vector<uint8_t> bytes_;
  size_t actors_end_ = 0;
};

}  // namespace memsvc
