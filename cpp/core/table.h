// One table on the server: its items over the common step store, its actors' lanes, and the way it draws, by caches or by the union.
// Not thread-safe: Replay's lock guards it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "actors.h"
#include "ages.h"
#include "caches.h"
#include "deliveries.h"
#include "gates.h"
#include "gather.h"
#include "items.h"
#include "lane.h"
#include "limiter.h"
#include "quota.h"
#include "random.h"
#include "replay.h"
#include "united.h"

namespace memsvc {

constexpr size_t kPiece = 1024;  // items that are worked on under one hold of the lock: less than half a millisecond

// What draws have used up since a save, or since the last progress: absolute numbers of what has changed, and the keys since.
struct Progress {
  struct Used {
    static constexpr bool kFlat = true;  // archive.h
    uint64_t actor;
    uint32_t segment, padding;
    uint64_t left;  // of the segment, at the front of the queue
    uint64_t drawn;
    double age_sum;
    uint64_t age_draws, starved;
  };
  std::string name;
  uint64_t drawn = 0, returned = 0, era = 0, expected = 0, largest = 0;
  double sampled = 0;
  Random random{0};
  std::vector<Used> lanes;
  std::vector<uint64_t> confirmed, decayed;

  template <class A>
  void fields(A& archive) {
    archive(name, drawn, returned, era, expected, largest, sampled, random, lanes, confirmed, decayed);
  }
};

struct Table {
  Table(TableSpec settings, uint64_t seed)
      : spec(std::move(settings)), items(spec), random(seed), caches(spec, &items, &lanes, &random), quota(spec), limiter(spec) {}
  Table(const Table&) = delete;

  bool whole() const { return spec.select == Select::kAll; }
  Population population() const {
    if (whole()) return united.population();
    return caches.population();
  }

  // Room for what `steps` rows of the store can be made of, and `entries` for draws. `shares`: of tables that block, each of which must have its
  // items' rows whatever the others do. An unmapped arena is only counted.
  void place(Arena* arena, Store* store, uint32_t steps, uint32_t entries, uint32_t shares);
  // w_now of an item; where an order decides, 1 if it can be drawn.
  double weight(uint32_t item) const { return whole() ? united.weight_of_draw(item) : items.value(item); }
  // Bytes that the union's tree takes outside the arena, after place().
  size_t tree_bytes() const { return whole() ? united.tree_bytes() : 0; }

  void join(uint64_t actor, const std::string& name, const std::string& topic);
  // An actor that has left, or whose lane is gone, is here again: it had told of so many items, and has had feedback up to `fed`. What it was asked
  // for and has not sent is asked for again.
  void rejoin(uint64_t actor, const std::string& name, const std::string& topic, uint64_t inserted, uint64_t fed);
  void leave(uint64_t actor);
  // Nothing more comes from an actor that has left: its queue is used up, or nothing in it can be drawn.
  bool finished(const Lane& lane) const {
    return lane.out == 0 && (lane.queue.length == 0 || (spec.select != Select::kWithoutReplacement && !(lane.total() > 0)));
  }
  // The lane goes, with its draws and its weight.
  void remove(Lane* lane);

  // `batch` draws, their weights and what they were drawn from; shuffled, unless they have an order. False when there are fewer, less than min_items,
  // or the limiter says no: nothing changes then.
  bool choose(size_t batch, int64_t version, uint32_t* chosen, double* weights, Population* from);
  // What was chosen has been read: its ticket is open, or without one (0) it counts as confirmed.
  void deliver(const Actors& actors, uint64_t ticket, const uint32_t* chosen, size_t batch);
  void confirm(const Actors& actors, uint64_t ticket);
  void put_back(const Actors& actors, uint64_t ticket);
  // Whether an item gives so many draws and no more: then those that learners have and may give back are known by their items.
  bool counts_draws() const { return whole() ? spec.max_times_sampled > 0 : spec.select == Select::kWithoutReplacement; }
  // Draws that learners have not confirmed, of those that the limiter counts.
  uint64_t open_draws() const;
  // Replay::progress and advance. Batches that are not confirmed count as put back.
  void progress(Progress* out);
  void advance(const Actors& actors, const Progress& to);
  Reason why_not(size_t batch, int64_t version);

  // Learners' raw priorities (DEFINITIONS 7, closed loop): w_now and W at once, the actors by feedback.
  UpdateResult update(const Actors& actors, const uint64_t* keys, const double* priorities, size_t n);
  // Items go: from a union at once; of caches they are never drawn again.
  UpdateResult erase(const Actors& actors, const uint64_t* keys, size_t n);
  // Settings that may change while running (TableSpec::change).
  void configure(const Actors& actors, const TableSpec& to);
  // A topic's newest version: what is too stale for it goes (DEFINITIONS 10), a piece of kPiece items a call; true as long as there is more.
  bool publish(const Actors& actors, const std::string& topic, int64_t version);
  int64_t newest(const std::string& topic) const;

  // What limits.min_items compares with.
  uint64_t drawable() const { return whole() ? united.population().count : caches.drawable(); }

  // A union's item: it may be drawn from now on; or it goes, for whatever reason.
  void admit(const std::string& actor, const std::string& topic, uint32_t item, double priority);
  // Remembers which version made an item, for max_staleness.
  void note_age(const std::string& topic, uint32_t item);
  void drop(uint32_t item);
  // What the actor has beyond its bounds goes.
  void keep_bounds(const std::string& actor);
  // An actor's memory has lost the steps of these floors' streams that lie below them: draws of them that wait here are not made any more. O(items)
  // at most.
  void raise_floors(Lane* lane, const uint64_t* floors, size_t n);
  // How many items an actor may send of those that it has.
  uint64_t room(uint64_t actor) { return gates.give_room(actor, items.free(), items.capacity()); }
  // The actors that are to be told that they may do more. O(actors).
  std::vector<uint64_t> waiting_for_word() const;

  // What is not by item or by lane.
  template <class A>
  void fields(A& archive) {
    archive(drawn, inserted, stale, refused, evicted, starved, aged, deleted, returned, exhausted, newest_of, last_scale, youngest);
    archive(limiter, gates, random, caches);
  }

  TableStats stats() const;
  // I3 to I9 of this table, needs[slot] as in Items::check; what is broken, or "".
  std::string check(uint32_t* needs) const;

  TableSpec spec;
  Items items;
  Lanes lanes;
  Random random;
  Caches caches;  // unless whole()
  United united;  // whole()
  Quota quota;    // whole()
  Ages ages;
  Limiter limiter;
  Gates gates;
  Deliveries deliveries;
  std::map<std::string, int64_t> newest_of;                                            // topics' newest versions
  double last_scale = 1;                                                               // of the newest report: for items whose actor is gone
  int64_t youngest = -1;                                                               // the newest version that an item had
  uint64_t drawn = 0, inserted = 0, stale = 0, refused = 0, evicted = 0, starved = 0;  // starved: by lanes that are gone
  uint64_t departed = 0;                                                               // lanes whose actors have left
  uint64_t aged = 0, deleted = 0, returned = 0, exhausted = 0;                         // returned: draws put back
  bool notes = false;                                                                  // for progress():
  std::vector<uint64_t> confirmed, decayed;                                            // keys of draws since the last one

 private:
  void find(const uint64_t* keys, size_t n, uint32_t* found) const;
  void set(Owners* owners, uint64_t key, double p, uint32_t item, UpdateResult* result);
  bool holds(uint64_t key) const { return items.find(key) != kNone; }
};

}  // namespace memsvc
