// One actor's part of a table: what it last reported, what learners changed since, its queue of draws, and what it is still to be told.
// Not thread-safe: Replay's lock guards it. Bounded: open feedback by kMostFeedback, waiting draws by Caches, evicted keys by the items that
// were held when the actor was last told.
//
//   I8 W_k is the newest report's total plus the changes of those feedbacks that the report does not contain, less what has become too stale by a
//      version that the report was not judged by; N_k likewise; neither below 0
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "actors.h"
#include "cache.h"
#include "draws.h"
#include "fetch.h"
#include "raised.h"
#include "window.h"

namespace memsvc {

// One push's draws, oldest first in the queue: what its report said of the memory that they were drawn from.
struct Segment {
  static constexpr bool kFlat = true;  // archive.h
  uint32_t id = 0;                     // as in the queue's entries
  uint32_t queued = 0;                 // entries of it that came into the queue
  double total = 0;                    // W^c
  uint64_t applied = 0;                // feedback that the weights contain
};

// A batch of a table with a thousand actors touches hundreds of lanes: what a draw needs of one comes first, on one line of a cache.
class alignas(64) Lane {
 public:
  Queue queue;
  uint32_t fruitless = 0;          // queued draws that came to nothing when a batch was tried: no stock
  std::unique_ptr<Raised> raised;  // once a learner has updated something
  uint64_t steps = 0;              // of the actor, as of its newest report
  uint64_t drawn = 0;
  double age_sum = 0;  // of the caches' ages at the delivery of their draws, in the actor's steps
  uint64_t age_draws = 0;
  bool left = false;

  // Beyond this many priorities that nobody took, the oldest are forgotten: the actor keeps its own weights for those items, as its next report
  // says; the table stays exact.
  static constexpr size_t kMostFeedback = size_t{1} << 18;

  Lane(uint64_t actor, std::string name, std::string topic = "default", int64_t newest = 0)
      : actor(actor), name(std::move(name)), topic(std::move(topic)), newest(newest) {}

  // A cache's head is news: its totals hold, less the feedback that they contain.
  void report(const CacheHead& head);
  bool reported() const { return reported_; }
  double total() const { return sums().total_; }              // W_k
  uint64_t population() const { return sums().population_; }  // N_k
  double min_weight() const { return sums().min_weight_; }    // smallest positive weight: the report's or a later update's; 0 for none
  double scale() const { return head_.scale; }
  double exponent() const { return head_.exponent; }  // of the newest report's weights
  const CacheHead& head() const { return head_; }     // the newest report
  uint64_t applied() const { return news_.applied; }  // feedback that the newest report contains
  // Feedback is numbered from here on: the actor has had some of another lane's.
  void number_from(uint64_t number) { open_ = std::max(open_, number); }
  // True for feedback (modulo 2^32, 0 for none) that the newest report does not contain.
  bool pending(uint32_t number) const {
    const uint64_t settled = std::max(news_.applied, void_);
    return number != 0 && static_cast<int32_t>(number - static_cast<uint32_t>(settled)) > 0;
  }

  // A learner's raw priority, for the actor: part of the open feedback.
  void feed(uint64_t key, double priority);
  // What it did to an item that is held here: its weight went from `before` to `after`.
  void change(double before, double after);
  // Takes such a change of a feedback that the newest report does not contain back: the memory no longer had the item.
  void unchange(uint64_t number, double before, double after);
  uint64_t open() const { return open_; }  // number of the open feedback, from 1
  bool has_feedback() const { return !keys_.empty(); }
  // Bytes of priorities for the actor that it has not taken, or not reported; and of what it is still to be told, and of draws that wait for it.
  uint64_t feedback_bytes() const { return (keys_.size() + taken_keys_) * (sizeof(uint64_t) + sizeof(double)); }
  uint64_t told_bytes() const { return waiting.size() * sizeof(DrawRecord) + (missing.size() + asked.size() + evicted.size()) * sizeof(uint64_t); }
  // Closes the open feedback. False when it is empty.
  bool take_feedback(uint64_t* number, std::vector<uint64_t>* keys, std::vector<double>* priorities);

