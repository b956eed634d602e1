// Copies of large rows past the caches: what is written is not read soon, so fetching its cache lines first would be work for nothing (DESIGN 6).
#pragma once

#include <cstddef>
#include <cstdint>

namespace memsvc {

// From this size on a copy streams; below it is memcpy.
constexpr size_t kStreamBytes = 16 << 10;

// memcpy(to, from, n), by non-temporal stores where n >= kStreamBytes and the processor has AVX-512 (chosen at run time). The bytes are visible to
// other threads after any lock's release that follows, as those of memcpy are.
void copy_streaming(uint8_t* to, const uint8_t* from, size_t n);

// memcpy(to, from, n) by non-temporal stores, one of many that read all over the memory: as many bytes at `next`, where the following one will read
// (any address), are fetched meanwhile. With AVX-512 or AVX2; else memcpy. Visible to other threads after a lock's release behind end_streaming().
void stream_part(uint8_t* to, const uint8_t* from, size_t n, const uint8_t* next);
void end_streaming();

}  // namespace memsvc
