// What a Memory is made of, behind its lock: the episodes, a view of them for each table, and the rules by which steps come, wait and go.
#pragma once

#include <cstring>
#include <memory>
#include <mutex>
#include <vector>

#include "episodes.h"
#include "memory.h"
#include "payload.h"
#include "stream.h"
#include "view.h"

namespace memsvc {

struct Memory::State {
  static constexpr size_t kSlotsAhead = 6;  // steps to come whose place is fetched

  State(const Schema& schema, std::vector<TableSpec> tables, const std::vector<uint64_t>& streams, uint64_t seed);

  // The refusals of Memory's contract; what they refuse has changed nothing.
  Status check_step(size_t env, double priority) const;
  Status check_final(const uint8_t* const* fields) const;
  Status check_weight(double weight) const;
  Status check_gates();
  // Makes room for a step of each of n different environments, by forgetting what is oldest and sent; kFull where that is not enough.
  Status make_room(const size_t* envs, size_t n);
  // Forgets finished episodes beyond max_episodes, and those that need not be kept any longer.
  void shrink();
  void let_go();
  // Views follow the episodes that have changed.
  void look_all();
  // A new step, checked and with room. at(f): the bytes of field f.
  template <class At>
  void append(size_t env, At&& at, double priority, int64_t version);
  // Ends the open episode, checked. at(f): the final observation's bytes of field f, or nullptr for the last step's.
  template <class At>
  void finish(size_t env, bool terminated, double weight, At&& at);

  // Rows are soon read again, and their places soon used again: they stay in the processor's caches.
  bool warm() const { return warm_steps < sent_steps; }
  static void copy(uint8_t* to, const uint8_t* from, size_t n) { std::memcpy(to, from, n); }
  bool spared(uint32_t id);
  bool answered(uint32_t stamp) const;
  void trim(uint32_t id);
  void evict_oldest();
  bool unsent_in(uint32_t id, bool whole);
  void mark(uint32_t id);
  void look(uint32_t id);

  const Schema schema;
  std::vector<TableSpec> specs;
  const uint64_t max_episodes;
  uint64_t sent_steps = UINT64_MAX;  // steps kept although every table has sent them, and of those
  uint64_t warm_steps = UINT64_MAX;  // as many as are kept although every payload with them has been answered too
  uint64_t sent_each = UINT64_MAX;   // a stream's share of these
  uint64_t warm_each = UINT64_MAX;
  uint64_t settled = 0;  // payloads up to this number have been answered
  Episodes episodes;
  std::vector<std::unique_ptr<View>> views;
  Payload payload;
  Random random;
  std::vector<uint8_t> final_needed;  // per field: a truncated episode must bring it
  bool given = false;                 // a table's priorities come with the steps
  bool weighs_episodes = false;       // a table's items take the weight of their episode
  uint64_t added = 0, ended = 0;      // steps, episodes
  int64_t newest = 0;
  std::vector<uint32_t> dirty;
  std::vector<uint8_t> seen;  // scratch of add_batch, one an environment
  std::vector<size_t> envs;   // likewise
  mutable std::mutex mutex;
};

template <class At>
void Memory::State::append(size_t env, At&& at, double priority, int64_t version) {
  if (const uint32_t next = episodes.next_slot(kSlotsAhead); next != kNone) {
    episodes.prefetch(next);
    episodes.prefetch_row(next);
    for (auto& view : views) view->prefetch(next);
  }
  uint32_t id;
  uint8_t* row = episodes.row(episodes.append(env, priority, version, &id));
  const std::vector<Field>& fields = schema.fields();
  for (size_t f = 0; f < fields.size(); ++f) {
    if (fields[f].bytes > 0) (warm() ? copy : copy_streaming)(row + fields[f].offset, at(f), fields[f].bytes);
  }
  ++added;
  mark(id);
  for (auto& view : views) view->grown(id);
}

template <class At>
void Memory::State::finish(size_t env, bool terminated, double weight, At&& at) {
  const uint32_t id = episodes.open(env);
  const uint32_t last = episodes.episode(id).slot(episodes.episode(id).count - 1);
  uint8_t* row = episodes.row(episodes.finish(env, terminated, weight));
  std::memcpy(row, episodes.row(last), schema.row_stride());
  const std::vector<Field>& fields = schema.fields();
  for (size_t f = 0; f < fields.size(); ++f) {
    const uint8_t* from = at(f);
    if (from && fields[f].bytes > 0) std::memcpy(row + fields[f].offset, from, fields[f].bytes);
  }
  ++ended;
  mark(id);
  for (auto& view : views) {
    view->grown(id);
    view->ended(id);
  }
  shrink();
}

}  // namespace memsvc
