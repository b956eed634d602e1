// A crew does every part once, for several callers at a time, and with no hands at all.
#include "crew.h"

#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "check.h"

using namespace memsvc;

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define MEMSVC_SANITIZED
#endif
#elif defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define MEMSVC_SANITIZED
#endif

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

#ifndef MEMSVC_SANITIZED  // whose own threads could not be made either
  const rlimit none{0, 0};
  if (setrlimit(RLIMIT_NPROC, &none) == 0 && (getuid() != 0 || setuid(65534) == 0)) {
    Crew alone(3);  // no thread can be made from here on
    std::vector<int> done(37, 0);
    alone.share(done.size(), [&done](size_t part) { ++done[part]; });
    for (const int each : done) CHECK_EQ(each, 1);
  }
#endif
  return check::summary();
}
