// Memory that is taken once: one anonymous mapping, on huge pages where the kernel allows, every page touched before it is used
// (DESIGN 6: a first touch costs 20 to 30 times a reuse). Nothing is given back before the arena goes.
#pragma once

#include <cstddef>
#include <cstdint>

#include "schema.h"
#include "status.h"

namespace memsvc {

// Used twice with the same calls of take(): once unmapped, where it only counts, then mapped with the bytes counted.
class Arena {
 public:
  Arena() = default;
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // Takes and touches `bytes` zeroed bytes. kFull when the system does not give them. Called once at most.
  Status map(size_t bytes);
  bool mapped() const { return base_ != nullptr; }
  // Bytes handed out so far.
  size_t used() const { return used_; }

  // The next n values of T at a multiple of 64; nullptr while unmapped. The caller never takes more than was mapped.
  template <typename T>
  T* take(size_t n) {
    const size_t begin = align_up(used_);
    used_ = begin + n * sizeof(T);
    return base_ ? reinterpret_cast<T*>(base_ + begin) : nullptr;
  }

 private:
  void* mapping_ = nullptr;
  size_t length_ = 0;
  uint8_t* base_ = nullptr;
  size_t used_ = 0;
};

}  // namespace memsvc
