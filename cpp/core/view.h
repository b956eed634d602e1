// One table's view of an actor's memory: its items, their priorities and weights, and what the server holds of them (DEFINITIONS 4, 6, 7 stage one).
// Items are found by the slot of their first step. Work is put off until something is drawn or reported: `look` follows an episode's growth, `settle`
// brings the weights into the tree. Not thread-safe: its owner's lock guards it.
//
// Invariants (checked by `verify`, which looks and settles first):
//   1. An item is made exactly where Placement puts one (for select = "all": one that is final or forced).
//   2. The tree's weight of a slot is weight() of its item, 0 where there is none; population counts the positive ones.
//   3. held() counts the items with the held flag, and only made items have it.
//   4. Items in the queue of "all" are made, fresh, not sent, and in each episode in the order of their starts.
//   5. A made item is marked stale exactly where TableSpec::fresh says that it is not fresh; these have weight 0, and with max_staleness the others
//      are in the lists of Versions.
//   6. Items that were sent without replacement have weight 0.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "fetch.h"
#include "memory.h"
#include "payload.h"
#include "placement.h"
#include "priority.h"
#include "quantities.h"
#include "random.h"
#include "tree.h"
#include "versions.h"

namespace memsvc {

class View {
 public:
  View(const Schema& schema, const TableSpec& spec, Episodes& episodes);

  const TableSpec& spec() const { return spec_; }
  bool all() const { return spec_.select == Select::kAll; }

  // The episode has grown or ended: queues what has become final for select = "all".
  void grown(uint32_t id);
  // Fetches what is kept of a step that is about to be added, looked at, sent or lost.
  MEMSVC_FETCHES void prefetch(uint32_t slot) const { __builtin_prefetch(&items_[slot], 1); }
  // After grown(), once for each episode.
  void ended(uint32_t id);
  // Makes the episode's new items and brings returns and priorities up to date; feedback stays.
  void look(uint32_t id);
  // Whether an item that needs the episode's oldest step (whole = false), or any step of it (true), still has to be sent. Items that a growing
  // episode has not made final yet become so in this call, as far as the older half of the episode goes: else a memory shorter than an episode would
  // wait for ever. What is too stale is never sent, so nothing waits for it.
  bool unsent_in(uint32_t id, bool whole);
  // Whether no item that is still to be sent, now or once the episode has grown, needs the episode's oldest step. For select = "all".
  bool spares_first(uint32_t id);
  // Whether the server has asked for items again that have not been sent since.
  bool owes() const { return !asked_.empty(); }
  // Whether losing the oldest step takes an item that look() has not seen yet.
  bool unseen_at_first(uint32_t id) const;
  // Before the episode's oldest step is dropped; before the whole episode is.
  void lose_first(uint32_t id);
  void lose(uint32_t id);
  // Weights of everything that has changed go into the tree.
  void settle();
  // All episodes have been looked at.
  void looked() { coming_ = 0; }

  // The newest version of the topic. Items that are too stale for it lose their weight: O(these).
  void newest(int64_t version);
  // spec() has changed (TableSpec::change) from `before`, and everything had been looked at: returns, priorities, weights and staleness anew.
  // O(items).
  void changed(const TableSpec& before);

  // No items are made beyond `allowed` (~0: no bound), none at all while blocked.
  void gate(uint64_t allowed, bool blocked);
  bool blocked() const { return blocked_; }
  // Whether the allowance is not used up, for certain, or as of the last looked() at best.
  bool within() const { return inserted_ + coming_ < allowed_; }
  // What to tell the caller of a refused step.
  std::string refusal() const;

  // Adds items, draws and gone keys to an empty payload, after settle(). False when there is nothing to say.
  bool fill(uint64_t draws, size_t max_bytes, Random& random, Payload* payload);
  // The head's share of the view, as of the last settle(); without replacement, less what fill() has drawn since.
  CacheHead head() const;

  uint64_t feedback(uint64_t number, const uint64_t* keys, const double* priorities, size_t n);
  void evicted(const uint64_t* keys, size_t n);
  void missing(const uint64_t* keys, size_t n);
  // Adds, for streams that have lost their oldest steps since it was last said, what is left: draws of the others that wait at the server are not
  // made any more. Without replacement what was sent stays sent.
  void tell_floors(Payload* payload);
  // Another server: nothing is held there; feedback counts from 1 again. With the same streams what was sent stays sent.
  void forget_server(bool same_streams);
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
    // spent: never (again) to be drawn or queued: sent without replacement, or, for "all", passed over as too stale.
    bool made : 1, learned : 1, held : 1, asked : 1, dirty : 1, stale : 1, spent : 1;
  };
  struct Progress {
    uint64_t next = 0;     // items that begin below are made
    uint64_t known = 0;    // steps below have a q
    uint64_t seen = 0;     // T at the last look
    uint64_t queued = 0;   // "all": items that begin below are in the queue, sent or spent
    uint64_t sent = 0;     // "all": items that begin below are sent or spent
    uint64_t forced = 0;   // "all": items that begin below count as final
    bool counted = false;  // the normaliser has the steps of this ended episode
    bool weighed = false;  // the items have the weight of this ended episode
  };

