// Stage two over actors' caches (DEFINITIONS 7): an actor by weight, then one of its items: its next draw, thinned, or, so far as learners have
// raised weights meanwhile, one of those. And demand, the stock of draws wanted from each actor. Not thread-safe: Replay's lock guards it.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "draws.h"
#include "fetch.h"
#include "gather.h"
#include "items.h"
#include "lane.h"
#include "random.h"

namespace memsvc {

// p^exponent, or 1 for tables that draw uniformly; an item with p == 0 is never drawn. p is already multiplied by its actor's scale.
double weight_of(const TableSpec& spec, double p, double exponent);

class Caches {
 public:
  static constexpr uint32_t kEra = 0x3FFFFFFF;  // bits of an era that are kept with an item

  Caches(const TableSpec& spec, Items* items, Lanes* lanes, Random* random) : spec_(spec), items_(items), lanes_(lanes), random_(random) {}

  // Entries for draws of all queues together; half of them is the most that pushes fill. The items have their places already.
  // `holds`: draws whose windows the store holds together, at least; a stock beyond it would only push itself out.
  void place(Arena* arena, uint32_t entries, uint64_t holds);

  // W, N and the smallest weight. Without replacement the population is the draws in the queues.
  Population population() const;
  // What limits.min_items compares with: N, or without replacement all that can still come.
  uint64_t drawable() const;

  // The stock expected, and the largest batch that was asked for.
  std::pair<uint64_t, uint64_t> stock() const { return {expected_, largest_}; }
  void expect_as(uint64_t expected, uint64_t largest) {
    largest_ = std::max(largest_, std::min(largest, largest_batch()));
    expect(expected);
  }
  // Draws that learners are to find in stock over all actors: as many as the store holds, but at least the largest batch.
  void expect(uint64_t draws) { expected_ = std::min(std::max(std::min(draws, holds_), largest_), largest_batch()); }
  // No batch can be larger: a quarter of the entries.
  uint64_t largest_batch() const { return draws_.capacity() / 4; }
  // ceil(expected * W_k / W), at least one cache; one cache too from an actor that has not reported yet; 0 from one that has nothing to draw.
  uint64_t target(const Lane& lane) const { return target(lane, lanes_->living()); }
  // Draws wanted beyond those queued here or waiting for their payload.
  uint64_t wanted(const Lane& lane) const;
  // The stock has fallen below half of its target.
  bool hungry(const Lane& lane, double total) const;  // total: Lanes::living(), which takes a pass over all lanes

  // A cache's head, before its draws are queued. Another exponent than the last one's forgets all draws made with that.
  void report(Lane* lane, const CacheHead& head);
  // Queues a new draw of an item that the caller has pinned for it, and makes its weight w_now unless a learner's newer one is pending.
  // False, and the pin is gone, when the item is too stale or was deleted.
  bool queue(Lane* lane, uint32_t item, double weight);
  // The same for a draw that has waited for its item, which is newer than the draw: its weight stays w_now.
  bool queue_late(Lane* lane, uint32_t item, double weight);
  // What exceeds twice the target gives way, oldest first; but not without replacement, where every draw is the only one of its item.
  void trim(Lane* lane);
  // For want of memory: the oldest draw of the actor with the largest excess over its target gives way, or, where they hold more, the oldest of
  // learners' changes. False when there is neither.
  bool give_way();
  // All draws of the lane, queued and waiting, and learners' changes beside them are forgotten.
  void forget(Lane* lane);

  // What a learner's priority makes of an item's weight: factor * (p * scale)^exponent, as its actor weighs (without one: with these).
  double weigh(const Lane* lane, uint32_t item, double p, double scale) const;
  // What update() of this item touches.
  MEMSVC_FETCHES void prefetch(uint32_t item) const {
    items_->prefetch_links(item);
    __builtin_prefetch(&places_[item], 1);
  }
  // A learner's update, or with 0 a deletion, as part of the lane's open feedback: weight becomes w_now at once.
  void update(Lane* lane, uint32_t item, double weight);
  // A held item has become too stale by the lane's newest version: w_now is 0, and W_k and N_k are without it. False when w_now was 0 already.
  bool expire(Lane* lane, uint32_t item);

  // The actor's memory has lost a held item, as its newest report knows: it is not drawn any more.
  void lose(Lane* lane, uint32_t item);

