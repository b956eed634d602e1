#include "lane.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace memsvc {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr size_t kMostChanges = 4096;

}  // namespace

void Lane::report(const CacheHead& head) {
  reported_ = true;
  report_total_ = head.total;
  report_population_ = head.population;
  report_min_ = head.min_weight;
  scale_ = head.scale;
  applied_ = std::max(applied_, head.applied);
  while (!changes_.empty() && changes_.front().number <= applied_) changes_.pop_front();
  stale_ = true;
}

void Lane::sum_up() const {
  stale_ = false;
  double total = report_total_;
  double low = report_min_ > 0 ? report_min_ : kInf;
  int64_t population = static_cast<int64_t>(report_population_);
  for (const Change& change : changes_) {
    total += change.total;
    population += change.population;
    low = std::min(low, change.min_weight);
  }
  population_ = static_cast<uint64_t>(std::max<int64_t>(population, 0));
  // What rounding leaves of a memory without drawable items must not be drawn from.
  total_ = population_ == 0 ? 0 : std::max(total, 0.0);
  min_weight_ = low == kInf || population_ == 0 ? 0 : low;
}

void Lane::feed(uint64_t key, double priority) {
  if (keys_.size() >= kMostFeedback) {
    keys_.erase(keys_.begin(), keys_.begin() + kMostFeedback / 2);
    priorities_.erase(priorities_.begin(), priorities_.begin() + kMostFeedback / 2);
  }
  keys_.push_back(key);
  priorities_.push_back(priority);
}

void Lane::change(double before, double after) {
  if (changes_.empty() || changes_.back().number != open_) {
    if (changes_.size() >= kMostChanges) {
      // An actor that answers so late: two old feedbacks count as contained only together.
      changes_[1].total += changes_[0].total;
      changes_[1].population += changes_[0].population;
      changes_[1].min_weight = std::min(changes_[0].min_weight, changes_[1].min_weight);
      changes_.pop_front();
    }
    changes_.push_back({open_, 0, 0, kInf});
  }
  Change& last = changes_.back();
  last.total += after - before;
  last.population += static_cast<int64_t>(after > 0) - static_cast<int64_t>(before > 0);
  if (after > 0) last.min_weight = std::min(last.min_weight, after);
  stale_ = true;
}

bool Lane::take_feedback(uint64_t* number, std::vector<uint64_t>* keys, std::vector<double>* priorities) {
  if (keys_.empty()) return false;
  *number = open_++;
  *keys = std::exchange(keys_, {});
  *priorities = std::exchange(priorities_, {});
  return true;
}

Lane* Lanes::find(uint64_t actor) const {
  const auto at = std::lower_bound(lanes_.begin(), lanes_.end(), actor, [](const auto& lane, uint64_t number) { return lane->actor < number; });
  return at == lanes_.end() || (*at)->actor != actor ? nullptr : at->get();
}

Lane* Lanes::add(uint64_t actor, const std::string& name) {
  lanes_.push_back(std::make_unique<Lane>(actor, name));
  return lanes_.back().get();
}

void Lanes::remove(uint64_t actor) {
  std::erase_if(lanes_, [actor](const auto& lane) { return lane->actor == actor; });
}

double Lanes::total() const {
  double sum = 0;
  for (const auto& lane : lanes_) sum += lane->total();
  return sum;
}

uint64_t Lanes::population() const {
  uint64_t sum = 0;
  for (const auto& lane : lanes_) sum += lane->population();
  return sum;
}

double Lanes::min_weight() const {
  double low = kInf;
  for (const auto& lane : lanes_) {
    if (lane->min_weight() > 0) low = std::min(low, lane->min_weight());
  }
  return low == kInf ? 0 : low;
}

}  // namespace memsvc
