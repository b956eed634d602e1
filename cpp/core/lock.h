// A mutex for short holds by threads that come again and again, whose holder can also stop in the midst of long work. A mutex alone would let others
// wait for tens of milliseconds: who has just unlocked it mostly is the next one to lock it. Here who comes lets those go first who wait.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <thread>

namespace memsvc {

class Lock {
 public:
  void lock() {
    if (waiting_.load(std::memory_order_relaxed) > 0) wait_for_turn_after(turns_.load(std::memory_order_relaxed));
    take();
  }
  void unlock() { mutex_.unlock(); }

  // The holder gives the lock to somebody who waits, if there is one, and takes it again after that. What the lock guards may have changed.
  void give_way() {
    if (waiting_.load(std::memory_order_relaxed) == 0) return;
    const uint64_t turn = turns_.load(std::memory_order_relaxed);
    unlock();
    wait_for_turn_after(turn);
    take();
  }

 private:
  // Until somebody has taken the lock; no longer than a thread takes to wake up, for it may not get a processor soon.
  void wait_for_turn_after(uint64_t turn) const {
    for (int i = 0; i < kPatience && turns_.load(std::memory_order_relaxed) == turn; ++i) std::this_thread::yield();
  }
  void take() {
    if (!mutex_.try_lock()) {
      waiting_.fetch_add(1, std::memory_order_relaxed);
      mutex_.lock();
      waiting_.fetch_sub(1, std::memory_order_relaxed);
    }
    turns_.fetch_add(1, std::memory_order_relaxed);
  }

  static constexpr int kPatience = 256;  // yields, of a fraction of a microsecond where nobody else wants the processor
  std::mutex mutex_;
  std::atomic<uint32_t> waiting_ = 0;
  std::atomic<uint64_t> turns_ = 0;
};

}  // namespace memsvc
