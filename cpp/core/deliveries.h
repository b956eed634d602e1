// Batches that learners have been sent and have not confirmed, by ticket: what a learner that died had not confirmed is put back (DEFINITIONS 9).
// Not thread-safe: Replay's lock guards it.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

namespace memsvc {

class Deliveries {
 public:
  struct Batch {
    uint64_t draws = 0;
    uint64_t era = 0;            // of the limiter that has counted them
    std::vector<uint64_t> keys;  // one a draw, where the items count their draws
  };

  // A batch goes out. Its ticket is not in use.
  void open(uint64_t ticket, Batch batch) {
    in_flight_ += batch.draws;
    batches_.emplace(ticket, std::move(batch));
  }
  // The batch of a ticket, which is closed now; false for one that is not open.
  bool close(uint64_t ticket, Batch* out) {
    const auto at = batches_.find(ticket);
    if (at == batches_.end()) return false;
    *out = std::move(at->second);
    in_flight_ -= out->draws;
    batches_.erase(at);
    return true;
  }
  // Calls visit(batch) for every open one.
  template <typename Visit>
  void each(const Visit& visit) const {
    for (const auto& [ticket, batch] : batches_) visit(batch);
  }
  bool is_open(uint64_t ticket) const { return batches_.contains(ticket); }
  uint64_t in_flight() const { return in_flight_; }  // draws

 private:
  std::unordered_map<uint64_t, Batch> batches_;
  uint64_t in_flight_ = 0;
};

}  // namespace memsvc
