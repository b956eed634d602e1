#include "payload.h"

#include <algorithm>
#include <cstring>

namespace memsvc {
namespace {

constexpr size_t kAhead = 4;  // rows that are fetched ahead

// Calls f(index in the episode) for every row that an item needs.
template <class F>
void for_each_row(const TableSpec& spec, const Episode& e, uint64_t key, uint32_t span, uint32_t head, F&& f) {
  const Window w = window_of(spec, key, span, head);
  for (int part = 0; part < 2; ++part) {
    const uint64_t begin = w.first[part] - e.key(0);
    for (uint64_t i = 0; i < w.count[part]; ++i) f(begin + i);
  }
}

}  // namespace

void Payload::begin() {
  stamp_ = static_cast<uint32_t>(written_ + 1) * 2;
  row_keys_.clear();
  row_slots_.clear();
  items_.clear();
  made_.clear();
  factors_.clear();
  draws_.clear();
  gone_.clear();
  floors_.clear();
}

uint8_t* Payload::add_item(const TableSpec& spec, Episode& e, const ItemRecord& record, double factor, bool all_rows) {
  e.stamp = stamp_;
  for_each_row(spec, e, record.key, record.span, record.head, [&](uint64_t index) {
    const uint32_t slot = e.slot(index);
    RowUse& use = episodes_.use(slot);
    const bool travels = use.stamp != stamp_ + 1 && (use.held == 0 || all_rows);
    use.held += !spec.fleeting();
    if (use.stamp != stamp_ + 1) use.stamp = stamp_ + travels;
    if (!travels) return;
    row_keys_.push_back(e.key(index));
    row_slots_.push_back(slot);
  });
  items_.push_back(record);
  if (spec.factors()) factors_.push_back(factor);
  made_.resize(items_.size() * spec.made_bytes);
  return made_.data() + made_.size() - spec.made_bytes;
}

size_t Payload::bytes() const {
  return sizeof(CacheHead) + row_keys_.size() * (sizeof(uint64_t) + row_stride_) + items_.size() * sizeof(ItemRecord) + made_.size() +
         factors_.size() * sizeof(double) + draws_.size() * sizeof(DrawRecord) + (gone_.size() + floors_.size()) * sizeof(uint64_t);
}

void Payload::write(const TableSpec& spec, CacheHead head, size_t front, Buffer* out) {
  head.row_stride = static_cast<uint32_t>(row_stride_);
  head.rows = row_keys_.size();
  head.items = items_.size();
  head.draws = draws_.size();
  head.gone = gone_.size();
  head.floors = floors_.size();
  const size_t size = cache_bytes(spec, head);
  out->resize(front + size);
  std::memset(out->data(), 0, front);
  uint8_t* const base = out->data() + front;
  size_t at = 0;
  auto pad = [&] {
    for (const size_t to = std::min(align_up(at), size); at < to; ++at) base[at] = 0;
  };
  auto part = [&](const void* data, size_t bytes) {
    pad();
    if (bytes > 0) std::memcpy(base + at, data, bytes);
    at += bytes;
  };
  part(&head, sizeof(head));
  part(row_keys_.data(), row_keys_.size() * sizeof(uint64_t));
  pad();
  for (size_t i = 0; i < row_slots_.size(); ++i) {
    if (i + kAhead < row_slots_.size()) episodes_.prefetch_row(row_slots_[i + kAhead]);
    std::memcpy(base + at, episodes_.row(row_slots_[i]), row_stride_);
    at += row_stride_;
  }
  part(items_.data(), items_.size() * sizeof(ItemRecord));
  part(made_.data(), made_.size());
  part(factors_.data(), factors_.size() * sizeof(double));
  part(draws_.data(), draws_.size() * sizeof(DrawRecord));
  part(gone_.data(), gone_.size() * sizeof(uint64_t));
  part(floors_.data(), floors_.size() * sizeof(uint64_t));
  pad();
  ++written_;
}

void release(const TableSpec& spec, Episodes& episodes, const Episode& e, uint64_t key, uint32_t span, uint32_t head) {
  if (spec.fleeting()) return;
  for_each_row(spec, e, key, span, head, [&](uint64_t index) {
    RowUse& use = episodes.use(e.slot(index));
    if (use.held > 0) --use.held;
  });
}

}  // namespace memsvc
