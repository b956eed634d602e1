// The half of View that faces the server: what is drawn, sent, held there, asked for again and learned.
#include <algorithm>
#include <limits>

#include "view.h"

namespace memsvc {
namespace {

constexpr size_t kAhead = 12;  // items that are fetched ahead

}  // namespace

bool View::find(uint64_t key, uint32_t* id, uint64_t* index) const {
  return episodes_.locate(key, id, index) && items_[episodes_.episode(*id).slot(*index)].made;
}

void View::send(uint32_t id, uint64_t start, bool all_rows, Payload* payload) {
  Episode& e = episodes_.episode(id);
  const uint32_t slot = e.slot(start);
  Item& item = items_[slot];
  ItemRecord record;
  record.key = e.key(start);
  record.version = episodes_.step(slot).version;
  record.priority = std::min(item.p * scale(), std::numeric_limits<double>::max());
  record.span = item.span = placement_.span(e, start);
  item.head = static_cast<uint16_t>(placement_.head(start));
  record.head = item.head;
  record.episode = e.ordinal;
  quantities_.write(e, start, record.span, payload->add_item(spec_, e, record, factor(slot), all_rows || item.asked));
  item.held = true;
  item.asked = false;
  ++held_;
}

void View::resend(uint64_t most, size_t max_bytes, Payload* payload) {
  for (uint64_t key : gone_) payload->add_gone(key);
  gone_.clear();
  size_t done = 0;
  for (; done < asked_.size() && payload->items() < most && (payload->empty() || payload->bytes() <= max_bytes); ++done) {
    uint32_t id;
    uint64_t start;
    if (!find(asked_[done], &id, &start)) {
      payload->add_gone(asked_[done]);
    } else if (items_[episodes_.episode(id).slot(start)].asked) {
      send(id, start, true, payload);
    }
  }
  asked_.erase(asked_.begin(), asked_.begin() + static_cast<std::ptrdiff_t>(done));
}

bool View::fill_queued(uint64_t most, size_t max_bytes, Payload* payload) {
  while (!queue_.empty() && payload->items() < most && (payload->empty() || payload->bytes() <= max_bytes)) {
    if (queue_.size() > kAhead) {
      episodes_.prefetch(queue_[kAhead]);
      prefetch(queue_[kAhead]);
    }
    const Step& step = episodes_.step(queue_.front());
    send(step.episode, step.index, false, payload);
    progress(step.episode).sent = step.index + 1;
    queue_.pop_front();
  }
  const bool unpaid = allowed_ != ~uint64_t{0} && inserted_ != inserted_told_;  // what was made and passed over counts for the limiter too
  const bool news = lowered_ || unpaid || (inserted_ == 0 && short_ != short_told_) || (spec_.max_staleness >= 0 && newest_ != newest_told_);
  return news || most == 0 || !payload->empty();
}

void View::add_draw(uint32_t slot, double unit, Payload* payload) {
  const Step& step = episodes_.step(slot);
  if (!items_[slot].held) send(step.episode, step.index, false, payload);
  payload->add_draw(episodes_.episode(step.episode).key(step.index), tree_->weight(slot) * unit);
  if (spec_.decay < 1) {
    times_[slot] += times_[slot] != UINT32_MAX;
    touch(slot);
  }
}

void View::fill_drawn(uint64_t draws, size_t max_bytes, Random& random, Payload* payload) {
  drawn_.resize(std::min<uint64_t>(draws, 1 << 20));
  if (drawn_.empty() || population_ == 0 || !tree_->draw(drawn_.size(), false, random, drawn_.data())) return;
  const double to = unit();
  for (uint32_t slot : drawn_) {
    add_draw(slot, to, payload);
    // The draw that passes the bound stays: a rule that threw it away would draw large items less often.
    if (payload->bytes() > max_bytes) break;
  }
}

void View::fill_once(uint64_t draws, size_t max_bytes, Random& random, Payload* payload) {
  const double to = unit();
  uint32_t slot;
  for (; draws > 0 && population_ > 0 && tree_->draw(1, false, random, &slot); --draws) {
    add_draw(slot, to, payload);
    items_[slot].spent = true;
    tree_->set(slot, 0);
    --population_;
    if (payload->bytes() > max_bytes) break;
  }
}

bool View::fill(uint64_t draws, size_t max_bytes, Random& random, Payload* payload) {
  const uint64_t most = spec_.blocks ? draws : std::numeric_limits<uint64_t>::max();
  resend(most, max_bytes, payload);
  bool speaks;
  if (!weighs_) {
    // With a limiter the actor can say at any time that it waits for allowance.
    speaks = fill_queued(most, max_bytes, payload) || (draws == 0 && allowed_ != ~uint64_t{0});
  } else {
    if (spec_.select == Select::kWithoutReplacement) {
      fill_once(draws, max_bytes, random, payload);
    } else {
      fill_drawn(draws, max_bytes, random, payload);
    }
    const bool empty = population_ == 0;
    speaks = draws == 0 || !payload->empty() || !(empty && empty_told_);
    if (speaks) empty_told_ = empty;
  }
  if (speaks) {
    inserted_told_ = inserted_;
    short_told_ = short_;
    newest_told_ = newest_;
    handing_back_ = lowered_;
    lowered_ = false;
  }
  return speaks;
}

uint64_t View::feedback(uint64_t number, const uint64_t* keys, const double* priorities, size_t n) {
  uint64_t applied = 0;
  for (size_t i = 0; i < n; ++i) {
    uint32_t id;
    uint64_t start;
    if (!valid_priority(priorities[i]) || !find(keys[i], &id, &start)) continue;
    const uint32_t slot = episodes_.episode(id).slot(start);
    items_[slot].learned = true;
    set_priority(slot, priorities[i]);
    ++applied;
  }
  applied_ = number;
  return applied;
}

void View::unhold(const Episode& e, uint64_t start) {
  Item& item = items_[e.slot(start)];
  if (!item.held) return;
  release(spec_, episodes_, e, e.key(start), item.span, item.head);
  item.held = false;
  --held_;
}

void View::evicted(const uint64_t* keys, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    uint32_t id;
    uint64_t start;
    if (find(keys[i], &id, &start)) unhold(episodes_.episode(id), start);
  }
}

