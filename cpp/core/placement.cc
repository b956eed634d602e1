#include "placement.h"

#include <algorithm>

namespace memsvc {

Placement::Placement(const TableSpec& spec) : spec_(spec), needs_end_(spec.returns || spec.source == Source::kReturn || spec.episode_weights) {
  const uint64_t steps = spec.kind == Kind::kSequence ? spec.length : 1;
  const bool by_n = spec.kind == Kind::kTransition || spec.source == Source::kTd;
  reach_ = steps - 1 + (by_n ? spec.n_step : 1);
}

uint64_t Placement::item_from(const Episode& e, uint64_t from) const {
  const uint64_t T = e.steps();
  from = std::max(from, whole_from(e.first));
  if (spec_.kind != Kind::kSequence) return from < T ? from : kNever;
  const uint64_t L = spec_.length, stride = spec_.stride;
  const uint64_t next = (from + stride - 1) / stride * stride;
  if (next + L <= T) return next;
  if (!e.ended || spec_.tail == Tail::kDrop) return kNever;
  const uint64_t last = T < L ? 0 : (T - L) / stride * stride;
  if (T >= L && last + L == T) return kNever;
  uint64_t tail;
  if (spec_.tail == Tail::kShift) {
    if (T < L || last + stride >= T) return kNever;
    tail = T - L;
  } else {
    tail = T < L ? 0 : last + stride;
    if (tail >= T) return kNever;
  }
  return tail >= from ? tail : kNever;
}

uint32_t Placement::span(const Episode& e, uint64_t start) const {
  if (spec_.kind == Kind::kStep) return 1;
  return static_cast<uint32_t>(std::min<uint64_t>(spec_.kind == Kind::kTransition ? spec_.n_step : spec_.length, e.steps() - start));
}

uint64_t Placement::reaching(uint64_t t) const {
  if (spec_.kind != Kind::kSequence) return t;
  return t < spec_.length ? 0 : t - (spec_.length - 1);
}

uint64_t Placement::pace() const { return spec_.kind == Kind::kSequence ? std::min(spec_.stride, spec_.length) : 1; }

}  // namespace memsvc
