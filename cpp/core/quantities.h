// What a table makes of an episode's steps: n-step sums, discounts, errors and returns, in double, read straight from the rows (DEFINITIONS 2, 5, 6).
// Not thread-safe: its owner's lock guards it.
#pragma once

#include <cstdint>
#include <vector>

#include "episodes.h"
#include "reserve.h"
#include "schema.h"

namespace memsvc {

// A float32 or float64 field of a row, as doubles.
struct Numbers {
  size_t offset = 0;
  bool wide = false;
  Numbers() = default;
  Numbers(const Schema& schema, int field);  // field -1: never read
  double at(const uint8_t* row, size_t j) const;
};

class Quantities {
 public:
  Quantities(const Schema& schema, const TableSpec& spec, const Episodes& episodes);

  // Takes the gammas that the spec has now; update_returns(e, 0) makes the rest follow.
  void changed();

  // Whether returns are kept: the table's columns, or its priorities, are made of them.
  bool keeps_returns() const { return keeps_returns_; }
  uint64_t returns_bytes() const { return keeps_returns_ ? k_ * sizeof(double) : 0; }  // of one step

  // m of DEFINITIONS 2 for the step t < T.
  uint64_t ahead(const Episode& e, uint64_t t) const;
  // reward [k] and discount [gamma_dims] of the transition at t < T.
  void n_step(const Episode& e, uint64_t t, double* reward, double* discount) const;
  // One-step discount [gamma_dims] of step t: 0 at the episode's termination.
  void discount(const Episode& e, uint64_t t, double* out) const;
  // |sum_j c_j (reward + discount * value_{t+m} - baseline_t)_j|
  double td_error(const Episode& e, uint64_t t) const;

  // Recomputes q backwards from T - 1; steps below `known` have one from before, and the walk ends where one of these comes out the same bit for bit
  // (everything older is then the same too). Returns the oldest step whose q is new, T when none is. An unfinished episode bootstraps from its newest
  // value.
  uint64_t update_returns(const Episode& e, uint64_t known);
  // q [k] of a step whose slot is given; as of the last update_returns.
  const double* q(uint32_t slot) const { return &q_[slot * k_]; }
  double value(uint32_t slot, size_t j) const { return value_.at(episodes_.row(slot), j); }
  // sum_j c_j (q_j - v_j)
  double advantage(uint32_t slot) const;
  // The item's made bytes (TableSpec::columns with origin kMade) into `out`, which is cleared: n-step reward, discount, return, advantage. Steps of a
  // sequence beyond `span` stay 0.
  void write(const Episode& e, uint64_t start, uint32_t span, uint8_t* out) const;

 private:
  struct Rate {
    std::vector<double> values;
    Numbers field;
    bool from_field = false;
    size_t dims = 1;
    double at(const uint8_t* row, size_t d) const { return from_field ? field.at(row, d) : values[d]; }
    double of(const uint8_t* row, size_t j) const { return at(row, dims == 1 ? 0 : j); }
  };
  struct Made {
    enum { kReward, kDiscount, kReturn, kAdvantage } what;
    size_t offset, dims;
    bool wide;
  };
  void write_step(const Episode& e, uint64_t t, size_t place, uint8_t* out) const;
  static Rate rate(const Schema& schema, const Gamma& gamma);

  const TableSpec& spec_;
  const Episodes& episodes_;
  size_t k_;
  bool keeps_returns_;
  Rate gamma_, returns_gamma_;
  Numbers reward_, value_, baseline_;
  Reserve<double> q_;
  std::vector<Made> made_;
  mutable std::vector<double> sum_, product_;  // scratch
};

}  // namespace memsvc
