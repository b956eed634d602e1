// Bytes that are written once and sent: memory is not cleared, keeps its largest size, and begins at a multiple of 64.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>

#include "schema.h"

namespace memsvc {

class Buffer {
 public:
  uint8_t* data() { return data_.get(); }
  const uint8_t* data() const { return data_.get(); }
  size_t size() const { return size_; }

  // Makes the buffer `size` bytes long; what it held is lost when it has to grow.
  void resize(size_t size) {
    if (size > capacity_) {
      const size_t capacity = align_up(size + size / 4);
      data_.reset(static_cast<uint8_t*>(std::aligned_alloc(kAlign, capacity)));
      if (!data_) throw std::bad_alloc();
      capacity_ = capacity;
    }
    size_ = size;
  }

 private:
  struct Free {
    void operator()(uint8_t* p) const { std::free(p); }
  };
  std::unique_ptr<uint8_t[], Free> data_;
  size_t size_ = 0;
  size_t capacity_ = 0;
};

}  // namespace memsvc
