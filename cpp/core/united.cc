#include "united.h"

#include "caches.h"

namespace memsvc {
namespace {

constexpr size_t kMostChanges = 1024;

}  // namespace

void United::put(uint32_t item, double weight) {
  changed_.push_back(item);
  weights_.push_back(weight);
  if (changed_.size() >= kMostChanges) flush();
}

void United::set(uint32_t item, double p) {
  items_->set_value(item, p);
  put(item, weight_of(spec_, p));
}

void United::clear(uint32_t item) { put(item, 0); }

void United::flush() {
  population_ += static_cast<uint64_t>(tree_.set(changed_.data(), weights_.data(), changed_.size()));
  changed_.clear();
  weights_.clear();
}

bool United::draw(size_t batch, Random* random, uint32_t* items, double* weights) const {
  if (!tree_.draw(batch, true, *random, items)) return false;
  for (size_t i = 0; i < batch; ++i) weights[i] = tree_.weight(items[i]);
  return true;
}

std::string United::check() const {
  uint64_t population = 0;
  for (uint32_t item = 0; item < items_->capacity(); ++item) {
    const double weight = tree_.weight(item);
    population += weight > 0;
    if (weight != (items_->live(item) ? weight_of(spec_, items_->value(item)) : 0)) return "I9: the leaf of item " + std::to_string(item);
  }
  if (population != population_) return "I9: " + std::to_string(population) + " positive leaves, counted " + std::to_string(population_);
  return tree_.consistent() ? "" : "T1 or T3";
}

}  // namespace memsvc
