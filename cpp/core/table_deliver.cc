// What becomes of batches that were drawn: learners get them, or give them back; and what of that is told to who restores this table later.
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "archive.h"
#include "table.h"

namespace memsvc {

void Table::deliver(const Actors& actors, uint64_t ticket, const uint32_t* chosen, size_t batch) {
  drawn += batch;
  limiter.sampled(batch);
  for (size_t i = 0; notes && whole() && spec.decay < 1 && i < batch; ++i) decayed.push_back(items.key(chosen[i]));
  const bool counts = counts_draws();
  if (!limiter.on() && (!counts || (!whole() && ticket == 0 && !notes))) return;
  Deliveries::Batch out{batch, limiter.era(), {}};
  for (size_t i = 0; counts && i < batch; ++i) {
    out.keys.push_back(items.key(chosen[i]));
    // The draw was the only one of its item, and would be made again: its item stays.
    if (!whole()) caches.lend(lanes.find(actors.owner(stream_of(out.keys.back()))), chosen[i]);
  }
  deliveries.open(ticket, std::move(out));
  if (ticket == 0) confirm(actors, 0);
}

void Table::confirm(const Actors& actors, uint64_t ticket) {
  Deliveries::Batch batch;
  if (!deliveries.close(ticket, &batch)) return;
  if (notes) confirmed.insert(confirmed.end(), batch.keys.begin(), batch.keys.end());
  for (const uint64_t key : batch.keys) {
    const uint32_t item = items.find(key);
    if (!whole()) {
      caches.confirm(lanes.find(actors.owner(stream_of(key))), item);
      continue;
    }
    if (item == kNone || items.flying(item) == 0 || !united.confirm(item)) continue;
    drop(item);
    ++exhausted;
  }
}

void Table::put_back(const Actors& actors, uint64_t ticket) {
  Deliveries::Batch batch;
  if (!deliveries.close(ticket, &batch)) return;
  drawn -= batch.draws;
  returned += batch.draws;
  if (batch.era == limiter.era()) limiter.put_back(batch.draws);
  for (const uint64_t key : batch.keys) {
    const uint32_t item = items.find(key);
    if (!whole()) {
      caches.take_back(lanes.find(actors.owner(stream_of(key))), item);
    } else if (item != kNone && items.flying(item) > 0) {
      united.take_back(item);
    }
  }
}

uint64_t Table::open_draws() const {
  uint64_t draws = 0;
  deliveries.each([&](const Deliveries::Batch& batch) { draws += batch.era == limiter.era() ? batch.draws : 0; });
  return draws;
}

void Table::progress(Progress* out) {
  out->name = spec.name;
  out->drawn = drawn - deliveries.in_flight();
  out->returned = returned + deliveries.in_flight();
  out->sampled = limiter.sampled_now() - static_cast<double>(open_draws());
  out->era = limiter.era();
  out->random = random;
  if (!whole()) std::tie(out->expected, out->largest) = caches.stock();
  for (const auto& lane : lanes.all()) {
    const uint64_t now = lane->used() + (lane->starved << 40);
    if (whole() || lane->noted == now) continue;
    lane->noted = now;
    const auto [segment, left] = caches.front(*lane);
    out->lanes.push_back({lane->actor, segment, 0, left, lane->drawn, lane->age_sum, lane->age_draws, lane->starved});
  }
  out->confirmed = std::exchange(confirmed, {});
  out->decayed = std::exchange(decayed, {});
  notes = true;
}

void Table::advance(const Actors& actors, const Progress& to) {
  drawn = to.drawn;
  returned = to.returned;
  if (limiter.era() == to.era) limiter.sampled_now(to.sampled);
  random = to.random;
  if (!whole()) caches.expect_as(to.expected, to.largest);
  for (const Progress::Used& used : to.lanes) {
    Lane* lane = lanes.find(used.actor);
    if (!lane) continue;
    lane->drawn = used.drawn;
    lane->age_sum = used.age_sum;
    lane->age_draws = used.age_draws;
    lane->starved = used.starved;
    if (!whole() && !counts_draws()) caches.use_up(lane, used.segment, used.left);
  }
  for (const uint64_t key : to.decayed) {
    const uint32_t item = items.find(key);
    if (whole() && item != kNone && items.published(item)) united.decay(item);
  }
  std::unordered_map<Lane*, std::unordered_set<uint32_t>> once;
  for (const uint64_t key : to.confirmed) {
    const uint32_t item = items.find(key);
    if (item == kNone || !items.published(item) || !counts_draws()) continue;
    if (!whole()) {
      if (Lane* lane = lanes.find(actors.owner(stream_of(key)))) once[lane].insert(item);
    } else if (united.use_up(item)) {
      drop(item);
      ++exhausted;
    }
  }
  for (const auto& [lane, of] : once) caches.use_up(lane, of);
  if (whole()) united.flush();
}

}  // namespace memsvc
