// Every invariant of a Replay holds at all times, whatever the operations of hostile.h are.
#include "hostile.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Bytes in(data, size);
  fuzz::Run run(in, fuzz::setups()[in.below(fuzz::setups().size())]);
  for (int round = 1; !in.empty() && round < 200; ++round) {
    run.step();
    if (round % 4 != 0 && !in.empty()) continue;
    const memsvc::Status whole = run.replay->check();
    fuzz::expect(whole.ok(), whole.message());
  }
  return 0;
}
