// Streaming copies: every byte, none beside them, at any alignment and size.
#include "stream.h"

#include <vector>

#include "check.h"

using namespace memsvc;

namespace {

void copies_exactly(size_t to_offset, size_t from_offset, size_t n, bool many) {
  std::vector<uint8_t> from(n + 256), to(n + 256, 0xEE);
  for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<uint8_t>(i * 7 + 3);
  if (many) {
    stream_part(to.data() + to_offset, from.data() + from_offset, n, from.data());
    end_streaming();
  } else {
    copy_streaming(to.data() + to_offset, from.data() + from_offset, n);
  }
  bool same = true, beside = true;
  for (size_t i = 0; i < n; ++i) same = same && to[to_offset + i] == from[from_offset + i];
  for (size_t i = 0; i < to.size(); ++i) beside = beside && ((i >= to_offset && i < to_offset + n) || to[i] == 0xEE);
  CHECK(same);
  CHECK(beside);
}

}  // namespace

int main() {
  for (const size_t n : {size_t{0}, size_t{1}, size_t{63}, kStreamBytes - 1, kStreamBytes, kStreamBytes + 1, kStreamBytes + 255, size_t{28240}}) {
    for (size_t to = 0; to < 128; to += 13) {
      for (size_t from = 0; from < 128; from += 29) copies_exactly(to, from, n, false), copies_exactly(to, from, n, true);
    }
  }
  return check::summary();
}
