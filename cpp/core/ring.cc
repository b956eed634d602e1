#include "ring.h"

#include <algorithm>
#include <atomic>
#include <cstring>

namespace memsvc {

struct Ring::Shared {
  alignas(kLine) std::atomic<uint64_t> written;
  alignas(kLine) std::atomic<uint64_t> read;
  alignas(kLine) std::atomic<uint32_t> asleep;
};

namespace {

// In the line before each message: its size, or one of these.
constexpr uint64_t kSkip = ~uint64_t{0};  // the next one is at the beginning
constexpr uint64_t kMarked = ~uint64_t{1};

static_assert(std::atomic<uint64_t>::is_always_lock_free && std::atomic<uint32_t>::is_always_lock_free);

size_t lines(size_t bytes) { return (bytes + Ring::kLine - 1) / Ring::kLine * Ring::kLine; }

void write(uint8_t* line, uint64_t value) { std::memcpy(line, &value, sizeof value); }

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

uint64_t read(const uint8_t* line) {
  uint64_t value;
  std::memcpy(&value, line, sizeof value);
  return value;
}

}  // namespace

// Half of it always fits: where the two ends meet in the middle, one of the halves is free. Twice the reserve goes off for marks and lines.
Ring::Ring(uint8_t* memory, size_t capacity) : memory_(memory), capacity_(capacity), most_(capacity / 2 - 2 * kReserveBytes) {
  static_assert(sizeof(Shared) <= kHeadBytes);
}

uint8_t* Ring::place(size_t bytes, size_t leave) {
  const uint64_t read_to = shared()->read.load(std::memory_order_acquire);
  if (broken_ || own_ - read_to > capacity_) {
    broken_ = true;
    return nullptr;
  }
  const size_t need = kLine + lines(bytes);
  const uint64_t kept = std::min(read_to, keep_);
  const size_t free = capacity_ - static_cast<size_t>(own_ - kept);
  const size_t offset = offset_of(own_);
  const size_t rest = capacity_ - offset;
  // From the beginning where the end is too near; and where nothing is waiting, once a quarter is behind: what is skipped counts as full until the
  // consumer has read past it.
  const bool again = need > rest || (kept == own_ && offset >= std::max(need + leave, capacity_ / 4));
  const size_t skipped = again && offset > 0 ? rest : 0;
  if (skipped + need + leave > free) return nullptr;
  uint8_t* data = memory_ + kHeadBytes;
  if (skipped > 0) write(data + offset, kSkip);
  next_ = own_ + skipped;
  return data + offset_of(next_);
}

void Ring::publish(uint64_t size) {
  uint8_t* line = memory_ + kHeadBytes + offset_of(next_);
  write(line, size);
  own_ = next_ + kLine + (size == kMarked ? 0 : lines(static_cast<size_t>(size)));
  shared()->written.store(own_, std::memory_order_release);
}

uint8_t* Ring::reserve(size_t bytes) {
  reserved_ = 0;
  uint8_t* line = bytes > 0 && bytes <= most_ ? place(bytes, kReserveBytes) : nullptr;
  if (line == nullptr) return nullptr;
  reserved_ = bytes;
  return line + kLine;
}

bool Ring::commit(size_t bytes) {
  if (bytes == 0 || bytes > reserved_) return false;
  reserved_ = 0;
  publish(bytes);
  return sleeper();
}

bool Ring::mark() {
  reserved_ = 0;
  if (place(0, 0) == nullptr) return false;
  publish(kMarked);
  return true;
}

bool Ring::sleeper() {
  // Either the consumer sees what was written before this fence, or this side sees that it is asleep: doze() has the other half.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  std::atomic<uint32_t>& asleep = shared()->asleep;
  return asleep.load(std::memory_order_relaxed) != 0 && asleep.exchange(0, std::memory_order_acq_rel) != 0;
}

bool Ring::look() {
  other_ = shared()->written.load(std::memory_order_acquire);
  if (other_ - own_ > capacity_ || other_ % kLine != 0) broken_ = true;
  return !broken_ && other_ != own_;
}

Ring::Front Ring::front() {
  if (broken_ || (other_ == own_ && !look())) return Front::kNone;
  const uint8_t* data = memory_ + kHeadBytes;
  uint64_t size = read(data + offset_of(own_));
  if (size == kSkip) {
    own_ += capacity_ - offset_of(own_);
    shared()->read.store(own_, std::memory_order_release);
    if (other_ - own_ > capacity_ || other_ == own_) {
      broken_ = true;
      return Front::kNone;
    }
    size = read(data);
  }
  size_ = 0;
  if (size == kMarked) return Front::kMark;
  if (size == 0 || size > most_ || kLine + lines(static_cast<size_t>(size)) > other_ - own_ || lines(size) + kLine > capacity_ - offset_of(own_)) {
    broken_ = true;
    return Front::kNone;
  }
  size_ = static_cast<size_t>(size);
  return Front::kMessage;
}

void Ring::pop() {
  own_ += kLine + lines(size_);
  size_ = 0;
  shared()->read.store(own_, std::memory_order_release);
}

bool Ring::spin(uint32_t rounds) {
  while (rounds-- > 0) {
    if (look()) return true;
    pause();
  }
  return false;
}

bool Ring::doze() {
  std::atomic<uint32_t>& asleep = shared()->asleep;
  asleep.store(1, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (!look()) return true;
  asleep.store(0, std::memory_order_relaxed);
  return false;
}

}  // namespace memsvc
