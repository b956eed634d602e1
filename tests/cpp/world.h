// A naive actor for the tests of the server's side: streams of short episodes whose rows are functions of their keys, and payloads built by hand.
#pragma once

#include <algorithm>
#include <cstring>
#include <set>
#include <vector>

#include "cache.h"
#include "check.h"
#include "random.h"
#include "replay.h"
#include "window.h"

namespace world {

using namespace memsvc;

constexpr uint64_t kSteps = 11;  // of every episode; its final observation takes one number more

// {obs uint8[6], action int32, reward float32, state float64[2]}
inline Schema make_schema() {
  std::vector<Field> fields(4);
  fields[0] = {"obs", 'u', 1, {6}};
  fields[1] = {"action", 'i', 4, {}};
  fields[2] = {"reward", 'f', 4, {}};
  fields[3] = {"state", 'f', 8, {2}};
  Schema schema;
  CHECK_OK(Schema::make(fields, &schema));
  return schema;
}

// Byte `at` of the row of `key`.
inline uint8_t byte_of(uint64_t key, size_t at) { return static_cast<uint8_t>((key * 0x9E3779B97F4A7C15ULL >> 40) + key + 31 * at); }

inline TableSpec step_table(const Schema& schema, Select select) {
  TableSpec spec;
  spec.name = "steps";
  spec.select = select;
  spec.exponent = 1;
  CHECK_OK(spec.derive(schema));
  return spec;
}

inline TableSpec transition_table(const Schema& schema, Select select, uint32_t n_step, Pad pad) {
  TableSpec spec;
  spec.name = "transitions";
  spec.kind = Kind::kTransition;
  spec.n_step = n_step;
  spec.frame_stack = 4;
  spec.stack = {0};
  spec.pad = pad;
  spec.next = {0, 3};
  spec.select = select;
  CHECK_OK(spec.derive(schema));
  return spec;
}

inline TableSpec sequence_table(const Schema& schema, Select select) {
  TableSpec spec;
  spec.name = "sequences";
  spec.kind = Kind::kSequence;
  spec.length = 5;
  spec.stride = 2;
  spec.next = {0};
  spec.initial = {3};
  spec.select = select;
  CHECK_OK(spec.derive(schema));
  return spec;
}

// The item that begins at step t of the stream's episode: every other number is a function of the key.
inline ItemRecord record_of(const TableSpec& spec, uint64_t key) {
  const uint64_t t = step_of(key) % (kSteps + 1);
  ItemRecord record;
  record.key = key;
  record.version = static_cast<int64_t>(key % 1000) - 1;
  record.priority = 0.5 + static_cast<double>(key % 7);
  const uint64_t most = spec.kind == Kind::kStep ? 1 : spec.kind == Kind::kTransition ? spec.n_step : spec.length;
  record.span = static_cast<uint32_t>(std::min(most, kSteps - t));
  record.head = static_cast<uint16_t>(std::min<uint64_t>(spec.frame_stack - 1, t));
  return record;
}

// A random legal item key of the stream among `episodes` episodes.
inline uint64_t random_key(const TableSpec& spec, uint64_t stream, uint64_t episodes, Random& random) {
  const uint64_t t = spec.kind == Kind::kSequence ? random.below((kSteps + 1) / 2) * 2 : random.below(kSteps);
  return make_key(stream, random.below(episodes) * (kSteps + 1) + t);
}

inline std::vector<uint64_t> rows_of(const TableSpec& spec, const ItemRecord& record) {
  const Window window = window_of(spec, record.key, record.span, record.head);
  std::vector<uint64_t> keys;
  for (int range = 0; range < 2; ++range) {
    for (uint32_t i = 0; i < window.count[range]; ++i) keys.push_back(window.first[range] + i);
  }
  return keys;
}

// Parts of a payload, written as cache.h says.
struct Payload {
  CacheHead head;
  std::vector<uint64_t> rows;
  std::vector<ItemRecord> items;
  std::vector<DrawRecord> draws;
  std::vector<uint64_t> gone;
  std::vector<double> factors;  // of the first items, 1 for the others; where the table has any

  // With all the rows that the items need, each once.
  void add_rows(const TableSpec& spec) {
    std::set<uint64_t> keys(rows.begin(), rows.end());
    for (const ItemRecord& item : items) {
      for (const uint64_t key : rows_of(spec, item)) keys.insert(key);
    }
    rows.assign(keys.begin(), keys.end());
  }

