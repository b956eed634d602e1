// The checks of the C++ tests: plain programs, no library. A failed check prints its place and values, and the program goes on;
// `return check::summary();` at the end of main prints the count and returns 1 when any check failed.
#pragma once

#include <cmath>
#include <cstdio>
#include <iostream>
#include <string>

#include "status.h"

namespace check {

inline int passed = 0;
inline int failed = 0;

// Counts one check; prints at most the first 20 failures, so that a broken loop does not bury the first cause.
template <typename... Parts>
bool report(bool ok, const char* file, int line, const Parts&... parts) {
  if (ok) {
    ++passed;
  } else if (++failed <= 20) {
    std::cerr << file << ":" << line << ": ";
    (std::cerr << ... << parts) << "\n";
  }
  return ok;
}

inline int summary() {
  std::printf("%d checks passed, %d failed\n", passed, failed);
  return failed ? 1 : 0;
}

}  // namespace check

#define CHECK(condition) check::report(static_cast<bool>(condition), __FILE__, __LINE__, "CHECK(" #condition ") failed")

#define CHECK_EQ(a, b)                                                                                                    \
  [&] {                                                                                                                   \
    const auto check_a = (a);                                                                                             \
    const auto check_b = (b);                                                                                             \
    return check::report(check_a == check_b, __FILE__, __LINE__, "CHECK_EQ(" #a ", " #b "): ", check_a, " != ", check_b); \
  }()

#define CHECK_NEAR(a, b, tolerance)                                                                                                                  \
  [&] {                                                                                                                                              \
    const double check_a = (a);                                                                                                                      \
    const double check_b = (b);                                                                                                                      \
    return check::report(std::abs(check_a - check_b) <= (tolerance), __FILE__, __LINE__, "CHECK_NEAR(" #a ", " #b "): ", check_a, " and ", check_b); \
  }()

#define CHECK_OK(status)                                                                                            \
  [&] {                                                                                                             \
    const memsvc::Status check_status = (status);                                                                   \
    return check::report(check_status.ok(), __FILE__, __LINE__, "CHECK_OK(" #status "): ", check_status.message()); \
  }()
