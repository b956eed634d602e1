#include "crew.h"

#include <unistd.h>

#include <algorithm>
#include <system_error>

namespace memsvc {

Crew::~Crew() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  called_.notify_all();
  for (std::thread& thread : threads_) process_ == getpid() ? thread.join() : thread.detach();
}

void Crew::share(size_t parts, const std::function<void(size_t)>& work) {
  Job job{work, parts};
  if (hands_ > 0 && parts > 1) {
    {
      const std::lock_guard lock(mutex_);
      process_ = getpid();
      try {
        while (threads_.size() < hands_) threads_.emplace_back([this] { serve(); });
      } catch (const std::system_error&) {
        // No thread to be had now: those that there are, or the caller alone.
      }
      jobs_.push_back(&job);
    }
    called_.notify_all();
  }
  carry(&job);
  if (hands_ == 0 || parts <= 1) return;
  std::unique_lock lock(mutex_);
  std::erase(jobs_, &job);
  done_.wait(lock, [&job] { return job.helpers == 0; });
}

void Crew::serve() {
  std::unique_lock lock(mutex_);
  while (true) {
    called_.wait(lock, [this] { return ending_ || !jobs_.empty(); });
    if (ending_) return;
    Job* job = jobs_.front();
    ++job->helpers;
    lock.unlock();
    carry(job);
    lock.lock();
    std::erase(jobs_, job);  // nothing of it is left to begin
    if (--job->helpers == 0) done_.notify_all();
  }
}

void Crew::carry(Job* job) {
  for (size_t part; (part = job->next.fetch_add(1, std::memory_order_relaxed)) < job->parts;) job->work(part);
}

}  // namespace memsvc
