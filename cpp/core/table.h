// One table on the server: its items over the common step store, its actors' lanes, and the way it draws, by caches or by the union.
// Not thread-safe: Replay's lock guards it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "actors.h"
#include "caches.h"
#include "gather.h"
#include "items.h"
#include "lane.h"
#include "random.h"
#include "replay.h"
#include "united.h"

namespace memsvc {

struct Table {
  Table(TableSpec settings, uint64_t seed) : spec(std::move(settings)), items(spec), random(seed), caches(spec, &items, &lanes, &random) {}
  Table(const Table&) = delete;

  bool whole() const { return spec.select == Select::kAll; }
  Population population() const {
    if (united) return {united->total(), united->population(), united->min_weight()};
    return {lanes.total(), lanes.population(), lanes.min_weight()};
  }

  // Room for what `steps` rows of the store can be made of, and `entries` for draws. An unmapped arena is only counted.
  void place(Arena* arena, Store* store, uint32_t steps, uint32_t entries);
  // Bytes that the union's tree takes outside the arena, after place().
  size_t tree_bytes() const { return whole() ? SumTree::bytes_for(items.capacity()) : 0; }

  // `batch` draws, shuffled, their weights and what they were drawn from. False when there are fewer, or less than min_items: nothing changes.
  bool choose(size_t batch, uint32_t* chosen, double* weights, Population* from);
  Reason why_not(size_t batch);
  // Learners' raw priorities (DEFINITIONS 7, closed loop): w_now and W at once, the actors by feedback.
  UpdateResult update(const Actors& actors, const uint64_t* keys, const double* priorities, size_t n);
  // The lane goes, with its draws and its weight.
  void remove(Lane* lane);
  TableStats stats() const;
  // I3 to I9 of this table, needs[slot] as in Items::check; what is broken, or "".
  std::string check(uint32_t* needs) const;

  const TableSpec spec;
  Items items;
  Lanes lanes;
  Random random;
  Caches caches;                                                                       // unless whole()
  std::unique_ptr<United> united;                                                      // whole()
  double last_scale = 1;                                                               // of the newest report: for items whose actor is gone
  uint64_t drawn = 0, inserted = 0, stale = 0, refused = 0, evicted = 0, starved = 0;  // starved: by lanes that are gone
};

}  // namespace memsvc
