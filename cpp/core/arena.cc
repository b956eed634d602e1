#include "arena.h"

#include <sys/mman.h>

#include <algorithm>
#include <string>

namespace memsvc {
namespace {

constexpr size_t kPage = 4096;
constexpr size_t kHuge = size_t{2} << 20;

// Where the kernel has it (5.14), one call takes all pages at once, several times faster than a fault a page.
constexpr int kPopulateWrite = 23;

void touch(uint8_t* base, size_t bytes) {
  if (madvise(base, bytes, kPopulateWrite) == 0) return;
  volatile uint8_t* page = base;
  for (size_t at = 0; at < bytes; at += kPage) page[at] = 0;
}

}  // namespace

Arena::~Arena() {
  if (mapping_) munmap(mapping_, length_);
}

Status Arena::map(size_t bytes) {
  // Huge pages need their own alignment; the slack is address space only.
  const bool huge = bytes >= kHuge;
  const size_t rounded = (std::max<size_t>(bytes, 1) + kPage - 1) / kPage * kPage;
  length_ = rounded + (huge ? kHuge : 0);
  void* mapping = mmap(nullptr, length_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping == MAP_FAILED) {
    return Status(Code::kFull, "the system does not give " + std::to_string(bytes) + " bytes of memory: lower server.memory or free some");
  }
  mapping_ = mapping;
  base_ = static_cast<uint8_t*>(mapping);
  if (huge) {
    base_ = reinterpret_cast<uint8_t*>((reinterpret_cast<uintptr_t>(base_) + kHuge - 1) / kHuge * kHuge);
    madvise(base_, rounded, MADV_HUGEPAGE);  // refused on some kernels, then small pages serve
  }
  // A child process that inherited these pages would make the parent's next write to each of them copy it.
  madvise(mapping_, length_, MADV_DONTFORK);
  touch(base_, rounded);
  used_ = 0;
  return Status();
}

}  // namespace memsvc
