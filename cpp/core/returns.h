// n-step sums and lambda-returns (DEFINITIONS 2 and 5), in double, per reward dimension. Pure functions: no state, no allocation.
#pragma once

#include <cstddef>
#include <cstdint>

namespace memsvc {

// One n-step sum over m steps: reward[j] = sum_{i<m} gamma^i r(i, j) and discount[d] = gamma^m, where gamma^i is the product of g(0, d) .. g(i-1, d).
// k reward dimensions; kg = 1 (one gamma for all) or k. The caller sets the discount to 0 where the episode terminated at step m.
template <class Reward, class Gamma>
inline void n_step_sum(size_t m, size_t k, size_t kg, Reward&& r, Gamma&& g, double* reward, double* discount) {
  for (size_t j = 0; j < k; ++j) reward[j] = 0;
  for (size_t d = 0; d < kg; ++d) discount[d] = 1;
  for (size_t i = 0; i < m; ++i) {
    for (size_t j = 0; j < k; ++j) reward[j] += discount[kg == 1 ? 0 : j] * r(i, j);
    for (size_t d = 0; d < kg; ++d) discount[d] *= g(i, d);
  }
}

// q_t from q_{t+1} and v_{t+1}, away from the episode's end.
inline double lambda_step(double reward, double gamma, double lambda, double next_q, double next_value) {
  return reward + gamma * (lambda * next_q + (1 - lambda) * next_value);
}

// DEFINITIONS 2 over a whole episode of T steps: reward [T, k], gamma [T, kg] (kg = 1 or k), n >= 1.
// out_reward [T, k]; out_discount [T, kg], 0 where terminated and t + m == T; out_next [T] = t + m. O(T n).
void n_step(const double* reward, size_t T, size_t k, bool terminated, size_t n, const double* gamma, size_t kg, double* out_reward,
            double* out_discount, int64_t* out_next);

// DEFINITIONS 5 over a whole episode: reward, value [T, k]; last_value [k] = V(obs_T), not read when terminated; gamma [T, kg]. out_q [T, k].
// The advantage is q - value. O(T).
void lambda_return(const double* reward, const double* value, size_t T, size_t k, const double* last_value, bool terminated, const double* gamma,
                   size_t kg, double lambda, double* out_q);

}  // namespace memsvc
