#include "cache.h"

#include <atomic>
#include <cmath>
#include <cstring>
#include <string>
#include <utility>

#include "window.h"

namespace memsvc {
namespace {

// The payload's parts in order, in bytes without padding.
constexpr size_t kParts = 9;
constexpr size_t kRows = 2, kMade = 4;  // those that nothing depends on
void parts_of(const TableSpec& spec, const CacheHead& head, unsigned __int128 parts[kParts]) {
  using Wide = unsigned __int128;
  parts[0] = sizeof(CacheHead);
  parts[1] = static_cast<Wide>(head.rows) * sizeof(uint64_t);
  parts[2] = static_cast<Wide>(head.rows) * head.row_stride;
  parts[3] = static_cast<Wide>(head.items) * sizeof(ItemRecord);
  parts[4] = static_cast<Wide>(head.items) * spec.made_bytes;
  parts[5] = spec.factors() ? static_cast<Wide>(head.items) * sizeof(double) : 0;
  parts[6] = static_cast<Wide>(head.draws) * sizeof(DrawRecord);
  parts[7] = static_cast<Wide>(head.gone) * sizeof(uint64_t);
  parts[8] = static_cast<Wide>(head.floors) * sizeof(uint64_t);
}

Status malformed(const std::string& what) { return Status(Code::kMalformed, "a cache " + what); }

std::string at(const char* part, uint64_t i) { return std::string(part) + "[" + std::to_string(i) + "]"; }

// 2^31 weights of at most 1e200 stay below; sums of what actors report must stay finite, and differences of such sums too.
constexpr double kMostWeight = 1e250;
// The steps of 2^16 streams: no actor has counted more of anything, and sums over all actors stay below 2^64.
constexpr uint64_t kMostCount = uint64_t{1} << (16 + kStepBits);

Status check_head(const CacheHead& head) {
  if (!(head.total >= 0 && head.total <= kMostWeight)) return malformed("reports a total that is not a number from 0 to 1e250");
  if (!(head.min_weight >= 0 && head.min_weight <= kMostWeight)) return malformed("reports a min_weight that is not a number from 0 to 1e250");
  if (!std::isfinite(head.scale) || head.scale <= 0) return malformed("reports a scale that is not a finite number > 0");
  if (!(head.exponent >= 0) || !std::isfinite(head.exponent)) return malformed("reports an exponent that is not a finite number >= 0");
  const std::pair<const char*, uint64_t> counts[] = {
      {"population", head.population},         {"inserted", head.inserted}, {"steps", head.steps}, {"stale", head.stale}, {"episodes", head.episodes},
      {"short_episodes", head.short_episodes}, {"unsent", head.unsent}};
  for (const auto& [what, count] : counts) {
    if (count > kMostCount) return malformed(std::string("reports ") + what + " = " + std::to_string(count) + ", beyond 2^52");
  }
  return Status();
}

Status check_item(const TableSpec& spec, const ItemRecord& item, uint64_t i) {
  const uint32_t most = spec.kind == Kind::kStep ? 1 : spec.kind == Kind::kTransition ? spec.n_step : spec.length;
  if (item.span < 1 || item.span > most) {
    return malformed(at("items", i) + " has span " + std::to_string(item.span) + ", not 1 to " + std::to_string(most));
  }
  if (item.head >= spec.frame_stack) {
    return malformed(at("items", i) + " has head " + std::to_string(item.head) + " with a frame stack of " + std::to_string(spec.frame_stack));
  }
  // The last step number is no row's, so that all ones never is a key.
  const uint64_t step = step_of(item.key);
  if (step < item.head || step + item.span >= (uint64_t{1} << kStepBits) - 1) return malformed(at("items", i) + " leaves its stream's steps");
  if (!std::isfinite(item.priority) || item.priority < 0) return malformed(at("items", i) + " has a priority that is not a finite number >= 0");
  return Status();
}

}  // namespace

size_t cache_bytes(const TableSpec& spec, const CacheHead& head) {
  unsigned __int128 parts[kParts];
  parts_of(spec, head, parts);
  constexpr unsigned __int128 kMost = static_cast<unsigned __int128>(1) << 62;
  unsigned __int128 total = 0;
  for (const unsigned __int128 part : parts) {
    if (part > kMost) return 0;
    total += align_up(static_cast<size_t>(part));
  }
  return total > kMost ? 0 : static_cast<size_t>(total);
}

Status read_cache(const TableSpec& spec, size_t row_stride, const uint8_t* data, size_t size, CacheView* out, Buffer* kept) {
  if (reinterpret_cast<uintptr_t>(data) % alignof(CacheHead) != 0) return malformed("does not begin at a multiple of 8");
  if (size < sizeof(CacheHead)) return malformed("of " + std::to_string(size) + " bytes is shorter than its head");
  CacheView view;
  view.head = *reinterpret_cast<const CacheHead*>(data);
  std::atomic_signal_fence(std::memory_order_seq_cst);  // from here on it is the copy that is read
  const CacheHead& head = view.head;
  if (head.row_stride != row_stride) {
    return malformed("has rows of " + std::to_string(head.row_stride) + " bytes, the schema's take " + std::to_string(row_stride));
  }
  const size_t bytes = cache_bytes(spec, head);
  if (bytes != size) return malformed("whose head announces " + std::to_string(bytes) + " bytes has " + std::to_string(size));
  if (Status status = check_head(head); !status.ok()) return status;

  unsigned __int128 parts[kParts];
  parts_of(spec, head, parts);
  const uint8_t* begin[kParts];
  if (kept) kept->resize(size - align_up(static_cast<size_t>(parts[kRows])) - align_up(static_cast<size_t>(parts[kMade])));
  uint8_t* to = kept ? kept->data() : nullptr;
  for (size_t part = 0; part < kParts; ++part) {
    const size_t bytes = align_up(static_cast<size_t>(parts[part]));
    begin[part] = data;
    if (kept && part != kRows && part != kMade) {
      begin[part] = to;
      std::memcpy(to, data, bytes);
      to += bytes;
    }
    data += bytes;
  }
  std::atomic_signal_fence(std::memory_order_seq_cst);
  view.row_keys = reinterpret_cast<const uint64_t*>(begin[1]);
  view.rows = begin[2];
  view.items = reinterpret_cast<const ItemRecord*>(begin[3]);
  view.made = begin[4];
  if (spec.factors()) view.factors = reinterpret_cast<const double*>(begin[5]);
  view.draws = reinterpret_cast<const DrawRecord*>(begin[6]);
  view.gone = reinterpret_cast<const uint64_t*>(begin[7]);
  view.floors = reinterpret_cast<const uint64_t*>(begin[8]);

  for (uint64_t i = 0; i < head.rows; ++i) {
    if (step_of(view.row_keys[i]) == (uint64_t{1} << kStepBits) - 1) return malformed(at("row_keys", i) + " is beyond the last step");
  }
  for (uint64_t i = 0; i < head.items; ++i) {
    if (Status status = check_item(spec, view.items[i], i); !status.ok()) return status;
    if (view.factors && !(view.factors[i] >= 0 && view.factors[i] <= 1e100)) return malformed(at("factors", i) + " is not a number from 0 to 1e100");
  }
  if (spec.select == Select::kAll && head.draws != 0) return malformed("for a table with select = \"all\" carries draws");
  for (uint64_t i = 0; i < head.draws; ++i) {
    const double weight = view.draws[i].weight;
    if (!(weight > 0 && weight <= kMostWeight)) return malformed(at("draws", i) + " has a weight that is not a number above 0, up to 1e250");
  }
  *out = view;
  return Status();
}

}  // namespace memsvc
