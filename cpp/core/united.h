// The union of all actors' items at the server (DEFINITIONS 7, select = "all"): each item is sent once and drawn by w_now, or in an order, as often
// as max_times_sampled allows. Leaves of the tree are the places of the table's items. Not thread-safe: Replay's lock guards it.
//
//   I9 a drawable item (published, w > 0, not drawn max_times_sampled times) has the leaf w = factor * p^exponent, every other one 0; an order
//      has the drawable items; population counts them, draws_left how often they can still be drawn together
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "gather.h"
#include "items.h"
#include "order.h"
#include "random.h"
#include "replay.h"
#include "tree.h"

namespace memsvc {

class United {
 public:
  // Memory for `capacity` items: what an order takes comes from the arena (an unmapped one is only counted).
  void place(const TableSpec& spec, Items* items, Arena* arena);
  // What the tree takes outside of it, once grow() is called. grow() throws std::bad_alloc.
  size_t tree_bytes() const { return spec_->ordered() ? 0 : SumTree::bytes_for(items_->places()); }
  void grow();

  // W, N and the smallest weight; in an order every item weighs 1.
  Population population() const;
  // Of the items of `version` or newer. O(capacity).
  Population population(int64_t version) const;
  double weight_of_draw(uint32_t item) const { return tree_ ? weight(item) : drawable_[item]; }
  // Places of a batch that can be filled now; UINT64_MAX where items may be drawn again and again. O(capacity) with a version.
  uint64_t available(int64_t version) const;

  // A new priority p (already scaled) of a published item. Holds after flush(), as all changes do.
  void set(uint32_t item, double p) {
    items_->set_value(item, p);
    touch(item);
  }
  // The weight follows what the items say.
  void touch(uint32_t item);
  void touch_all();
  // The item is about to be removed.
  void clear(uint32_t item);
  // Brings the tree up to date, a whole batch at once. Every public call of Replay flushes before it gives the lock back.
  void flush();

  // A batch: its items, their weights, and what P, N and W refer to. Random samplers: stratified, with replacement. False, and nothing has changed,
  // when fewer than `batch` draws are there. Draws count as flying (Items::flying) where max_times_sampled bounds them, and decay weights.
  bool draw(size_t batch, int64_t version, Random* random, uint32_t* items, double* weights, Population* from);
  // One flying draw of an item is confirmed; true: it was the last that the item could give. Or it is taken back.
  bool confirm(uint32_t item);
  void take_back(uint32_t item);
  // A draw of it is made that is confirmed at once; true as of confirm(). The item has been drawn once more as to its weight.
  bool use_up(uint32_t item);
  void decay(uint32_t item);

  // I9, while no push is under way; what is broken, or "".
  std::string check() const;

 private:
  bool bounded() const { return spec_->max_times_sampled > 0; }
  uint64_t left(uint32_t item) const { return spec_->max_times_sampled - items_->times(item); }
  bool drawable(uint32_t item) const { return tree_ && !bounded() ? tree_->weight(item) > 0 : drawable_[item]; }
  double full_weight(uint32_t item) const;  // factor * p^exponent, or with "uniform" factor where p > 0
  double weight(uint32_t item) const { return bounded() && left(item) == 0 ? 0 : full_weight(item); }
  void put(uint32_t item, double weight);
  void mark(uint32_t item, bool drawable);
  bool take(uint32_t item);
  bool draw_random(size_t batch, Random* random, uint32_t* items);
  bool draw_recent(size_t batch, int64_t version, Random* random, uint32_t* items);
  bool draw_ordered(size_t batch, int64_t version, uint32_t* items);

  const TableSpec* spec_ = nullptr;
  Items* items_ = nullptr;
  std::unique_ptr<SumTree> tree_;  // random samplers
  Order order_;                    // "max" and "min"
  uint64_t population_ = 0;
  uint64_t draws_left_ = 0;   // where bounded
  bool* drawable_ = nullptr;  // where bounded or ordered
  std::vector<uint32_t> changed_;
  std::vector<double> weights_;
};

}  // namespace memsvc
