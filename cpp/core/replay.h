// The server's state: one step store, and the tables over it (DEFINITIONS 7, stage two).
// Thread-safe: one lock, taken by every public call; rows are copied in and batches gathered without it (reserved and pinned slots).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "actors.h"
#include "schema.h"
#include "status.h"

namespace memsvc {

struct Restored;  // restore.h
class Capture;    // saved.h
struct Saved;
struct SavedItems;

constexpr int64_t kAnyVersion = INT64_MIN;  // of draws: whatever made the items

struct Notices {
  uint64_t wanted = 0;
  std::vector<uint64_t> missing, evicted;
};

struct Feedback {
  uint64_t number = 0;
  std::vector<uint64_t> keys;
  std::vector<double> priorities;
};

struct UpdateResult {
  uint64_t applied = 0, stale = 0;
  std::vector<uint64_t> refused;
};

struct ActorStats {
  std::string name;
  uint64_t actor = 0;
  double total = 0;
  uint64_t population = 0, queue = 0, wanted = 0, drawn = 0, received = 0, starved = 0;
  bool left = false;
  uint64_t steps = 0, episodes = 0, short_episodes = 0, stale = 0;
  double age_steps = 0;  // mean age of the draws delivered, in the actor's steps
};

struct TableStats {
  uint64_t items = 0, population = 0;
  double total = 0, min_weight = 0;
  uint64_t drawn = 0, inserted = 0, stale_updates = 0, refused_updates = 0, evicted = 0, starved = 0;
  uint64_t aged = 0, deleted = 0, put_back = 0, in_flight = 0, exhausted = 0;
  bool limited = false;
  uint64_t sampled = 0;  // since the limiter began to count
  double ahead = 0;      // samples that actors are ahead by
  double age_steps = 0;
  // Bytes of what waits for actors (priorities, keys to be told, draws without payload), of the log of learners' changes, of notes of items'
  // versions.
  uint64_t feedback_bytes = 0, told_bytes = 0, changes_bytes = 0, notes_bytes = 0;
  std::vector<ActorStats> actors;
};

// Of all pushes, or of one session's while its actor is here.
struct PushStats {
  std::string name;
  uint64_t actor = 0, stored = 0;  // stored: number of the newest push that was stored, or refused for good
  PushCounts counts;
};

struct ReplayStats {
  uint64_t steps = 0, capacity_steps = 0, bytes = 0, seed = 0;
  PushCounts pushes;
  std::vector<PushStats> actors;
  uint64_t sessions = 0;  // of actors that are gone
  std::vector<TableStats> tables;
};

struct Footprint {
  uint64_t steps = 0, step_bytes = 0, bytes = 0;
  uint64_t least_bytes = 0;     // of a memory that make() accepts
  std::vector<uint64_t> items;  // the most that each table holds
};

// memsvc_core.pyi, Replay.why_not.
enum class Why { kReady, kMinItems, kStock, kEmpty, kFew, kLimiter, kStale, kShort, kVersion };

struct Reason {
  Why why = Why::kReady;
  int64_t have = 0, need = 0;
};

// What an actor is told that says who it is.
struct Joined {
  uint64_t actor = 0;
  std::vector<uint64_t> streams;
  uint64_t stored = 0;   // number of its newest push that was stored here, or refused for good
  bool resumed = false;  // what it was told before still holds
};

class Replay {
 public:
  static Footprint footprint(const Schema& schema, const std::vector<TableSpec>& tables, uint64_t memory_bytes);
  // kInvalid when the memory does not hold 64 steps.
  static Status make(const Schema& schema, std::vector<TableSpec> tables, uint64_t memory_bytes, uint64_t seed, uint64_t first_stream,
                     std::unique_ptr<Replay>* out);
  ~Replay();