  Progress& progress(uint32_t id);
  uint64_t item_from(const Episode& e, const Progress& at, uint64_t from) const;
  uint64_t unsent_from(const Episode& e, Progress* at);
  void make(const Episode& e, uint64_t start);
  void recompute(const Episode& e, const Progress& at, uint64_t changed);
  double priority(const Episode& e, uint64_t start) const;
  double step_number(const Episode& e, uint64_t t) const;
  double scale() const { return normalises_ ? normaliser_.scale() : 1; }
  double unit() const;  // of the tree's weights: scale^exponent
  double factor(uint32_t slot) const;
  double weight(uint32_t slot) const;
  bool fresh(uint32_t slot) const { return spec_.fresh(episodes_.step(slot).version, newest_); }
  double stored(uint32_t slot) const { return slot < tree_->capacity() ? tree_->weight(slot) : 0; }
  void grow_tree(uint32_t slot);
  void touch(uint32_t slot);
  void set_priority(uint32_t slot, double p);
  void unmake(const Episode& e, uint64_t start, bool rows_stay);
  void unhold(const Episode& e, uint64_t start);
  bool find(uint64_t key, uint32_t* id, uint64_t* index) const;
  // The largest priority's question: that of a living item, -1 of a dead one.
  double living(uint32_t slot) const { return items_[slot].made ? items_[slot].p : -1; }
  int64_t oldest_fresh() const;  // versions below are stale
  void judge(uint32_t slot);
  void judge_all();
  void drop_stale_queue();
  void send(uint32_t id, uint64_t start, bool all_rows, Payload* payload);
  void resend(uint64_t most, size_t max_bytes, Payload* payload);
  bool fill_queued(uint64_t most, size_t max_bytes, Payload* payload);
  void add_draw(uint32_t slot, double unit, Payload* payload);
  void fill_drawn(uint64_t draws, size_t max_bytes, Random& random, Payload* payload);
  void fill_once(uint64_t draws, size_t max_bytes, Random& random, Payload* payload);
  // f(episode, start, slot) for every made item.
  template <class F>
  void each(F&& f) {
    for (size_t env = 0; env < episodes_.envs(); ++env) {
      for (uint32_t id : episodes_.of(env)) {
        const Episode& e = episodes_.episode(id);
        for (uint64_t t = e.first; t < e.count; ++t) {
          if (items_[e.slot(t)].made) f(e, t, e.slot(t));
        }
      }
    }
  }

  const TableSpec& spec_;
  Episodes& episodes_;
  Placement placement_;
  Quantities quantities_;
  const bool weighs_;      // there is a tree: not for "all"
  const bool computes_;    // priorities come from values and rewards
  const bool normalises_;  // source "return"
  Reserve<Item> items_;
  Reserve<uint32_t> times_;        // that an item was drawn, where priority.decay is in use
  std::unique_ptr<SumTree> tree_;  // over the slots used so far, and some more
  std::vector<Progress> progress_;
  std::vector<uint32_t> dirty_;
  std::deque<uint32_t> queue_;   // "all"
  std::vector<uint64_t> asked_;  // keys that the server misses
  std::vector<uint64_t> gone_;
  std::vector<uint64_t> floors_told_;  // by environment
  Largest largest_;
  Normaliser normaliser_;
  Versions versions_;  // fresh items, where max_staleness >= 0
  uint64_t made_ = 0, population_ = 0, inserted_ = 0, held_ = 0, applied_ = 0, stale_ = 0, short_ = 0;
  uint64_t coming_ = 0;  // at most so many items will be made by looks at what has grown
  int64_t newest_ = 0;
  uint64_t allowed_ = ~uint64_t{0};
  bool blocked_ = false;
  bool empty_told_ = true;  // the last report said that nothing can be drawn
  // "all": what the last report did not contain yet.
  uint64_t inserted_told_ = 0, short_told_ = 0;
  int64_t newest_told_ = 0;
  bool lowered_ = false;       // the allowance
  bool handing_back_ = false;  // it was, and the newest payload says so: others are silent about it, as an answer may be on its way
  std::vector<double> weights_;
  mutable std::vector<double> numbers_;  // scratch
  std::vector<uint32_t> drawn_;
};

}  // namespace memsvc
