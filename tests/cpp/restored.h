// Replays of weighted.h saved, and restored with rows that are functions of their keys; and whether two of them are the same.
#pragma once

#include <functional>

#include "restore.h"
#include "saved.h"
#include "weighted.h"

namespace world {

inline Saved save(Replay& replay) {
  Saved saved;
  CHECK_OK(replay.save(&saved));
  return saved;
}

inline std::vector<std::unique_ptr<SavedItems>> copies(const Saved& saved) {
  std::vector<std::unique_ptr<SavedItems>> items;
  for (const SavedItems& one : saved.items) items.push_back(std::make_unique<SavedItems>(one));
  return items;
}

inline std::vector<uint8_t> bytes_of(uint64_t key) {
  std::vector<uint8_t> row(schema.row_stride());
  for (size_t b = 0; b < schema.row_bytes(); ++b) row[b] = byte_of(key, b);
  return row;
}

// Rows are functions of their keys; `has` says which are still to be had.
inline void bring(Replay& replay, const std::vector<uint64_t>& needed, const std::function<bool(uint64_t)>& has) {
  std::vector<uint64_t> keys;
  std::vector<uint8_t> rows;
  for (const uint64_t key : needed) {
    if (!has(key)) continue;
    keys.insert(keys.begin() + static_cast<std::ptrdiff_t>(keys.size() / 2), key);  // in no particular order
  }
  keys.push_back(make_key(77, 7));  // not needed
  for (const uint64_t key : keys) {
    const std::vector<uint8_t> row = bytes_of(key);
    rows.insert(rows.end(), row.begin(), row.end());
  }
  CHECK_EQ(replay.restore_rows(keys.data(), rows.data(), keys.size()), keys.size() - 1);
  CHECK_EQ(replay.restore_rows(keys.data(), rows.data(), keys.size()), size_t{0});
}

inline std::unique_ptr<Replay> restored(
    const Saved& saved, const std::vector<TableSpec>& tables, uint64_t memory, Restored* out = nullptr,
    const std::function<bool(uint64_t)>& has = [](uint64_t) { return true; }) {
  std::unique_ptr<Replay> replay;
  CHECK_OK(Replay::make(schema, tables, memory, 99, 1000, &replay));
  std::vector<uint64_t> needed;
  CHECK_OK(replay->begin_restore(saved.state.data(), saved.state.size(), copies(saved), &needed));
  bring(*replay, needed, has);
  const Restored result = replay->finish_restore();
  if (out) *out = result;
  CHECK_OK(replay->check());
  return replay;
}

// Without those that have left and can give nothing more: a restore lets them go, others go when somebody draws or joins.
inline std::vector<ActorStats> staying(std::vector<ActorStats> actors) {
  std::erase_if(actors, [](const ActorStats& one) { return one.left && (one.queue == 0 || !(one.total > 0)); });
  return actors;
}

// Everything that can be told of two Replays, but for how large they are.
inline void same(const Replay& a, const Replay& b) {
  const ReplayStats one = a.stats(), other = b.stats();
  CHECK_EQ(one.pushes.received, other.pushes.received);
  CHECK_EQ(one.steps, other.steps);
  for (size_t i = 0; i < one.tables.size(); ++i) {
    const TableStats &x = one.tables[i], &y = other.tables[i];
    CHECK_EQ(x.items, y.items);
    CHECK_EQ(x.population, y.population);
    CHECK_NEAR(x.total, y.total, 1e-9 * x.total);
    CHECK_EQ(x.min_weight, y.min_weight);
    for (const auto member : {&TableStats::drawn, &TableStats::inserted, &TableStats::stale_updates, &TableStats::refused_updates,
                              &TableStats::evicted, &TableStats::starved, &TableStats::aged, &TableStats::deleted, &TableStats::put_back,
                              &TableStats::in_flight, &TableStats::exhausted, &TableStats::sampled}) {
      CHECK_EQ(x.*member, y.*member);
    }
    CHECK_EQ(x.ahead, y.ahead);
    const std::vector<ActorStats> here = staying(x.actors), there = staying(y.actors);
    CHECK_EQ(here.size(), there.size());
    for (size_t k = 0; k < std::min(here.size(), there.size()); ++k) {
      const ActorStats &p = here[k], &q = there[k];
      CHECK_EQ(p.name, q.name);
      CHECK_EQ(p.total, q.total);
      CHECK_EQ(p.left, q.left);
      for (const auto member : {&ActorStats::actor, &ActorStats::population, &ActorStats::queue, &ActorStats::drawn, &ActorStats::wanted,
                                &ActorStats::received, &ActorStats::starved, &ActorStats::steps, &ActorStats::episodes, &ActorStats::stale}) {
        CHECK_EQ(p.*member, q.*member);
      }
      CHECK_EQ(p.age_steps, q.age_steps);
    }
  }
}

inline TableSpec changed(TableSpec spec, const std::function<void(TableSpec*)>& change) {
  change(&spec);
  return spec;
}

}  // namespace world
