// The server's state: one step store, and the tables over it (DEFINITIONS 7, stage two).
// Thread-safe: one lock, taken by every public call; rows are copied in and batches gathered without it (reserved and pinned slots).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "schema.h"
#include "status.h"

namespace memsvc {

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
};

struct TableStats {
  uint64_t items = 0, population = 0;
  double total = 0, min_weight = 0;
  uint64_t drawn = 0, inserted = 0, stale_updates = 0, refused_updates = 0, evicted = 0, starved = 0;
  std::vector<ActorStats> actors;
};

struct ReplayStats {
  uint64_t steps = 0, capacity_steps = 0, bytes = 0, seed = 0;
  std::vector<TableStats> tables;
};

struct Footprint {
  uint64_t steps = 0, step_bytes = 0, bytes = 0;
  uint64_t least_bytes = 0;  // of a memory that make() accepts
};

enum class Why { kReady, kMinItems, kStock, kEmpty };

struct Reason {
  Why why = Why::kReady;
  uint64_t have = 0, need = 0;
};

class Replay {
 public:
  static Footprint footprint(const Schema& schema, const std::vector<TableSpec>& tables, uint64_t memory_bytes);
  // kInvalid when the memory does not hold 64 steps.
  static Status make(const Schema& schema, std::vector<TableSpec> tables, uint64_t memory_bytes, uint64_t seed, uint64_t first_stream,
                     std::unique_ptr<Replay>* out);
  ~Replay();

  uint64_t join(const std::string& name, size_t envs, std::vector<uint64_t>* streams);
  void leave(uint64_t actor);
  // kMalformed: nothing changed. kNotFound: no such actor (it was replaced).
  Status push(uint64_t actor, const uint8_t* data, size_t size, uint64_t* items, uint64_t* draws);
  Notices notices(uint64_t actor, size_t table);
  std::vector<uint64_t> hungry(size_t table) const;
  bool take_feedback(uint64_t actor, size_t table, Feedback* out);
  std::vector<uint64_t> with_feedback(size_t table) const;
  void expect(size_t table, uint64_t draws);
  uint64_t largest_batch(size_t table) const;
  // out: TableSpec::batch_bytes(batch) bytes at a multiple of 8. False when no whole batch can be drawn now; nothing is used up then.
  bool draw(size_t table, size_t batch, uint8_t* out, uint64_t* population, double* total);
  Reason why_not(size_t table, size_t batch) const;
  UpdateResult update(size_t table, const uint64_t* keys, const double* priorities, size_t n);
  ReplayStats stats() const;
  // Every numbered invariant of the store and the tables (I1 to I10), while no push or draw is under way; the first broken one by number.
  // Walks everything: for tests.
  Status check() const;

 private:
  struct State;
  explicit Replay(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace memsvc
