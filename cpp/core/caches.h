// Stage two over actors' caches (DEFINITIONS 7): an actor by weight, then its next draw, thinned or split, each used once; and demand, the
// stock of draws wanted from each actor. Not thread-safe: Replay's lock guards it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "draws.h"
#include "items.h"
#include "lane.h"
#include "random.h"

namespace memsvc {

// p^exponent, or 1 for tables that draw uniformly; an item with p == 0 is never drawn. p is already multiplied by its actor's scale.
double weight_of(const TableSpec& spec, double p);

class Caches {
 public:
  Caches(const TableSpec& spec, Items* items, Lanes* lanes, Random* random) : spec_(spec), items_(items), lanes_(lanes), random_(random) {}

  // Entries for draws of all queues together; half of them is the most that pushes fill, the rest is for split draws.
  // `holds`: draws whose windows the store holds together, at least; a stock beyond it would only push itself out.
  void place(Arena* arena, uint32_t entries, uint64_t holds) {
    draws_.place(arena, entries);
    holds_ = holds;
    expect(kFirstStock);
  }

  // Draws that learners are to find in stock over all actors: as many as the store holds, but at least the largest batch.
  void expect(uint64_t draws) { expected_ = std::min(std::max(std::min(draws, holds_), largest_), largest_batch()); }
  // No batch can be larger: a quarter of the entries.
  uint64_t largest_batch() const { return draws_.capacity() / 4; }
  // ceil(expected * W_k / W), at least one cache; one cache too from an actor that has not reported yet; 0 from one that has nothing to draw.
  uint64_t target(const Lane& lane) const;
  // Draws wanted beyond those queued here or waiting for their payload.
  uint64_t wanted(const Lane& lane) const;
  // The stock has fallen below half of its target.
  bool hungry(const Lane& lane) const;

  // Queues a new draw of an item that the caller has pinned for it, and makes its weight w_now unless a learner's newer one is pending.
  void queue(Lane* lane, uint32_t item, double weight);
  // The same for a draw that has waited for its item, which is newer than the draw: its weight stays w_now.
  void queue_late(Lane* lane, uint32_t item, double weight);
  // What exceeds twice the target gives way, oldest first.
  void trim(Lane* lane);
  // The oldest entry of the actor with the largest excess over its target gives way. False when all queues are empty.
  bool give_way();
  // All draws of the lane, queued and waiting, are forgotten.
  void forget(Lane* lane);

  // `batch` draws: their items and weights w_now. All or nothing: false leaves every queue, every count and the
  // random stream as they were. A batch beyond the stock raises the stock expected.
  bool draw(size_t batch, uint32_t* items, double* weights);
  // How many of `batch` draws there are now, thinning included; changes nothing.
  size_t available(size_t batch);

  uint64_t given_way() const { return given_way_; }
  // I7, and adds one to pins[item] for every entry that names it; what is broken, or "".
  std::string check(uint32_t* pins) const;

 private:
  static constexpr uint64_t kFirstStock = 1024;
  struct Touched {
    Lane* lane;
    Queue before;
    uint64_t drawn;
    bool starved;
  };
  size_t choose(size_t batch, uint32_t* items, double* weights);
  bool take(Lane* lane, uint32_t* item, double* weight);
  void undo();
  void drop_front(Lane* lane, uint64_t draws);

  const TableSpec& spec_;
  Items* items_;
  Lanes* lanes_;
  Random* random_;
  Draws draws_;
  uint64_t expected_ = kFirstStock;
  uint64_t holds_ = kFirstStock;
  uint64_t largest_ = 0;  // batch that a learner asked for
  uint64_t given_way_ = 0;
  std::vector<Touched> touched_;  // of the draw under way
  std::vector<size_t> active_;    // of the draw under way: places in touched_
};

}  // namespace memsvc
