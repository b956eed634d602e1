// A push on its way in, in three steps: reserve() under Replay's lock makes room, finds a slot for every new row and a place for every new item;
// copy() without the lock moves the rows; publish() under it queues the draws and lets the items be drawn.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_set>
#include <vector>

#include "actors.h"
#include "cache.h"
#include "store.h"
#include "table.h"

namespace memsvc {

class Intake {
 public:
  // All outlive the intake.
  Intake(Store* store, Actors* actors, std::vector<std::unique_ptr<Table>>* tables, size_t table, uint64_t actor, const CacheView& view)
      : store_(store), actors_(actors), tables_(tables), table_(*(*tables)[table]), actor_(actor), view_(view) {}

  // kMalformed when a key belongs to another actor's stream: nothing has changed. Otherwise rows and items are reserved and pinned; what exceeds
  // the store after everything that may go has gone is reported to the actor as evicted, an item whose rows are nowhere as missing.
  // std::bad_alloc: so far as nothing was evicted for it, nothing has changed.
  Status reserve();
  void copy() const;
  // std::bad_alloc: some of it is queued, or can be drawn; nothing stays held.
  void publish();

  // Whether copy() writes this row.
  bool writes(uint32_t slot) const {
    return std::any_of(copies_.begin(), copies_.end(), [slot](const Copy& copy) { return slot - copy.slot < copy.rows; });
  }

  uint64_t items_stored() const { return new_items_.size(); }
  uint64_t draws_queued() const { return draws_queued_; }

 private:
  struct NewItem {
    uint32_t item;
    double priority;
  };
  struct Copy {
    uint32_t slot;
    uint64_t row;  // in the payload
    uint32_t rows;
  };
  Status take_in();
  void undo();
  void hold(uint32_t slot);
  Status check_streams();
  bool ours(uint64_t key) const;
  bool later(uint64_t key, std::vector<uint64_t>* newest) const;
  void fetch_ahead(const Table& table);
  void pin_known_draws();
  void find_rows();
  void make_room();
  void keep_newest(uint64_t* items, uint64_t most_items, uint64_t most_rows);
  void hold_windows();
  bool evict_one(Table* only);
  bool give_way(Table* only);
  void evict(Table* table, uint32_t item);
  void store_rows();
  void store_items();
  void settle_draws();
  void queue();
  void give_up();
  void settle_incomplete();
  void settle_waiting(Lane* lane);
  void admit();

  Store* store_;
  Actors* actors_;
  std::vector<std::unique_ptr<Table>>* tables_;
  Table& table_;
  const uint64_t actor_;
  const CacheView& view_;

  std::vector<uint32_t> held_;      // slots this intake holds until it is published: rows of the payload and those its items count on
  std::vector<uint64_t> new_rows_;  // rows of the payload that the store does not hold
  struct Place {
    uint32_t slot;
    bool taken;  // by this intake
  };
  std::vector<Place> places_;          // of every row of the payload, kNone where there was no room
  std::vector<uint64_t> newest_row_;   // by stream: the largest key of a row taken so far, and
  std::vector<uint64_t> newest_item_;  // of an item seen so far
  std::vector<Copy> copies_;
  std::vector<NewItem> new_items_;
  std::vector<uint32_t> draw_items_;        // of every draw, kNone where it waits or is dropped
  std::vector<uint32_t> window_;            // scratch
  std::vector<uint64_t> refused_;           // keys of items that found no room, sorted
  std::vector<uint64_t> incomplete_;        // keys of items whose rows are nowhere
  std::unordered_set<uint64_t> waits_for_;  // keys of the items that the lane's waiting draws need
  uint64_t skip_ = 0;                       // new items, the first ones, that there is no room for
  bool short_ = false;                      // the store did not take every row
  std::vector<DrawRecord> late_;            // draws that wait for their payload
  uint64_t draws_queued_ = 0;
  size_t queued_ = 0, admitted_ = 0;  // of the draws and the new items
  bool admitting_ = false;            // one more of a union's items may be half in
  std::string name_, topic_;          // of the actor, when the push came
  // Streams known to be this actor's: as many from the first; the others it may have are looked up.
  uint64_t first_stream_ = 0, streams_ = 0;
  struct Ahead {
    const Table* table;
    uint32_t near, far;  // items of its list: of the one keys are fetched, of the other the item itself
  };
  std::vector<Ahead> ahead_;  // of the tables that something is evicted from
};

}  // namespace memsvc
