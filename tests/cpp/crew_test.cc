// A crew does every part once, for several callers at a time, and with no hands at all.
#include "crew.h"

#include <sys/resource.h>
#include <unistd.h>

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

  const rlimit none{0, 0};
  // Not under sanitizers, which make threads of their own.
  if (argc == 1 && setrlimit(RLIMIT_NPROC, &none) == 0 && (getuid() != 0 || setuid(65534) == 0)) {
    Crew alone(3);  // no thread can be made from here on
    std::vector<int> done(37, 0);
    alone.share(done.size(), [&done](size_t part) { ++done[part]; });
    for (const int each : done) CHECK_EQ(each, 1);
  }
  return check::summary();
}
