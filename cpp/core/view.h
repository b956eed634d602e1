// One table's view of an actor's memory: its items, their priorities and weights, and what the server holds of them (DEFINITIONS 4, 6, 7 stage one).
// Items are found by the slot of their first step. Work is put off until something is drawn or reported: `look` follows an episode's growth, `settle`
// brings the weights into the tree. Not thread-safe: its owner's lock guards it.
//
// Invariants (checked by `verify`, which looks and settles first):
//   1. An item is made exactly where Placement puts one (for select = "all": one that is final or forced).
//   2. The tree's weight of a slot is weight_of(p) of its item (1 for "uniform" with p > 0), 0 where there is none; population counts
//      the positive ones.
//   3. held() counts the items with the held flag, and only made items have it.
//   4. Items in the queue of "all" are made, not sent, and in each episode in the order of their starts.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "memory.h"
#include "payload.h"
#include "placement.h"
#include "priority.h"
#include "quantities.h"
#include "random.h"
#include "tree.h"

namespace memsvc {

class View {
 public:
  View(const Schema& schema, const TableSpec& spec, Episodes& episodes);

  const TableSpec& spec() const { return spec_; }
  bool all() const { return spec_.select == Select::kAll; }

  // The episode has grown or ended: queues what has become final for select = "all".
  void grown(uint32_t id);
  // Makes the episode's new items and brings returns and priorities up to date; feedback stays.
  void look(uint32_t id);
  // Whether an item that needs the episode's oldest step (whole = false), or any step of it (true), still has to be sent. Items that a growing
  // episode has not made final yet become so in this call, as far as the older half of the episode goes: else a memory shorter than an episode would
  // wait for ever.
  bool unsent_in(uint32_t id, bool whole);
  // Whether no item that is still to be sent, now or once the episode has grown, needs the episode's oldest step. For select = "all".
  bool spares_first(uint32_t id) const;
  // Whether losing the oldest step takes an item that look() has not seen yet.
  bool unseen_at_first(uint32_t id) const;
  // Before the episode's oldest step is dropped; before the whole episode is.
  void lose_first(uint32_t id);
  void lose(uint32_t id);
  // Weights of everything that has changed go into the tree.
  void settle();

  // Adds items, draws and gone keys to an empty payload, after settle(). False when there is nothing to say.
  bool fill(uint64_t draws, size_t max_bytes, Random& random, Payload* payload);
  // The head's share of the view, as of the last settle().
  CacheHead head() const;

  uint64_t feedback(uint64_t number, const uint64_t* keys, const double* priorities, size_t n);
  void evicted(const uint64_t* keys, size_t n);
  void missing(const uint64_t* keys, size_t n);
  void forget_server();  // nothing is held there; feedback counts from 1 again
  void unsent(uint64_t* items, uint64_t* bytes) const;
  ViewStats stats() const;
  uint64_t bytes() const;  // memory touched, without the lists
  // Number of the first invariant that does not hold, 0 when all do. O(everything): for tests.
  int verify();

 private:
  struct Item {
    double p;       // raw
    uint32_t span;  // as sent, where held
    uint16_t head;
    bool made : 1, learned : 1, held : 1, asked : 1, dirty : 1;
  };
  struct Progress {
    uint64_t next = 0;    // items that begin below are made
    uint64_t known = 0;   // steps below have a q
    uint64_t seen = 0;    // T at the last look
    uint64_t queued = 0;  // "all": items that begin below are in the queue, or sent
    uint64_t sent = 0;
    uint64_t forced = 0;   // "all": items that begin below count as final
    bool counted = false;  // the normaliser has the steps of this ended episode
  };

  Progress& progress(uint32_t id);
  uint64_t item_from(const Episode& e, const Progress& at, uint64_t from) const;
  void make(const Episode& e, uint64_t start);
  double priority(const Episode& e, uint64_t start) const;
  double step_number(const Episode& e, uint64_t t) const;
  double scale() const { return normalises_ ? normaliser_.scale() : 1; }
  double factor() const;  // of the tree's weights: scale^exponent
  double weight(const Item& item) const;
  double stored(uint32_t slot) const { return slot < tree_->capacity() ? tree_->weight(slot) : 0; }
  void grow_tree(uint32_t slot);
  void touch(uint32_t slot);
  void set_priority(uint32_t slot, double p);
  void unmake(const Episode& e, uint64_t start, bool rows_stay);
  void unhold(const Episode& e, uint64_t start);
  bool find(uint64_t key, uint32_t* id, uint64_t* index) const;
  // The largest priority's question: that of a living item, -1 of a dead one.
  double living(uint32_t slot) const { return items_[slot].made ? items_[slot].p : -1; }
  void send(uint32_t id, uint64_t start, bool all_rows, Payload* payload);
  void resend(size_t max_bytes, Payload* payload);

  const TableSpec& spec_;
  Episodes& episodes_;
  Placement placement_;
  Quantities quantities_;
  const bool weighs_;      // there is a tree: not for "all"
  const bool computes_;    // priorities come from values and rewards
  const bool normalises_;  // source "return"
  Reserve<Item> items_;
  std::unique_ptr<SumTree> tree_;  // over the slots used so far, and some more
  std::vector<Progress> progress_;
  std::vector<uint32_t> dirty_;
  std::deque<uint32_t> queue_;   // "all"
  std::vector<uint64_t> asked_;  // keys that the server misses
  std::vector<uint64_t> gone_;
  Largest largest_;
  Normaliser normaliser_;
  uint64_t made_ = 0, population_ = 0, inserted_ = 0, held_ = 0, applied_ = 0;
  bool empty_told_ = true;  // the last report said that nothing can be drawn
  std::vector<double> weights_;
  mutable std::vector<double> numbers_;  // scratch
  std::vector<uint32_t> drawn_;
};

}  // namespace memsvc
