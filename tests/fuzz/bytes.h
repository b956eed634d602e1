// What a fuzzer's bytes say, taken one after the other; behind their end everything is 0, so that any bytes say something.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

namespace fuzz {

class Bytes {
 public:
  Bytes(const uint8_t* data, size_t size) : at_(data), left_(size) {}
  bool empty() const { return left_ == 0; }

  uint8_t byte() {
    if (left_ == 0) return 0;
    --left_;
    return *at_++;
  }
  uint64_t below(uint64_t n) { return (n > 256 ? byte() << 8 | byte() : byte()) % n; }
  bool one_in(uint8_t n) { return byte() % n == n - 1; }
  uint64_t word() {
    uint64_t value = 0;
    for (int i = 0; i < 8; ++i) value |= uint64_t{byte()} << (8 * i);
    return value;
  }
  // Counts as an honest client tells them, those at which something overflows, and any.
  uint64_t count() {
    static constexpr uint64_t kEdges[] = {0,          1,          ~uint64_t{0}, uint64_t{1} << 31, uint64_t{1} << 32, (uint64_t{1} << 36) - 1,
                                          1ull << 52, 1ull << 62, 1ull << 63,   (1ull << 63) - 1,  ~uint64_t{0} - 63, 0xFFFF};
    const uint8_t kind = byte();
    if (kind < 200) return kind;
    return kind < 240 ? kEdges[kind % (sizeof(kEdges) / sizeof(kEdges[0]))] : word();
  }
  double real() {
    static const double kEdges[] = {0, 1e-320, 1e-300, 1e100, 1e200, 1e250, 1.7e308, INFINITY, NAN, -1, -0.0, 1e-9};
    const uint8_t kind = byte();
    if (kind < 200) return kind / 16.0;
    if (kind < 240) return kEdges[kind % (sizeof(kEdges) / sizeof(kEdges[0]))];
    const uint64_t bits = word();
    double value;
    std::memcpy(&value, &bits, sizeof(value));
    return value;
  }

 private:
  const uint8_t* at_;
  size_t left_;
};

// Ends the program where the promise is broken, in a way that a fuzzer takes for a crash.
inline void expect(bool kept, const std::string& promise) {
  if (kept) return;
  std::fprintf(stderr, "broken: %s\n", promise.c_str());
  std::abort();
}

}  // namespace fuzz
