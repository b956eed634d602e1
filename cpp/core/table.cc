#include "table.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "window.h"

namespace memsvc {
namespace {

constexpr size_t kFetched = 1024;  // draws whose items are fetched while they are shuffled: some hundred kilobytes

// Rows of the largest window.
uint32_t window_rows(const TableSpec& spec) {
  const uint32_t span = spec.kind == Kind::kSequence ? spec.length : spec.n_step;
  return window_of(spec, make_key(1, spec.frame_stack), span, spec.frame_stack - 1).rows();
}

}  // namespace

void Table::place(Arena* arena, Store* store, uint32_t steps, uint32_t entries, uint32_t shares) {
  uint64_t capacity = steps;
  if (spec.kind == Kind::kSequence) {
    // Starts are `stride` apart, and an episode adds a tail; where many short episodes make more, the table is full before the store.
    capacity = std::min<uint64_t>(steps, 2 * uint64_t{steps} / std::max<uint32_t>(spec.stride, 1) + 64);
  }
  if (spec.capacity_items > 0) capacity = std::min(capacity, spec.capacity_items);
  if (spec.blocks) capacity = std::min<uint64_t>(capacity, steps / (window_rows(spec) * shares));
  items.place(arena, store, static_cast<uint32_t>(std::max<uint64_t>(capacity, 1)));
  if (whole()) {
    united.place(spec, &items, arena);
    if (arena->mapped()) united.grow();
  } else {
    caches.place(arena, entries, steps / window_rows(spec) / 2);
  }
}

void Table::join(uint64_t actor, const std::string& name, const std::string& topic) {
  lanes.add(actor, name, topic, newest(topic));
  gates.join(actor, topic);
}

void Table::rejoin(uint64_t actor, const std::string& name, const std::string& topic, uint64_t told, uint64_t fed) {
  Lane* lane = lanes.find(actor);
  if (!lane) {
    lane = lanes.add(actor, name, topic, newest(topic));
    lane->inserted = told;
    lane->number_from(fed + 1);
  } else {
    // The connection that was cut may have had some on its way.
    lane->offer_again();
    lane->number_from(fed + 1);
    departed -= lane->left;
    lane->left = false;
    lane->touch();
  }
  CacheHead head = lane->head();
  head.inserted = lane->inserted;
  gates.rejoin(actor, topic, head);
  for (const DrawRecord& draw : lane->waiting) lane->missing.push_back(draw.key);
  lane->missing.insert(lane->missing.end(), lane->asked.begin(), lane->asked.end());
}

void Table::leave(uint64_t actor) {
  gates.leave(actor);
  Lane* lane = lanes.find(actor);
  if (!lane) return;
  departed += !lane->left;
  lane->left = true;
  lane->touch();
  // Nobody will send what these wait for.
  lane->waiting.clear();
  lane->missing.clear();
  lane->evicted.clear();
}

void Table::remove(Lane* lane) {
  if (!whole()) caches.forget(lane);
  gates.leave(lane->actor);
  starved += lane->starved;
  departed -= lane->left;
  lanes.remove(lane->actor);
}

bool Table::choose(size_t batch, int64_t version, uint32_t* chosen, double* weights, Population* from) {
  *from = population();
  const uint64_t have = drawable();
  if (limiter.on()) limiter.drawable(have);
  if (batch == 0 || from->count == 0 || have < spec.min_items || !limiter.may_sample(batch)) return false;
  if (version > youngest) return false;  // no pass over the table for a request that waits
  if (whole() ? !united.draw(batch, version, &random, chosen, weights, from) : !caches.draw(batch, chosen, weights)) return false;
  for (size_t i = 0; i < std::min(batch, kFetched); ++i) items.prefetch_window(chosen[i]);
  for (size_t i = batch; i > 1 && !spec.ordered(); --i) {
    const size_t other = random.below(i);
    std::swap(chosen[i - 1], chosen[other]);
    std::swap(weights[i - 1], weights[other]);
  }
  return true;
}

Reason Table::why_not(size_t batch, int64_t version) {
  const Population now = population();
  if (now.count == 0) {
    uint64_t too_stale = aged, too_short = 0;
    int64_t oldest = 0;
    for (const auto& [number, of] : gates.all()) {
      too_stale += of.head.stale;
      too_short += of.head.short_episodes;
      oldest = std::max(oldest, newest(of.topic) - spec.max_staleness);
    }
    if (spec.max_staleness >= 0 && too_stale > 0 && youngest < oldest) return {Why::kStale, youngest, oldest};
    if (inserted == 0 && too_short > 0) return {Why::kShort, static_cast<int64_t>(too_short), spec.length};
    return {Why::kEmpty, static_cast<int64_t>(inserted), static_cast<int64_t>(std::max<uint64_t>(spec.min_items, 1))};
  }
  const auto reason = [](Why why, uint64_t have, uint64_t need) { return Reason{why, static_cast<int64_t>(have), static_cast<int64_t>(need)}; };
  if (const uint64_t have = drawable(); have < spec.min_items) return reason(Why::kMinItems, have, spec.min_items);
  if (!limiter.may_sample(batch)) return reason(Why::kLimiter, limiter.inserted(), limiter.needed(batch));
  if (whole()) {
    const uint64_t have = united.available(version);
    if (have == 0 && version != kAnyVersion) return {Why::kVersion, youngest, version};
    return have < batch ? reason(Why::kFew, have, batch) : reason(Why::kReady, batch, batch);
  }
  const size_t have = caches.available(batch);
  return reason(have < batch ? Why::kStock : Why::kReady, have, batch);
}

void Table::configure(const Actors& actors, const TableSpec& to) {
  const bool paced = to.samples_per_insert != spec.samples_per_insert || to.tolerance != spec.tolerance;
  const bool judges = spec.max_staleness < 0 && to.max_staleness >= 0;
  const bool weighs = to.exponent != spec.exponent;
  spec.change(to);
  if (judges) {
    ages.clear();
    for (uint32_t item = 0; item < items.places(); ++item) {
      if (!items.live(item) || !items.published(item)) continue;
      const Lane* lane = lanes.find(actors.owner(stream_of(items.key(item))));
      note_age(lane ? lane->topic : "default", item);
    }
  }
  if (paced) limiter.restart();
  if (limiter.on()) limiter.drawable(drawable());
  if (whole() && weighs) {
    united.touch_all();
    united.flush();
  }
  const auto known = newest_of;
  for (const auto& [topic, version] : known) {
    while (publish(actors, topic, version)) {
    }
  }
}

int64_t Table::newest(const std::string& topic) const {
  const auto at = newest_of.find(topic);
  return at == newest_of.end() ? 0 : at->second;
}

bool Table::publish(const Actors& actors, const std::string& topic, int64_t version) {
  int64_t& newest = newest_of[topic];
  newest = std::max(newest, version);
  for (const auto& lane : lanes.all()) {
    if (lane->topic == topic) lane->newest = newest;
  }
  if (spec.max_staleness < 0) return false;
  const bool more = ages.take_below(topic, newest - spec.max_staleness, kPiece, [&](uint64_t key) {
    const uint32_t item = items.find(key);
    // One that comes back is judged when its push is published.
    if (item == kNone || !items.published(item)) return;
    if (!whole()) {
      if (Lane* lane = lanes.find(actors.owner(stream_of(key)))) aged += caches.expire(lane, item);
      return;
    }
    drop(item);
    ++aged;
  });
  if (whole()) united.flush();
  return more;
}

void Table::admit(const std::string& actor, const std::string& topic, uint32_t item, double priority) {
  items.publish(item);
  const int64_t version = items.version(item);
  youngest = std::max(youngest, version);
  const uint64_t key = items.key(item);
  if (quota.bounds()) quota.add(actor, key, items.episode(item), items.span(item));
  united.set(item, priority);
  if (spec.max_staleness >= 0 && !spec.fresh(version, newest(topic))) {
    drop(item);
    ++aged;
    return;
  }
  note_age(topic, item);
}

void Table::note_age(const std::string& topic, uint32_t item) {
  youngest = std::max(youngest, items.version(item));
  if (spec.max_staleness < 0) return;
  ages.note(topic, items.version(item), items.key(item));
  if (ages.notes() > 2 * uint64_t{items.capacity()} + 1024) ages.prune([this](uint64_t held) { return holds(held); });
}

void Table::drop(uint32_t item) {
  united.clear(item);
  if (quota.bounds()) quota.remove(items.key(item), items.episode(item), items.span(item));
  items.remove(item);
}

void Table::keep_bounds(const std::string& actor) {
  if (!quota.bounds()) return;
  std::vector<uint64_t> keys;
  // What a push under way brings stays until that is published, and this is called again.
  bool arriving = false;
  for (quota.surplus(actor, &keys); !keys.empty() && !arriving; keys.clear(), quota.surplus(actor, &keys)) {
    for (const uint64_t key : keys) {
      const uint32_t item = items.find(key);
      if (item == kNone) continue;
      if (!items.published(item)) {
        arriving = true;
        continue;
      }
      drop(item);
      ++evicted;
    }
  }
  quota.tidy(actor, [this](uint64_t key) { return holds(key); });
}

void Table::raise_floors(Lane* lane, const uint64_t* floors, size_t n) {
  const auto lose = [&](uint32_t item) {
    if (items.published(item)) caches.lose(lane, item);
  };
  // Keys are looked up one by one so long as that costs less than a look at every item: floors that jump far, of however many streams, cost one pass.
  uint64_t looks = items.capacity();
  bool far = false;
  for (size_t i = 0; i < n; ++i) {
    uint64_t& known = lane->floors[stream_of(floors[i])];
    const uint64_t before = std::exchange(known, std::max(known, floors[i]));
    if (before == 0 || floors[i] <= before) continue;
    if (floors[i] - before > looks) {
      far = true;
      continue;
    }
    looks -= floors[i] - before;
    for (uint64_t key = before; key < floors[i]; ++key) {
      if (const uint32_t item = items.find(key); item != kNone) lose(item);
    }
  }
  for (uint32_t item = 0; far && item < items.places(); ++item) {
    if (items.live(item) && lane->lost(items.key(item))) lose(item);
  }
}

std::vector<uint64_t> Table::waiting_for_word() const {
  std::vector<uint64_t> actors;
  const double total = whole() ? 0 : lanes.living();
  const uint64_t budget = limiter.on() ? limiter.budget() : 0;
  const bool room = spec.blocks && gates.spare_room(items.free()) > 0;
  const bool spare = limiter.on() && gates.spare(budget) > 0;
  const uint64_t share = spare ? gates.share(budget) : 0;
  auto at = gates.all().begin();  // by actor, as the lanes are
  for (const auto& lane : lanes.all()) {
    if (lane->left) continue;
    while (at != gates.all().end() && at->first < lane->actor) ++at;
    const Gates::Actor* of = at != gates.all().end() && at->first == lane->actor ? &at->second : nullptr;
    const bool hungry = !whole() && caches.hungry(*lane, total);
    if (hungry || (of && ((room && of->head.unsent > of->room) || (spare && gates.wants(*of, share))))) actors.push_back(lane->actor);
  }
  return actors;
}

}  // namespace memsvc
