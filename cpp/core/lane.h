// One actor's part of a table: what it last reported, what learners changed since, its queue of draws, and what it is still to be told.
// Not thread-safe: Replay's lock guards it. Bounded: open feedback by kMostFeedback, waiting draws by Caches, evicted keys by the items that
// were held when the actor was last told.
//
//   I8 W_k is the newest report's total plus the changes of those feedbacks that the report does not contain; N_k likewise; neither below 0
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "cache.h"
#include "draws.h"

namespace memsvc {

class Lane {
 public:
  // Beyond this many priorities that nobody took, the oldest are forgotten: the actor keeps its own weights for those items, as its next report
  // says; the table stays exact.
  static constexpr size_t kMostFeedback = size_t{1} << 18;

  Lane(uint64_t actor, std::string name) : actor(actor), name(std::move(name)) {}

  // A cache's head is news: its totals hold, less the feedback that they contain.
  void report(const CacheHead& head);
  bool reported() const { return reported_; }
  double total() const { return sums().total_; }              // W_k
  uint64_t population() const { return sums().population_; }  // N_k
  double min_weight() const { return sums().min_weight_; }    // smallest positive weight: the report's or a later update's; 0 for none
  double scale() const { return scale_; }
  // True for feedback (modulo 2^32, 0 for none) that the newest report does not contain.
  bool pending(uint32_t number) const { return number != 0 && static_cast<int32_t>(number - static_cast<uint32_t>(applied_)) > 0; }

  // A learner's raw priority, for the actor: part of the open feedback.
  void feed(uint64_t key, double priority);
  // What it did to an item that is held here: its weight went from `before` to `after`.
  void change(double before, double after);
  uint64_t open() const { return open_; }  // number of the open feedback, from 1
  bool has_feedback() const { return !keys_.empty(); }
  // Closes the open feedback. False when it is empty.
  bool take_feedback(uint64_t* number, std::vector<uint64_t>* keys, std::vector<double>* priorities);

  const uint64_t actor;
  const std::string name;
  bool left = false;
  Queue queue;
  std::vector<DrawRecord> waiting;  // draws whose item's payload is not here, in order
  std::vector<uint64_t> missing;    // keys to ask for, not told yet
  std::vector<uint64_t> evicted;    // keys gone, not told yet
  uint64_t drawn = 0, received = 0, starved = 0, inserted = 0;

 private:
  struct Change {
    uint64_t number;
    double total;
    int64_t population;
    double min_weight;  // infinity for none
  };
  // The sums are made when they are read: a batch of changes costs one addition each.
  const Lane& sums() const {
    if (stale_) sum_up();
    return *this;
  }
  void sum_up() const;

  bool reported_ = false;
  double report_total_ = 0, report_min_ = 0;
  uint64_t report_population_ = 0, applied_ = 0;
  double scale_ = 1;
  std::deque<Change> changes_;
  mutable bool stale_ = false;
  mutable double total_ = 0, min_weight_ = 0;
  mutable uint64_t population_ = 0;
  uint64_t open_ = 1;
  std::vector<uint64_t> keys_;
  std::vector<double> priorities_;
};

// The lanes of a table, in the order of their actors' numbers.
class Lanes {
 public:
  Lane* find(uint64_t actor) const;
  Lane* add(uint64_t actor, const std::string& name);  // a number larger than all before
  void remove(uint64_t actor);
  const std::vector<std::unique_ptr<Lane>>& all() const { return lanes_; }
  double total() const;         // W
  uint64_t population() const;  // N
  double min_weight() const;    // smallest positive one, 0 for none

 private:
  std::vector<std::unique_ptr<Lane>> lanes_;
};

}  // namespace memsvc
