#include "memory_state.h"

#include <algorithm>
#include <cmath>
#include <string>

namespace memsvc {
namespace {

uint64_t most_steps(const std::vector<TableSpec>& tables) {
  uint64_t most = 1;
  for (const TableSpec& t : tables) most = std::max(most, t.max_steps);
  return most;
}

// Where every table is select = "all", steps that were sent are kept only as far as an unacknowledged push may reach back: memory that is
// used again is 20 times as fast as memory that is touched for the first time (DESIGN 6). Rows of kWarmRow bytes or more go as soon as that push is
// acknowledged, down to kWarmBytes of them, so that the row of the next step is written where the caches have it: a third less for copies in and out.
// For small rows, giving up steps one by one costs more than that saves.
constexpr uint64_t kSentBytes = 64 << 20, kWarmBytes = 4 << 20, kWarmRow = 2 << 10;
constexpr uint64_t kWarmEach = 8;  // steps of a stream that are kept at least
constexpr int kTrims = 2;          // steps of a stream given up for a new one: what has grown while answers were late shrinks again

constexpr size_t kAhead = 4;  // environments or episodes that are fetched ahead

uint64_t most_episodes(const std::vector<TableSpec>& tables) {
  uint64_t most = 0;
  for (const TableSpec& t : tables) {
    if (t.max_episodes == 0) return 0;
    most = std::max(most, t.max_episodes);
  }
  return most;
}

}  // namespace

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
  if (all) sent_steps = warm_steps = std::max<uint64_t>(kSentBytes / schema.row_stride(), 64 * streams.size());
  // The largest priority is that of what is here.
  const bool by_largest = std::any_of(specs.begin(), specs.end(), [](const TableSpec& t) {
    return t.source == Source::kMax && t.sampler != Sampler::kUniform && t.sampler != Sampler::kFifo && t.sampler != Sampler::kLifo;
  });
  if (all && !by_largest && schema.row_stride() >= kWarmRow) {
    warm_steps = std::max<uint64_t>(kWarmBytes / schema.row_stride(), kWarmEach * streams.size());
  }
  sent_each = sent_steps / std::max<size_t>(1, streams.size());
  warm_each = warm_steps / std::max<size_t>(1, streams.size());
  for (const TableSpec& spec : specs) {
    views.push_back(std::make_unique<View>(schema, spec, episodes));
    for (int field : spec.next) final_needed[field] = 1;
    const bool by_value = spec.select != Select::kUniform && (spec.source == Source::kReturn || spec.source == Source::kTd);
    if (spec.value >= 0 && (spec.returns || by_value)) final_needed[spec.value] = 1;
    given = given || spec.source == Source::kGiven;
    weighs_episodes = weighs_episodes || spec.episode_weights;
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

Status Memory::State::check_weight(double weight) const {
  if (!(weight >= 0) || !std::isfinite(weight)) return {Code::kInvalid, "weight " + std::to_string(weight) + ": expected a finite number >= 0"};
  if (weight != 1 && !weighs_episodes) {
    return {Code::kInvalid, "weight " + std::to_string(weight) + ": no table weighs its episodes; set actor.episode_weights = true, or leave it out"};
  }
  return {};
}

Status Memory::State::check_gates() {
  for (auto& view : views) {
    if (!view->blocked()) {
      if (view->within()) continue;
      look_all();
      if (view->within()) continue;
    }
    return {Code::kFull, view->refusal()};
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
  for (size_t i = 0; i < dirty.size(); ++i) {
    if (i + kAhead < dirty.size()) {
      const Episode& next = episodes.episode(dirty[i + kAhead]);
      for (uint64_t t = std::max(next.looked, next.first); t < next.count; ++t) {
        episodes.prefetch(next.slot(t));
        for (auto& view : views) view->prefetch(next.slot(t));
      }
    }
    if (episodes.episode(dirty[i]).dirty) look(dirty[i]);
  }
  dirty.clear();
  for (auto& view : views) view->looked();
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
  while (episodes.steps() > warm_steps && !episodes.finished().empty()) {
    const uint32_t id = episodes.finished().front();
    if (unsent_in(id, true) || (episodes.steps() <= sent_steps && !answered(episodes.episode(id).stamp))) return;
    evict_oldest();
  }
}

// Whether the server has answered what is stamped so, and has asked for nothing again that it may be.
bool Memory::State::answered(uint32_t stamp) const {
  return Payload::settled(stamp, settled) && std::none_of(views.begin(), views.end(), [](const auto& view) { return view->owes(); });
}

// Whether the open episode can do without its oldest step, and has more than its share of what is kept.
bool Memory::State::spared(uint32_t id) {
  const Episode& e = episodes.episode(id);
  if (e.present() <= warm_each || !std::all_of(views.begin(), views.end(), [id](const auto& view) { return view->spares_first(id); })) return false;
  return e.present() > sent_each || answered(episodes.use(e.slot(e.first)).stamp);
}

Status Memory::State::make_room(const size_t* envs, size_t n) {
  const auto full = [this] {
    return Status(Code::kFull, "the memory's " + std::to_string(episodes.capacity()) +
                                   " steps (actor.max_steps) wait to be sent; push them, or enlarge actor.max_steps");
  };
  auto at_share = [this](size_t env) { return episodes.open(env) != kNone && episodes.episode(episodes.open(env)).present() >= episodes.share(); };
  uint64_t grow = 0;
  for (size_t i = 0; i < n; ++i) {
    if (!at_share(envs[i])) {
      ++grow;
    } else if (unsent_in(episodes.open(envs[i]), false)) {
      return full();
    }
  }
  uint64_t after = episodes.steps() + grow;
  for (size_t i = 0; after > episodes.capacity(); ++i) {
    const uint32_t id = episodes.finished()[i];
    if (unsent_in(id, true)) return full();
    after -= episodes.episode(id).present();
  }
  for (size_t i = 0; i < n; ++i) {
    const uint32_t open = episodes.open(envs[i]);
    if (open == kNone) continue;
    if (at_share(envs[i])) trim(open);
    for (int k = 0; k < kTrims && spared(open); ++k) trim(open);
  }
  // A trimmed stream appends a step too, so that it is n and not grow that must fit now.
  while (episodes.steps() + n > episodes.capacity()) evict_oldest();
  return {};
}

}  // namespace memsvc
