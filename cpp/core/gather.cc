#include "gather.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace memsvc {
namespace {

constexpr size_t kSmallRow = 512;  // rows up to this size are fetched whole, ahead of the copy; larger ones the hardware follows by itself

// A call to memcpy costs more than a small field.
inline void move_bytes(uint8_t* to, const uint8_t* from, size_t n) {
  if (n == 4) {
    std::memcpy(to, from, 4);
  } else if (n == 8) {
    std::memcpy(to, from, 8);
  } else if (n >= 32 && n <= 128) {
    // Whole pieces of 32, and one that ends where the field does.
    for (size_t at = 0; at + 32 < n; at += 32) std::memcpy(to + at, from + at, 32);
    std::memcpy(to + n - 32, from + n - 32, 32);
  } else {
    std::memcpy(to, from, n);
  }
}

bool from_rows(Origin origin) {
  switch (origin) {
    case Origin::kField:
    case Origin::kStack:
    case Origin::kNext:
    case Origin::kNextStack:
    case Origin::kInitial:
      return true;
    default:
      return false;
  }
}

template <typename T>
void store_at(uint8_t* column, size_t i, T value) {
  std::memcpy(column + i * sizeof(T), &value, sizeof(T));
}

}  // namespace

Gather::Gather(const TableSpec& spec, const Schema& schema, size_t batch, uint8_t* out) : spec_(spec), batch_(batch), places_(batch) {
  std::vector<size_t> offsets;
  spec.batch_bytes(batch, &offsets);
  for (size_t c = 0; c < spec.columns.size(); ++c) {
    const Column& column = spec.columns[c];
    columns_.push_back(out + offsets[c]);
    if (!from_rows(column.origin)) continue;
    const Field& field = schema.fields()[static_cast<size_t>(column.field)];
    moves_.push_back({column.origin, columns_.back(), column.bytes, field.offset, field.bytes});
  }
}

void Gather::plan(const Items& items, const uint32_t* chosen, const double* weights, const Population& population, Store* store) {
  for (size_t i = 0; i < batch_; ++i) items.prefetch_item(chosen[i]);
  for (size_t i = 0; i < batch_; ++i) store->prefetch_slot(items.first(chosen[i]));
  slots_.reserve(batch_);
  for (size_t i = 0; i < batch_; ++i) {
    const uint32_t item = chosen[i];
    const Window window = items.window(item);
    Place& place = places_[i];
    place = {slots_.size(), window.rows(), items.span(item), items.head(item)};
    slots_.resize(place.begin + place.rows);
    items.rows(window, items.first(item), &slots_[place.begin]);
    for (uint32_t row = 0; row < place.rows; ++row) store->hold(slots_[place.begin + row]);
  }
  scalars(items, chosen, weights, population);
}

// Everything that is no row: keys, P(i) = w / W, importance weights (DEFINITIONS 6), versions, computed columns, lengths and masks.
void Gather::scalars(const Items& items, const uint32_t* chosen, const double* weights, const Population& population) {
  double lowest = population.min_weight;
  if (spec_.normalize == Normalize::kBatch || lowest == 0) {
    // Of items read by key some may have no weight.
    lowest = std::numeric_limits<double>::infinity();
    for (size_t i = 0; i < batch_; ++i) lowest = weights[i] > 0 ? std::min(lowest, weights[i]) : lowest;
  }
  const bool ordered = spec_.ordered();  // what an order says is certain
  const double scale = spec_.normalize == Normalize::kNone ? population.total / static_cast<double>(population.count) : lowest;
  for (size_t c = 0; c < spec_.columns.size(); ++c) {
    const Column& column = spec_.columns[c];
    uint8_t* out = columns_[c];
    if (from_rows(column.origin)) continue;
    for (size_t i = 0; i < batch_; ++i) {
      const uint32_t item = chosen[i];
      switch (column.origin) {
        case Origin::kKey:
          store_at<uint64_t>(out, i, items.key(item));
          break;
        case Origin::kProbability:
          store_at<double>(out, i, weights[i] > 0 ? weights[i] / population.total : 0);
          break;
        case Origin::kWeight: {
          const double base = weights[i] > 0 ? (ordered ? 1 : scale / weights[i]) : 0;
          store_at<float>(out, i, static_cast<float>(base == 1 || spec_.beta == 0 ? 1 : std::pow(base, spec_.beta)));
          break;
        }
        case Origin::kVersion:
          store_at<int64_t>(out, i, items.version(item));
          break;
        case Origin::kLength:
          store_at<int32_t>(out, i, static_cast<int32_t>(items.span(item)));
          break;
        case Origin::kMask:
          std::memset(out + i * column.bytes, 1, places_[i].span);
          std::memset(out + i * column.bytes + places_[i].span, 0, column.bytes - places_[i].span);
          break;
        case Origin::kMade:
          move_bytes(out + i * column.bytes, items.made(item) + column.made_offset, column.bytes);
          break;
        default:
          break;
      }
    }
  }
}

void Gather::copy(const Store& store) const {
  if (store.stride() <= kSmallRow) {
    for (const uint32_t slot : slots_) {
      const uint8_t* row = store.row(slot);
      for (size_t at = 0; at < store.stride(); at += 64) __builtin_prefetch(row + at);
    }
  }
  for (size_t i = 0; i < batch_; ++i) item(store, i);
}

void Gather::item(const Store& store, size_t i) const {
  const Place& place = places_[i];
  const uint32_t* slots = &slots_[place.begin];
  const bool sequence = spec_.kind == Kind::kSequence;
  const uint32_t steps = sequence ? place.span : 1;
  const uint32_t last = place.rows - 1;
  const uint32_t frames = spec_.frame_stack;

  // A stack that ends at row `end` of the window; `head` rows before it belong to the episode (DEFINITIONS 3).
  const auto stack = [&](const Move& move, uint8_t* to, uint32_t end, uint32_t head) {
    for (uint32_t frame = 0; frame < frames; ++frame, to += move.bytes) {
      const uint32_t back = frames - 1 - frame;
      if (back > head && spec_.pad == Pad::kZero) {
        std::memset(to, 0, move.bytes);
      } else {
        move_bytes(to, store.row(slots[end - std::min(back, head)]) + move.offset, move.bytes);
      }
    }
  };

  for (const Move& move : moves_) {
    uint8_t* to = move.out + i * move.item_bytes;
    uint8_t* const end = to + move.item_bytes;
    switch (move.origin) {
      case Origin::kField:
        for (uint32_t step = 0; step < steps; ++step, to += move.bytes) move_bytes(to, store.row(slots[place.head + step]) + move.offset, move.bytes);
        break;
      case Origin::kStack:
        stack(move, to, place.head, place.head);
        to += frames * move.bytes;
        break;
      case Origin::kNext:
        move_bytes(to, store.row(slots[last]) + move.offset, move.bytes);
        to += move.bytes;
        break;
      case Origin::kNextStack:
        stack(move, to, last, next_head(spec_, place.span, place.head));
        to += frames * move.bytes;
        break;
      default:  // Origin::kInitial: the state that was the input of the window's first step
        move_bytes(to, store.row(slots[place.head]) + move.offset, move.bytes);
        to += move.bytes;
        break;
    }
    if (to != end) std::memset(to, 0, static_cast<size_t>(end - to));  // a short sequence
  }
}

void Gather::release(Store* store) const {
  for (const uint32_t slot : slots_) store->drop(slot);
}

}  // namespace memsvc
