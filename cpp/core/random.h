// One random stream per object (xoshiro256++, Blackman and Vigna 2019), seeded by its owner through splitmix64.
// The core never reads a clock or the system's entropy: the same seed and the same calls give the same draws.
#pragma once

#include <cstdint>

namespace memsvc {

class Random {
 public:
  explicit Random(uint64_t seed) {
    for (uint64_t& word : state_) {
      seed += 0x9E3779B97F4A7C15ULL;
      uint64_t z = seed;
      z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
      z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
      word = z ^ (z >> 31);
    }
  }

  uint64_t next() {
    const uint64_t result = rotate(state_[0] + state_[3], 23) + state_[0];
    const uint64_t t = state_[1] << 17;
    state_[2] ^= state_[0];
    state_[3] ^= state_[1];
    state_[1] ^= state_[2];
    state_[0] ^= state_[3];
    state_[2] ^= t;
    state_[3] = rotate(state_[3], 45);
    return result;
  }

  // Uniform in [0, 1), 53 bits.
  double uniform() { return static_cast<double>(next() >> 11) * 0x1.0p-53; }

  template <class A>
  void fields(A& archive) {
    archive(state_[0], state_[1], state_[2], state_[3]);
    if constexpr (A::kReads) {
      if ((state_[0] | state_[1] | state_[2] | state_[3]) == 0) archive.fail();  // it would stay there
    }
  }

  // Uniform in 0 .. n-1 (Lemire's multiply-shift; bias below 2^-32 for every n that fits in memory). n > 0.
  uint64_t below(uint64_t n) { return static_cast<uint64_t>((static_cast<unsigned __int128>(next()) * n) >> 64); }

 private:
  static uint64_t rotate(uint64_t x, int k) { return (x << k) | (x >> (64 - k)); }
  uint64_t state_[4];
};

}  // namespace memsvc
