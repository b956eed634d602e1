// An actor's local memory: the recent episodes of its streams, and a view of them for each table (DEFINITIONS 1 to 7, stage one).
// Thread-safe: one lock, taken by every public call; no call waits for anything but the lock.
#pragma once

#include <memory>
#include <vector>

#include "buffer.h"
#include "cache.h"
#include "schema.h"
#include "status.h"

namespace memsvc {

// One step of each of `rows` environments. fields[f] points at the schema's field f of row 0, contiguous, rows strides[f] bytes apart.
struct StepBatch {
  size_t rows = 0;
  const int64_t* envs = nullptr;    // nullptr: 0 .. rows-1
  const uint8_t* active = nullptr;  // nullptr: all; rows with 0 are left out wholly
  const uint8_t* const* fields = nullptr;
  const size_t* strides = nullptr;
  const double* priority = nullptr;  // nullptr: none given
  int64_t version = -1;
  const uint8_t* terminated = nullptr;  // nullptr: none
  const uint8_t* truncated = nullptr;
  const uint8_t* const* final_fields = nullptr;  // nullptr, or per field nullptr, where not given
  const size_t* final_strides = nullptr;
};

struct ViewStats {
  double total = 0;
  uint64_t population = 0;
  double min_weight = 0;
  double scale = 1;
  double exponent = 0;
  uint64_t inserted = 0;  // items made since the server of now was joined
  uint64_t held = 0;
  uint64_t unsent = 0;
  uint64_t applied = 0;
  uint64_t stale = 0;           // items here that are too stale to be drawn
  uint64_t short_episodes = 0;  // ended so far and too short for any item
};

struct MemoryStats {
  uint64_t steps = 0;     // here now
  uint64_t episodes = 0;  // finished ones that are here
  uint64_t added = 0;     // steps ever added
  uint64_t ended = 0;     // episodes ever ended
  uint64_t bytes = 0;     // memory in use
  std::vector<uint64_t> streams;
  std::vector<ViewStats> tables;
};

class Memory {
 public:
  // The memory keeps copies of schema and specs (derived). max_steps and max_episodes are the largest of the tables' (0 episodes: no bound); there is
  // always room for two steps a stream. Memory is reserved at once and becomes resident as it is used. Throws std::bad_alloc.
  Memory(const Schema& schema, std::vector<TableSpec> tables, std::vector<uint64_t> streams, uint64_t seed);
  ~Memory();

  // Appends one step. `priority` is NaN where none is given. kInvalid: env out of range, priority missing for source "given", NaN-free rules
  // of DEFINITIONS 6 (infinite, negative). kFull: the memory is full of steps that select = "all" has not sent (draw() makes room), or a gate is
  // closed. kClosed: the stream has used up its 2^36 numbers. A refused call changes nothing. Amortised O(1): what follows from the step is worked
  // out when something is drawn or reported.
  Status add(size_t env, const uint8_t* const* fields, double priority, int64_t version);
  // One step of each environment, then the ends of those that are done. All rows are checked before the first is stored: a refused batch changes
  // nothing. kInvalid also where an environment comes twice.
  Status add_batch(const StepBatch& batch);
  // Ends the episode; never refused for want of room. `final_fields`: nullptr, or one pointer a field, nullptr where not given. A terminated episode
  // fills in its last step's fields; a truncated one must have every `next` field, and `value` where returns or source return/td use it, else
  // kInvalid. No step so far: nothing happens. `weight`, finite and >= 0, is g of the episode's items in tables with episode_weights (1 before the
  // end); kInvalid where it is not 1 and there is no such table.
  Status end(size_t env, bool terminated, const uint8_t* const* final_fields, double weight = 1);

  // Steps are refused (kFull) from when the table has made `allowed` items, counted exactly, ~0: no bound; and while `blocked`. The next
  // payload says in its head's `allowed` where the bound has been lowered.
  void gate(size_t table, uint64_t allowed, bool blocked);
  // The newest version of the actor's topic; older ones than before are passed over. Items too stale for it (TableSpec::fresh) leave total,
  // population and min_weight; of select = "all" they are sent no more. O(items that become stale), O(unsent) besides.
  void newest(int64_t version);
  // Takes what may change (TableSpec::change): weights, returns and the priorities that no learner has given are made anew, staleness judged again;
  // of select = "all" what was passed over as stale stays so. What the server holds keeps its content. O(items).
  void configure(size_t table, const TableSpec& spec);

  // memsvc_core.pyi, Memory.draw. Writes `head` free bytes and one payload into *out, whose size is 0 when there is nothing to say. Payloads are
  // numbered from 1, over all tables.
  Status draw(size_t table, uint64_t draws, size_t max_bytes, size_t head, Buffer* out);

  // Raw priorities, in order; those of items that are not here and invalid ones are passed over. Returns how many were applied.
  uint64_t feedback(size_t table, uint64_t number, const uint64_t* keys, const double* priorities, size_t n);
  // Items whose payload the server has dropped.
  void evicted(size_t table, const uint64_t* keys, size_t n);
  // The server has answered every payload up to this number, and missing() has been told what it asked for again: where every table is select =
  // "all", steps that only these needed may be given up.
  void settled(uint64_t payloads);
  // Items whose payload the server asks for: with the next draw().
  void missing(size_t table, const uint64_t* keys, size_t n);
  // Another server, which holds nothing of this memory, and knows its streams: numbers go on, what was sent is not sent again but where the server
  // asks for it. What the server of before had asked for again and not got is still to be sent.
  void forget();
  // As many streams as before. Everything here gets new numbers; nothing is held at the server.
  void reopen(std::vector<uint64_t> streams);
  // What select = "all" has final and has still to send; 0 for other tables. bytes: roughly.
  void unsent(size_t table, uint64_t* items, uint64_t* bytes) const;
  MemoryStats stats() const;
  uint64_t added() const;  // steps so far

  // For tests: 0 when every invariant of episodes.h and view.h holds, else 10 * (0 for the episodes, 1 + the table's index for a view) + its number.
  // O(everything).
  int verify();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace memsvc
