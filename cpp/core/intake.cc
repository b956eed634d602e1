#include "intake.h"

#include <algorithm>
#include <string>
#include <utility>

#include "priority.h"
#include "stream.h"
#include "window.h"

namespace memsvc {
namespace {

constexpr uint64_t kAhead = 16;  // keys whose place in an index is fetched ahead

}  // namespace

bool Intake::ours(uint64_t key) const { return stream_of(key) - first_stream_ < streams_ || actors_->owner(stream_of(key)) == actor_; }

Status Intake::check_streams() {
  const std::vector<uint64_t>& known = actors_->find(actor_)->streams;
  first_stream_ = known.empty() ? 0 : known.front();
  while (streams_ < known.size() && known[streams_] == first_stream_ + streams_) ++streams_;
  newest_row_.resize(streams_);
  newest_item_.resize(streams_);
  const auto foreign = [](const char* part, uint64_t i, uint64_t key) {
    return Status(Code::kMalformed, "a cache has " + std::string(part) + "[" + std::to_string(i) + "] of stream " + std::to_string(stream_of(key)) +
                                        ", which is not one of this actor's");
  };
  for (uint64_t i = 0; i < view_.head.rows; ++i) {
    if (!ours(view_.row_keys[i])) return foreign("row_keys", i, view_.row_keys[i]);
  }
  for (uint64_t i = 0; i < view_.head.items; ++i) {
    if (!ours(view_.items[i].key)) return foreign("items", i, view_.items[i].key);
  }
  for (uint64_t i = 0; i < view_.head.draws; ++i) {
    if (!ours(view_.draws[i].key)) return foreign("draws", i, view_.draws[i].key);
  }
  for (uint64_t i = 0; i < view_.head.gone; ++i) {
    if (!ours(view_.gone[i])) return foreign("gone", i, view_.gone[i]);
  }
  // One for each stream at most: a floor may cost a pass over a table.
  if (view_.head.floors > known.size()) {
    return Status(Code::kMalformed,
                  "a cache has " + std::to_string(view_.head.floors) + " floors of an actor with " + std::to_string(known.size()) + " streams");
  }
  for (uint64_t i = 0; i < view_.head.floors; ++i) {
    if (!ours(view_.floors[i])) return foreign("floors", i, view_.floors[i]);
  }
  return Status();
}

Status Intake::reserve() {
  try {
    return take_in();
  } catch (...) {
    undo();
    throw;
  }
}

// Gives back what was held, pinned and added, in the reverse order.
void Intake::undo() {
  Items& items = table_.items;
  for (const uint32_t item : draw_items_) {
    if (item != kNone) items.unpin(item);
  }
  for (const NewItem& item : new_items_) {
    items.publish(item.item);
    if (!table_.whole()) items.unpin(item.item);
    items.remove(item.item);
  }
  for (const uint32_t slot : held_) store_->drop(slot);
}

void Intake::hold(uint32_t slot) {
  held_.push_back(slot);
  store_->hold(slot);
}

Status Intake::take_in() {
  if (Status status = check_streams(); !status.ok()) return status;
  // The actor may be gone, or replaced by its namesake, when this is published.
  name_ = actors_->find(actor_)->name;
  if (const Gates::Actor* from = table_.gates.find(actor_)) topic_ = from->topic;
  pin_known_draws();
  find_rows();
  if (new_rows_.size() > store_->free() || view_.head.items > table_.items.free()) make_room();
  store_rows();
  store_items();
  settle_draws();
  settle_incomplete();
  return Status();
}

// Draws of items that are held pin them first, so that making room for the others does not evict them.
void Intake::pin_known_draws() {
  draw_items_.resize(view_.head.draws, kNone);
  for (uint64_t i = 0; i < view_.head.draws; ++i) {
    if (i + kAhead < view_.head.draws) table_.items.prefetch(view_.draws[i + kAhead].key);
    draw_items_[i] = table_.items.find(view_.draws[i].key);
    if (draw_items_[i] != kNone) table_.items.pin(draw_items_[i]);
  }
}

// Holds the rows that are here already, notes the others (doubles twice).
void Intake::find_rows() {
  places_.resize(view_.head.rows);
  uint32_t previous = kNone;
  for (uint64_t i = 0; i < view_.head.rows; ++i) {
    if (i + kAhead < view_.head.rows) store_->prefetch(view_.row_keys[i + kAhead]);
    previous = store_->find(view_.row_keys[i], previous);
    places_[i] = {previous, false};
    if (previous == kNone) {
      new_rows_.push_back(i);
    } else {
      hold(previous);
    }
  }
}

// Whether no key so far was of this stream and as large, for certain.
bool Intake::later(uint64_t key, std::vector<uint64_t>* newest) const {
  const uint64_t stream = stream_of(key) - first_stream_;
  if (stream >= streams_ || key <= (*newest)[stream]) return false;
  (*newest)[stream] = key;
  return true;
}

// New rows go where a run is free; neighbours in time that arrive together stay together.
void Intake::store_rows() {
  size_t at = 0;
  held_.reserve(held_.size() + new_rows_.size());
  while (at < new_rows_.size()) {
    if (store_->free() == 0) {
      short_ = true;
      return;
    }
    size_t end = at + 1;
    while (end < new_rows_.size() && new_rows_[end] == new_rows_[end - 1] + 1 &&
           view_.row_keys[new_rows_[end]] == view_.row_keys[new_rows_[end - 1]] + 1) {
      ++end;
    }
    uint32_t slot;
    const uint32_t run = store_->run(static_cast<uint32_t>(std::min<size_t>(end - at, Store::kMostSlots)), &slot);
    for (uint32_t i = 0; i < run; ++i, ++at) {
      const uint64_t row = new_rows_[at];
      const uint64_t key = view_.row_keys[row];
      if (at + kAhead < new_rows_.size()) store_->prefetch(view_.row_keys[new_rows_[at + kAhead]]);
      // Two copies of a row in one payload: the first counts. Where a stream's rows come in order, there is none.
      if (!later(key, &newest_row_) && store_->find(key) != kNone) continue;
      store_->take(slot, key);
      places_[row] = {slot, true};
      held_.push_back(slot);
      if (!copies_.empty() && copies_.back().slot + copies_.back().rows == slot && copies_.back().row + copies_.back().rows == row) {
        ++copies_.back().rows;
      } else {
        copies_.push_back({slot, row, 1});
      }
      ++slot;
    }
  }
}

void Intake::store_items() {
  Items& items = table_.items;
  Lane* lane = table_.lanes.find(actor_);
  new_items_.reserve(view_.head.items);
  uint32_t hint = kNone;
  uint64_t row = 0;  // a guess: items mostly come in the order of their own rows
  for (uint64_t i = 0; i < view_.head.items; ++i) {
    if (i + kAhead < view_.head.items) {
      items.prefetch(view_.items[i + kAhead].key);
      store_->prefetch(view_.items[i + kAhead].key - view_.items[i + kAhead].head);
    }
    const ItemRecord& record = view_.items[i];
    if (lane && !lane->asked.empty()) lane->asked.erase(record.key);
    const bool first = later(record.key, &newest_item_);
    const bool here = row < view_.head.rows && view_.row_keys[row] == record.key;
    const Place own = here ? places_[row++] : Place{kNone, false};
    // All rows of an item are held, so where its own has just been taken there was none before this payload.
    if (!(first && own.taken) && items.find(record.key) != kNone) continue;
    if (skip_ > 0) {
      --skip_;
      ++table_.evicted;
      continue;
    }
    const Window window = window_of(table_.spec, record.key, record.span, record.head);
    window_.resize(window.rows());
    const uint32_t begin = own.slot != kNone && record.head == 0 ? own.slot : store_->find(window.first[0], hint);
    const uint32_t rows = items.rows(window, begin, window_.data());
    hint = window_[0];
    const bool complete = std::find(window_.begin(), window_.end(), kNone) == window_.end();
    if (items.free() == 0 || (!complete && short_)) {
      refused_.push_back(record.key);
      // A table that blocks asks for it again, when the actor has room.
      if (!table_.spec.blocks) ++table_.evicted;
      if (lane && table_.spec.blocks) lane->missing.push_back(record.key);
      if (lane && !table_.whole()) lane->evicted.push_back(record.key);
    } else if (!complete) {
      incomplete_.push_back(record.key);
    } else {
      const double factor = view_.factors ? view_.factors[i] : 1;
      const double value = table_.whole() ? record.priority : weighed(factor, weight_of(table_.spec, record.priority, view_.head.exponent));
      new_items_.push_back({items.add(record, view_.made + i * table_.spec.made_bytes, factor, window_.data(), rows, value), record.priority});
    }
  }
  std::sort(refused_.begin(), refused_.end());
}

// Draws of new items pin them; draws of items that are nowhere wait aside for their payload, unless it was here and found no room.
void Intake::settle_draws() {
  Lane* lane = table_.lanes.find(actor_);
  if (lane) {
    for (const DrawRecord& draw : lane->waiting) waits_for_.insert(draw.key);
  }
  for (uint64_t i = 0; i < view_.head.draws; ++i) {
    if (draw_items_[i] != kNone) continue;
    const DrawRecord& draw = view_.draws[i];
    draw_items_[i] = table_.items.find(draw.key);
    if (draw_items_[i] != kNone) {
      table_.items.pin(draw_items_[i]);
    } else if (lane && !std::binary_search(refused_.begin(), refused_.end(), draw.key)) {
      if (waits_for_.insert(draw.key).second) lane->missing.push_back(draw.key);
      late_.push_back(draw);
    }
  }
}

// The actor took rows for held that are not: what draws wait for is asked for again, of the rest it learns that it is not here.
void Intake::settle_incomplete() {
  Lane* lane = table_.lanes.find(actor_);
  if (!lane) return;
  for (uint64_t i = 0; i < view_.head.gone && !lane->asked.empty(); ++i) lane->asked.erase(view_.gone[i]);
  for (const uint64_t key : incomplete_) (waits_for_.contains(key) || table_.whole() ? lane->missing : lane->evicted).push_back(key);
}

void Intake::copy() const {
  const size_t stride = store_->stride();
  for (const Copy& copy : copies_) copy_streaming(store_->row(copy.slot), view_.rows + copy.row * stride, copy.rows * stride);
}

void Intake::publish() {
  try {
    queue();
  } catch (...) {
    give_up();
    for (const uint32_t slot : held_) store_->drop(slot);
    throw;
  }
  for (const uint32_t slot : held_) store_->drop(slot);
}

// What has not been queued, or let be drawn, goes: the push may come again.
void Intake::give_up() {
  Items& items = table_.items;
  for (size_t i = queued_; i < draw_items_.size(); ++i) {
    if (draw_items_[i] != kNone) items.unpin(draw_items_[i]);
  }
  for (size_t i = admitted_; i < new_items_.size(); ++i) {
    const uint32_t item = new_items_[i].item;
    items.publish(item);
    if (admitting_ && i == admitted_) table_.united.clear(item);
    table_.whole() ? items.remove(item) : items.unpin(item);
  }
}

void Intake::queue() {
  Items& items = table_.items;
  Lane* lane = table_.lanes.find(actor_);
  if (lane) {
    // What an actor of another server had told there is not told anew.
    if (std::exchange(lane->adopted, false)) {
      lane->inserted = view_.head.inserted - (table_.whole() ? std::min(view_.head.inserted, view_.head.items + view_.head.unsent) : 0);
    }
    table_.inserted += view_.head.inserted - std::min(lane->inserted, view_.head.inserted);
    lane->inserted = std::max(lane->inserted, view_.head.inserted);
    lane->received += view_.head.draws;
    table_.whole() ? lane->report(view_.head) : table_.caches.report(lane, view_.head);
    if (!table_.whole()) table_.raise_floors(lane, view_.floors, view_.head.floors);
    table_.gates.pushed(actor_, view_.head, new_items_.size());
    table_.last_scale = view_.head.scale;
  }
  if (lane) {
    lane->waiting.insert(lane->waiting.end(), late_.begin(), late_.end());
    settle_waiting(lane);
  }
  while (queued_ < draw_items_.size()) {
    const size_t i = queued_++;  // first: what fails over a draw has queued it, or drops it
    if (draw_items_[i] == kNone) continue;
    if (lane) {
      draws_queued_ += table_.caches.queue(lane, draw_items_[i], view_.draws[i].weight);
    } else {
      items.unpin(draw_items_[i]);  // the actor was replaced meanwhile
    }
  }
  if (lane && !table_.whole()) table_.caches.trim(lane);
  admit();
  table_.limiter.inserted(table_.inserted);
  if (table_.limiter.on()) table_.limiter.drawable(table_.drawable());
}

// From now on the new items may be drawn.
void Intake::admit() {
  Items& items = table_.items;
  if (!table_.whole()) {
    const Lane* lane = table_.lanes.find(actor_);
    while (admitted_ < new_items_.size()) {
      const NewItem& item = new_items_[admitted_++];
      items.publish(item.item);
      items.unpin(item.item);
      if (lane) table_.note_age(lane->topic, item.item);
    }
    return;
  }
  for (; admitted_ < new_items_.size(); ++admitted_) {
    admitting_ = true;
    table_.admit(name_, topic_, new_items_[admitted_].item, new_items_[admitted_].priority);
  }
  table_.keep_bounds(name_);
  table_.united.flush();
}

// What can be drawn now leaves, in order; what the actor has no more goes; the rest waits on.
void Intake::settle_waiting(Lane* lane) {
  if (lane->waiting.empty()) return;
  std::vector<uint64_t> gone(view_.gone, view_.gone + view_.head.gone);
  gone.insert(gone.end(), refused_.begin(), refused_.end());
  std::sort(gone.begin(), gone.end());
  std::erase_if(lane->waiting, [&](const DrawRecord& draw) {
    const uint32_t item = table_.items.find(draw.key);
    if (lane->lost(draw.key)) return true;
    if (item == kNone) return std::binary_search(gone.begin(), gone.end(), draw.key);
    table_.items.pin(item);
    table_.caches.queue_late(lane, item, draw.weight);
    return true;
  });
}

}  // namespace memsvc
