// The half of View that weighs: factors, staleness, what goes into the tree, gates, and what changed settings do to all of it.
#include <algorithm>
#include <cmath>
#include <limits>

#include "view.h"

namespace memsvc {

void View::touch(uint32_t slot) {
  if (!weighs_ || items_[slot].dirty) return;
  items_[slot].dirty = true;
  dirty_.push_back(slot);
}

double View::factor(uint32_t slot) const {
  if (!spec_.factors()) return 1;
  const Step& step = episodes_.step(slot);
  double f = spec_.episode_weights ? episodes_.episode(step.episode).weight : 1;
  if (f == 0) return 0;
  f *= std::pow(spec_.step_discount, static_cast<double>(step.index));
  if (spec_.decay < 1) f *= std::pow(spec_.decay, static_cast<double>(times_[slot]));
  return std::clamp(f, 1 / kLargestFactor, kLargestFactor);
}

double View::weight(uint32_t slot) const {
  const Item& item = items_[slot];
  if (!item.made || item.stale || item.spent || !(item.p > 0)) return 0;
  const double w = spec_.select == Select::kUniform ? 1 : weight_of(item.p, spec_.exponent);
  return spec_.factors() ? weighed(factor(slot), w) : w;
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
  // Tables with select = "all" have no weights that could be dirty, but the largest priority too.
  largest_.prune(made_, [this](uint32_t s) { return living(s); });
  if (dirty_.empty()) return;
  weights_.clear();
  if (const uint32_t highest = *std::max_element(dirty_.begin(), dirty_.end()); highest >= tree_->capacity()) grow_tree(highest);
  for (uint32_t slot : dirty_) {
    items_[slot].dirty = false;
    const double w = weight(slot);
    population_ += static_cast<uint64_t>(w > 0) - static_cast<uint64_t>(tree_->weight(slot) > 0);
    weights_.push_back(w);
  }
  tree_->set(dirty_.data(), weights_.data(), dirty_.size());
  dirty_.clear();
}

int64_t View::oldest_fresh() const {
  return spec_.max_staleness < 0 || newest_ <= 0 ? std::numeric_limits<int64_t>::min() : newest_ - spec_.max_staleness;
}

void View::judge(uint32_t slot) {
  items_[slot].stale = !fresh(slot);
  if (items_[slot].stale) {
    ++stale_;
  } else if (spec_.max_staleness >= 0) {
    versions_.add(slot, episodes_.step(slot).version);
  }
}

void View::judge_all() {
  versions_.clear();
  stale_ = 0;
  each([this](const Episode&, uint64_t, uint32_t slot) {
    const bool before = items_[slot].stale;
    judge(slot);
    if (items_[slot].stale != before) touch(slot);
  });
  drop_stale_queue();
}

void View::drop_stale_queue() {
  std::erase_if(queue_, [this](uint32_t slot) {
    const bool stale = !fresh(slot);
    if (stale) items_[slot].spent = true;
    return stale;
  });
}

void View::newest(int64_t version) {
  newest_ = version;
  if (spec_.max_staleness < 0) return;
  versions_.take_below(oldest_fresh(), [this](uint32_t slot) {
    items_[slot].stale = true;
    ++stale_;
    touch(slot);
  });
  drop_stale_queue();
}

void View::changed(const TableSpec& before) {
  if (before.gamma.values != spec_.gamma.values || before.returns_gamma.values != spec_.returns_gamma.values || before.lambda != spec_.lambda) {
    quantities_.changed();
    for (size_t env = 0; env < episodes_.envs(); ++env) {
      for (uint32_t id : episodes_.of(env)) {
        progress(id).known = progress(id).seen = 0;
        look(id);
      }
    }
  }
  if (before.exponent != spec_.exponent) each([this](const Episode&, uint64_t, uint32_t slot) { touch(slot); });
  if (before.max_staleness != spec_.max_staleness) judge_all();
}

void View::gate(uint64_t allowed, bool blocked) {
  lowered_ = lowered_ || allowed < allowed_;
  allowed_ = allowed;
  blocked_ = blocked;
}

std::string View::refusal() const {
  if (blocked_) return "table \"" + spec_.name + "\" is full (capacity.when_full = \"block\"): it takes items once learners have used up others";
  return "table \"" + spec_.name + "\": this actor has made " + std::to_string(inserted_) + " items and may make " + std::to_string(allowed_) +
         " until learners have sampled more (limits.samples_per_insert)";
}

double View::unit() const {
  // The tree holds p^exponent: the normaliser's scale is one factor of all weights, so a drifting mean needs no pass over them.
  return normalises_ && weighs_ ? std::clamp(std::pow(scale(), spec_.exponent), 1e-50, 1e50) : 1;
}

CacheHead View::head() const {
  CacheHead h;
  if (weighs_) {
    h.total = tree_->total() * unit();
    h.population = population_;
    h.min_weight = tree_->min_positive() * unit();
  } else {
    h.unsent = queue_.size() + asked_.size();
  }
  h.scale = scale();
  h.applied = applied_;
  h.inserted = inserted_;
  h.exponent = spec_.exponent;
  h.newest = newest_;
  h.stale = stale_;
  h.short_episodes = short_;
  if (handing_back_) h.allowed = allowed_;
  return h;
}

ViewStats View::stats() const {
  const CacheHead h = head();
  ViewStats s;
  s.total = h.total;
  s.population = h.population;
  s.min_weight = h.min_weight;
  s.scale = h.scale;
  s.exponent = h.exponent;
  s.inserted = inserted_;
  s.held = held_;
  s.unsent = h.unsent;
  s.applied = applied_;
  s.stale = stale_;
  s.short_episodes = short_;
  return s;
}

uint64_t View::bytes() const {
  const size_t more = (spec_.decay < 1 ? sizeof(uint32_t) : 0) + (spec_.max_staleness >= 0 ? 2 * sizeof(uint32_t) : 0);
  return episodes_.touched() * (sizeof(Item) + quantities_.returns_bytes() + more) + (tree_ ? tree_->bytes() : 0);
}

}  // namespace memsvc
