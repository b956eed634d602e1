// Golden numbers of DEFINITIONS 2, 5 and 6, and the pure functions against sums written out.
#include "returns.h"

#include <cmath>
#include <vector>

#include "check.h"
#include "priority.h"
#include "random.h"

using namespace memsvc;

namespace {

const std::vector<double> kReward{1, 0, 2, -1, 3}, kValue{.5, .4, .3, .2, .1}, kGamma(5, .9);

void golden_n_step() {
  const double rewards[] = {2.62, .99, 3.53, 1.7, 3.0};
  const double terminated[] = {.729, .729, 0, 0, 0}, truncated[] = {.729, .729, .729, .81, .9};
  const int64_t next[] = {3, 4, 5, 5, 5};
  for (bool ends : {true, false}) {
    double reward[5], discount[5];
    int64_t index[5];
    n_step(kReward.data(), 5, 1, ends, 3, kGamma.data(), 1, reward, discount, index);
    for (int t = 0; t < 5; ++t) {
      CHECK_NEAR(reward[t], rewards[t], 1e-6);
      CHECK_NEAR(discount[t], (ends ? terminated : truncated)[t], 1e-6);
      CHECK_EQ(index[t], next[t]);
    }
  }
}

void golden_returns() {
  const double terminated[] = {2.606029, 2.130595, 2.884160, 1.178, 3.0}, truncated[] = {2.775334, 2.365741, 3.210752, 1.6316, 3.63};
  const double advantage[] = {2.106029, 1.730595, 2.584160, .978, 2.9};
  const double weight[] = {1.924809, 1.710907, 2.176209, 1.214821, 2.332103};
  const double last = .7;
  double q[5];
  lambda_return(kReward.data(), kValue.data(), 5, 1, &last, false, kGamma.data(), 1, .8, q);
  for (int t = 0; t < 5; ++t) CHECK_NEAR(q[t], truncated[t], 1e-6);
  lambda_return(kReward.data(), kValue.data(), 5, 1, &last, true, kGamma.data(), 1, .8, q);
  Normaliser normaliser;
  for (int t = 0; t < 5; ++t) {
    CHECK_NEAR(q[t], terminated[t], 1e-6);
    CHECK_NEAR(q[t] - kValue[t], advantage[t], 1e-6);
    CHECK_NEAR(weight_of(std::abs(q[t] - kValue[t]) * normaliser.scale(), .6), weight[t], 1e-6);
  }
}

// Several reward dimensions with a gamma a step and dimension, against the definitions written out term by term.
void random_episodes() {
  Random random(5);
  for (int round = 0; round < 200; ++round) {
    const size_t T = 1 + random.below(50), k = 1 + random.below(3), kg = random.below(2) ? k : 1, n = 1 + random.below(6);
    const bool ends = random.below(2);
    const double lambda = random.uniform();
    std::vector<double> reward(T * k), value(T * k), gamma(T * kg), last(k);
    for (auto* array : {&reward, &value, &last}) {
      for (double& x : *array) x = 2 * random.uniform() - 1;
    }
    for (double& x : gamma) x = random.uniform();
    std::vector<double> sum(T * k), discount(T * kg), q(T * k);
    std::vector<int64_t> next(T);
    n_step(reward.data(), T, k, ends, n, gamma.data(), kg, sum.data(), discount.data(), next.data());
    lambda_return(reward.data(), value.data(), T, k, last.data(), ends, gamma.data(), kg, lambda, q.data());
    auto g = [&](size_t t, size_t j) { return gamma[t * kg + (kg == 1 ? 0 : j)]; };
    auto v = [&](size_t t, size_t j) { return t < T ? value[t * k + j] : ends ? 0 : last[j]; };
    for (size_t t = 0; t < T; ++t) {
      const size_t m = std::min(n, T - t);
      CHECK_EQ(next[t], static_cast<int64_t>(t + m));
      for (size_t j = 0; j < k; ++j) {
        double expected = 0, power = 1;
        for (size_t i = 0; i < m; ++i, power *= g(t + i - 1, j)) expected += power * reward[(t + i) * k + j];
        CHECK_NEAR(sum[t * k + j], expected, 1e-12);
        CHECK_NEAR(discount[t * kg + (kg == 1 ? 0 : j)], ends && t + m == T ? 0 : power, 1e-12);
        // Generalised advantage: the sum of discounted one-step errors.
        double advantage = 0, decay = 1;
        for (size_t u = t; u < T; ++u) {
          advantage += decay * (reward[u * k + j] + g(u, j) * v(u + 1, j) - v(u, j));
          decay *= g(u, j) * lambda;
        }
        CHECK_NEAR(q[t * k + j] - value[t * k + j], advantage, 1e-10);
      }
    }
  }
}

void priorities() {
  const double d[] = {.1, .5, .2};
  CHECK_NEAR(mix(d, 3, 0, .9), .476667, 1e-6);
  CHECK_NEAR(mix(d, 3, 2, .9), .2, 1e-12);      // burn-in left out
  CHECK_NEAR(mix(d, 3, 3, .9), .476667, 1e-6);  // nothing after the burn-in: all of it
  CHECK_EQ(weight_of(0, 0), 0.0);
  CHECK_EQ(weight_of(3, 0), 1.0);
  CHECK(weight_of(1e-300, 2) > 0 && std::isfinite(weight_of(1e300, 2)));
  for (double p : {std::nan(""), HUGE_VAL, -1.0}) CHECK(!valid_priority(p));

  Normaliser normaliser;
  double mean = 1;
  for (int i = 0; i < 1000; ++i) {
    normaliser.add(1e4 + i);
    mean += 1e-8 * ((1e4 + i) * (1e4 + i) - mean);
  }
  normaliser.add(std::nan(""));
  CHECK_NEAR(normaliser.mean(), mean, 1e-9 * mean);

  // Against a plain maximum, with items that change and go.
  Random random(9);
  Largest largest;
  std::vector<double> p(20, -1);
  auto current = [&](uint32_t slot) { return p[slot]; };
  for (int i = 0; i < 20000; ++i) {
    const uint32_t slot = static_cast<uint32_t>(random.below(p.size()));
    p[slot] = random.below(3) ? static_cast<double>(random.below(6)) / 4 : -1;
    if (p[slot] >= 0) largest.push(p[slot], slot);
    double expected = 0;
    for (double x : p) expected = std::max(expected, x);
    CHECK_EQ(largest.top(current), expected > 0 ? expected : 1);
    largest.prune(p.size(), current);
  }
}

}  // namespace

int main() {
  golden_n_step();
  golden_returns();
  random_episodes();
  priorities();
  return check::summary();
}
