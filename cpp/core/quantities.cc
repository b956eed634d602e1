#include "quantities.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "returns.h"

namespace memsvc {
namespace {

bool same_bits(double a, double b) { return std::memcmp(&a, &b, sizeof(double)) == 0; }

bool needs_returns(const TableSpec& spec) { return spec.returns || (spec.source == Source::kReturn && spec.select != Select::kUniform); }

}  // namespace

Numbers::Numbers(const Schema& schema, int field) {
  if (field < 0) return;
  offset = schema.fields()[field].offset;
  wide = schema.fields()[field].itemsize == 8;
}

double Numbers::at(const uint8_t* row, size_t j) const {
  if (wide) {
    double x;
    std::memcpy(&x, row + offset + 8 * j, 8);
    return x;
  }
  float x;
  std::memcpy(&x, row + offset + 4 * j, 4);
  return x;
}

Quantities::Rate Quantities::rate(const Schema& schema, const Gamma& gamma) {
  Rate r;
  r.values = gamma.values;
  r.from_field = gamma.field >= 0;
  r.field = Numbers(schema, gamma.field);
  r.dims = gamma.values.size();
  if (r.from_field) {
    r.dims = 1;
    for (uint32_t d : schema.fields()[gamma.field].shape) r.dims *= d;
  }
  return r;
}

Quantities::Quantities(const Schema& schema, const TableSpec& spec, const Episodes& episodes)
    : spec_(spec),
      episodes_(episodes),
      k_(spec.reward_dims),
      keeps_returns_(needs_returns(spec)),
      gamma_(rate(schema, spec.gamma)),
      returns_gamma_(rate(schema, spec.returns_gamma)),
      reward_(schema, spec.reward),
      value_(schema, spec.value),
      baseline_(schema, spec.baseline),
      q_(keeps_returns_ ? episodes.capacity() * k_ : 0),
      sum_(k_),
      product_(gamma_.dims) {
  for (const Column& c : spec.columns) {
    if (c.origin != Origin::kMade) continue;
    Made m{Made::kReward, c.made_offset, k_, c.itemsize == 8};
    if (c.name == "discount") {
      m.what = Made::kDiscount;
      m.dims = gamma_.dims;
    } else if (c.name == "return") {
      m.what = Made::kReturn;
    } else if (c.name == "advantage") {
      m.what = Made::kAdvantage;
    }
    made_.push_back(m);
  }
}

void Quantities::changed() {
  gamma_.values = spec_.gamma.values;
  returns_gamma_.values = spec_.returns_gamma.values;
}

uint64_t Quantities::ahead(const Episode& e, uint64_t t) const { return std::min<uint64_t>(spec_.n_step, e.steps() - t); }

void Quantities::n_step(const Episode& e, uint64_t t, double* reward, double* discount) const {
  const uint64_t m = ahead(e, t);
  n_step_sum(
      m, k_, gamma_.dims, [&](size_t i, size_t j) { return reward_.at(episodes_.row(e.slot(t + i)), j); },
      [&](size_t i, size_t d) { return gamma_.at(episodes_.row(e.slot(t + i)), d); }, reward, discount);
  if (e.ended && e.terminated && t + m == e.steps()) std::fill(discount, discount + gamma_.dims, 0.0);
}

void Quantities::discount(const Episode& e, uint64_t t, double* out) const {
  const bool last = e.ended && e.terminated && t + 1 == e.steps();
  const uint8_t* row = episodes_.row(e.slot(t));
  for (size_t d = 0; d < gamma_.dims; ++d) out[d] = last ? 0 : gamma_.at(row, d);
}

double Quantities::td_error(const Episode& e, uint64_t t) const {
  n_step(e, t, sum_.data(), product_.data());
  const uint8_t* row = episodes_.row(e.slot(t));
  const uint8_t* next = episodes_.row(e.slot(t + ahead(e, t)));
  double error = 0;
  for (size_t j = 0; j < k_; ++j) {
    const double discount = product_[gamma_.dims == 1 ? 0 : j];
    // Past a termination there is no value, whatever its row says (0 * NaN is NaN).
    const double bootstrap = discount == 0 ? 0 : discount * value_.at(next, j);
    error += spec_.coefficients[j] * (sum_[j] + bootstrap - baseline_.at(row, j));
  }
  return std::abs(error);
}

uint64_t Quantities::update_returns(const Episode& e, uint64_t known) {
  const uint64_t T = e.steps();
  for (uint64_t t = T; t-- > e.first;) {
    const uint32_t slot = e.slot(t);
    const uint8_t* row = episodes_.row(slot);
    const uint32_t next_slot = e.slot(t + 1);
    const uint8_t* next = episodes_.row(next_slot);
    bool same = t < known;
    for (size_t j = 0; j < k_; ++j) {
      const double r = reward_.at(row, j);
      double q;
      if (t + 1 < T) {
        q = lambda_step(r, returns_gamma_.of(row, j), spec_.lambda, q_[next_slot * k_ + j], value_.at(next, j));
      } else {
        q = e.ended && e.terminated ? r : r + returns_gamma_.of(row, j) * value_.at(next, j);
      }
      double& stored = q_[slot * k_ + j];
      same = same && same_bits(q, stored);
      stored = q;
    }
    if (same) return t + 1;
  }
  return std::min(e.first, T);
}

double Quantities::advantage(uint32_t slot) const {
  double sum = 0;
  for (size_t j = 0; j < k_; ++j) sum += spec_.coefficients[j] * (q(slot)[j] - value(slot, j));
  return sum;
}

void Quantities::write(const Episode& e, uint64_t start, uint32_t span, uint8_t* out) const {
  if (made_.empty()) return;
  if (spec_.kind == Kind::kSequence) {
    for (uint32_t i = 0; i < span; ++i) {
      discount(e, start + i, product_.data());
      write_step(e, start + i, i, out);
    }
    return;
  }
  if (spec_.kind == Kind::kTransition) n_step(e, start, sum_.data(), product_.data());
  write_step(e, start, 0, out);
}

void Quantities::write_step(const Episode& e, uint64_t t, size_t place, uint8_t* out) const {
  const uint32_t slot = e.slot(t);
  for (const Made& m : made_) {
    for (size_t j = 0; j < m.dims; ++j) {
      double x = 0;
      switch (m.what) {
        case Made::kReward:
          x = sum_[j];
          break;
        case Made::kDiscount:
          x = product_[j];
          break;
        case Made::kReturn:
          x = q(slot)[j];
          break;
        case Made::kAdvantage:
          x = q(slot)[j] - value(slot, j);
          break;
      }
      if (m.wide) {
        std::memcpy(out + m.offset + 8 * (place * m.dims + j), &x, 8);
      } else {
        const float narrow = static_cast<float>(x);
        std::memcpy(out + m.offset + 4 * (place * m.dims + j), &narrow, 4);
      }
    }
  }
}

}  // namespace memsvc
