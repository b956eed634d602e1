// Ring over memory that the other side writes whatever it likes into: nothing outside is read, and what was found broken stays so.
#include <memory>
#include <vector>

#include "bytes.h"
#include "ring.h"

using memsvc::Ring;

namespace {

constexpr size_t kBytes = Ring::kHeadBytes + Ring::kLeastBytes + 5 * Ring::kLine;

struct alignas(Ring::kLine) Memory {
  uint8_t bytes[kBytes] = {};
};

// Positions and sizes near those that are right, and others.
uint64_t position(fuzz::Bytes& in, uint64_t own) {
  const uint64_t near = own + Ring::kLine * (in.byte() % 80);
  switch (in.byte() % 8) {
    case 0:
      return in.count();
    case 1:
      return near - Ring::kLine * (in.byte() % 80);
    case 2:
      return near + in.byte() % 64;
    default:
      return near;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Bytes in(data, size);
  const auto memory = std::make_unique<Memory>();
  uint8_t* at = memory->bytes;
  Ring reader(at, kBytes - Ring::kHeadBytes), writer(at, kBytes - Ring::kHeadBytes);
  uint64_t read = 0, written = 0;  // as the hostile side guesses them
  size_t sum = 0;
  const auto put = [&](size_t where, uint64_t value) { std::memcpy(at + where, &value, sizeof(value)); };
  while (!in.empty()) {
    const bool was_broken = reader.broken();
    switch (in.byte() % 8) {
      case 0:
        put(0, written = position(in, read));
        break;
      case 1:
        put(64, position(in, written));
        break;
      case 2:  // the line of a message: its size, or a mark
        put(Ring::kHeadBytes + Ring::kLine * in.below((kBytes - Ring::kHeadBytes) / Ring::kLine),
            in.one_in(3) ? ~uint64_t{0} - in.byte() % 3 : in.count());
        break;
      case 3:
        put(in.below(kBytes - 8), in.word());
        break;
      case 4:  // an honest message between the others
        if (uint8_t* to = writer.reserve(in.below(3000)); to != nullptr) {
          std::memset(to, 7, 1);
          writer.commit(1 + in.below(64));
        }
        break;
      case 5:
        if (in.byte() % 2 ? writer.mark() : writer.room()) writer.sleeper();
        break;
      case 6:
        reader.spin(2);
        reader.doze();
        break;
      default: {
        const Ring::Front front = reader.front();
        fuzz::expect(!was_broken || front == Ring::Front::kNone, "a broken ring is empty");
        if (front == Ring::Front::kNone) break;
        const uint8_t* from = reader.data();
        fuzz::expect(from >= at + Ring::kHeadBytes && reader.size() <= size_t(at + kBytes - from), "a message lies in the ring");
        for (size_t i = 0; i < reader.size(); ++i) sum += from[i];
        if (in.byte() % 4) reader.pop();
        read += Ring::kLine + (reader.size() + Ring::kLine - 1) / Ring::kLine * Ring::kLine;
        break;
      }
    }
    fuzz::expect(!was_broken || reader.broken(), "a broken ring stays broken");
  }
  return sum == ~size_t{0};
}
