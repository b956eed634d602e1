#include "stream.h"

#include <algorithm>
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

constexpr size_t kNear = 1024;  // bytes ahead of the copy that are on their way to the first-level cache

// Whole lines, to a multiple of a line. What comes next goes to the second-level cache: the processor itself follows a row only once it has begun,
// and not over the end of a page.
__attribute__((target("avx512f"))) void lines_avx512(uint8_t* to, const uint8_t* from, size_t n, const uint8_t* next) {
  for (size_t at = 0; at < n; at += kLine) {
    _mm_prefetch(reinterpret_cast<const char*>(next + at), _MM_HINT_T1);
    _mm_prefetch(reinterpret_cast<const char*>(from + at + kNear), _MM_HINT_T0);
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to + at), _mm512_loadu_si512(from + at));
  }
}

__attribute__((target("avx2"))) void lines_avx2(uint8_t* to, const uint8_t* from, size_t n, const uint8_t* next) {
  for (size_t at = 0; at < n; at += kLine) {
    _mm_prefetch(reinterpret_cast<const char*>(next + at), _MM_HINT_T1);
    _mm_prefetch(reinterpret_cast<const char*>(from + at + kNear), _MM_HINT_T0);
    const __m256i* source = reinterpret_cast<const __m256i*>(from + at);
    const __m256i low = _mm256_loadu_si256(source), high = _mm256_loadu_si256(source + 1);
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to + at), low);
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to + at) + 1, high);
  }
}

using Lines = void (*)(uint8_t*, const uint8_t*, size_t, const uint8_t*);

Lines lines_here() {
  if (__builtin_cpu_supports("avx512f")) return lines_avx512;
  return __builtin_cpu_supports("avx2") ? lines_avx2 : nullptr;
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

void stream_part(uint8_t* to, const uint8_t* from, size_t n, const uint8_t* next) {
#if defined(__x86_64__)
  static const Lines lines = lines_here();
  if (lines) {
    const size_t head = std::min(n, (kLine - reinterpret_cast<uintptr_t>(to) % kLine) % kLine);
    const size_t whole = (n - head) / kLine * kLine;
    std::memcpy(to, from, head);
    lines(to + head, from + head, whole, next + head);
    std::memcpy(to + head + whole, from + head + whole, n - head - whole);
    return;
  }
#endif
  static_cast<void>(next);
  std::memcpy(to, from, n);
}

void end_streaming() {
#if defined(__x86_64__)
  _mm_sfence();
#endif
}

}  // namespace memsvc
