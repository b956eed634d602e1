// Room for a push: what is evicted for it, and what of it is left out where that is not enough.
#include <algorithm>
#include <unordered_map>
#include <utility>
#include <vector>

#include "intake.h"
#include "window.h"

namespace memsvc {
namespace {

constexpr int kNearAhead = 8, kFarAhead = 16;  // items fetched ahead of the one that is evicted

}  // namespace

void Intake::make_room() {
  hold_windows();
  uint64_t items = 0;
  for (uint64_t i = 0; i < view_.head.items; ++i) items += table_.items.find(view_.items[i].key) == kNone;
  // What could not fit anyway is left out first, so that nothing is evicted for it; the rest when everything that may go has gone.
  keep_newest(&items, table_.items.capacity(), store_->capacity());
  while (table_.items.free() < items && (evict_one(&table_) || give_way(&table_))) {
  }
  while (store_->free() < new_rows_.size() && (evict_one(nullptr) || give_way(nullptr))) {
  }
  keep_newest(&items, table_.items.free(), store_->free());
}

// A union that is smaller than the payload keeps its newest part. `items`: new ones, of which so many are kept in the end; rows that only the others
// need are not stored.
void Intake::keep_newest(uint64_t* items, uint64_t most_items, uint64_t most_rows) {
  if (!table_.whole() || table_.spec.blocks || (*items <= most_items && new_rows_.size() <= most_rows)) return;
  std::unordered_map<uint64_t, bool> needed;  // by key
  for (const uint64_t row : new_rows_) needed.emplace(view_.row_keys[row], false);
  const uint64_t most = std::min(*items, most_items);
  uint64_t kept = 0, rows = 0;
  for (uint64_t i = view_.head.items; i > 0 && kept < most; --i) {
    const ItemRecord& record = view_.items[i - 1];
    if (table_.items.find(record.key) != kNone) continue;
    const Window window = window_of(table_.spec, record.key, record.span, record.head);
    std::vector<bool*> added;
    for (int range = 0; range < 2; ++range) {
      for (uint32_t at = 0; at < window.count[range]; ++at) {
        const auto row = needed.find(window.first[range] + at);
        if (row != needed.end() && !row->second) added.push_back(&row->second);
      }
    }
    if (rows + added.size() > most_rows) break;
    for (bool* row : added) *row = true;
    rows += added.size();
    ++kept;
  }
  skip_ += *items - kept;
  *items = kept;
  std::erase_if(new_rows_, [&](uint64_t row) { return !std::exchange(needed[view_.row_keys[row]], false); });
}

// Rows that the payload counts on although it does not bring them.
void Intake::hold_windows() {
  for (uint64_t i = 0; i < view_.head.items; ++i) {
    const ItemRecord& record = view_.items[i];
    const Window window = window_of(table_.spec, record.key, record.span, record.head);
    window_.resize(window.rows());
    table_.items.rows(window, kNone, window_.data());
    for (const uint32_t slot : window_) {
      if (slot == kNone) continue;
      hold(slot);
    }
  }
}

// From the table that takes most of the store among those (or the one) that have something to evict.
bool Intake::evict_one(Table* only) {
  Table* richest = nullptr;
  for (const auto& table : *tables_) {
    if (table->spec.blocks || (only && table.get() != only) || table->items.oldest() == kNone) continue;
    if (!richest || table->items.window_rows() > richest->items.window_rows()) richest = table.get();
  }
  if (!richest) return false;
  fetch_ahead(*richest);
  evict(richest, richest->items.oldest());
  return true;
}

// Evictions go through a list: what the coming ones touch is fetched a few items ahead.
void Intake::fetch_ahead(const Table& table) {
  const Items& items = table.items;
  const auto listed = [&items](uint32_t item) { return item < items.places() && items.live(item); };
  const auto step = [&](uint32_t* item) { *item = listed(*item) ? items.after(*item) : kNone; };
  auto ahead = std::find_if(ahead_.begin(), ahead_.end(), [&table](const Ahead& of) { return of.table == &table; });
  if (ahead == ahead_.end()) {
    Ahead first{&table, items.oldest(), kNone};
    for (int i = 0; i < kNearAhead; ++i) step(&first.near);
    first.far = first.near;
    for (int i = kNearAhead; i < kFarAhead; ++i) step(&first.far);
    ahead = ahead_.insert(ahead_.end(), first);
  }
  if (listed(ahead->far)) items.prefetch_item(ahead->far);
  if (listed(ahead->near)) {
    const uint64_t key = items.key(ahead->near);
    items.prefetch(key);
    store_->prefetch(key);
  }
  step(&ahead->near);
  step(&ahead->far);
}

// Everything left is needed by draws: the oldest draws of the actor with the largest excess go, in the largest table that has any.
bool Intake::give_way(Table* only) {
  std::vector<Table*> by_rows;
  for (const auto& table : *tables_) {
    if (!table->whole() && (!only || table.get() == only)) by_rows.push_back(table.get());
  }
  std::stable_sort(by_rows.begin(), by_rows.end(), [](Table* a, Table* b) { return a->items.window_rows() > b->items.window_rows(); });
  return std::any_of(by_rows.begin(), by_rows.end(), [](Table* table) { return table->caches.give_way(); });
}

void Intake::evict(Table* table, uint32_t item) {
  ++table->evicted;
  if (table->whole()) return table->drop(item);
  const uint64_t key = table->items.key(item);
  Lane* lane = table->lanes.find(actors_->owner(stream_of(key)));
  if (lane && !lane->left) lane->evicted.push_back(key);
  table->items.remove(item);
}

}  // namespace memsvc
