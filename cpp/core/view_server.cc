// The half of View that faces the server: what is drawn, sent, held there, asked for again and learned.
#include <algorithm>
#include <limits>

#include "view.h"

namespace memsvc {

bool View::find(uint64_t key, uint32_t* id, uint64_t* index) const {
  return episodes_.locate(key, id, index) && items_[episodes_.episode(*id).slot(*index)].made;
}

void View::send(uint32_t id, uint64_t start, bool all_rows, Payload* payload) {
  const Episode& e = episodes_.episode(id);
  const uint32_t slot = e.slot(start);
  Item& item = items_[slot];
  ItemRecord record;
  record.key = e.key(start);
  record.version = episodes_.step(slot).version;
  record.priority = std::min(item.p * scale(), std::numeric_limits<double>::max());
  record.span = item.span = placement_.span(e, start);
  item.head = static_cast<uint16_t>(placement_.head(start));
  record.head = item.head;
  quantities_.write(e, start, record.span, payload->add_item(spec_, e, record, all_rows || item.asked));
  item.held = true;
  item.asked = false;
  ++held_;
}

void View::resend(size_t max_bytes, Payload* payload) {
  for (uint64_t key : gone_) payload->add_gone(key);
  gone_.clear();
  size_t done = 0;
  for (; done < asked_.size() && (payload->empty() || payload->bytes() <= max_bytes); ++done) {
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

bool View::fill(uint64_t draws, size_t max_bytes, Random& random, Payload* payload) {
  resend(max_bytes, payload);
  if (!weighs_) {
    while (!queue_.empty() && (payload->empty() || payload->bytes() <= max_bytes)) {
      const Step& step = episodes_.step(queue_.front());
      send(step.episode, step.index, false, payload);
      progress(step.episode).sent = step.index + 1;
      queue_.pop_front();
    }
    return !payload->empty();
  }
  drawn_.resize(std::min<uint64_t>(draws, 1 << 20));
  if (!drawn_.empty() && population_ > 0 && tree_->draw(drawn_.size(), false, random, drawn_.data())) {
    const double f = factor();
    for (uint32_t slot : drawn_) {
      const Step& step = episodes_.step(slot);
      if (!items_[slot].held) send(step.episode, step.index, false, payload);
      payload->add_draw(episodes_.episode(step.episode).key(step.index), tree_->weight(slot) * f);
      // The draw that passes the bound stays: a rule that threw it away would draw large items less often.
      if (payload->bytes() > max_bytes) break;
    }
  }
  const bool empty = population_ == 0;
  const bool speaks = draws == 0 || !payload->empty() || !(empty && empty_told_);
  if (speaks) empty_told_ = empty;
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

void View::forget_server() {
  for (uint64_t slot = 0; slot < episodes_.touched(); ++slot) items_[slot].held = items_[slot].asked = false;
  held_ = applied_ = 0;
  asked_.clear();
  gone_.clear();
  empty_told_ = false;
}

void View::unsent(uint64_t* items, uint64_t* bytes) const {
  *items = weighs_ ? 0 : queue_.size() + asked_.size();
  *bytes = *items * (sizeof(ItemRecord) + spec_.made_bytes + placement_.pace() * (sizeof(uint64_t) + episodes_.row_stride()));
}

int View::verify() {
  uint64_t made = 0, held = 0, positive = 0;
  for (size_t env = 0; env < episodes_.envs(); ++env) {
    for (uint32_t id : episodes_.of(env)) {
      const Episode& e = episodes_.episode(id);
      const Progress& at = progress(id);
      uint64_t next = item_from(e, at, 0);
      for (uint64_t t = e.first; t < e.count; ++t) {
        const Item& item = items_[e.slot(t)];
        if (item.made != (t == next)) return 1;
        if (t == next) next = item_from(e, at, t + 1);
        if (weighs_ && stored(e.slot(t)) != weight(item)) return 2;
        if (item.held && !item.made) return 3;
        made += item.made;
        held += item.held;
        positive += weighs_ && weight(item) > 0;
      }
      if (next != kNever) return 1;
    }
  }
  if (made != made_) return 1;
  if (positive != population_) return 2;
  if (held != held_) return 3;
  std::vector<uint64_t> last(episodes_.ids(), 0);
  for (uint32_t slot : queue_) {
    const Step& step = episodes_.step(slot);
    if (!items_[slot].made || step.index < progress(step.episode).sent || step.index < last[step.episode]) return 4;
    last[step.episode] = step.index + 1;
  }
  return 0;
}

}  // namespace memsvc