void View::missing(const uint64_t* keys, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    uint32_t id;
    uint64_t start;
    if (!find(keys[i], &id, &start)) {
      gone_.push_back(keys[i]);
      continue;
    }
    const Episode& e = episodes_.episode(id);
    unhold(e, start);
    Item& item = items_[e.slot(start)];
    if (!item.asked) asked_.push_back(keys[i]);
    item.asked = true;
  }
}

void View::tell_floors(Payload* payload) {
  if (!weighs_ || spec_.select == Select::kWithoutReplacement) return;
  floors_told_.resize(episodes_.envs());
  for (size_t env = 0; env < episodes_.envs(); ++env) {
    const uint64_t floor = episodes_.floor(env);
    if (floor != floors_told_[env]) payload->add_floor(floor);
    floors_told_[env] = floor;
  }
}

void View::forget_server(bool same_streams) {
  const bool owes = same_streams && !weighs_;  // a union is to have every item
  for (uint64_t slot = 0; slot < episodes_.touched(); ++slot) {
    Item& item = items_[slot];
    item.held = false;
    item.asked = item.asked && owes;
    if (weighs_ && item.spent && !same_streams) {
      item.spent = false;
      touch(static_cast<uint32_t>(slot));
    }
  }
  held_ = applied_ = inserted_told_ = short_told_ = 0;
  // A limiter counts what is new: not again what the server of before has been told of. With the same streams the server sees to that.
  if (!same_streams) inserted_ = weighs_ ? 0 : queue_.size();
  newest_told_ = 0;
  if (!owes) asked_.clear();
  gone_.clear();
  floors_told_.clear();
  empty_told_ = false;
}

void View::unsent(uint64_t* items, uint64_t* bytes) const {
  *items = weighs_ ? 0 : queue_.size() + asked_.size();
  *bytes = *items * (sizeof(ItemRecord) + spec_.made_bytes + placement_.pace() * (sizeof(uint64_t) + episodes_.row_stride()));
}

}  // namespace memsvc