  // What was taken of feedback and is in no report has perhaps not arrived: it is part of the open feedback again, before what came since. Raw
  // priorities may come twice.
  void offer_again();
  // The same after a restore; and what other numbers the actor may have had meanwhile are passed over.
  void go_on();

  // An item of this weight has become too stale by the newest version.
  void age(double weight);
  // Feedback `number` had changed the weight of such an item: in reports judged by this version that change counts for nothing.
  void void_change(uint64_t number, double before, double after);

  // The segment of the newest report, now in the queue.
  uint32_t segment() {
    if (segments.empty() || segments.back().id != news_.id) segments.push_back(news_);
    return news_.id;
  }
  uint32_t next_segment() const { return news_.id + 1; }
  uint32_t newest_segment() const { return news_.id; }
  // Draws, log and changes made with another exponent are none of the new distribution; so far as they are pending, the next report brings them.
  void start_again();

  // W_k, N_k or the queue's length is another one: Lanes::sums() looks here again.
  void touch() {
    if (touched_ || !news_of_) return;
    touched_ = true;
    news_of_->push_back(this);
  }

  // Draws that a learner may hope for: those queued, but for the fruitless, and those that wait for their payload.
  uint64_t stock() const { return queue.length - std::min(queue.length, fruitless) + waiting.size(); }
  // What a draw reads of it.
  MEMSVC_FETCHES void prefetch() const { __builtin_prefetch(this, 1); }
  // Whether the memory has lost the item.
  bool lost(uint64_t key) const {
    const auto floor = floors.find(stream_of(key));
    return floor != floors.end() && key < floor->second;
  }

  const uint64_t actor;
  const std::string name;
  const std::string topic;
  int64_t newest;                      // version of the topic that the server knows of, 0 for none
  uint32_t era = 0;                    // counts changes of the exponent
  std::vector<DrawRecord> waiting;     // draws whose item's payload is not here, in order
  std::vector<uint64_t> missing;       // keys to ask for, not told yet
  std::unordered_set<uint64_t> asked;  // of a union: keys that were asked for, and have not come
  std::vector<uint64_t> evicted;       // keys gone, not told yet
  std::deque<Segment> segments;        // those of the queue's entries, and of some that are gone
  uint64_t received = 0, starved = 0, inserted = 0;
  uint32_t out = 0;                               // draws that learners have and may give back: without replacement
  uint64_t noted = 0;                             // used(), as of the last Table::progress()
  bool adopted = false;                           // its actor had made items before it came here: the first push tells how many
  std::unordered_map<uint64_t, uint64_t> floors;  // by stream: what lies below has left the memory

  // Changes whenever draws of the queue are used up, or come.
  uint64_t used() const { return drawn * 0x9E3779B97F4A7C15ULL + queue.length; }
  // All but the queue and Raised, which are theirs who own the items.
  template <class A>
  void fields(A& archive) {
    archive(fruitless, steps, drawn, age_sum, age_draws, left, newest, era, waiting, missing, asked, evicted, segments, received, starved, inserted);
    archive(adopted, floors, reported_, head_, news_, void_, changes_, aged_, voids_, open_, keys_, priorities_, taken_);
    if constexpr (A::kReads) {
      stale_ = true;
      taken_keys_ = 0;
      for (const Taken& one : taken_) taken_keys_ += one.keys.size();
      if (!archive.broken() && !sound()) archive.fail();
    }
  }