  std::vector<uint64_t> bytes(const TableSpec& spec, const Schema& schema) {
    head.row_stride = static_cast<uint32_t>(schema.row_stride());
    if (head.exponent == 0) head.exponent = spec.exponent;
    head.rows = rows.size();
    head.items = items.size();
    head.draws = draws.size();
    head.gone = gone.size();
    std::vector<uint64_t> words(cache_bytes(spec, head) / 8);
    uint8_t* at = reinterpret_cast<uint8_t*>(words.data());
    const auto put = [&at](const void* from, size_t n) {
      if (n) std::memcpy(at, from, n);
      at += align_up(n);
    };
    put(&head, sizeof(head));
    put(rows.data(), rows.size() * 8);
    std::vector<uint8_t> content(rows.size() * schema.row_stride());
    for (size_t i = 0; i < rows.size(); ++i) {
      for (size_t b = 0; b < schema.row_bytes(); ++b) content[i * schema.row_stride() + b] = byte_of(rows[i], b);
    }
    put(content.data(), content.size());
    put(items.data(), items.size() * sizeof(ItemRecord));
    std::vector<uint8_t> made(items.size() * spec.made_bytes);
    for (size_t i = 0; i < items.size(); ++i) {
      for (size_t b = 0; b < spec.made_bytes; ++b) made[i * spec.made_bytes + b] = byte_of(items[i].key, 100 + b);
    }
    put(made.data(), made.size());
    if (spec.factors()) {
      std::vector<double> all = factors;
      all.resize(items.size(), 1);
      put(all.data(), all.size() * sizeof(double));
    }
    put(draws.data(), draws.size() * sizeof(DrawRecord));
    put(gone.data(), gone.size() * 8);
    return words;
  }
};

inline Status push(Replay& replay, uint64_t actor, Payload& payload, const TableSpec& spec, const Schema& schema, uint64_t* items = nullptr,
                   uint64_t* draws = nullptr) {
  uint64_t stored = 0, queued = 0;
  const std::vector<uint64_t> words = payload.bytes(spec, schema);
  const Status status = replay.push(actor, reinterpret_cast<const uint8_t*>(words.data()), words.size() * 8, &stored, &queued);
  if (items) *items = stored;
  if (draws) *draws = queued;
  return status;
}

// Compares every column of a batch with what the keys say; returns the keys.
inline std::vector<uint64_t> check_batch(const TableSpec& spec, const Schema& schema, const std::vector<uint64_t>& words, size_t n) {
  std::vector<size_t> offsets;
  spec.batch_bytes(n, &offsets);
  const uint8_t* data = reinterpret_cast<const uint8_t*>(words.data());
  std::vector<uint64_t> keys(n);
  for (size_t c = 0; c < spec.columns.size(); ++c) {
    if (spec.columns[c].origin == Origin::kKey) std::memcpy(keys.data(), data + offsets[c], n * 8);
  }
  for (size_t c = 0; c < spec.columns.size(); ++c) {
    const Column& column = spec.columns[c];
    for (size_t i = 0; i < n; ++i) {
      const uint64_t key = keys[i];
      const ItemRecord record = record_of(spec, key);
      const uint8_t* got = data + offsets[c] + i * column.bytes;
      std::vector<uint8_t> want;
      const auto row = [&](uint64_t from, bool zero = false) {
        const Field& field = schema.fields()[static_cast<size_t>(column.field)];
        for (size_t b = 0; b < field.bytes; ++b) want.push_back(zero ? 0 : byte_of(from, field.offset + b));
      };
      const auto stack = [&](uint64_t end) {
        const uint64_t first = key - step_of(key) % (kSteps + 1);  // of the episode
        for (uint64_t back = spec.frame_stack; back-- > 0;) {
          const bool before = end < first + back;
          row(before ? first : end - back, before && spec.pad == Pad::kZero);
        }
      };
      const auto number = [&](auto value) {
        want.resize(sizeof(value));
        std::memcpy(want.data(), &value, sizeof(value));
      };
      switch (column.origin) {
        case Origin::kField:
          if (spec.kind != Kind::kSequence) {
            row(key);
          } else {
            for (uint32_t l = 0; l < spec.length; ++l) row(key + l, l >= record.span);
          }
          break;
        case Origin::kStack:
          stack(key);
          break;
        case Origin::kNext:
          row(key + record.span);
          break;
        case Origin::kNextStack:
          stack(key + record.span);
          break;
        case Origin::kInitial:
          row(key);
          break;
        case Origin::kMade:
          for (size_t b = 0; b < column.bytes; ++b) want.push_back(byte_of(key, 100 + column.made_offset + b));
          break;
        case Origin::kMask:
          for (uint32_t l = 0; l < spec.length; ++l) want.push_back(l < record.span);
          break;
        case Origin::kLength:
          number(static_cast<int32_t>(record.span));
          break;
        case Origin::kVersion:
          number(record.version);
          break;
        default:
          continue;
      }
      const bool same = want.size() == column.bytes && std::memcmp(got, want.data(), want.size()) == 0;
      check::report(same, __FILE__, __LINE__, "column ", column.name, " of key ", key);
    }
  }
  return keys;
}

}  // namespace world
