// A few threads that share out work which one thread is too slow for: copying a batch of megabytes, with the memory's bandwidth as the limit.
// Thread-safe; started at the first use, so that a server which never draws large batches has none.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace memsvc {

class Crew {
 public:
  // `hands` threads beside those that call; 0: a caller works alone.
  explicit Crew(unsigned hands) : hands_(hands) {}
  ~Crew();
  Crew(const Crew&) = delete;

  // work(0) .. work(parts - 1), each once and in any order, on this thread and on those of the crew that are free; returns when all have returned.
  // Nobody waits for a hand to wake up: the caller goes on by itself meanwhile. `work` throws nothing and calls no share().
  void share(size_t parts, const std::function<void(size_t)>& work);

 private:
  struct Job {
    const std::function<void(size_t)>& work;
    const size_t parts;
    std::atomic<size_t> next = 0;
    unsigned helpers = 0;  // under mutex_
  };
  void serve();
  static void carry(Job* job);

  const unsigned hands_;
  int process_ = 0;  // that started the threads: a forked child has none of them
  std::mutex mutex_;
  std::condition_variable called_, done_;
  std::deque<Job*> jobs_;  // those with parts left, as far as is known
  std::vector<std::thread> threads_;
  bool ending_ = false;
};

}  // namespace memsvc
