#include "restore.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "priority.h"
#include "window.h"

namespace memsvc {
namespace {

constexpr double kMostWeight = 1e300;
const std::string kDefaultTopic = "default";

Status malformed(const std::string& what) { return Status(Code::kMalformed, "a saved state " + what); }

// Whether every value of a column passes.
template <typename T, typename Passes>
bool all(const std::vector<T>& column, const Passes& passes) {
  return std::all_of(column.begin(), column.end(), passes);
}

}  // namespace

Status Restore::begin(const uint8_t* state, size_t size, std::vector<std::unique_ptr<SavedItems>> items) {
  if (!sealed(state, size)) return malformed("of " + std::to_string(size) + " bytes is damaged: its checksum is another one");
  state_.assign(state, state + size - sizeof(uint64_t));
  items_ = std::move(items);
  of_.resize(tables_.size());
  Reader archive(state_.data(), state_.size());
  if (Status status = read(&archive); !status.ok()) return status;
  for (size_t i = 0; i < tables_.size(); ++i) {
    if (Status status = check_items(i); !status.ok()) return status;
  }
  choose();
  return Status();
}

Status Restore::read(Reader* archive) {
  uint64_t magic = 0, stride = 0, tables = 0;
  uint32_t version = 0;
  (*archive)(magic, version, stride);
  if (archive->broken() || magic != kStateMagic) return malformed("is none of this program's");
  if (version != kStateVersion) {
    return malformed("has version " + std::to_string(version) + "; this program reads version " + std::to_string(kStateVersion));
  }
  if (stride != store_.stride()) {
    return Status(Code::kInvalid, "step: steps of " + std::to_string(stride) + " bytes were saved, and now take " + std::to_string(store_.stride()) +
                                      ": restore with the [step] they were saved with");
  }
  (*archive)(read_actors_, pushes_, tables);
  if (archive->broken()) return malformed("has actors that cannot be");
  for (uint64_t i = 0; i < tables; ++i) {
    if (Status status = read_table(archive->part()); !status.ok()) return status;
  }
  return archive->broken() || archive->left() > 0 ? malformed("is shorter or longer than it says") : Status();
}

Status Restore::read_table(Reader part) {
  std::string name;
  Shape shape{};
  part(name, shape);
  if (part.broken()) return malformed("has a table without a name");
  const auto at = std::find_if(tables_.begin(), tables_.end(), [&name](const auto& table) { return table->spec.name == name; });
  OfTable other;  // of a table that is no more
  OfTable& of = at == tables_.end() ? other : of_[static_cast<size_t>(at - tables_.begin())];
  if (of.found) return malformed("has table \"" + name + "\" twice");
  of.found = true;
  of.shape = shape;
  of.fields = part;
  TableSpec spec = at == tables_.end() ? TableSpec() : (*at)->spec;
  spec.name = name;
  Table scratch(std::move(spec), 1);
  part(scratch, of.streams);
  uint64_t lanes = 0;
  part(lanes);
  for (uint64_t i = 0; i < lanes && !part.broken(); ++i) {
    if (Status status = read_lane(&part, &of); !status.ok()) return status;
  }
  if (part.broken() || part.left() > 0) return malformed("has a table \"" + name + "\" that is damaged");
  return Status();
}

Status Restore::read_lane(Reader* part, OfTable* of) const {
  OfLane& one = of->lanes.emplace_back();
  (*part)(one.actor, one.name, one.topic);
  const auto member = read_actors_.all().find(one.actor);
  if (part->broken() || member == read_actors_.all().end() || member->second.name != one.name ||
      (of->lanes.size() > 1 && of->lanes[of->lanes.size() - 2].actor >= one.actor)) {
    return malformed("has a queue of nobody");
  }
  one.lane = std::make_unique<Lane>(one.actor, one.name, one.topic);
  (*part)(*one.lane, one.draws, one.log);
  const auto ours = [this, &one](uint64_t key) { return read_actors_.owner(stream_of(key)) == one.actor; };
  const auto positive = [](double x) { return x > 0 && x <= kMostWeight; };
  uint64_t number = 0;
  size_t segment = 0;
  const std::deque<Segment>& segments = one.lane->segments;
  for (const SavedDraw& draw : one.draws) {
    while (segment < segments.size() && segments[segment].id != draw.segment) ++segment;
    const bool known = segment < segments.size() || draw.segment == one.lane->newest_segment();
    if (!ours(draw.key) || !positive(draw.weight) || !known) return malformed("has a draw in the queue of " + one.name + " that cannot be");
  }
  for (const SavedChange& change : one.log) {
    if (!ours(change.key) || !(change.before >= 0 && change.before <= kMostWeight) || change.number < number) {
      return malformed("has a change of " + one.name + "'s items that cannot be");
    }
    number = change.number;
  }
  return Status();
}

Status Restore::check_items(size_t table) const {
  if (!items_[table]) return Status();
  const TableSpec& spec = tables_[table]->spec;
  const SavedItems& items = *items_[table];
  const std::string name = "table \"" + spec.name + "\"";
  if (!of_[table].found) return Status(Code::kInvalid, name + ": its items were not saved with this state: start it empty");
  const Shape now = shape_of(spec), then = of_[table].shape;
  if (now.kind != then.kind || now.select != then.select || now.frame_stack != then.frame_stack || now.made_bytes != then.made_bytes) {
    return Status(Code::kInvalid, name +
                                      ": item.kind, item.frame_stack, actor.select or its computed columns are other ones than when its items were "
                                      "saved: restore with the saved settings, or start it empty");
  }
  const size_t n = items.keys.size();
  if (items.versions.size() != n || items.values.size() != n || items.spans.size() != n || items.heads.size() != n || items.episodes.size() != n ||
      items.factors.size() != n || items.times.size() != n || items.updated.size() != n || items.eras.size() != n ||
      items.made.size() != n * spec.made_bytes || n >= Store::kMostSlots) {
    return malformed("has columns of different lengths in " + name);
  }
  const uint32_t most = spec.kind == Kind::kStep ? 1 : spec.kind == Kind::kTransition ? spec.n_step : spec.length;
  for (size_t i = 0; i < n; ++i) {
    const uint64_t step = step_of(items.keys[i]), stream = stream_of(items.keys[i]);
    if (stream == 0 || stream > kMaxStream || items.spans[i] < 1 || items.spans[i] > most || items.heads[i] >= spec.frame_stack ||
        step < items.heads[i] || step + items.spans[i] >= (uint64_t{1} << kStepBits) - 1) {
      return malformed("has an item in " + name + " that cannot be: key " + std::to_string(items.keys[i]));
    }
  }
  if (!all(items.values, [](double x) { return x >= 0 && x <= kMostWeight; }) || !all(items.factors, [](double x) { return x >= 0 && x <= 1e100; })) {
    return malformed("has a priority or a factor in " + name + " that is not a finite number >= 0");
  }
  std::vector<uint64_t> keys = items.keys;
  std::sort(keys.begin(), keys.end());
  if (std::adjacent_find(keys.begin(), keys.end()) != keys.end()) return malformed("has an item twice in " + name);
  return Status();
}

// As many of the newest items as fit: in their tables, and all together in the store, each table losing an equal part.
void Restore::choose() {
  struct Piece {
    uint64_t begin, end;
    float age;  // 0: newest, 1: oldest
  };
  std::vector<Piece> pieces;
  first_.assign(tables_.size(), 0);
  for (size_t i = 0; i < tables_.size(); ++i) {
    if (!items_[i]) continue;
    const SavedItems& items = *items_[i];
    const size_t n = items.keys.size(), most = tables_[i]->items.capacity();
    first_[i] = n > most ? n - most : 0;
    for (size_t j = first_[i]; j < n; ++j) {
      const Window window = window_of(tables_[i]->spec, items.keys[j], items.spans[j], items.heads[j]);
      const float age = static_cast<float>(n - 1 - j) / static_cast<float>(n - first_[i]);
      for (int range = 0; range < 2; ++range) {
        if (window.count[range] > 0) pieces.push_back({window.first[range], window.first[range] + window.count[range], age});
      }
    }
  }
  std::sort(pieces.begin(), pieces.end(), [](const Piece& a, const Piece& b) { return a.begin < b.begin; });
  const auto rows = [&pieces](float below, std::vector<uint64_t>* keys) {
    uint64_t next = 0, count = 0;
    for (const Piece& piece : pieces) {
      if (piece.age >= below || piece.end <= next) continue;
      const uint64_t begin = std::max(piece.begin, next);
      count += piece.end - begin;
      for (uint64_t key = begin; keys && key < piece.end; ++key) keys->push_back(key);
      next = piece.end;
    }
    return count;
  };
  float kept = 1, above = 1;
  if (rows(kept, nullptr) > store_.capacity()) {
    kept = 0;
    for (int i = 0; i < 24; ++i) {
      const float middle = (kept + above) / 2;
      (rows(middle, nullptr) <= store_.capacity() ? kept : above) = middle;
    }
  }
  rows(kept, &needed_);
  for (size_t i = 0; i < tables_.size(); ++i) {
    if (!items_[i]) continue;
    const size_t n = items_[i]->keys.size(), many = n - first_[i];
    while (first_[i] < n && static_cast<float>(n - 1 - first_[i]) / static_cast<float>(many) >= kept) ++first_[i];
  }
}

size_t Restore::rows(const uint64_t* keys, const uint8_t* rows, size_t n) {
  size_t taken = 0;
  for (size_t i = 0; i < n; ++i) {
    const auto at = std::lower_bound(needed_.begin(), needed_.end(), keys[i]);
    if (at == needed_.end() || *at != keys[i]) continue;
    const auto slot = static_cast<uint32_t>(at - needed_.begin());
    if (store_.key(slot) == keys[i]) continue;
    store_.take(slot, keys[i]);
    std::memcpy(store_.row(slot), rows + i * store_.stride(), store_.stride());
    ++taken;
  }
  return taken;
}

const std::string& Restore::topic_of(size_t table, uint64_t key) const {
  const auto& topics = of_[table].streams.topics;
  if (const auto known = topics.find(stream_of(key)); known != topics.end()) return known->second;
  const auto actor = topics_.find(actors_.owner(stream_of(key)));
  return actor == topics_.end() ? kDefaultTopic : actor->second;
}

Restored Restore::finish(PushCounts* pushes) {
  Restored out;
  *pushes = pushes_;
  actors_ = std::move(read_actors_);
  for (const OfTable& of : of_) {
    for (const OfLane& lane : of.lanes) topics_.emplace(lane.actor, lane.topic);
  }
  for (size_t i = 0; i < tables_.size(); ++i) {
    out.items.push_back(0);
    out.dropped.push_back(0);
    place_lanes(i);
    place_items(i, &out);
    uint64_t draws = 0;
    for (const auto& lane : tables_[i]->lanes.all()) draws += lane->queue.length;
    out.draws.push_back(draws);
  }
  for (uint32_t slot = 0; slot < needed_.size(); ++slot) {
    if (store_.key(slot) == needed_[slot]) store_.drop(slot);
  }
  for (const auto& table : tables_) {
    if (table->limiter.on()) table->limiter.drawable(table->drawable());
    const auto known = table->newest_of;
    for (const auto& [topic, version] : known) {
      while (table->publish(actors_, topic, version)) {
      }
    }
  }
  return out;
}

void Restore::place_lanes(size_t i) {
  Table& table = *tables_[i];
  OfTable& of = of_[i];
  if (!of.found || !items_[i]) {
    for (const auto& [number, member] : actors_.all()) {
      if (member.left) continue;
      const auto topic = topics_.find(number);
      table.join(number, member.name, topic == topics_.end() ? kDefaultTopic : topic->second);
    }
    return;
  }
  of.fields(table);
  const Shape now = shape_of(table.spec);
  if (now.samples_per_insert != of.shape.samples_per_insert || now.tolerance != of.shape.tolerance) table.limiter.restart();
  table.caches.expect_as(table.caches.stock().first, table.caches.stock().second);
  for (OfLane& one : of.lanes) {
    table.departed += one.lane->left;
    table.lanes.adopt(std::move(one.lane));
  }
}

void Restore::place_items(size_t i, Restored* out) {
  if (!items_[i]) return;
  Table& table = *tables_[i];
  const SavedItems& from = *items_[i];
  const size_t made_bytes = table.spec.made_bytes;
  std::vector<uint32_t> slots, placed;
  const auto drop = [&](size_t at) {
    ++out->dropped[i];
    Lane* lane = table.whole() ? nullptr : table.lanes.find(actors_.owner(stream_of(from.keys[at])));
    if (lane && !lane->left) lane->evicted.push_back(from.keys[at]);
  };
  for (size_t at = 0; at < from.keys.size(); ++at) {
    const Window window = window_of(table.spec, from.keys[at], from.spans[at], from.heads[at]);
    slots.resize(window.rows());
    const bool used_up = table.spec.max_times_sampled > 0 && from.times[at] >= table.spec.max_times_sampled;
    if (at < first_[i] || used_up || table.items.free() == 0) {
      drop(at);
      continue;
    }
    table.items.rows(window, kNone, slots.data());
    if (std::find(slots.begin(), slots.end(), kNone) != slots.end()) {
      drop(at);
      continue;
    }
    ItemRecord record;
    record.key = from.keys[at];
    record.version = from.versions[at];
    record.span = from.spans[at];
    record.head = from.heads[at];
    record.episode = from.episodes[at];
    const uint32_t item = table.items.add(record, from.made.data() + at * made_bytes, from.factors[at], slots.data(),
                                          static_cast<uint32_t>(slots.size()), from.values[at]);
    ++out->items[i];
    if (table.whole()) {
      if (table.spec.max_times_sampled > 0) table.items.count(item, from.times[at], 0);
      const auto name = of_[i].streams.names.find(stream_of(record.key));
      table.admit(name == of_[i].streams.names.end() ? "" : name->second, topic_of(i, record.key), item, from.values[at]);
      continue;
    }
    table.items.publish(item);
    const Lane* lane = table.lanes.find(actors_.owner(stream_of(record.key)));
    // What no report will be asked about any more is forgotten: numbers are compared modulo 2^32.
    table.items.set_updated(item, lane && lane->pending(from.updated[at]) ? from.updated[at] : 0);
    table.caches.put_era(item, from.eras[at]);
    table.note_age(topic_of(i, record.key), item);
    placed.push_back(item);
  }
  if (table.whole()) {
    table.united.flush();
    for (const auto& [stream, name] : of_[i].streams.names) table.keep_bounds(name);
    table.united.flush();
  } else {
    place_queues(i);
    for (const uint32_t item : placed) table.items.unpin(item);
  }
}

void Restore::place_queues(size_t i) {
  Table& table = *tables_[i];
  uint64_t waiting = 0;
  for (const OfLane& one : of_[i].lanes) waiting += one.draws.size();
  // Half of the entries is the most that pushes fill: else every queue loses an equal part, the oldest ones.
  const double part = std::min(1.0, static_cast<double>(table.caches.draws().capacity() / 2) / static_cast<double>(std::max<uint64_t>(waiting, 1)));
  for (const OfLane& one : of_[i].lanes) {
    Lane* lane = table.lanes.find(one.actor);
    for (const SavedChange& change : one.log) {
      const uint32_t item = table.items.find(change.key);
      if (item != kNone) table.caches.put_logged(lane, change.number, item, change.before);
    }
    const auto many = static_cast<size_t>(part * static_cast<double>(one.draws.size()));
    for (size_t at = one.draws.size() - many; at < one.draws.size(); ++at) {
      const SavedDraw& draw = one.draws[at];
      const uint32_t item = table.items.find(draw.key);
      if (item == kNone) continue;
      if (draw.segment == lane->newest_segment()) lane->segment();
      table.caches.put(lane, item, draw.weight, draw.segment, draw.steps);
    }
    table.caches.put_last(lane);
  }
}

}  // namespace memsvc