  // `batch` draws: their items and weights w_now (1 without replacement). All or nothing: false leaves every queue, every count and the
  // random stream as they were. A batch beyond the stock raises the stock expected.
  bool draw(size_t batch, uint32_t* items, double* weights);
  // How many of `batch` draws there are now, thinning included; changes nothing.
  size_t available(size_t batch);

  uint64_t given_way() const { return given_way_; }

  // The queues and logs themselves are saved by key, with the lanes.
  template <class A>
  void fields(A& archive) {
    archive(expected_, largest_, given_way_);
  }
  // For Saved: Draws::copy, and where the items stand in their lanes' logs.
  const Draws& draws() const { return draws_; }
  const uint32_t* places() const { return places_; }
  // For a restore: an item's w_now was set in this era of its lane's exponent; a queued draw, or an entry of the log, of an item; and when the last
  // one of the lane is there.
  void put_era(uint32_t item, uint32_t era) { places_[item] = Raised::kAbsent | (era & kEra); }
  void put(Lane* lane, uint32_t item, double weight, uint32_t segment, uint64_t steps);
  void put_logged(Lane* lane, uint64_t number, uint32_t item, double before);
  void put_last(Lane* lane);
  // The front of a lane's queue: its segment, and how many of that are left; of an empty one the next segment. And what is before that is used up.
  std::pair<uint32_t, uint64_t> front(const Lane& lane) const;
  void use_up(Lane* lane, uint32_t segment, uint64_t left);
  // Without replacement: draws that learners have keep their items. They are confirmed, or wait again; or (a restore) the draws of these items are
  // used up.
  void lend(Lane* lane, uint32_t item);
  void confirm(Lane* lane, uint32_t item);
  void take_back(Lane* lane, uint32_t item);
  void use_up(Lane* lane, const std::unordered_set<uint32_t>& items);
  // I7, I8, R1 to R3, and adds one to pins[item] for every entry, of queues and logs, that names it; what is broken, or "".
  std::string check(uint32_t* pins) const;

 private:
  static constexpr uint64_t kFirstStock = 1024;
  struct Touched {
    Lane* lane;
    size_t place;  // the lane's
    Queue before;
    bool starved;
    size_t segment;           // in lane->segments, at or before that of the queue's front
    uint32_t drawn, waiting;  // waiting: of those drawn, that came from the queue
    uint64_t age_sum;         // of these
  };

  struct Run {
    size_t lane;
    uint64_t places;  // of the batch, one behind the other
  };

  uint64_t target(const Lane& lane, double total) const;
  bool replaces() const { return spec_.select != Select::kWithoutReplacement; }
  // The place of an item whose w_now was set under the lane's exponent, outside Raised.
  static uint32_t settled(const Lane* lane) { return Raised::kAbsent | ((lane ? lane->era : 0) & kEra); }
  void set(uint32_t item, const Lane* lane, double weight);
  size_t choose(size_t batch, uint32_t* items, double* weights);
  bool share_out(size_t places);
  size_t take_runs(size_t place, uint32_t* items, double* weights);
  size_t fetch_runs(size_t begin) const;
  Touched& touch(size_t lane);
  const Segment& front(Touched* touched) const;
  bool take_raised(Touched* touched, uint32_t* item, double* weight);
  bool take(Touched* touched, uint32_t* item, double* weight);
  void undo();
  bool shorten();
  void drop_front(Lane* lane, uint64_t draws);
  void settle(Lane* lane);

  const TableSpec& spec_;
  Items* items_;
  Lanes* lanes_;
  Random* random_;
  Draws draws_;
  uint32_t* places_ = nullptr;  // of the items: in their lane's Raised, or settled()
  uint64_t expected_ = kFirstStock;
  uint64_t holds_ = kFirstStock;
  uint64_t largest_ = 0;  // batch that a learner asked for
  uint64_t given_way_ = 0;
  std::vector<Touched> touched_;   // of the draw under way
  std::vector<uint32_t> touches_;  // a lane's place in it, or kNone
  std::vector<double> masses_;     // what places are shared out by, 0 for lanes without draws
  std::vector<double> upto_;       // their running sum
  std::vector<Run> runs_;          // places by lane
  std::vector<size_t> empty_;      // lanes that should have draws
};

}  // namespace memsvc
