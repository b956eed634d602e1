#include "replay.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include "gather.h"
#include "replay_state.h"

namespace memsvc {
Replay::Replay(std::unique_ptr<State> state) : state_(std::move(state)) {}
Replay::~Replay() = default;

Footprint Replay::footprint(const Schema& schema, const std::vector<TableSpec>& specs, uint64_t memory_bytes) {
  const Tables tables = make_tables(specs, 1);
  const uint32_t entries = draw_entries(memory_bytes);
  Footprint footprint;
  footprint.steps = steps_within(tables, schema.row_stride(), memory_bytes, entries);
  footprint.bytes = bytes_for(tables, schema.row_stride(), static_cast<uint32_t>(footprint.steps), entries);
  if (footprint.steps > 0) footprint.step_bytes = (footprint.bytes + footprint.steps - 1) / footprint.steps;
  for (const auto& table : tables) footprint.items.push_back(table->items.capacity());
  footprint.least_bytes = bytes_for(tables, schema.row_stride(), kFewestSteps, entries);
  return footprint;
}

Status Replay::make(const Schema& schema, std::vector<TableSpec> specs, uint64_t memory_bytes, uint64_t seed, uint64_t first_stream,
                    std::unique_ptr<Replay>* out) {
  auto state = std::make_unique<State>(schema, specs, seed, first_stream);
  const size_t stride = schema.row_stride();
  const uint32_t entries = draw_entries(memory_bytes);
  const uint32_t steps = steps_within(state->tables, stride, memory_bytes, entries);
  if (steps < kFewestSteps) {
    const size_t needed = bytes_for(state->tables, stride, kFewestSteps, entries);
    return Status(Code::kInvalid, "server.memory: " + std::to_string(memory_bytes) + " bytes hold " + std::to_string(steps) + " steps of " +
                                      std::to_string(stride) + " bytes with their indexes; expected at least " + std::to_string(needed) +
                                      " bytes, for " + std::to_string(kFewestSteps) + " steps");
  }
  state->bytes = bytes_for(state->tables, stride, steps, entries);
  Arena counting;
  Store store;
  place(&counting, &store, state->tables, stride, steps, entries);
  if (Status status = state->arena.map(counting.used()); !status.ok()) return status;
  try {
    place(&state->arena, &state->store, state->tables, stride, steps, entries);
  } catch (const std::bad_alloc&) {
    return Status(Code::kFull, "the system does not give the memory of the tables' trees: lower server.memory or free some");
  }
  out->reset(new Replay(std::move(state)));
  return Status();
}

Notices Replay::notices(uint64_t actor, size_t table) {
  const std::lock_guard lock(state_->mutex);
  Notices notices;
  Table& of = *state_->tables[table];
  Lane* lane = of.lanes.find(actor);
  if (!lane) return notices;
  if (!of.whole()) notices.wanted = of.caches.wanted(*lane);
  if (of.spec.blocks) notices.wanted = of.room(actor);
  notices.missing = std::exchange(lane->missing, {});
  std::sort(notices.missing.begin(), notices.missing.end());
  notices.missing.erase(std::unique(notices.missing.begin(), notices.missing.end()), notices.missing.end());
  if (of.whole()) lane->asked.insert(notices.missing.begin(), notices.missing.end());
  if (lane->asked.size() > of.items.capacity()) lane->asked.clear();  // of an actor that does not answer
  notices.evicted = std::exchange(lane->evicted, {});
  return notices;
}

std::vector<uint64_t> Replay::hungry(size_t table) const {
  const std::lock_guard lock(state_->mutex);
  const Table& of = *state_->tables[table];
  if (of.whole() && !of.spec.blocks && !of.limiter.on()) return {};
  return of.waiting_for_word();
}

bool Replay::allowance(uint64_t actor, size_t table, uint64_t* allowed, double* ahead) {
  const std::lock_guard lock(state_->mutex);
  Table& of = *state_->tables[table];
  if (!of.limiter.on()) return false;
  of.limiter.drawable(of.drawable());
  *allowed = of.gates.allow(actor, of.limiter.budget());
  *ahead = of.limiter.ahead() / of.spec.samples_per_insert;
  return true;
}

void Replay::publish(const std::string& topic, int64_t version) {
  const std::lock_guard lock(state_->mutex);
  for (const auto& table : state_->tables) {
    while (table->publish(state_->actors, topic, version)) state_->mutex.give_way();
  }
}

bool Replay::take_feedback(uint64_t actor, size_t table, Feedback* out) {
  const std::lock_guard lock(state_->mutex);
  Lane* lane = state_->tables[table]->lanes.find(actor);
  return lane && lane->take_feedback(&out->number, &out->keys, &out->priorities);
}

std::vector<uint64_t> Replay::with_feedback(size_t table) const {
  const std::lock_guard lock(state_->mutex);
  std::vector<uint64_t> actors;
  for (const auto& lane : state_->tables[table]->lanes.all()) {
    if (lane->has_feedback() && !lane->left) actors.push_back(lane->actor);
  }
  return actors;
}

void Replay::expect(size_t table, uint64_t draws) {
  const std::lock_guard lock(state_->mutex);
  if (!state_->tables[table]->whole()) state_->tables[table]->caches.expect(draws);
}

uint64_t Replay::largest_batch(size_t table) const {
  const std::lock_guard lock(state_->mutex);
  const Table& of = *state_->tables[table];
  if (!of.whole()) return of.caches.largest_batch();
  if (of.spec.ordered()) return of.items.capacity();
  const uint64_t times = of.spec.max_times_sampled;
  return times > 0 ? of.items.capacity() * times : UINT64_MAX;
}

bool Replay::draw(size_t table, size_t batch, uint8_t* out, uint64_t* population, double* total, int64_t version, uint64_t ticket) {
  Table& from = *state_->tables[table];
  Gather gather(from.spec, state_->schema, batch, out);
  std::vector<uint32_t> chosen(batch);
  std::vector<double> weights(batch);
  {
    const std::lock_guard lock(state_->mutex);
    Population drawn_from;
    if (ticket != 0 && from.deliveries.is_open(ticket)) return false;
    if (!from.choose(batch, version, chosen.data(), weights.data(), &drawn_from)) return false;
    gather.plan(from.items, chosen.data(), weights.data(), drawn_from, &state_->store);
    from.deliver(state_->actors, ticket, chosen.data(), batch);
    state_->flush();
    state_->retire_all(from);
    *population = drawn_from.count;
    *total = drawn_from.total;
  }
  gather.copy(state_->store, &state_->crew);
  const std::lock_guard lock(state_->mutex);
  gather.release(&state_->store);
  return true;
}

void Replay::taken(size_t table, uint64_t ticket) {
  const std::lock_guard lock(state_->mutex);
  state_->tables[table]->confirm(state_->actors, ticket);
  state_->retire_all(*state_->tables[table]);
  state_->flush();
}

void Replay::put_back(size_t table, uint64_t ticket) {
  const std::lock_guard lock(state_->mutex);
  state_->tables[table]->put_back(state_->actors, ticket);
  state_->retire_all(*state_->tables[table]);
  state_->flush();
}

Reason Replay::why_not(size_t table, size_t batch, int64_t version) const {
  const std::lock_guard lock(state_->mutex);
  return state_->tables[table]->why_not(batch, version);
}

size_t Replay::get(size_t table, const uint64_t* keys, size_t n, uint8_t* out, uint64_t* population, double* total) {
  Table& from = *state_->tables[table];
  std::vector<uint32_t> found;
  std::vector<double> weights;
  std::unique_ptr<Gather> gather;
  {
    const std::lock_guard lock(state_->mutex);
    for (size_t i = 0; i < n; ++i) {
      const uint32_t item = from.items.find(keys[i]);
      if (item == kNone || !from.items.published(item)) continue;
      found.push_back(item);
      weights.push_back(from.weight(item));
    }
    const Population now = from.population();
    *population = now.count;
    *total = now.total;
    gather = std::make_unique<Gather>(from.spec, state_->schema, found.size(), out);
    gather->plan(from.items, found.data(), weights.data(), now, &state_->store);
  }
  gather->copy(state_->store, &state_->crew);
  const std::lock_guard lock(state_->mutex);
  gather->release(&state_->store);
  return found.size();
}

UpdateResult Replay::erase(size_t table, const uint64_t* keys, size_t n) {
  const std::lock_guard lock(state_->mutex);
  return state_->tables[table]->erase(state_->actors, keys, n);
}

void Replay::configure(size_t table, const TableSpec& spec) {
  const std::lock_guard lock(state_->mutex);
  state_->tables[table]->configure(state_->actors, spec);
}

UpdateResult Replay::update(size_t table, const uint64_t* keys, const double* priorities, size_t n) {
  UpdateResult result;
  const std::lock_guard lock(state_->mutex);
  for (size_t begin = 0; begin < n; begin += kPiece) {
    if (begin > 0) state_->mutex.give_way();
    UpdateResult piece = state_->tables[table]->update(state_->actors, keys + begin, priorities + begin, std::min(kPiece, n - begin));
    result.applied += piece.applied;
    result.stale += piece.stale;
    result.refused.insert(result.refused.end(), piece.refused.begin(), piece.refused.end());
  }
  return result;
}

ReplayStats Replay::stats() const {
  const std::lock_guard lock(state_->mutex);
  ReplayStats stats;
  stats.steps = state_->store.used();
  stats.capacity_steps = state_->store.capacity();
  stats.bytes = state_->bytes;
  stats.seed = state_->seed;
  stats.pushes = state_->pushes;
  stats.sessions = state_->actors.gone().size();
  for (const auto& [number, member] : state_->actors.all()) stats.actors.push_back({member.name, number, member.stored, member.pushes});
  for (const auto& table : state_->tables) stats.tables.push_back(table->stats());
  return stats;
}

Status Replay::check() const {
  const std::lock_guard lock(state_->mutex);
  const auto broken = [](const std::string& what) { return Status(Code::kInvalid, what); };
  if (std::string what = state_->store.check(); !what.empty()) return broken(what);
  if (std::string what = state_->actors.check(); !what.empty()) return broken(what);
  std::vector<uint32_t> needs(state_->store.capacity());
  for (const auto& table : state_->tables) {
    if (std::string what = table->check(needs.data()); !what.empty()) return broken(what);
  }
  for (uint32_t slot = 0; slot < state_->store.capacity(); ++slot) {
    if (needs[slot] != state_->store.references(slot)) {
      return broken("I3: slot " + std::to_string(slot) + " has " + std::to_string(state_->store.references(slot)) + " references, items need it " +
                    std::to_string(needs[slot]) + " times");
    }
  }
  return Status();
}

}  // namespace memsvc
