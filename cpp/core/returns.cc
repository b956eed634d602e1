#include "returns.h"

#include <algorithm>

namespace memsvc {

void n_step(const double* reward, size_t T, size_t k, bool terminated, size_t n, const double* gamma, size_t kg, double* out_reward,
            double* out_discount, int64_t* out_next) {
  for (size_t t = 0; t < T; ++t) {
    const size_t m = std::min(n, T - t);
    double* discount = out_discount + t * kg;
    n_step_sum(
        m, k, kg, [&](size_t i, size_t j) { return reward[(t + i) * k + j]; }, [&](size_t i, size_t d) { return gamma[(t + i) * kg + d]; },
        out_reward + t * k, discount);
    if (terminated && t + m == T) std::fill(discount, discount + kg, 0.0);
    out_next[t] = static_cast<int64_t>(t + m);
  }
}

void lambda_return(const double* reward, const double* value, size_t T, size_t k, const double* last_value, bool terminated, const double* gamma,
                   size_t kg, double lambda, double* out_q) {
  for (size_t t = T; t-- > 0;) {
    for (size_t j = 0; j < k; ++j) {
      const size_t at = t * k + j;
      const double g = gamma[t * kg + (kg == 1 ? 0 : j)];
      if (t + 1 < T) {
        out_q[at] = lambda_step(reward[at], g, lambda, out_q[at + k], value[at + k]);
      } else {
        out_q[at] = terminated ? reward[at] : reward[at] + g * last_value[j];
      }
    }
  }
}

}  // namespace memsvc
