#include "table.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "window.h"

namespace memsvc {

void Table::place(Arena* arena, Store* store, uint32_t steps, uint32_t entries) {
  uint64_t capacity = steps;
  if (spec.kind == Kind::kSequence) {
    // Starts are `stride` apart, and an episode adds a tail; where many short episodes make more, the table is full before the store.
    capacity = std::min<uint64_t>(steps, 2 * uint64_t{steps} / std::max<uint32_t>(spec.stride, 1) + 64);
  }
  if (spec.capacity_items > 0) capacity = std::min(capacity, spec.capacity_items);
  items.place(arena, store, static_cast<uint32_t>(std::max<uint64_t>(capacity, 1)));
  if (!whole()) {
    const uint32_t span = spec.kind == Kind::kSequence ? spec.length : spec.n_step;
    caches.place(arena, entries, steps / window_of(spec, make_key(1, spec.frame_stack), span, spec.frame_stack - 1).rows() / 2);
  } else if (arena->mapped()) {
    united = std::make_unique<United>(spec, &items);
  }
}

bool Table::choose(size_t batch, uint32_t* chosen, double* weights, Population* from) {
  *from = population();
  if (batch == 0 || from->count == 0 || from->count < spec.min_items) return false;
  if (whole() ? !united->draw(batch, &random, chosen, weights) : !caches.draw(batch, chosen, weights)) return false;
  for (size_t i = batch; i > 1; --i) {
    const size_t other = random.below(i);
    std::swap(chosen[i - 1], chosen[other]);
    std::swap(weights[i - 1], weights[other]);
  }
  drawn += batch;
  return true;
}

Reason Table::why_not(size_t batch) {
  const Population now = population();
  if (now.count == 0) return {Why::kEmpty, 0, std::max<uint64_t>(spec.min_items, 1)};
  if (now.count < spec.min_items) return {Why::kMinItems, now.count, spec.min_items};
  if (whole()) return {Why::kReady, batch, batch};
  const size_t have = caches.available(batch);
  return {have < batch ? Why::kStock : Why::kReady, have, batch};
}

UpdateResult Table::update(const Actors& actors, const uint64_t* keys, const double* priorities, size_t n) {
  constexpr size_t kAhead = 16;
  // A union's actors draw no caches: of learners' priorities they need the largest, if new items begin with it.
  const bool feeds = !whole() || spec.source == Source::kMax;
  UpdateResult result;
  for (size_t i = 0; i < n; ++i) {
    if (i + kAhead < n) items.prefetch(keys[i + kAhead]);
    const double p = priorities[i];
    if (!std::isfinite(p) || p < 0) {
      result.refused.push_back(keys[i]);
      continue;
    }
    Lane* lane = lanes.find(actors.owner(stream_of(keys[i])));
    if (feeds && lane && !lane->left) lane->feed(keys[i], p);
    const uint32_t item = items.find(keys[i]);
    // A union's item that comes back after its eviction must not be drawn before its rows are there: the old one's update is stale.
    if (item == kNone || !items.published(item)) {
      ++result.stale;
      continue;
    }
    ++result.applied;
    const double scaled = std::min(p * (lane ? lane->scale() : last_scale), 1e300);
    if (whole()) {
      united->set(item, scaled);
      continue;
    }
    const double weight = weight_of(spec, scaled);
    if (lane) {
      lane->change(items.value(item), weight);
      items.set_updated(item, lane->open());
    }
    items.set_value(item, weight);
  }
  if (united) united->flush();
  stale += result.stale;
  refused += result.refused.size();
  return result;
}

void Table::remove(Lane* lane) {
  if (!whole()) caches.forget(lane);
  starved += lane->starved;
  lanes.remove(lane->actor);
}

TableStats Table::stats() const {
  const Population now = population();
  TableStats stats;
  stats.items = items.count();
  stats.population = now.count;
  stats.total = now.total;
  stats.min_weight = now.min_weight;
  stats.drawn = drawn;
  stats.inserted = inserted;
  stats.stale_updates = stale;
  stats.refused_updates = refused;
  stats.evicted = evicted;
  stats.starved = starved;
  for (const auto& lane : lanes.all()) {
    stats.starved += lane->starved;
    const uint64_t wanted = whole() ? 0 : caches.wanted(*lane);
    stats.actors.push_back({lane->name, lane->actor, lane->total(), lane->population(), lane->queue.length, wanted, lane->drawn, lane->received,
                            lane->starved, lane->left});
  }
  return stats;
}

std::string Table::check(uint32_t* needs) const {
  if (std::string broken = items.check(needs); !broken.empty()) return spec.name + ": " + broken;
  if (united) {
    if (std::string broken = united->check(); !broken.empty()) return spec.name + ": " + broken;
    return "";
  }
  std::vector<uint32_t> pins(items.capacity());
  if (std::string broken = caches.check(pins.data()); !broken.empty()) return spec.name + ": " + broken;
  for (uint32_t item = 0; item < items.capacity(); ++item) {
    if ((items.live(item) ? items.pins(item) : 0) != pins[item]) {
      return spec.name + ": I6: item " + std::to_string(item) + " is pinned by other than its draws";
    }
  }
  return "";
}

}  // namespace memsvc
