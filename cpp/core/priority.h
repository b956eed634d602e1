// Priorities and what becomes of them (DEFINITIONS 6): the weight of a priority, the mixture over a sequence, the running normaliser, and the
// largest priority of a memory. Not thread-safe: their owner's lock guards them.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace memsvc {

// What may enter as a priority: finite and not negative.
inline bool valid_priority(double p) { return std::isfinite(p) && p >= 0; }

// p^exponent for p > 0, 0 for p == 0 whatever the exponent is. Kept within 1e-200 .. 1e200, so that sums of weights stay finite and p > 0 stays
// drawable.
double weight_of(double p, double exponent);

// What weights are multiplied by, where it is not 0, is kept within 1 / this .. this.
constexpr double kLargestFactor = 1e100;
// factor * weight, within the same bounds as weight_of; 0 where one of them is.
double weighed(double factor, double weight);

// eta * max |d| + (1 - eta) * mean |d| over d[burn_in .. n), or over all of d when n <= burn_in (DEFINITIONS 4). n >= 1, d >= 0.
double mix(const double* d, size_t n, size_t burn_in, double eta);

// Running mean of squares: rate 1e-8, starts at 1, floor 1e-6.
class Normaliser {
 public:
  void add(double numerator);
  double mean() const { return mean_; }
  double scale() const { return 1 / std::sqrt(mean_ / 2); }

 private:
  double mean_ = 1;
};

// The largest priority among items that come, change and go: a heap whose outdated entries are thrown away when they reach the top.
class Largest {
 public:
  // `slot` now has priority p. Amortised O(1) where p is not the largest.
  void push(double p, uint32_t slot);
  // current(slot) gives the priority of a living item, anything below 0 of a dead one. 1 when no living item has p > 0. Amortised O(log n).
  template <class Current>
  double top(Current&& current) {
    while (!heap_.empty() && (current(heap_.front().second) != heap_.front().first)) pop();
    return heap_.empty() || heap_.front().first <= 0 ? 1 : heap_.front().first;
  }
  // Outdated entries are dropped once they outnumber `living` items.
  template <class Current>
  void prune(size_t living, Current&& current) {
    if (heap_.size() < 2 * living + 1024) return;
    std::erase_if(heap_, [&](const std::pair<double, uint32_t>& e) { return current(e.second) != e.first; });
    rebuild();
  }

 private:
  void pop();
  void rebuild();  // also drops doubled entries: an item may have had the same priority twice
  std::vector<std::pair<double, uint32_t>> heap_;
};

}  // namespace memsvc
