// A crew does every part once, for several callers at a time, and with no hands at all.
#include "crew.h"

#include <atomic>
#include <thread>

#include "check.h"

using namespace memsvc;

int main(int argc, char**) {
  const int rounds = argc > 1 ? 100 : 2000;
  std::atomic<int> wrong = 0;
  for (unsigned hands : {0u, 1u, 3u}) {
    Crew crew(hands);
    const auto caller = [&](size_t parts) {
      for (int round = 0; round < rounds; ++round) {
        std::vector<int> done(parts, 0);
        crew.share(parts, [&done](size_t part) { ++done[part]; });
        for (const int each : done) wrong += each != 1;
      }
    };
    std::vector<std::thread> callers;
    for (size_t parts : {0u, 1u, 2u, 37u}) callers.emplace_back(caller, parts);
    for (std::thread& thread : callers) thread.join();
  }
  CHECK_EQ(wrong.load(), 0);
  return check::summary();
}
