#include "saved.h"

#include <algorithm>

namespace memsvc {
namespace {

constexpr uint32_t kSpare = 1 << 16;  // places more than there were a moment ago

}  // namespace

Shape shape_of(const TableSpec& spec) {
  return {static_cast<uint32_t>(spec.kind),
          static_cast<uint32_t>(spec.select),
          spec.frame_stack,
          0,
          spec.made_bytes,
          spec.max_times_sampled,
          spec.samples_per_insert,
          spec.tolerance};
}

std::vector<uint64_t> RowKeys::sorted() {
  std::sort(ranges_.begin(), ranges_.end());
  std::vector<uint64_t> keys;
  uint64_t next = 0;
  for (const auto& [first, end] : ranges_) {
    for (uint64_t key = std::max(first, next); key < end; ++key) keys.push_back(key);
    next = std::max(next, end);
  }
  return keys;
}

void Capture::measure(const Store& store, const Tables& tables) {
  slots_ = std::min(store.end() + kSpare, store.capacity());
  places_.clear();
  lane_bytes_ = 1 << 20;
  for (const auto& table : tables) {
    places_.push_back(std::min(table->items.end() + kSpare, table->items.places()));
    lane_bytes_ += table->lanes.all().size() * 4096;
  }
}

void Capture::place(Arena* arena, const Tables& tables) {
  store_.mirror(arena, slots_);
  tables_.clear();
  for (size_t i = 0; i < tables.size(); ++i) {
    tables_.push_back(std::make_unique<OfTable>(tables[i]->spec));
    OfTable& of = *tables_.back();
    of.items.mirror(tables[i]->items, &store_, arena, places_[i]);
    if (tables[i]->whole()) continue;
    of.draws.place(arena, tables[i]->caches.draws().capacity());
    of.places = arena->take<uint32_t>(places_[i]);
  }
}

Status Capture::allocate(const Tables& tables) {
  Arena counting;
  place(&counting, tables);
  if (Status status = arena_.map(counting.used()); !status.ok()) return status;
  place(&arena_, tables);
  bytes_.assign(lane_bytes_, 0);  // touched
  return Status();
}

bool Capture::copy(const Store& store, Actors* actors, const PushCounts& pushes, const Tables& tables) {
  bool fits = store.end() <= slots_;
  for (size_t i = 0; i < tables.size(); ++i) fits = fits && tables[i]->items.end() <= places_[i];
  if (!fits) return false;
  store_.copy(store, std::min(slots_, store.end()));
  bytes_.clear();
  Writer writer(&bytes_);
  writer(*actors, pushes);
  actors_end_ = bytes_.size();
  for (size_t i = 0; i < tables.size(); ++i) {
    Table& table = *tables[i];
    OfTable& of = *tables_[i];
    of.items.copy(table.items, table.items.end());
    // Batches that are not confirmed count as put back.
    const uint64_t open = table.deliveries.in_flight(), counted = table.open_draws();
    table.drawn -= open;
    table.returned += open;
    table.limiter.put_back(counted);
    of.begin = bytes_.size();
    writer(table);
    of.end = bytes_.size();
    table.drawn += open;
    table.returned -= open;
    table.limiter.sampled(counted);
    table.ages.each([&of](const std::string& topic, const std::vector<uint64_t>& keys) {
      // Runs of keys are of one stream.
      uint64_t last = 0;
      for (const uint64_t key : keys) {
        if (stream_of(key) != last) of.streams.topics.try_emplace(last = stream_of(key), topic);
      }
    });
    table.quota.streams([&of](uint64_t stream, const std::string& name) { of.streams.names.emplace(stream, name); });
    if (!table.whole()) {
      of.draws.copy(table.caches.draws());
      std::copy_n(table.caches.places(), table.items.end(), of.places);
      table.deliveries.each([&](const Deliveries::Batch& batch) {
        for (const uint64_t key : batch.keys) {
          if (table.items.value(table.items.find(key)) > 0) of.open.push_back(key);  // else it was deleted meanwhile
        }
      });
    }
    for (const auto& lane : table.lanes.all()) {
      OfLane now{lane->actor,
                 lane->name,
                 lane->topic,
                 lane->queue,
                 lane->newest_segment(),
                 static_cast<uint32_t>(lane->steps),
                 lane->era,
                 bytes_.size(),
                 0,
                 of.log.size(),
                 0};
      writer(*lane);
      now.end = bytes_.size();
      if (lane->raised) lane->raised->each([&of](uint64_t number, uint32_t item, double before) { of.log.push_back({number, item, before}); });
      now.log_end = of.log.size();
      of.lanes.push_back(std::move(now));
      lane->noted = 0;  // what is used up from here on is told again
    }
    table.confirmed.clear();
    table.decayed.clear();
  }
  return true;
}

void Capture::decode_items(OfTable* of, const TableSpec& spec, SavedItems* out, RowKeys* rows) const {
  const Items& items = of->items;
  for (const uint32_t item : items.in_order()) {
    out->keys.push_back(items.key(item));
    out->versions.push_back(items.version(item));
    out->values.push_back(items.value(item));
    out->spans.push_back(items.span(item));
    out->heads.push_back(items.head(item));
    out->episodes.push_back(spec.per_actor_episodes > 0 ? items.episode(item) : 0);
    out->factors.push_back(items.factor(item));
    out->times.push_back(spec.max_times_sampled > 0 ? static_cast<uint16_t>(items.times(item) - items.flying(item)) : 0);
    out->updated.push_back(items.updated(item));
    out->eras.push_back(of->places ? of->places[item] : 0);  // by lane, below
    out->made.insert(out->made.end(), items.made(item), items.made(item) + spec.made_bytes);
    rows->add(spec, items.key(item), items.span(item), items.head(item));
  }
}

void Capture::write_table(const OfTable& of, const TableSpec& spec, const std::unordered_map<uint64_t, uint64_t>& owners,
                          std::vector<uint8_t>* out) const {
  std::vector<uint8_t> block;
  Writer writer(&block);
  writer(spec.name, shape_of(spec));
  writer.bytes(bytes_.data() + of.begin, of.end - of.begin);
  writer(of.streams);
  std::unordered_map<uint64_t, std::vector<uint64_t>> open;  // by actor
  for (const uint64_t key : of.open) {
    if (const auto owner = owners.find(stream_of(key)); owner != owners.end()) open[owner->second].push_back(key);
  }
  writer(static_cast<uint64_t>(of.lanes.size()));
  for (const OfLane& lane : of.lanes) {
    writer(lane.actor, lane.name, lane.topic);
    writer.bytes(bytes_.data() + lane.begin, lane.end - lane.begin);
    std::vector<SavedDraw> draws;
    of.draws.walk(lane.queue, [&](uint32_t item, double weight, uint32_t segment, uint32_t steps) {
      if (of.items.published(item)) draws.push_back({of.items.key(item), weight, segment, steps});
    });
    for (const uint64_t key : open[lane.actor]) draws.push_back({key, 1, lane.segment, lane.steps});
    std::vector<SavedChange> log;
    for (size_t i = lane.log; i < lane.log_end; ++i) {
      if (of.items.published(of.log[i].item)) log.push_back({of.log[i].number, of.items.key(of.log[i].item), of.log[i].before});
    }
    writer(draws, log);
  }
  Writer(out).sized(block);
}

void Capture::decode(const Tables& tables, size_t stride, Saved* out) {
  Actors actors(0);
  Reader(bytes_.data(), actors_end_)(actors);
  std::unordered_map<uint64_t, uint64_t> owners;
  for (const auto& [number, member] : actors.all()) {
    for (const uint64_t stream : member.streams) owners[stream] = number;
  }
  out->state.clear();
  Writer writer(&out->state);
  writer(kStateMagic, kStateVersion, static_cast<uint64_t>(stride));
  writer.bytes(bytes_.data(), actors_end_);
  writer(static_cast<uint64_t>(tables.size()));
  RowKeys rows;
  for (size_t i = 0; i < tables.size(); ++i) {
    OfTable& of = *tables_[i];
    const TableSpec& spec = tables[i]->spec;
    write_table(of, spec, owners, &out->state);
    SavedItems& items = out->items.emplace_back();
    decode_items(&of, spec, &items, &rows);
    // An item in its lane's log counts as of the lane's era.
    std::unordered_map<uint64_t, uint32_t> eras;
    for (const OfLane& lane : of.lanes) eras[lane.actor] = lane.era;
    for (size_t j = 0; j < items.keys.size() && of.places; ++j) {
      const auto owner = owners.find(stream_of(items.keys[j]));
      const auto era = owner == owners.end() ? eras.end() : eras.find(owner->second);
      items.eras[j] = items.eras[j] < Raised::kAbsent ? (era == eras.end() ? 0 : era->second) : items.eras[j] & Caches::kEra;
    }
  }
  seal(&out->state);
  out->row_keys = rows.sorted();
}

}  // namespace memsvc
