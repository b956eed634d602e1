#include "stream.h"

#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace memsvc {
namespace {

#if defined(__x86_64__)
constexpr size_t kLine = 64;

__attribute__((target("avx512f"))) void stream_avx512(uint8_t* to, const uint8_t* from, size_t n) {
  const size_t head = (kLine - reinterpret_cast<uintptr_t>(to) % kLine) % kLine;
  std::memcpy(to, from, head);
  size_t at = head;
  for (; at + 4 * kLine <= n; at += 4 * kLine) {
    for (size_t line = at; line < at + 4 * kLine; line += kLine)
      _mm512_stream_si512(reinterpret_cast<__m512i*>(to + line), _mm512_loadu_si512(from + line));
  }
  std::memcpy(to + at, from + at, n - at);
  // Streaming stores are not ordered by a lock's release: this makes them so.
  _mm_sfence();
}
#endif

}  // namespace

void copy_streaming(uint8_t* to, const uint8_t* from, size_t n) {
#if defined(__x86_64__)
  static const bool streams = __builtin_cpu_supports("avx512f");
  if (streams && n >= kStreamBytes) return stream_avx512(to, from, n);
#endif
  std::memcpy(to, from, n);
}

}  // namespace memsvc