  // `topic`: of the parameters whose versions its steps carry.
  uint64_t join(const std::string& name, size_t envs, std::vector<uint64_t>* streams, const std::string& topic = "default");
  // memsvc_core.pyi, Replay.resume. session: not 0.
  Joined resume(const std::string& name, size_t envs, const std::string& topic, uint64_t session, const std::vector<uint64_t>& streams,
                uint64_t first, uint64_t fed = 0);
  void leave(uint64_t actor);
  // kMalformed: nothing changed, but the number counts as dealt with. kNotFound: no such actor (it was replaced). kDuplicate, kGap: not the number
  // that comes next, nothing changed; `stored` is the newest one that was stored. kFull: no memory for it, it may be tried again. number 0: without.
  Status push(uint64_t actor, const uint8_t* data, size_t size, uint64_t* items, uint64_t* draws, uint64_t number = 0, uint64_t* stored = nullptr);
  Notices notices(uint64_t actor, size_t table);
  std::vector<uint64_t> hungry(size_t table) const;
  // False where the table has no limiter. ahead: items that actors are ahead by.
  bool allowance(uint64_t actor, size_t table, uint64_t* allowed, double* ahead);
  // What becomes too stale by it goes in pieces: pushes and draws get their turn meanwhile, and draws may still find some of it until this returns.
  void publish(const std::string& topic, int64_t version);
  bool take_feedback(uint64_t actor, size_t table, Feedback* out);
  std::vector<uint64_t> with_feedback(size_t table) const;
  void expect(size_t table, uint64_t draws);
  uint64_t largest_batch(size_t table) const;
  // out: TableSpec::batch_bytes(batch) bytes at a multiple of 8. False when no whole batch can be drawn now; nothing is used up then. `version`: only
  // items of it or newer (select = "all"), kAnyVersion for all. `ticket`: a number that is not in use, for taken() or put_back(); 0: taken at once.
  bool draw(size_t table, size_t batch, uint8_t* out, uint64_t* population, double* total, int64_t version = kAnyVersion, uint64_t ticket = 0);
  void taken(size_t table, uint64_t ticket);
  void put_back(size_t table, uint64_t ticket);
  Reason why_not(size_t table, size_t batch, int64_t version = kAnyVersion) const;
  // The items that are here, in the order of their keys, as a batch of so many in `out`, which has room for all. Returns how many.
  size_t get(size_t table, const uint64_t* keys, size_t n, uint8_t* out, uint64_t* population, double* total);
  UpdateResult erase(size_t table, const uint64_t* keys, size_t n);
  void configure(size_t table, const TableSpec& spec);
  // Of a key that comes twice the last priority counts. Long lists are applied in pieces, in their order: pushes, draws and others' updates get their
  // turn between two pieces, and see those before. O(n).
  UpdateResult update(size_t table, const uint64_t* keys, const double* priorities, size_t n);

  // memsvc_core.pyi, as all of these. kFull: no memory for a copy.
  Status save(Saved* out);
  // The same in three steps: memory for a copy is taken; the copy is made, under the lock, false where there is more by now than memory was taken
  // for; and sorted out.
  Status prepare(Capture* capture) const;
  bool copy(Capture* capture);
  void decode(Capture* capture, Saved* out) const;
  // here[i]: the row of keys[i] is in out, stride bytes each.
  void rows(const uint64_t* keys, size_t n, uint8_t* out, bool* here);
  Status begin_restore(const uint8_t* state, size_t size, std::vector<std::unique_ptr<SavedItems>> items, std::vector<uint64_t>* needed);
  size_t restore_rows(const uint64_t* keys, const uint8_t* rows, size_t n);
  Restored finish_restore();
  void restored();
  std::vector<uint8_t> progress();
  Status advance(const uint8_t* data, size_t size);

  size_t row_stride() const;
  ReplayStats stats() const;
  // Every numbered invariant of the store and the tables (I1 to I10, O1), while no push or draw is under way; the first broken one by number.
  // Walks everything: for tests.
  Status check() const;

 private:
  struct State;
  explicit Replay(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace memsvc
