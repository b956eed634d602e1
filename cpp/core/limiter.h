// Rate limiting (DEFINITIONS 9): from min_items on, sampled = samples_per_insert * inserted within `tolerance` over any interval. What actors are
// ahead by, s * (I - I0) - S, stays in [-e/2, +e/2]: learners wait below, actors get no further allowance above. Not thread-safe: Replay's lock
// guards it.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "schema.h"

namespace memsvc {

class Limiter {
 public:
  explicit Limiter(const TableSpec& spec) : spec_(spec) {}

  bool on() const { return spec_.samples_per_insert > 0; }
  // Items inserted so far, by all actors.
  void inserted(uint64_t total) { inserted_ = total; }
  // How many items can be drawn now. Counting begins when min_items are there, and rests while they are not: what is inserted to make up for items
  // that went (too stale, deleted, used up, or fewer than a changed min_items) must not wait for learners, who wait for it.
  void drawable(uint64_t population) {
    population_ = population;
    const bool enough = population >= std::max<uint64_t>(spec_.min_items, 1);
    if (enough == open_) return;
    open_ = enough;
    if (open_) {
      begin_ += inserted_ - closed_;
    } else {
      closed_ = inserted_;
    }
  }
  void sampled(uint64_t draws) { sampled_ += static_cast<double>(draws); }
  void put_back(uint64_t draws) { sampled_ -= static_cast<double>(draws); }
  // Other settings: what has been so far counts no more.
  void restart() {
    begin_ = closed_ = inserted_;
    sampled_ = 0;
    ++era_;
  }
  double sampled_now() const { return sampled_; }
  void sampled_now(double draws) { sampled_ = draws; }
  uint64_t era() const { return era_; }  // restarts so far

  // By how many samples actors are ahead; negative: learners.
  double ahead() const { return spec_.samples_per_insert * static_cast<double>((open_ ? inserted_ : closed_) - begin_) - sampled_; }
  bool may_sample(uint64_t batch) const { return !on() || (open_ && ahead() - static_cast<double>(batch) >= -spec_.tolerance / 2); }
  // Items that must have been inserted in all before `batch` may be sampled.
  uint64_t needed(uint64_t batch) const {
    const double short_of = static_cast<double>(batch) - spec_.tolerance / 2 - ahead();
    return inserted_ + static_cast<uint64_t>(std::max(0.0, std::ceil(short_of / spec_.samples_per_insert)));
  }
  // Items that actors may insert beyond those inserted, outstanding allowances included.
  uint64_t budget() const {
    const double items = std::floor((spec_.tolerance / 2 - ahead()) / spec_.samples_per_insert);
    // Before min_items are there, as many as are missing: items that cannot be drawn are inserted, but do not count there.
    const uint64_t least = std::max<uint64_t>(spec_.min_items, 1);
    const uint64_t missing = population_ >= least ? 0 : least - population_;
    return missing + static_cast<uint64_t>(std::clamp(items, 0.0, 9e15));
  }
  uint64_t inserted() const { return inserted_; }
  template <class A>
  void fields(A& archive) {
    archive(open_, inserted_, begin_, closed_, population_, sampled_, era_);
    if constexpr (A::kReads) {
      if (!(std::abs(sampled_) < 1e18)) archive.fail();
    }
  }
  uint64_t sampled_so_far() const { return static_cast<uint64_t>(std::max(0.0, sampled_)); }

 private:
  const TableSpec& spec_;
  bool open_ = false;
  uint64_t inserted_ = 0, begin_ = 0, closed_ = 0, population_ = 0;
  double sampled_ = 0;
  uint64_t era_ = 0;
};

}  // namespace memsvc
