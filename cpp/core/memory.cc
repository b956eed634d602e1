#include "memory.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <mutex>
#include <string>

#include "episodes.h"
#include "payload.h"
#include "stream.h"
#include "view.h"

namespace memsvc {
namespace {

uint64_t most_steps(const std::vector<TableSpec>& tables) {
  uint64_t most = 1;
  for (const TableSpec& t : tables) most = std::max(most, t.max_steps);
  return most;
}

// Where every table is select = "all", steps that were sent are kept only as far as an unacknowledged push may reach back: memory that is
// used again is 20 times as fast as memory that is touched for the first time (DESIGN 6).
constexpr uint64_t kSentBytes = 64 << 20;

uint64_t most_episodes(const std::vector<TableSpec>& tables) {
  uint64_t most = 0;
  for (const TableSpec& t : tables) {
    if (t.max_episodes == 0) return 0;
    most = std::max(most, t.max_episodes);
  }
  return most;
}

}  // namespace

struct Memory::State {
  State(const Schema& schema, std::vector<TableSpec> tables, const std::vector<uint64_t>& streams, uint64_t seed);

  Status check_step(size_t env, double priority) const;
  Status check_final(const uint8_t* const* fields) const;
  Status make_room(const size_t* envs, size_t n);
  void trim(uint32_t id);
  void evict_oldest();
  void shrink();
  void let_go();
  bool unsent_in(uint32_t id, bool whole);
  void mark(uint32_t id);
  void look(uint32_t id);
  void look_all();
  template <class At>
  void append(size_t env, At&& at, double priority, int64_t version);
  template <class At>
  void finish(size_t env, bool terminated, At&& at);

