#include "priority.h"

#include <algorithm>

namespace memsvc {

double weight_of(double p, double exponent) {
  if (!(p > 0)) return 0;
  return std::clamp(std::pow(p, exponent), 1e-200, 1e200);
}

double weighed(double factor, double weight) {
  if (!(factor > 0 && weight > 0)) return 0;
  return std::clamp(factor * weight, 1e-200, 1e200);
}

double mix(const double* d, size_t n, size_t burn_in, double eta) {
  const size_t begin = n > burn_in ? burn_in : 0;
  double largest = 0, sum = 0;
  for (size_t i = begin; i < n; ++i) {
    largest = std::max(largest, d[i]);
    sum += d[i];
  }
  return eta * largest + (1 - eta) * sum / static_cast<double>(n - begin);
}

void Normaliser::add(double numerator) {
  const double square = numerator * numerator;
  // One broken reward must not take the unit of every later priority with it.
  if (!std::isfinite(square)) return;
  mean_ = std::max(1e-6, mean_ + 1e-8 * (square - mean_));
}

void Largest::push(double p, uint32_t slot) {
  heap_.emplace_back(p, slot);
  std::push_heap(heap_.begin(), heap_.end());
}

void Largest::pop() {
  std::pop_heap(heap_.begin(), heap_.end());
  heap_.pop_back();
}

void Largest::rebuild() {
  std::sort(heap_.begin(), heap_.end());
  heap_.erase(std::unique(heap_.begin(), heap_.end()), heap_.end());
  std::make_heap(heap_.begin(), heap_.end());
}

}  // namespace memsvc
