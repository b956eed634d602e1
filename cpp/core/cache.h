// The payload of a push: one cache of one table (DEFINITIONS 7, stage one), as written by the actor and read by the server.
//
//   payload := CacheHead  row_keys  rows  items  made  factors  draws  gone  floors        each part begins at a multiple of 64, zero padded
//   row_keys := uint64[rows]             keys of the steps that travel, each with
//   rows     := byte[rows * row_stride]  its row: the schema's fields, packed, padded to 8
//   items    := ItemRecord[items]        items that the server does not hold yet; every row of theirs is here or held already
//   made     := byte[items * made_bytes] their computed columns (n-step reward, discount, return, advantage)
//   factors  := double[items]            what their weights are multiplied by; only where TableSpec::factors()
//   draws    := DrawRecord[draws]        stage one's draws, in order; their items are above or held already
//   gone     := uint64[gone]             keys the server asked for again and the actor has no more
//   floors   := uint64[floors]           of streams whose oldest steps the memory has lost since it last said so: the oldest that is left
//
// Little endian. `select = "all"` sends every item once, with its priority, and no draws.
#pragma once

#include <cstdint>

#include "buffer.h"
#include "schema.h"

namespace memsvc {

struct CacheHead {
  static constexpr bool kFlat = true;  // archive.h
  uint32_t table = 0;
  uint32_t row_stride = 0;
  uint64_t rows = 0;
  uint64_t items = 0;
  uint64_t draws = 0;
  uint64_t gone = 0;
  double total = 0;                 // W_k: sum of the weights in the actor's memory at this moment
  uint64_t population = 0;          // N_k: items with a positive weight
  double min_weight = 0;            // smallest positive weight, 0 when there is none
  double scale = 1;                 // w = (p * scale)^exponent: 1 / sqrt(ma / 2) for source "return", else 1
  uint64_t applied = 0;             // number of the last priority feedback that the memory contains
  uint64_t inserted = 0;            // items made by this actor so far
  uint64_t steps = 0;               // steps added by this actor so far
  double exponent = 0;              // of the weights in this cache
  int64_t newest = 0;               // newest version by which staleness was judged, 0 for none
  uint64_t stale = 0;               // items in the memory that are too stale to be drawn
  uint64_t episodes = 0;            // ended by this actor so far
  uint64_t short_episodes = 0;      // of these, too short for any item of this table
  uint64_t unsent = 0;              // select = "all": final items that are still to be sent
  uint64_t allowed = ~uint64_t{0};  // where the limiter's allowance is handed back: what the actor keeps; else all ones
  uint64_t floors = 0;
  uint64_t reserved[4] = {0, 0, 0, 0};
};
static_assert(sizeof(CacheHead) == 192);

struct ItemRecord {
  uint64_t key = 0;
  int64_t version = -1;  // parameters of the oldest step's choice; -1: before the first publication
  double priority = 0;   // p, already multiplied by scale; for caches w_now of draws that waited for this item
  uint32_t span = 1;     // window.h
  uint16_t head = 0;
  uint16_t episode = 0;  // which of its stream it is from, counted modulo 2^16
};
static_assert(sizeof(ItemRecord) == 32);

struct DrawRecord {
  static constexpr bool kFlat = true;
  uint64_t key = 0;
  double weight = 0;  // w_then, > 0
};
static_assert(sizeof(DrawRecord) == 16);

// Pointers into a checked payload.
struct CacheView {
  CacheHead head;
  const uint64_t* row_keys = nullptr;
  const uint8_t* rows = nullptr;
  const ItemRecord* items = nullptr;
  const uint8_t* made = nullptr;
  const double* factors = nullptr;  // nullptr: all 1
  const DrawRecord* draws = nullptr;
  const uint64_t* gone = nullptr;
  const uint64_t* floors = nullptr;
};

// Bytes of a payload with these counts, or 0 when they do not fit in 2^62 bytes.
size_t cache_bytes(const TableSpec& spec, const CacheHead& head);

// Checks every count, length and alignment of `data` (8-byte aligned) before use; kMalformed says which part is wrong.
// Checks finiteness of total, weights and priorities, span and head against the spec. `data` may lie in memory that its sender still writes to, given
// `kept`: all but rows and computed columns, which may say anything, is copied there before it is checked, and read there as long as *out is used.
Status read_cache(const TableSpec& spec, size_t row_stride, const uint8_t* data, size_t size, CacheView* out, Buffer* kept = nullptr);

}  // namespace memsvc
