#include "view.h"

#include <algorithm>
#include <cmath>

namespace memsvc {

View::View(const Schema& schema, const TableSpec& spec, Episodes& episodes)
    : spec_(spec),
      episodes_(episodes),
      placement_(spec),
      quantities_(schema, spec, episodes),
      weighs_(spec.select != Select::kAll),
      computes_(spec.select != Select::kUniform && (spec.source == Source::kReturn || spec.source == Source::kTd)),
      normalises_(spec.select != Select::kUniform && spec.source == Source::kReturn),
      items_(episodes.capacity()),
      tree_(weighs_ ? std::make_unique<SumTree>(std::min<uint64_t>(episodes.capacity(), 4096)) : nullptr),
      numbers_(spec.kind == Kind::kSequence ? spec.length : 1) {}

View::Progress& View::progress(uint32_t id) {
  if (id >= progress_.size()) progress_.resize(std::max<size_t>(episodes_.ids(), id + 1));
  return progress_[id];
}

uint64_t View::item_from(const Episode& e, const Progress& at, uint64_t from) const {
  const uint64_t start = placement_.item_from(e, from);
  if (weighs_ || start == kNever || start < at.forced || placement_.final(e, start)) return start;
  return kNever;
}

void View::grown(uint32_t id) {
  if (weighs_) return;
  const Episode& e = episodes_.episode(id);
  Progress& at = progress(id);
  for (uint64_t s = item_from(e, at, at.queued); s != kNever; s = item_from(e, at, s + 1)) {
    queue_.push_back(e.slot(s));
    at.queued = s + 1;
  }
}

double View::step_number(const Episode& e, uint64_t t) const {
  if (spec_.source == Source::kReturn) return std::abs(quantities_.advantage(e.slot(t)));
  if (spec_.source == Source::kTd) return quantities_.td_error(e, t);
  return episodes_.step(e.slot(t)).priority;
}

double View::priority(const Episode& e, uint64_t start) const {
  double p;
  if (spec_.kind == Kind::kSequence) {
    const uint32_t span = placement_.span(e, start);
    for (uint32_t i = 0; i < span; ++i) numbers_[i] = step_number(e, start + i);
    p = mix(numbers_.data(), span, spec_.burn_in, spec_.eta);
  } else {
    p = step_number(e, start);
  }
  // Rewards or values that are not numbers make an item that is never drawn, instead of a sum that is not one.
  return valid_priority(p) ? p : 0;
}

void View::set_priority(uint32_t slot, double p) {
  items_[slot].p = p;
  if (spec_.source == Source::kMax && spec_.select != Select::kUniform) largest_.push(p, slot);
  touch(slot);
}

void View::make(const Episode& e, uint64_t start) {
  const uint32_t slot = e.slot(start);
  double p = 1;
  if (spec_.select != Select::kUniform) {
    p = spec_.source == Source::kMax ? largest_.top([this](uint32_t s) { return living(s); }) : priority(e, start);
  }
  items_[slot].made = true;
  ++made_;
  ++inserted_;
  set_priority(slot, p);
}

void View::look(uint32_t id) {
  const Episode& e = episodes_.episode(id);
  Progress& at = progress(id);
  const uint64_t T = e.steps();
  uint64_t changed = T;  // the oldest step whose number may be new
  if (quantities_.keeps_returns()) {
    changed = quantities_.update_returns(e, at.known);
    at.known = T;
  }
  // A td error looks n steps ahead, so those of the last n - 1 steps seen were not the last word; a termination changes no others.
  if (spec_.source == Source::kTd) changed = at.seen >= spec_.n_step ? at.seen - spec_.n_step + 1 : 0;
  at.seen = T;
  if (computes_) {
    for (uint64_t s = item_from(e, at, placement_.reaching(changed)); s < at.next; s = item_from(e, at, s + 1)) {
      const uint32_t slot = e.slot(s);
      if (items_[slot].learned) continue;
      const double p = priority(e, s);
      if (p != items_[slot].p) set_priority(slot, p);
    }
  }
  for (uint64_t s = item_from(e, at, at.next); s != kNever; s = item_from(e, at, s + 1)) {
    make(e, s);
    at.next = s + 1;
  }
  if (normalises_ && e.ended && !at.counted) {
    for (uint64_t t = e.first; t < T; ++t) normaliser_.add(quantities_.advantage(e.slot(t)));
    at.counted = true;
  }
}

bool View::unsent_in(uint32_t id, bool whole) {
  if (weighs_) return false;
  const Episode& e = episodes_.episode(id);
  Progress& at = progress(id);
  const uint64_t start = placement_.item_from(e, at.sent);
  if (start == kNever || (!whole && start >= placement_.whole_from(e.first + 1))) return false;
  if (item_from(e, at, start) != start) {
    at.forced = std::max(start + 1, e.first + e.present() / 2);
    grown(id);
    look(id);
  }
  return true;
}

bool View::spares_first(uint32_t id) const {
  if (weighs_ || id >= progress_.size()) return false;
  const Episode& e = episodes_.episode(id);
  const uint64_t start = std::min(placement_.item_from(e, progress_[id].sent), e.steps());
  return start >= placement_.whole_from(e.first + 1) + placement_.tail_reach();
}

bool View::unseen_at_first(uint32_t id) const {
  if (id >= progress_.size()) return true;
  const Episode& e = episodes_.episode(id);
  const Progress& at = progress_[id];
  return item_from(e, at, at.next) < placement_.whole_from(e.first + 1);
}

void View::lose_first(uint32_t id) {
  const Episode& e = episodes_.episode(id);
  Progress& at = progress(id);
  if (normalises_) normaliser_.add(quantities_.advantage(e.slot(e.first)));
  const uint64_t end = std::min(at.next, placement_.whole_from(e.first + 1));
  for (uint64_t s = item_from(e, at, 0); s < end; s = item_from(e, at, s + 1)) unmake(e, s, true);
}

void View::lose(uint32_t id) {
  const Episode& e = episodes_.episode(id);
  Progress& at = progress(id);
  for (uint64_t s = item_from(e, at, 0); s < at.next; s = item_from(e, at, s + 1)) unmake(e, s, false);
  at = Progress();
}

void View::unmake(const Episode& e, uint64_t start, bool rows_stay) {
  Item& item = items_[e.slot(start)];
  if (item.held) {
    // The server keeps its copy; what is not counted here is at worst sent twice.
    if (rows_stay) release(spec_, episodes_, e, e.key(start), item.span, item.head);
    --held_;
  }
  item.made = item.learned = item.held = item.asked = false;
  --made_;
  touch(e.slot(start));
}

void View::touch(uint32_t slot) {
  if (!weighs_ || items_[slot].dirty) return;
  items_[slot].dirty = true;
  dirty_.push_back(slot);
}

double View::weight(const Item& item) const {
  if (!item.made) return 0;
  if (spec_.select == Select::kUniform) return item.p > 0 ? 1 : 0;
  return weight_of(item.p, spec_.exponent);
}

void View::grow_tree(uint32_t slot) {
  // A tree takes its memory at once, so it follows the slots in use instead of the bound.
  auto larger = std::make_unique<SumTree>(std::min<uint64_t>(episodes_.capacity(), 2 * (uint64_t{slot} + 1)));
  std::vector<uint32_t> slots(tree_->capacity());
  std::vector<double> weights(tree_->capacity());
  for (uint32_t i = 0; i < slots.size(); ++i) {
    slots[i] = i;
    weights[i] = tree_->weight(i);
  }
  larger->set(slots.data(), weights.data(), slots.size());
  tree_ = std::move(larger);
}

void View::settle() {
  if (dirty_.empty()) return;
  weights_.clear();
  if (const uint32_t highest = *std::max_element(dirty_.begin(), dirty_.end()); highest >= tree_->capacity()) grow_tree(highest);
  for (uint32_t slot : dirty_) {
    items_[slot].dirty = false;
    const double w = weight(items_[slot]);
    population_ += static_cast<uint64_t>(w > 0) - static_cast<uint64_t>(tree_->weight(slot) > 0);
    weights_.push_back(w);
  }
  tree_->set(dirty_.data(), weights_.data(), dirty_.size());
  dirty_.clear();
  largest_.prune(made_, [this](uint32_t s) { return living(s); });
}

double View::factor() const {
  // The tree holds p^exponent: the normaliser's scale is one factor of all weights, so a drifting mean needs no pass over them.
  return normalises_ && weighs_ ? std::clamp(std::pow(scale(), spec_.exponent), 1e-50, 1e50) : 1;
}

CacheHead View::head() const {
  CacheHead h;
  if (weighs_) {
    h.total = tree_->total() * factor();
    h.population = population_;
    h.min_weight = tree_->min_positive() * factor();
  }
  h.scale = scale();
  h.applied = applied_;
  h.inserted = inserted_;
  return h;
}

ViewStats View::stats() const {
  const CacheHead h = head();
  ViewStats s;
  s.total = h.total;
  s.population = h.population;
  s.min_weight = h.min_weight;
  s.scale = h.scale;
  s.inserted = inserted_;
  s.held = held_;
  uint64_t ignored;
  unsent(&s.unsent, &ignored);
  s.applied = applied_;
  return s;
}

uint64_t View::bytes() const { return episodes_.touched() * (sizeof(Item) + quantities_.returns_bytes()) + (tree_ ? tree_->bytes() : 0); }

}  // namespace memsvc