 private:
  friend class Lanes;
  struct Change {
    static constexpr bool kFlat = true;
    uint64_t number;
    double total;
    int64_t population;
    double min_weight;  // infinity for none
  };
  struct Aged {
    static constexpr bool kFlat = true;
    int64_t newest;
    double total;
    uint64_t population;
  };
  struct Void {
    static constexpr bool kFlat = true;
    int64_t newest;
    uint64_t number;
    double total;
    int64_t population;
  };
  struct Taken {
    uint64_t number = 0;
    std::vector<uint64_t> keys;
    std::vector<double> priorities;
    template <class A>
    void fields(A& archive) {
      archive(number, keys, priorities);
    }
  };
  // What was read can be worked with.
  bool sound() const;
  // The sums are made when they are read: a batch of changes costs one addition each.
  const Lane& sums() const {
    if (stale_) sum_up();
    return *this;
  }
  void sum_up() const;
  void tidy();  // forgets what the newest report has settled
  void changed() {
    stale_ = true;
    touch();
  }

  std::vector<Lane*>* news_of_ = nullptr;  // touched lanes of the table
  bool touched_ = false;
  bool reported_ = false;
  size_t place_ = 0;  // among the table's lanes
  CacheHead head_;
  Segment news_;
  uint64_t void_ = 0;  // feedback up to here is no longer pending, whatever reports contain
  std::deque<Change> changes_;
  std::deque<Aged> aged_;
  std::vector<Void> voids_;
  mutable bool stale_ = false;
  mutable double total_ = 0, min_weight_ = 0;
  mutable uint64_t population_ = 0;
  uint64_t open_ = 1;
  std::vector<uint64_t> keys_;
  std::vector<double> priorities_;
  std::deque<Taken> taken_;  // feedback that no report contains yet
  size_t taken_keys_ = 0;
};

// The lanes of a table, in the order of their actors' numbers.
class Lanes {
 public:
  // What every draw asks of all of them, side by side in their order: a thousand lanes are then a microsecond.
  struct Sums {
    std::vector<double> total, min_weight, living;  // living: the total, or 0 where the actor has left
    std::vector<uint64_t> population, queued;       // queued: the queue's length
  };

  Lanes() = default;
  Lanes(const Lanes&) = delete;
  Lane* find(uint64_t actor) const;
  // A number that none has, mostly larger than all before; `newest` version of its topic.
  Lane* add(uint64_t actor, const std::string& name, const std::string& topic = "default", int64_t newest = 0);
  // The same, made elsewhere.
  Lane* adopt(std::unique_ptr<Lane> lane);
  void remove(uint64_t actor);
  const std::vector<std::unique_ptr<Lane>>& all() const { return lanes_; }
  // Of now. O(lanes that were touched since the last call).
  const Sums& sums() const;
  // The place-th lane's queue has this length now, and nothing else has changed: cheaper than Lane::touch().
  void recount(size_t place, uint64_t queued) { sums_.queued[place] = queued; }
  // Of now, and O(1) where only queues have changed.
  double total() const;         // W
  double living() const;        // W of the actors that have not left
  uint64_t population() const;  // N
  double min_weight() const;    // smallest positive one, 0 for none

 private:
  std::vector<std::unique_ptr<Lane>> lanes_;
  void sum_up() const;

  mutable std::vector<Lane*> touched_;
  mutable Sums sums_;
  mutable bool summed_ = false;  // what follows is of these
  mutable double total_ = 0, living_ = 0, min_weight_ = 0;
  mutable uint64_t population_ = 0;
};

// Lanes by the streams of keys, for a run of keys under one lock: the last ones found stay at hand.
class Owners {
 public:
  Owners(const Actors& actors, const Lanes& lanes) : actors_(actors), lanes_(lanes) {}
  // The lane of the actor whose stream it is; nullptr for none.
  Lane* of(uint64_t stream) {
    Known& known = known_[stream % kKnown];
    if (known.stream != stream) known = {stream, lanes_.find(actors_.owner(stream))};
    return known.lane;
  }

 private:
  static constexpr size_t kKnown = 64;
  struct Known {
    uint64_t stream = ~uint64_t{0};
    Lane* lane = nullptr;
  };
  const Actors& actors_;
  const Lanes& lanes_;
  Known known_[kKnown];
};

}  // namespace memsvc
