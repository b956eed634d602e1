#include "archive.h"

namespace memsvc {

// Every step is a bijection of the sum so far, so a single changed word never goes unseen.
uint64_t checksum(const uint8_t* data, size_t size) {
  uint64_t sum = 0x9E3779B97F4A7C15ULL ^ size;
  for (size_t at = 0; at < size; at += 8) {
    uint64_t word = 0;
    std::memcpy(&word, data + at, size - at < 8 ? size - at : 8);
    sum = (sum ^ word) * 0xFF51AFD7ED558CCDULL;
    sum ^= sum >> 32;
  }
  return sum;
}

void seal(std::vector<uint8_t>* bytes) {
  const uint64_t sum = checksum(bytes->data(), bytes->size());
  Writer writer(bytes);
  writer(sum);
}

bool sealed(const uint8_t* data, size_t size) {
  if (size < sizeof(uint64_t)) return false;
  uint64_t sum;
  std::memcpy(&sum, data + size - sizeof(sum), sizeof(sum));
  return sum == checksum(data, size - sizeof(sum));
}

}  // namespace memsvc
