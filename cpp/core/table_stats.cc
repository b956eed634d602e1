// What a table tells of itself: its counters, and whether its invariants hold.
#include <string>
#include <vector>

#include "table.h"

namespace memsvc {

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
  stats.aged = aged;
  stats.deleted = deleted;
  stats.put_back = returned;
  stats.in_flight = deliveries.in_flight();
  stats.exhausted = exhausted;
  stats.limited = limiter.on();
  stats.sampled = limiter.sampled_so_far();
  stats.ahead = limiter.ahead();
  stats.notes_bytes = ages.notes() * sizeof(uint64_t);
  double age_sum = 0;
  uint64_t age_draws = 0;
  for (const auto& lane : lanes.all()) {
    stats.starved += lane->starved;
    stats.feedback_bytes += lane->feedback_bytes();
    stats.told_bytes += lane->told_bytes();
    if (lane->raised) stats.changes_bytes += lane->raised->bytes();
    const uint64_t wanted = whole() ? 0 : caches.wanted(*lane);
    stats.actors.push_back({lane->name, lane->actor, lane->total(), lane->population(), lane->queue.length, wanted, lane->drawn, lane->received,
                            lane->starved, lane->left});
    if (lane->age_draws > 0) stats.actors.back().age_steps = lane->age_sum / static_cast<double>(lane->age_draws);
    age_sum += lane->age_sum;
    age_draws += lane->age_draws;
    const auto at = gates.all().find(lane->actor);
    if (at == gates.all().end()) continue;
    ActorStats& actor = stats.actors.back();
    actor.steps = at->second.head.steps;
    actor.episodes = at->second.head.episodes;
    actor.short_episodes = at->second.head.short_episodes;
    actor.stale = at->second.head.stale;
  }
  if (age_draws > 0) stats.age_steps = age_sum / static_cast<double>(age_draws);
  return stats;
}

std::string Table::check(uint32_t* needs) const {
  if (std::string broken = items.check(needs); !broken.empty()) return spec.name + ": " + broken;
  if (whole()) {
    if (std::string broken = united.check(); !broken.empty()) return spec.name + ": " + broken;
    return "";
  }
  std::vector<uint32_t> pins(items.places());
  deliveries.each([&](const Deliveries::Batch& batch) {
    for (const uint64_t key : batch.keys) ++pins[items.find(key)];
  });
  if (std::string broken = caches.check(pins.data()); !broken.empty()) return spec.name + ": " + broken;
  for (uint32_t item = 0; item < items.places(); ++item) {
    if ((items.live(item) ? items.pins(item) : 0) != pins[item]) {
      return spec.name + ": I6: item " + std::to_string(item) + " is pinned by other than its draws";
    }
  }
  return "";
}

}  // namespace memsvc
