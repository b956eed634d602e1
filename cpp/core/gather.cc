#include "gather.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "stream.h"

namespace memsvc {
namespace {

constexpr size_t kFetched = 512;      // of each row that comes soon so many bytes are fetched; the rest the processor follows by itself
constexpr size_t kFetchAhead = 8192;  // bytes of rows on their way to the second-level cache during the copy: the first one is no larger than a batch
constexpr size_t kPlanAhead = 32;     // items on their way while others are planned
// Fields from this size on are written past the caches, in batches from that size on: of smaller ones the reader still finds in a cache what a
// batch of megabytes would only sweep out of it.
constexpr size_t kStreamField = 4096;
constexpr size_t kStreamBatch = size_t{2} << 20;
constexpr size_t kPart = size_t{512} << 10;  // of a batch that several threads copy: some 40 us, much longer than to begin one

// A call to memcpy costs more than a small field.
inline void move_bytes(uint8_t* to, const uint8_t* from, size_t n) {
  if (n == 4) {
    std::memcpy(to, from, 4);
  } else if (n == 8) {
    std::memcpy(to, from, 8);
  } else if (n >= 16 && n < 32) {
    std::memcpy(to, from, 16);
    std::memcpy(to + n - 16, from + n - 16, 16);
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

Gather::Gather(const TableSpec& spec, const Schema& schema, size_t batch, uint8_t* out)
    : spec_(spec), batch_(batch), plain_(spec.kind == Kind::kStep), places_(batch) {
  std::vector<size_t> offsets;
  const bool large = spec.batch_bytes(batch, &offsets) >= kStreamBatch;
  for (size_t c = 0; c < spec.columns.size(); ++c) {
    const Column& column = spec.columns[c];
    columns_.push_back(out + offsets[c]);
    if (!from_rows(column.origin)) continue;
    const Field& field = schema.fields()[static_cast<size_t>(column.field)];
    moves_.push_back({column.origin, columns_.back(), column.bytes, field.offset, field.bytes, large && field.bytes >= kStreamField});
    plain_ = plain_ && column.origin == Origin::kField;
    streams_ = streams_ || moves_.back().stream;
  }
}

void Gather::plan(const Items& items, const uint32_t* chosen, const double* weights, const Population& population, Store* store) {
  for (size_t i = 0; i < std::min(2 * kPlanAhead, batch_); ++i) items.prefetch_window(chosen[i]);
  for (size_t i = 0; i < std::min(kPlanAhead, batch_); ++i) store->prefetch_slot(items.first(chosen[i]));
  slots_.reserve(batch_);
  for (size_t i = 0; i < batch_; ++i) {
    if (i + 2 * kPlanAhead < batch_) items.prefetch_window(chosen[i + 2 * kPlanAhead]);
    if (i + kPlanAhead < batch_) store->prefetch_slot(items.first(chosen[i + kPlanAhead]));
    const uint32_t item = chosen[i];
    if (plain_) {
      places_[i] = {i, 1, 1, 0};
      slots_.push_back(items.first(item));
      store->hold(slots_.back());
      __builtin_prefetch(store->row(slots_.back()));
      continue;
    }
    const Window window = items.window(item);
    Place& place = places_[i];
    place = {slots_.size(), window.rows(), items.span(item), items.head(item)};
    slots_.resize(place.begin + place.rows);
    items.rows(window, items.first(item), &slots_[place.begin]);
    for (uint32_t row = 0; row < place.rows; ++row) store->hold(slots_[place.begin + row]);
  }
  weights_ = weights;
  population_ = population;
  beta_ = spec_.beta;
  scalars(items, chosen);
}

// What is said of an item beside its rows and its chances: key, version, computed columns, length and mask.
void Gather::scalars(const Items& items, const uint32_t* chosen) {
  for (size_t c = 0; c < spec_.columns.size(); ++c) {
    const Column& column = spec_.columns[c];
    uint8_t* out = columns_[c];
    switch (column.origin) {
      case Origin::kKey:
        for (size_t i = 0; i < batch_; ++i) store_at<uint64_t>(out, i, items.key(chosen[i]));
        break;
      case Origin::kVersion:
        for (size_t i = 0; i < batch_; ++i) store_at<int64_t>(out, i, items.version(chosen[i]));
        break;
      case Origin::kLength:
        for (size_t i = 0; i < batch_; ++i) store_at<int32_t>(out, i, static_cast<int32_t>(items.span(chosen[i])));
        break;
      case Origin::kMask:
        for (size_t i = 0; i < batch_; ++i) {
          std::memset(out + i * column.bytes, 1, places_[i].span);
          std::memset(out + i * column.bytes + places_[i].span, 0, column.bytes - places_[i].span);
        }
        break;
      case Origin::kMade:
        for (size_t i = 0; i < batch_; ++i) move_bytes(out + i * column.bytes, items.made(chosen[i]) + column.made_offset, column.bytes);
        break;
      default:  // from rows, or chances()
        break;
    }
  }
}

// P(i) = w / W, and importance weights (DEFINITIONS 6).
void Gather::chances() const {
  double lowest = population_.min_weight;
  if (spec_.normalize == Normalize::kBatch || lowest == 0) {
    // Of items read by key some may have no weight.
    lowest = std::numeric_limits<double>::infinity();
    for (size_t i = 0; i < batch_; ++i) lowest = weights_[i] > 0 ? std::min(lowest, weights_[i]) : lowest;
  }
  const bool ordered = spec_.ordered();  // what an order says is certain
  const bool mean = spec_.normalize == Normalize::kNone && population_.count > 0;
  const double scale = mean ? population_.total / static_cast<double>(population_.count) : lowest;
  // Totals are what actors say: whatever that is, learners get numbers.
  constexpr double kMostWeight = std::numeric_limits<float>::max();
  for (size_t c = 0; c < spec_.columns.size(); ++c) {
    uint8_t* out = columns_[c];
    if (spec_.columns[c].origin == Origin::kProbability) {
      for (size_t i = 0; i < batch_; ++i) store_at<double>(out, i, weights_[i] > 0 ? std::min(weights_[i] / population_.total, 1.0) : 0);
    }
    if (spec_.columns[c].origin != Origin::kWeight) continue;
    for (size_t i = 0; i < batch_; ++i) {
      const double base = weights_[i] > 0 ? (ordered ? 1 : scale / weights_[i]) : 0;
      store_at<float>(out, i, static_cast<float>(base == 1 || beta_ == 0 ? 1 : std::min(std::pow(base, beta_), kMostWeight)));
    }
  }
}

inline void Gather::transfer(const Move& move, uint8_t* to, const uint8_t* row, const uint8_t* next) {
  if (move.stream) {
    stream_part(to, row + move.offset, move.bytes, next + move.offset);
  } else {
    move_bytes(to, row + move.offset, move.bytes);
  }
}

void Gather::copy(const Store& store, Crew* crew) const {
  size_t item_bytes = 0;
  for (const Move& move : moves_) item_bytes += move.item_bytes;
  const size_t parts = std::clamp<size_t>(batch_ * item_bytes / kPart, 1, std::max<size_t>(batch_, 1));
  if (parts == 1) {
    copy_items(store, 0, batch_);
    return;
  }
  crew->share(parts, [&](size_t part) { copy_items(store, batch_ * part / parts, batch_ * (part + 1) / parts); });
}

void Gather::copy_items(const Store& store, size_t begin, size_t end) const {
  if (begin == end) return;
  const size_t fetched = std::min(kFetched, store.stride());
  const size_t rows_ahead = std::max<size_t>(kFetchAhead / store.stride(), 1);
  const size_t last = places_[end - 1].begin + places_[end - 1].rows;
  size_t ahead = places_[begin].begin;
  const auto fetch = [&](size_t upto) {
    for (; ahead < std::min(upto, last); ++ahead) {
      const uint8_t* row = store.row(slots_[ahead]);
      for (size_t at = 0; at < fetched; at += 64) __builtin_prefetch(row + at, 0, 2);
      __builtin_prefetch(row + fetched - 1, 0, 2);
    }
  };
  fetch(ahead + rows_ahead);
  if (begin == 0) chances();
  for (size_t i = begin; i < end; ++i) {
    fetch(places_[i].begin + places_[i].rows + rows_ahead);
    if (plain_) {
      const uint8_t* row = store.row(slots_[i]);
      const uint8_t* next = store.row(slots_[std::min(i + 1, batch_ - 1)]);
      for (const Move& move : moves_) transfer(move, move.out + i * move.bytes, row, next);
    } else {
      item(store, i);
    }
  }
  if (streams_) end_streaming();
}

void Gather::item(const Store& store, size_t i) const {
  const Place& place = places_[i];
  const bool sequence = spec_.kind == Kind::kSequence;
  const uint32_t steps = sequence ? place.span : 1;
  const uint32_t last = place.rows - 1;
  const uint32_t frames = spec_.frame_stack;

  // The row behind the one that is copied is, mostly, what is copied next.
  const auto put = [&](const Move& move, uint8_t* to, uint32_t row) {
    const size_t at = place.begin + row;
    transfer(move, to, store.row(slots_[at]), store.row(slots_[std::min(at + 1, slots_.size() - 1)]));
  };
  // A stack that ends at row `end` of the window; `head` rows before it belong to the episode (DEFINITIONS 3).
  const auto stack = [&](const Move& move, uint8_t* to, uint32_t end, uint32_t head) {
    for (uint32_t frame = 0; frame < frames; ++frame, to += move.bytes) {
      const uint32_t back = frames - 1 - frame;
      if (back > head && spec_.pad == Pad::kZero) {
        std::memset(to, 0, move.bytes);
      } else {
        put(move, to, end - std::min(back, head));
      }
    }
  };

  for (const Move& move : moves_) {
    uint8_t* to = move.out + i * move.item_bytes;
    uint8_t* const end = to + move.item_bytes;
    switch (move.origin) {
      case Origin::kField:
        for (uint32_t step = 0; step < steps; ++step, to += move.bytes) put(move, to, place.head + step);
        break;
      case Origin::kStack:
        stack(move, to, place.head, place.head);
        to += frames * move.bytes;
        break;
      case Origin::kNext:
        put(move, to, last);
        to += move.bytes;
        break;
      case Origin::kNextStack:
        stack(move, to, last, next_head(spec_, place.span, place.head));
        to += frames * move.bytes;
        break;
      default:  // Origin::kInitial: the state that was the input of the window's first step
        put(move, to, place.head);
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
