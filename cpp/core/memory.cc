#include "memory.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "memory_state.h"

namespace memsvc {

Memory::Memory(const Schema& schema, std::vector<TableSpec> tables, std::vector<uint64_t> streams, uint64_t seed)
    : state_(std::make_unique<State>(schema, std::move(tables), streams, seed)) {}

Memory::~Memory() = default;

Status Memory::add(size_t env, const uint8_t* const* fields, double priority, int64_t version) {
  std::lock_guard<std::mutex> lock(state_->mutex);
  if (Status s = state_->check_step(env, priority); !s.ok()) return s;
  if (Status s = state_->check_gates(); !s.ok()) return s;
  if (Status s = state_->make_room(&env, 1); !s.ok()) return s;
  state_->append(env, [&](size_t f) { return fields[f]; }, priority, version);
  return {};
}

Status Memory::add_batch(const StepBatch& b) {
  State& m = *state_;
  std::lock_guard<std::mutex> lock(m.mutex);
  auto active = [&](size_t row) { return !b.active || b.active[row]; };
  auto env_of = [&](size_t row) { return b.envs ? static_cast<size_t>(b.envs[row]) : row; };
  auto done = [&](size_t row) { return (b.terminated && b.terminated[row]) || (b.truncated && b.truncated[row]); };
  auto ends_well = [&](size_t row) { return b.terminated && b.terminated[row]; };
  auto given = [&](size_t row) { return b.priority ? b.priority[row] : std::nan(""); };

  std::fill(m.seen.begin(), m.seen.end(), 0);
  std::vector<size_t>& envs = m.envs;
  envs.clear();
  for (size_t row = 0; row < b.rows; ++row) {
    if (!active(row)) continue;
    const size_t env = env_of(row);
    if (Status s = m.check_step(env, given(row)); !s.ok()) return {s.code(), "row " + std::to_string(row) + ": " + s.message()};
    if (m.seen[env]) return {Code::kInvalid, "row " + std::to_string(row) + ": env " + std::to_string(env) + " comes twice in one batch"};
    m.seen[env] = 1;
    if (done(row) && !ends_well(row)) {
      if (Status s = m.check_final(b.final_fields); !s.ok()) return {s.code(), "row " + std::to_string(row) + ": " + s.message()};
    }
    envs.push_back(env);
  }
  if (envs.empty()) return {};
  if (Status s = m.check_gates(); !s.ok()) return s;
  if (Status s = m.make_room(envs.data(), envs.size()); !s.ok()) return s;
  for (size_t row = 0; row < b.rows; ++row) {
    if (active(row)) m.append(env_of(row), [&](size_t f) { return b.fields[f] + row * b.strides[f]; }, given(row), b.version);
  }
  for (size_t row = 0; row < b.rows; ++row) {
    if (!active(row) || !done(row)) continue;
    m.finish(env_of(row), ends_well(row), 1, [&](size_t f) -> const uint8_t* {
      return b.final_fields && b.final_fields[f] ? b.final_fields[f] + row * b.final_strides[f] : nullptr;
    });
  }
  return {};
}

Status Memory::end(size_t env, bool terminated, const uint8_t* const* final_fields, double weight) {
  State& m = *state_;
  std::lock_guard<std::mutex> lock(m.mutex);
  if (env >= m.episodes.envs()) return m.check_step(env, 0);
  if (Status s = m.check_weight(weight); !s.ok()) return s;
  if (m.episodes.open(env) == kNone) return {};
  if (!terminated) {
    if (Status s = m.check_final(final_fields); !s.ok()) return s;
  }
  m.finish(env, terminated, weight, [&](size_t f) -> const uint8_t* { return final_fields ? final_fields[f] : nullptr; });
  return {};
}

Status Memory::draw(size_t table, uint64_t draws, size_t max_bytes, size_t head, Buffer* out) {
  State& m = *state_;
  std::lock_guard<std::mutex> lock(m.mutex);
  out->resize(0);
  if (table >= m.views.size()) return {Code::kInvalid, "table " + std::to_string(table) + ": there are " + std::to_string(m.views.size())};
  m.look_all();
  View& view = *m.views[table];
  view.settle();
  m.payload.begin();
  if (!view.fill(draws, max_bytes, m.random, &m.payload)) return {};
  view.tell_floors(&m.payload);
  CacheHead h = view.head();
  h.table = static_cast<uint32_t>(table);
  h.steps = m.added;
  h.episodes = m.ended;
  m.payload.write(view.spec(), h, head, out);
  m.shrink();
  m.let_go();
  return {};
}

uint64_t Memory::feedback(size_t table, uint64_t number, const uint64_t* keys, const double* priorities, size_t n) {
  std::lock_guard<std::mutex> lock(state_->mutex);
  state_->look_all();
  return state_->views[table]->feedback(number, keys, priorities, n);
}

void Memory::evicted(size_t table, const uint64_t* keys, size_t n) {
  std::lock_guard<std::mutex> lock(state_->mutex);
  state_->views[table]->evicted(keys, n);
}

void Memory::settled(uint64_t payloads) {
  std::lock_guard<std::mutex> lock(state_->mutex);
  state_->settled = std::max(state_->settled, payloads);
}

void Memory::missing(size_t table, const uint64_t* keys, size_t n) {
  std::lock_guard<std::mutex> lock(state_->mutex);
  state_->views[table]->missing(keys, n);
}

void Memory::gate(size_t table, uint64_t allowed, bool blocked) {
  std::lock_guard<std::mutex> lock(state_->mutex);
  state_->views[table]->gate(allowed, blocked);
}

void Memory::newest(int64_t version) {
  State& m = *state_;
  std::lock_guard<std::mutex> lock(m.mutex);
  if (version <= m.newest) return;
  m.newest = version;
  for (auto& view : m.views) view->newest(version);
}

void Memory::configure(size_t table, const TableSpec& spec) {
  State& m = *state_;
  std::lock_guard<std::mutex> lock(m.mutex);
  m.look_all();
  const TableSpec before = m.specs[table];
  m.specs[table].change(spec);
  m.views[table]->changed(before);
}

void Memory::forget() {
  State& m = *state_;
  std::lock_guard<std::mutex> lock(m.mutex);
  m.look_all();
  for (auto& view : m.views) view->forget_server(true);
  m.episodes.release_all();
}

void Memory::reopen(std::vector<uint64_t> streams) {
  State& m = *state_;
  std::lock_guard<std::mutex> lock(m.mutex);
  m.look_all();
  for (auto& view : m.views) view->forget_server(false);
  m.episodes.release_all();
  m.episodes.renumber(streams);
  m.settled = m.payload.written();
}

void Memory::unsent(size_t table, uint64_t* items, uint64_t* bytes) const {
  std::lock_guard<std::mutex> lock(state_->mutex);
  state_->views[table]->unsent(items, bytes);
}

uint64_t Memory::added() const {
  std::lock_guard<std::mutex> lock(state_->mutex);
  return state_->added;
}

MemoryStats Memory::stats() const {
  State& m = *state_;
  std::lock_guard<std::mutex> lock(m.mutex);
  m.look_all();
  MemoryStats s;
  s.steps = m.episodes.steps();
  s.episodes = m.episodes.finished().size();
  s.added = m.added;
  s.ended = m.ended;
  s.streams = m.episodes.streams();
  s.bytes = m.episodes.bytes();
  for (auto& view : m.views) {
    view->settle();
    s.tables.push_back(view->stats());
    s.bytes += view->bytes();
  }
  return s;
}

int Memory::verify() {
  State& m = *state_;
  std::lock_guard<std::mutex> lock(m.mutex);
  m.look_all();
  if (int broken = m.episodes.verify()) return broken;
  for (size_t table = 0; table < m.views.size(); ++table) {
    m.views[table]->settle();
    if (int broken = m.views[table]->verify()) return static_cast<int>(10 * (table + 1)) + broken;
  }
  return 0;
}

}  // namespace memsvc
