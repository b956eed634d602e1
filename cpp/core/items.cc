#include "items.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

namespace memsvc {

void Items::place(Arena* arena, Store* store, uint32_t capacity) {
  store_ = store;
  most_ = capacity;
  // An index of its own takes 9 bytes an item, and arrays over all slots about 30 a slot: the smaller of the two.
  const bool own = uint64_t{capacity} * 4 < uint64_t{store->capacity()} * 3;
  capacity = places_ = own ? capacity : store->capacity();
  if (own) {
    index_.place(arena, capacity);
    own_ = arena->take<uint32_t>(capacity);
  }
  take(arena, capacity);
  if (!arena->mapped()) return;
  std::fill_n(prev_, capacity, kFree);
  if (!own_) return;
  for (uint32_t item = 0; item < capacity; ++item) next_[item] = item + 1 < capacity ? item + 1 : kNone;
  free_ = 0;
}

// Every array over the places but own_.
void Items::take(Arena* arena, uint32_t capacity) {
  version_ = arena->take<uint32_t>(capacity);
  value_ = arena->take<double>(capacity);
  made_ = arena->take<uint8_t>(capacity * spec_->made_bytes);
  if (spec_->kind != Kind::kStep) {
    span_ = arena->take<uint32_t>(capacity);
    head_ = arena->take<uint16_t>(capacity);
  }
  prev_ = arena->take<uint32_t>(capacity);
  next_ = arena->take<uint32_t>(capacity);
  arriving_ = arena->take<uint64_t>((size_t{capacity} + 63) / 64);
  if (!whole_) updated_ = arena->take<uint32_t>(capacity);
  if (spec_->factors()) factor_ = arena->take<double>(capacity);
  if (spec_->per_actor_episodes > 0) episode_ = arena->take<uint16_t>(capacity);
  if (spec_->max_times_sampled > 0) {
    times_ = arena->take<uint16_t>(capacity);
    flying_ = arena->take<uint16_t>(capacity);
    arrival_ = arena->take<uint64_t>(capacity);
  }
}

uint32_t Items::end() const {
  uint32_t end = places_;
  while (end > 0 && !live(end - 1)) --end;
  return end;
}

void Items::mirror(const Items& of, Store* store, Arena* arena, uint32_t places) {
  store_ = store;
  most_ = places_ = places;
  if (of.own_) own_ = arena->take<uint32_t>(places);
  take(arena, places);
}

void Items::copy(const Items& of, uint32_t places) {
  const auto copy = [places](auto* to, const auto* from, size_t many) {
    if (to && from) std::memcpy(to, from, places * many * sizeof(*to));
  };
  copy(own_, of.own_, 1);
  copy(span_, of.span_, 1);
  copy(head_, of.head_, 1);
  copy(version_, of.version_, 1);
  copy(value_, of.value_, 1);
  copy(made_, of.made_, spec_->made_bytes);
  copy(updated_, of.updated_, 1);
  copy(prev_, of.prev_, 1);
  copy(next_, of.next_, 1);
  copy(factor_, of.factor_, 1);
  copy(episode_, of.episode_, 1);
  copy(times_, of.times_, 1);
  copy(flying_, of.flying_, 1);
  copy(arrival_, of.arrival_, 1);
  std::memcpy(arriving_, of.arriving_, (size_t{places} + 63) / 64 * sizeof(*arriving_));
  places_ = places;
  versions_ = of.versions_;
  count_ = of.count_;
  begin_ = of.begin_;
  end_ = of.end_;
}

std::vector<uint32_t> Items::in_order() const {
  std::vector<uint32_t> order;
  order.reserve(count_);
  for (uint32_t item = arrival_ ? kNone : begin_; item != kNone && order.size() < count_; item = next_[item]) order.push_back(item);
  // What is not in the list: of caches those that draws need, and with max_times_sampled those set aside.
  for (uint32_t item = 0; item < places_; ++item) {
    if (live(item) && (arrival_ || next_[item] == kPinned)) order.push_back(item);
  }
  if (arrival_) std::sort(order.begin(), order.end(), [this](uint32_t a, uint32_t b) { return arrival_[a] < arrival_[b]; });
  std::erase_if(order, [this](uint32_t item) { return !published(item); });
  return order;
}

void Items::prefetch_item(uint32_t item) const {
  prefetch_window(item);
  __builtin_prefetch(&value_[item]);
}

void Items::prefetch_window(uint32_t item) const {
  own_ ? __builtin_prefetch(&own_[item]) : store_->prefetch_slot(item);
  __builtin_prefetch(&version_[item]);
  if (span_) __builtin_prefetch(&span_[item]), __builtin_prefetch(&head_[item]);
  if (spec_->made_bytes) __builtin_prefetch(made(item));
}

uint32_t Items::rows(const Window& window, uint32_t first_slot, uint32_t* slots) const {
  uint32_t n = 0;
  uint32_t previous = kNone;
  for (int range = 0; range < 2; ++range) {
    for (uint32_t i = 0; i < window.count[range]; ++i) {
      previous = n == 0 && first_slot != kNone ? first_slot : store_->find(window.first[range] + i, previous);
      slots[n++] = previous;
    }
  }
  return n;
}

uint32_t Items::add(const ItemRecord& record, const uint8_t* made, double factor, const uint32_t* slots, uint32_t rows, double value) {
  const uint32_t slot = slots[record.head];
  const uint32_t item = own_ ? free_ : slot;
  const uint32_t version = versions_.keep(record.version);  // first: it may find no memory
  if (own_) {
    free_ = next_[item];
    own_[item] = slot;
    index_.insert(record.key, item);
  }
  if (whole_) {
    link(item, end_);
  } else {
    prev_[item] = 1;
    next_[item] = kPinned;
    updated_[item] = 0;
  }
  arriving_[item / 64] |= uint64_t{1} << (item % 64);
  ++count_;
  version_[item] = version;
  value_[item] = value;
  if (span_) {
    span_[item] = record.span;
    head_[item] = record.head;
  }
  if (factor_) factor_[item] = factor;
  if (episode_) episode_[item] = record.episode;
  if (times_) {
    times_[item] = flying_[item] = 0;
    arrival_[item] = arrivals_++;
  }
  if (spec_->made_bytes > 0) std::memcpy(made_ + item * spec_->made_bytes, made, spec_->made_bytes);
  for (uint32_t i = 0; i < rows; ++i) store_->hold(slots[i]);
  window_rows_ += rows;
  return item;
}

void Items::remove(uint32_t item) {
  // Evictions come in runs: what the next ones will touch is fetched now.
  const uint32_t ahead = whole_ ? item + 8 : next_[item];
  if (ahead < places_ && live(ahead)) {
    if (own_) index_.prefetch(key(ahead));
    store_->prefetch(key(ahead));
  }
  const Window window = this->window(item);
  // The slot is known by its key only until it is dropped, so the guess for the next one comes first.
  uint32_t slot = first(item);
  if (own_) index_.erase(key(item), item, [this](uint32_t place) { return key(place); });
  uint32_t n = 0;
  for (int range = 0; range < 2; ++range) {
    for (uint32_t i = 0; i < window.count[range]; ++i, ++n) {
      if (n > 0) slot = store_->find(window.first[range] + i, slot);
      store_->drop(slot);
    }
  }
  window_rows_ -= n;
  versions_.forget(version_[item]);
  --count_;
  if (next_[item] != kPinned) unlink(item);
  prev_[item] = kFree;
  if (!own_) return;
  next_[item] = free_;
  free_ = item;
}

// Behind `after`, at the front where that is kNone.
void Items::link(uint32_t item, uint32_t after) {
  prev_[item] = after;
  next_[item] = after == kNone ? begin_ : next_[after];
  (after == kNone ? begin_ : next_[after]) = item;
  (next_[item] == kNone ? end_ : prev_[next_[item]]) = item;
}

void Items::unlink(uint32_t item) {
  (prev_[item] == kNone ? begin_ : next_[prev_[item]]) = next_[item];
  (next_[item] == kNone ? end_ : prev_[next_[item]]) = prev_[item];
}

void Items::pin(uint32_t item) {
  if (next_[item] == kPinned) {
    ++prev_[item];
  } else {
    unlink(item);
    prev_[item] = 1;
    next_[item] = kPinned;
  }
}

void Items::unpin(uint32_t item) {
  if (--prev_[item] == 0) link(item, end_);
}

void Items::set_aside(uint32_t item) {
  unlink(item);
  next_[item] = kPinned;
}

void Items::bring_back(uint32_t item) {
  // Its neighbour of then, or that one's where it is aside too; else from the front, where what an order draws was not long ago.
  uint32_t behind = prev_[item];
  for (uint32_t from = item; behind != kNone; from = std::exchange(behind, prev_[behind])) {
    if (!live(behind) || arrival_[behind] >= arrival_[from]) behind = kNone;
    if (behind == kNone || !aside(behind)) break;
  }
  for (uint32_t other = behind == kNone ? begin_ : next_[behind]; other != kNone && arrival_[other] < arrival_[item]; other = next_[other])
    behind = other;
  link(item, behind);
}

uint32_t Items::oldest() const {
  uint32_t item = begin_;
  while (item != kNone && !published(item)) item = next_[item];
  return item;
}

std::string Items::check(uint32_t* needs) const {
  uint32_t live_items = 0, listed = 0, pinned = 0, unused = 0;
  std::vector<uint32_t> slots;
  for (uint32_t item = 0; item < places_; ++item) {
    const std::string name = "item " + std::to_string(item);
    if (!live(item)) continue;
    ++live_items;
    if (find(key(item)) != item) return "I4: " + name + " is not found under its key";
    const Window window = this->window(item);
    slots.resize(window.rows());
    if (rows(window, first(item), slots.data()) != slots.size() || slots[head(item)] != own(item)) return "I4: " + name + " names another row";
    for (const uint32_t slot : slots) {
      if (slot == kNone) return "I5: a row of " + name + " is not held";
      ++needs[slot];
    }
    if (next_[item] == kPinned) {
      if (whole_ ? flying_[item] == 0 || times_[item] < spec_->max_times_sampled : prev_[item] == 0) return "I6: pinned " + name + " has no pin";
      ++pinned;
    }
  }
  if (live_items != count_ || (own_ && index_.count() != count_))
    return "I4: " + std::to_string(live_items) + " items, counted " + std::to_string(count_);
  uint32_t before = kNone;
  for (uint32_t item = begin_; item != kNone && listed <= count_; before = item, item = next_[item], ++listed) {
    if (!live(item) || prev_[item] != before) return "I6: the list is broken at item " + std::to_string(item);
  }
  if (before != end_ || listed + pinned != count_) return "I6: " + std::to_string(listed) + " listed, " + std::to_string(pinned) + " pinned";
  for (uint32_t item = free_; item != kNone && unused <= places_; item = next_[item]) ++unused;
  if (own_ && unused != free()) return "I6: " + std::to_string(unused) + " in the free list";
  return "";
}

}  // namespace memsvc
