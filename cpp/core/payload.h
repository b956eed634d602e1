// One push payload in the making (cache.h): which items and rows travel. Rows that the server holds already stay out, rows that items share travel
// once. Kept between payloads for its memory. Not thread-safe: its owner's lock guards it.
#pragma once

#include <cstdint>
#include <vector>

#include "buffer.h"
#include "cache.h"
#include "episodes.h"

namespace memsvc {

class Payload {
 public:
  Payload(size_t row_stride, Episodes& episodes) : row_stride_(row_stride), episodes_(episodes) {}

  // An empty payload: the next one, or the same again where the last was not written.
  void begin();
  // Payloads written so far.
  uint64_t written() const { return written_; }
  // Whether no payload after number `settled` has an item that needs what is stamped so.
  static bool settled(uint32_t stamp, uint64_t settled) { return static_cast<int32_t>(stamp - (static_cast<uint32_t>(settled) * 2 + 1)) <= 0; }
  // An item of `e`, window as in `record`: its rows are counted as held from now on, unless the item is fleeting, and travel unless they are held
  // already; all_rows: they travel in any case. `factor` travels where spec.factors(). Returns the place of its `made_bytes` computed bytes, cleared,
  // valid until the next call.
  uint8_t* add_item(const TableSpec& spec, Episode& e, const ItemRecord& record, double factor, bool all_rows);
  void add_draw(uint64_t key, double weight) { draws_.push_back({key, weight}); }
  void add_gone(uint64_t key) { gone_.push_back(key); }
  void add_floor(uint64_t key) { floors_.push_back(key); }

  bool empty() const { return items_.empty() && draws_.empty() && gone_.empty(); }
  size_t items() const { return items_.size(); }
  size_t bytes() const;  // so far, without padding
  // Writes `front` zero bytes and the payload into *out. `head` brings everything but the counts and the stride.
  void write(const TableSpec& spec, CacheHead head, size_t front, Buffer* out);

 private:
  size_t row_stride_;
  Episodes& episodes_;
  uint64_t written_ = 0;
  uint32_t stamp_ = 0;  // of this payload's rows
  std::vector<uint64_t> row_keys_;
  std::vector<uint32_t> row_slots_;
  std::vector<ItemRecord> items_;
  std::vector<uint8_t> made_;
  std::vector<double> factors_;
  std::vector<DrawRecord> draws_;
  std::vector<uint64_t> gone_, floors_;
};

// Takes back what add_item counted for an item that the server holds no more.
void release(const TableSpec& spec, Episodes& episodes, const Episode& e, uint64_t key, uint32_t span, uint32_t head);

}  // namespace memsvc
