// A zeroed array that is reserved whole and becomes resident only as far as it is touched, so that a bound of a memory costs nothing until it is
// used.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <new>
#include <type_traits>

namespace memsvc {

// T: any type whose zero bytes are a valid value. Elements are not constructed or destroyed. Throws std::bad_alloc when the address space is refused.
template <class T>
class Reserve {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  explicit Reserve(size_t n = 0) : bytes_(n * sizeof(T)) {
    if (bytes_ == 0) return;
    void* at = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) throw std::bad_alloc();
    // Only advice: where it is not taken, pages are small, and rows in no order cost a walk through the page tables each.
    if (bytes_ >= kHugeFrom) madvise(at, bytes_, MADV_HUGEPAGE);
    data_ = static_cast<T*>(at);
  }
  ~Reserve() {
    if (data_ != nullptr) munmap(data_, bytes_);
  }
  Reserve(const Reserve&) = delete;
  Reserve& operator=(const Reserve&) = delete;

  T& operator[](size_t i) { return data_[i]; }
  const T& operator[](size_t i) const { return data_[i]; }

 private:
  static constexpr size_t kHugeFrom = 16 << 20;  // bytes

  T* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace memsvc
