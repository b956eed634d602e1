// SumTree against fresh sums, linear searches and the chi-square of its draws; scalar and vector code bit for bit.
#include "tree.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "check.h"

namespace memsvc {
namespace {

size_t linear_find(const std::vector<double>& weights, double mass) {
  long double sum = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    sum += weights[i];
    if (mass < sum) return i;
  }
  return weights.size();
}

void capacities() {
  for (const size_t capacity : {1, 2, 7, 8, 9, 63, 64, 65, 100, 511, 512, 513, 1000, 4097}) {
    SumTree tree(capacity);
    Random random(capacity);
    uint32_t drawn[64];
    CHECK_EQ(tree.total(), 0.0);
    CHECK_EQ(tree.min_positive(), 0.0);
    CHECK(!tree.draw(64, true, random, drawn));
    // Only the last leaf: everything must land there.
    tree.set(capacity - 1, 3.5);
    CHECK(tree.draw(64, true, random, drawn));
    for (const uint32_t index : drawn) CHECK_EQ(index, capacity - 1);
    CHECK_EQ(tree.total(), 3.5);
    CHECK_EQ(tree.min_positive(), 3.5);
    tree.set(capacity - 1, 0);
    CHECK_EQ(tree.total(), 0.0);
    CHECK_EQ(tree.min_positive(), 0.0);
    CHECK(tree.bytes() >= capacity * 8);
    CHECK_EQ(tree.bytes(), SumTree::bytes_for(capacity));
  }
}

// Integers are summed exactly, so every descent has one right answer.
void finds() {
  Random random(7);
  for (const size_t capacity : {1, 5, 8, 20, 64, 77, 600}) {
    SumTree tree(capacity);
    std::vector<double> weights(capacity);
    for (size_t i = 0; i < capacity; ++i) {
      weights[i] = static_cast<double>(random.below(4));
      tree.set(i, weights[i]);
    }
    for (double mass = 0; mass < tree.total(); mass += 0.5) CHECK_EQ(tree.find(mass), linear_find(weights, mass));
  }
}

void extremes() {
  Random random(3);
  for (const bool simd : {false, true}) {
    SumTree tree(777, simd);
    std::vector<double> weights(777);
    for (size_t i = 0; i < weights.size(); ++i) {
      weights[i] = random.below(3) == 0 ? 0 : std::pow(10.0, 60 * random.uniform() - 30);
      tree.set(i, weights[i]);
    }
    std::vector<uint32_t> drawn(50000);
    for (const bool stratified : {true, false}) {
      CHECK(tree.draw(drawn.size(), stratified, random, drawn.data()));
      for (const uint32_t index : drawn) CHECK(index < weights.size() && weights[index] > 0);
    }
    // At and past the total, where rounding may carry a draw: the last live leaf.
    for (double mass = tree.total(); mass < tree.total() * 1.01; mass *= 1.001) CHECK(weights[tree.find(mass)] > 0);
    CHECK(weights[tree.find(std::nextafter(tree.total(), 0))] > 0);
  }
}

// Random batches with duplicates; the naive array applies them one after the other.
void updates() {
  Random random(11);
  for (const size_t capacity : {3, 64, 1000, 40000}) {
    SumTree fast(capacity, true), slow(capacity, false);
    std::vector<double> weights(capacity);
    for (int round = 0; round < 300; ++round) {
      const size_t n = 1 + random.below(700);
      std::vector<uint32_t> at(n);
      std::vector<double> w(n);
      for (size_t i = 0; i < n; ++i) {
        at[i] = static_cast<uint32_t>(random.below(round % 2 ? capacity : std::min<size_t>(capacity, 50)));
        w[i] = random.below(4) == 0 ? 0 : random.uniform() * 10;
        weights[at[i]] = w[i];
      }
      fast.set(at.data(), w.data(), n);
      slow.set(at.data(), w.data(), n);
    }
    double low = 0;
    long double sum = 0;
    for (size_t i = 0; i < capacity; ++i) {
      CHECK_EQ(fast.weight(i), weights[i]);
      sum += weights[i];
      if (weights[i] > 0 && (low == 0 || weights[i] < low)) low = weights[i];
    }
    CHECK(fast.consistent());
    CHECK(slow.consistent());
    CHECK_NEAR(fast.total(), static_cast<double>(sum), 1e-12 * static_cast<double>(sum));
    CHECK_EQ(fast.total(), slow.total());
    CHECK_EQ(fast.min_positive(), low);
    CHECK_EQ(slow.min_positive(), low);
    std::vector<uint32_t> a(5000), b(5000);
    for (const bool stratified : {true, false}) {
      Random one(99), two(99);
      CHECK(fast.draw(a.size(), stratified, one, a.data()));
      CHECK(slow.draw(b.size(), stratified, two, b.data()));
      CHECK(std::memcmp(a.data(), b.data(), a.size() * sizeof(uint32_t)) == 0);
    }
  }
}

// What one live leaf weighs, wherever it is and whichever code looks for it: the masses at both ends of the total, and past it, find it too.
void one_of_many() {
  Random random(5);
  uint32_t drawn[9];
  for (size_t capacity = 1; capacity <= 70; ++capacity) {
    for (const bool simd : {true, false}) {
      SumTree tree(capacity, simd);
      for (size_t place = 0; place < capacity; ++place) {
        for (const double weight : {1e-200, 1e-30, 0.7, 1e30, 1e200}) {
          tree.set(place, weight);
          CHECK_EQ(tree.total(), weight);
          CHECK_EQ(tree.min_positive(), weight);
          for (const double mass : {0.0, weight / 2, std::nextafter(weight, 0.0), weight, 2 * weight}) CHECK_EQ(tree.find(mass), place);
          for (const bool stratified : {true, false}) {
            CHECK(tree.draw(9, stratified, random, drawn));
            CHECK(std::all_of(drawn, drawn + 9, [place](uint32_t index) { return index == place; }));
          }
        }
        tree.set(place, 0);
        CHECK(!tree.draw(9, true, random, drawn));
      }
    }
  }
}

double compensated_sum(const SumTree& tree) {
  long double sum = 0, lost = 0;
  for (size_t i = 0; i < tree.capacity(); ++i) {
    const long double term = tree.weight(i) - lost, next = sum + term;
    lost = (next - sum) - term;
    sum = next;
  }
  return static_cast<double>(sum);
}

// 1e8 updates, weights over 60 decades: nothing is accumulated, so nothing drifts. One tree whose top levels are one node, one beyond the caches.
void endless(size_t updates) {
  Random random(17);
  std::vector<double> palette(4096);
  for (double& weight : palette) weight = random.below(8) == 0 ? 0 : std::pow(10.0, 60 * random.uniform() - 30);
  for (const size_t capacity : {1000, 300000}) {
    SumTree tree(capacity);
    uint32_t at[1024];
    double weights[1024];
    for (size_t done = 0, rounds = 0; done < updates / 2; done += 1024, ++rounds) {
      for (size_t i = 0; i < 1024; ++i) {
        const uint64_t bits = random.next();
        at[i] = static_cast<uint32_t>((bits >> 32) * capacity >> 32);
        weights[i] = palette[bits & 4095];
      }
      tree.set(at, weights, 1024);
      if (rounds % 8192 == 0) CHECK_NEAR(tree.total(), compensated_sum(tree), 1e-9 * tree.total());
    }
    CHECK_NEAR(tree.total(), compensated_sum(tree), 1e-9 * tree.total());
    CHECK(tree.consistent());
    // The largest weights leave; what they covered is there to the last bit.
    for (uint32_t i = 0; i < capacity; ++i) {
      if (tree.weight(i) > 1e-15) tree.set(i, 0);
    }
    CHECK(tree.total() > 0);
    CHECK_NEAR(tree.total(), compensated_sum(tree), 1e-12 * tree.total());
  }
}

void process_wide_switch() {
  use_simd(false);
  SumTree off(77);
  use_simd(true);
  SumTree on(77), forced(77, false);
  CHECK_EQ(on.vectorised(), static_cast<bool>(__builtin_cpu_supports("avx512f")));
  CHECK(!off.vectorised());
  CHECK(!forced.vectorised());
}

void chi_square() {
  constexpr size_t kItems = 100;
  SumTree tree(kItems);
  Random random(42);
  for (size_t i = 0; i < kItems; ++i) tree.set(i, i % 10 == 0 ? 0 : 0.1 + random.uniform());
  for (const bool stratified : {true, false}) {
    std::vector<double> counts(kItems);
    constexpr size_t kDraws = 1000000;
    std::vector<uint32_t> drawn(1000);
    for (size_t n = 0; n < kDraws; n += drawn.size()) {
      tree.draw(drawn.size(), stratified, random, drawn.data());
      for (const uint32_t index : drawn) counts[index] += 1;
    }
    double chi = 0;
    for (size_t i = 0; i < kItems; ++i) {
      const double expected = tree.weight(i) / tree.total() * kDraws;
      if (expected == 0) {
        CHECK_EQ(counts[i], 0.0);
      } else {
        chi += (counts[i] - expected) * (counts[i] - expected) / expected;
      }
    }
    CHECK(chi < 135.0);  // 89 degrees of freedom: exceeded once in a thousand; strata only lower it
  }
}

}  // namespace
}  // namespace memsvc

// "quick" as the first argument: 1e6 updates instead of 1e8.
int main(int argc, char**) {
  memsvc::capacities();
  memsvc::finds();
  memsvc::extremes();
  memsvc::updates();
  memsvc::one_of_many();
  memsvc::endless(argc > 1 ? 1000000 : 100000000);
  memsvc::process_wide_switch();
  memsvc::chi_square();
  return check::summary();
}
