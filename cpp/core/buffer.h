// Bytes that are written once and sent: memory is not cleared, keeps its largest size, and begins at a multiple of 64 where it is the buffer's own.
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
  uint8_t* data() { return lent() ? lent_ : data_.get(); }
  const uint8_t* data() const { return lent() ? lent_ : data_.get(); }
  size_t size() const { return size_; }

  // Makes the buffer `size` bytes long; what it held is lost when it has to grow.
  void resize(size_t size) {
    if (size > room_ && size > capacity_) {
      const size_t capacity = align_up(size + size / 4);
      data_.reset(static_cast<uint8_t*>(std::aligned_alloc(kAlign, capacity)));
      if (!data_) throw std::bad_alloc();
      capacity_ = capacity;
    }
    size_ = size;
  }

  // Uses `room` bytes at `memory`, which the caller keeps alive, as long as the size does not exceed them. What the buffer held is lost.
  void lend(uint8_t* memory, size_t room) {
    lent_ = memory;
    room_ = room;
    size_ = 0;
  }
  // Whether the bytes are in memory that was lent.
  bool lent() const { return lent_ != nullptr && size_ <= room_; }

 private:
  struct Free {
    void operator()(uint8_t* p) const { std::free(p); }
  };
  std::unique_ptr<uint8_t[], Free> data_;
  uint8_t* lent_ = nullptr;
  size_t room_ = 0;
  size_t size_ = 0;
  size_t capacity_ = 0;
};

}  // namespace memsvc