  const Schema schema;
  const std::vector<TableSpec> specs;
  const uint64_t max_episodes;
  uint64_t sent_steps = UINT64_MAX;  // steps kept although every table has sent them
  Episodes episodes;
  std::vector<std::unique_ptr<View>> views;
  Payload payload;
  Random random;
  std::vector<uint8_t> final_needed;  // per field: a truncated episode must bring it
  bool given = false;                 // a table's priorities come with the steps
  uint64_t added = 0;
  std::vector<uint32_t> dirty;
  std::vector<uint8_t> seen;  // scratch of add_batch, one an environment
  mutable std::mutex mutex;
};

Memory::State::State(const Schema& s, std::vector<TableSpec> tables, const std::vector<uint64_t>& streams, uint64_t seed)
    : schema(s),
      specs(std::move(tables)),
      max_episodes(most_episodes(specs)),
      episodes(schema.row_stride(), most_steps(specs), streams),
      payload(schema.row_stride(), episodes),
      random(seed),
      final_needed(schema.fields().size(), 0),
      seen(streams.size(), 0) {
  const bool all = std::all_of(specs.begin(), specs.end(), [](const TableSpec& t) { return t.select == Select::kAll; });
  if (all) sent_steps = std::max<uint64_t>(kSentBytes / schema.row_stride(), 64 * streams.size());
  for (const TableSpec& spec : specs) {
    views.push_back(std::make_unique<View>(schema, spec, episodes));
    for (int field : spec.next) final_needed[field] = 1;
    const bool by_value = spec.select != Select::kUniform && (spec.source == Source::kReturn || spec.source == Source::kTd);
    if (spec.value >= 0 && (spec.returns || by_value)) final_needed[spec.value] = 1;
    given = given || spec.source == Source::kGiven;
  }
}

Status Memory::State::check_step(size_t env, double priority) const {
  if (env >= episodes.envs()) {
    const std::string most = std::to_string(static_cast<int64_t>(episodes.envs()) - 1);
    return {Code::kInvalid, "env " + std::to_string(env) + ": expected 0 to " + most + ", as announced when the actor was made"};
  }
  if (std::isnan(priority)) {
    if (given) return {Code::kInvalid, "priority: a table has priority.source = \"given\": pass a number >= 0 with every step"};
  } else if (!valid_priority(priority)) {
    return {Code::kInvalid, "priority " + std::to_string(priority) + ": expected a finite number >= 0"};
  }
  if (!episodes.numbers_left(env)) {
    return {Code::kClosed, "env " + std::to_string(env) + ": its stream has used up its 2^36 step numbers; open a new actor"};
  }
  return {};
}

Status Memory::State::check_final(const uint8_t* const* fields) const {
  for (size_t f = 0; f < final_needed.size(); ++f) {
    if (!final_needed[f] || (fields && fields[f])) continue;
    const std::string& name = schema.fields()[f].name;
    return {Code::kInvalid,
            "final: a truncated episode needs \"" + name + "\" of the final observation; pass final={\"" + name + "\": ...}, or terminated=True"};
  }
  return {};
}

bool Memory::State::unsent_in(uint32_t id, bool whole) {
  bool unsent = false;
  for (auto& view : views) unsent = view->unsent_in(id, whole) || unsent;
  return unsent;
}

void Memory::State::look(uint32_t id) {
  for (auto& view : views) view->look(id);
  Episode& e = episodes.episode(id);
  e.dirty = false;
  e.looked = e.count;
}

void Memory::State::look_all() {
  for (uint32_t id : dirty) {
    if (episodes.episode(id).dirty) look(id);
  }
  dirty.clear();
}

void Memory::State::mark(uint32_t id) {
  Episode& e = episodes.episode(id);
  if (e.dirty) return;
  e.dirty = true;
  // Episodes that were looked at on their way out leave their ids in the list.
  if (dirty.size() > 2 * episodes.ids() + 64) look_all();
  e.dirty = true;
  dirty.push_back(id);
}

void Memory::State::trim(uint32_t id) {
  Episode& e = episodes.episode(id);
  bool look_first = 2 * (e.count - e.looked) >= e.present();  // the lost step's return has seen half a memory ahead, at O(1) a step
  for (auto& view : views) look_first = look_first || view->unseen_at_first(id);
  if (look_first) look(id);
  for (auto& view : views) view->lose_first(id);
  episodes.drop_first(e);
}

void Memory::State::evict_oldest() {
  const uint32_t id = episodes.finished().front();
  if (episodes.episode(id).dirty) look(id);
  for (auto& view : views) view->lose(id);
  episodes.drop_oldest();
}

void Memory::State::shrink() {
  while (max_episodes > 0 && episodes.finished().size() > max_episodes && !unsent_in(episodes.finished().front(), true)) evict_oldest();
}

void Memory::State::let_go() {
  while (episodes.steps() > sent_steps && !episodes.finished().empty() && !unsent_in(episodes.finished().front(), true)) evict_oldest();
}

Status Memory::State::make_room(const size_t* envs, size_t n) {
  const Status full(Code::kFull, "the memory's " + std::to_string(episodes.capacity()) +
                                     " steps (actor.max_steps) wait to be sent; push them, or enlarge actor.max_steps");
  auto at_share = [this](size_t env) { return episodes.open(env) != kNone && episodes.episode(episodes.open(env)).present() >= episodes.share(); };
  uint64_t grow = 0;
  for (size_t i = 0; i < n; ++i) {
    if (!at_share(envs[i])) {
      ++grow;
    } else if (unsent_in(episodes.open(envs[i]), false)) {
      return full;
    }
  }
  uint64_t after = episodes.steps() + grow;
  for (size_t i = 0; after > episodes.capacity(); ++i) {
    const uint32_t id = episodes.finished()[i];
    if (unsent_in(id, true)) return full;
    after -= episodes.episode(id).present();
  }
  for (size_t i = 0; i < n; ++i) {
    const uint32_t open = episodes.open(envs[i]);
    const bool sent = open != kNone && episodes.episode(open).present() > sent_steps / episodes.envs() &&
                      std::all_of(views.begin(), views.end(), [open](const auto& view) { return view->spares_first(open); });
    if (sent || at_share(envs[i])) trim(open);
  }
  // A trimmed stream appends a step too, so that it is n and not grow that must fit now.
  while (episodes.steps() + n > episodes.capacity()) evict_oldest();
  return {};
}

template <class At>
void Memory::State::append(size_t env, At&& at, double priority, int64_t version) {
  uint32_t id;
  uint8_t* row = episodes.row(episodes.append(env, priority, version, &id));
  const std::vector<Field>& fields = schema.fields();
  for (size_t f = 0; f < fields.size(); ++f) {
    if (fields[f].bytes > 0) copy_streaming(row + fields[f].offset, at(f), fields[f].bytes);
  }
  ++added;
  mark(id);
  for (auto& view : views) view->grown(id);
}

template <class At>
void Memory::State::finish(size_t env, bool terminated, At&& at) {
  const uint32_t id = episodes.open(env);
  const uint32_t last = episodes.episode(id).slot(episodes.episode(id).count - 1);
  uint8_t* row = episodes.row(episodes.finish(env, terminated));
  std::memcpy(row, episodes.row(last), schema.row_stride());
  const std::vector<Field>& fields = schema.fields();
  for (size_t f = 0; f < fields.size(); ++f) {
    const uint8_t* from = at(f);
    if (from && fields[f].bytes > 0) std::memcpy(row + fields[f].offset, from, fields[f].bytes);
  }
  mark(id);
  for (auto& view : views) view->grown(id);
  shrink();
}

Memory::Memory(const Schema& schema, std::vector<TableSpec> tables, std::vector<uint64_t> streams, uint64_t seed)
    : state_(std::make_unique<State>(schema, std::move(tables), streams, seed)) {}

Memory::~Memory() = default;

Status Memory::add(size_t env, const uint8_t* const* fields, double priority, int64_t version) {
  std::lock_guard<std::mutex> lock(state_->mutex);
  if (Status s = state_->check_step(env, priority); !s.ok()) return s;
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
  std::vector<size_t> envs;
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
  if (Status s = m.make_room(envs.data(), envs.size()); !s.ok()) return s;
  for (size_t row = 0; row < b.rows; ++row) {
    if (active(row)) m.append(env_of(row), [&](size_t f) { return b.fields[f] + row * b.strides[f]; }, given(row), b.version);
  }
  for (size_t row = 0; row < b.rows; ++row) {
    if (!active(row) || !done(row)) continue;
    m.finish(env_of(row), ends_well(row), [&](size_t f) -> const uint8_t* {
      return b.final_fields && b.final_fields[f] ? b.final_fields[f] + row * b.final_strides[f] : nullptr;
    });
  }
  return {};
}

Status Memory::end(size_t env, bool terminated, const uint8_t* const* final_fields) {
  State& m = *state_;
  std::lock_guard<std::mutex> lock(m.mutex);
  if (env >= m.episodes.envs()) return m.check_step(env, 0);
  if (m.episodes.open(env) == kNone) return {};
  if (!terminated) {
    if (Status s = m.check_final(final_fields); !s.ok()) return s;
  }
  m.finish(env, terminated, [&](size_t f) -> const uint8_t* { return final_fields ? final_fields[f] : nullptr; });
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
  CacheHead h = view.head();
  h.table = static_cast<uint32_t>(table);
  h.steps = m.added;
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

void Memory::missing(size_t table, const uint64_t* keys, size_t n) {
  std::lock_guard<std::mutex> lock(state_->mutex);
  state_->views[table]->missing(keys, n);
}

void Memory::reopen(std::vector<uint64_t> streams) {
  State& m = *state_;
  std::lock_guard<std::mutex> lock(m.mutex);
  m.look_all();
  for (auto& view : m.views) view->forget_server();
  m.episodes.release_all();
  m.episodes.renumber(streams);
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
