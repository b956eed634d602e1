// What Replay::save gave, into a fresh Replay, in three steps: begin() reads and checks everything and changes nothing; rows() brings rows; finish()
// puts items, queues and counts in their places. Not thread-safe: Replay's lock guards it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "saved.h"

namespace memsvc {

struct Restored {
  std::vector<uint64_t> items, dropped, draws;  // by table
};

class Restore {
 public:
  Restore(Store* store, Actors* actors, Tables* tables) : store_(*store), actors_(*actors), tables_(*tables) {}

  // items: one for each table, null where it starts empty. kMalformed, kInvalid: nothing has changed. The pointers are not needed any longer
  // afterwards.
  Status begin(const uint8_t* state, size_t size, std::vector<std::unique_ptr<SavedItems>> items);
  // Keys of the rows that are needed, sorted: as many as the store has room for.
  const std::vector<uint64_t>& needed() const { return needed_; }
  size_t rows(const uint64_t* keys, const uint8_t* rows, size_t n);
  Restored finish(PushCounts* pushes);

 private:
  struct OfLane {
    uint64_t actor = 0;
    std::string name, topic;
    std::unique_ptr<Lane> lane;
    std::vector<SavedDraw> draws;
    std::vector<SavedChange> log;
  };
  struct OfTable {
    Shape shape{};
    Reader fields{nullptr, 0};  // of Table::fields: read once to be checked, and once to be taken
    SavedStreams streams;
    std::vector<OfLane> lanes;
    bool found = false;
  };
  Status read(Reader* archive);
  Status read_table(Reader part);
  Status read_lane(Reader* part, OfTable* of) const;
  Status check_items(size_t table) const;
  void choose();
  const std::string& topic_of(size_t table, uint64_t key) const;
  void place_lanes(size_t table);
  void place_items(size_t table, Restored* out);
  void place_queues(size_t table);

  Store& store_;
  Actors& actors_;
  Tables& tables_;
  std::vector<uint8_t> state_;
  Actors read_actors_{0};
  PushCounts pushes_;
  std::vector<OfTable> of_;                           // by table
  std::unordered_map<uint64_t, std::string> topics_;  // of actors
  std::vector<std::unique_ptr<SavedItems>> items_;
  std::vector<size_t> first_;     // by table: of the items that are kept, up to the last
  std::vector<uint64_t> needed_;  // the row of needed_[i] is in slot i
};

}  // namespace memsvc
