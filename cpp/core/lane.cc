#include "lane.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace memsvc {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr size_t kMostChanges = 4096;
constexpr double kMost = 1e300;                // of totals and weights
constexpr uint64_t kLeap = uint64_t{1} << 20;  // more feedbacks than are given between two saves

int64_t more_positive(double before, double after) { return static_cast<int64_t>(after > 0) - static_cast<int64_t>(before > 0); }

}  // namespace

void Lane::report(const CacheHead& head) {
  reported_ = true;
  head_ = head;
  steps = head.steps;
  news_ = {news_.id + 1, 0, head.total, std::max(news_.applied, head.applied)};
  while (!changes_.empty() && changes_.front().number <= news_.applied) changes_.pop_front();
  for (; !taken_.empty() && taken_.front().number <= news_.applied; taken_.pop_front()) taken_keys_ -= taken_.front().keys.size();
  changed();
  tidy();
}

void Lane::sum_up() const {
  stale_ = false;
  double total = head_.total;
  double low = head_.min_weight > 0 ? head_.min_weight : kInf;
  int64_t population = static_cast<int64_t>(head_.population);
  for (const Change& change : changes_) {
    total += change.total;
    population += change.population;
    low = std::min(low, change.min_weight);
  }
  for (const Aged& aged : aged_) {
    if (aged.newest <= head_.newest) continue;
    total -= aged.total;
    population -= static_cast<int64_t>(aged.population);
  }
  for (const Void& one : voids_) {
    if (one.newest > head_.newest) continue;
    total -= one.total;
    population -= one.population;
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
  last.population += more_positive(before, after);
  if (after > 0) last.min_weight = std::min(last.min_weight, after);
  changed();
}

void Lane::unchange(uint64_t number, double before, double after) {
  const auto at = std::lower_bound(changes_.begin(), changes_.end(), number, [](const Change& change, uint64_t n) { return change.number < n; });
  if (at == changes_.end()) return;
  at->total -= after - before;
  at->population -= more_positive(before, after);
  changed();
}

bool Lane::take_feedback(uint64_t* number, std::vector<uint64_t>* keys, std::vector<double>* priorities) {
  if (keys_.empty()) return false;
  *number = open_++;
  *keys = std::exchange(keys_, {});
  *priorities = std::exchange(priorities_, {});
  taken_.push_back({*number, *keys, *priorities});
  for (taken_keys_ += keys->size(); taken_keys_ > kMostFeedback; taken_.pop_front()) taken_keys_ -= taken_.front().keys.size();
  return true;
}

void Lane::offer_again() {
  std::vector<uint64_t> keys;
  std::vector<double> priorities;
  for (const Taken& one : taken_) {
    keys.insert(keys.end(), one.keys.begin(), one.keys.end());
    priorities.insert(priorities.end(), one.priorities.begin(), one.priorities.end());
  }
  keys_.insert(keys_.begin(), keys.begin(), keys.end());
  priorities_.insert(priorities_.begin(), priorities.begin(), priorities.end());
  taken_.clear();
  taken_keys_ = 0;
}

void Lane::go_on() {
  offer_again();
  open_ += kLeap;
}

bool Lane::sound() const {
  const auto number = [](double x, double least) { return x >= least && x <= kMost; };
  const auto pairs = [&](const std::vector<uint64_t>& keys, const std::vector<double>& priorities) {
    return keys.size() == priorities.size() && std::all_of(priorities.begin(), priorities.end(), [&](double p) { return p >= 0 && p < kInf; });
  };
  if (!number(head_.total, 0) || !number(head_.min_weight, 0) || !number(head_.scale, 0) || !number(head_.exponent, 0) || !number(age_sum, 0))
    return false;
  for (const DrawRecord& draw : waiting) {
    if (!(draw.weight > 0) || !number(draw.weight, 0)) return false;
  }
  for (size_t i = 0; i < segments.size(); ++i) {
    if (!number(segments[i].total, 0) || (i > 0 && static_cast<int32_t>(segments[i].id - segments[i - 1].id) <= 0)) return false;
  }
  if (!segments.empty() && static_cast<int32_t>(news_.id - segments.back().id) < 0) return false;
  for (size_t i = 0; i < changes_.size(); ++i) {
    if (!number(changes_[i].total, -kMost) || !(changes_[i].min_weight > 0) || (i > 0 && changes_[i].number <= changes_[i - 1].number)) return false;
  }
  for (const Aged& one : aged_) {
    if (!number(one.total, -kMost)) return false;
  }
  for (const Void& one : voids_) {
    if (!number(one.total, -kMost)) return false;
  }
  return number(news_.total, 0) && open_ > 0 && pairs(keys_, priorities_) && keys_.size() <= 2 * kMostFeedback &&
         std::all_of(taken_.begin(), taken_.end(), [&](const Taken& one) { return pairs(one.keys, one.priorities); });
}

void Lane::age(double weight) {
  if (aged_.empty() || aged_.back().newest != newest) aged_.push_back({newest, 0, 0});
  aged_.back().total += weight;
  ++aged_.back().population;
  changed();
}

void Lane::void_change(uint64_t number, double before, double after) {
  if (voids_.empty() || voids_.back().newest != newest || voids_.back().number != number) voids_.push_back({newest, number, 0, 0});
  voids_.back().total += after - before;
  voids_.back().population += more_positive(before, after);
  changed();
}

void Lane::start_again() {
  ++era;
  void_ = open_++;
  changes_.clear();
  aged_.clear();
  voids_.clear();
  changed();
}

void Lane::tidy() {
  // Called for every draw: nothing is summed anew where nothing has gone.
  for (; !aged_.empty() && aged_.front().newest <= head_.newest; aged_.pop_front()) changed();
  if (!voids_.empty() && std::erase_if(voids_, [this](const Void& one) { return one.number <= news_.applied; }) > 0) changed();
}

Lane* Lanes::find(uint64_t actor) const {
  const auto at = std::lower_bound(lanes_.begin(), lanes_.end(), actor, [](const auto& lane, uint64_t number) { return lane->actor < number; });
  return at == lanes_.end() || (*at)->actor != actor ? nullptr : at->get();
}

Lane* Lanes::add(uint64_t actor, const std::string& name, const std::string& topic, int64_t newest) {
  return adopt(std::make_unique<Lane>(actor, name, topic, newest));
}

Lane* Lanes::adopt(std::unique_ptr<Lane> made) {
  const uint64_t actor = made->actor;
  const auto before = std::upper_bound(lanes_.begin(), lanes_.end(), actor, [](uint64_t number, const auto& other) { return number < other->actor; });
  const auto at = before - lanes_.begin();
  Lane* lane = lanes_.insert(before, std::move(made))->get();
  lane->news_of_ = &touched_;
  for (auto i = static_cast<size_t>(at); i < lanes_.size(); ++i) lanes_[i]->place_ = i;
  sums_.total.insert(sums_.total.begin() + at, 0);
  sums_.living.insert(sums_.living.begin() + at, 0);
  sums_.min_weight.insert(sums_.min_weight.begin() + at, 0);
  sums_.population.insert(sums_.population.begin() + at, 0);
  sums_.queued.insert(sums_.queued.begin() + at, 0);
  summed_ = false;
  lane->touch();
  return lane;
}

void Lanes::remove(uint64_t actor) {
  const Lane* lane = find(actor);
  if (!lane) return;
  const auto at = static_cast<std::ptrdiff_t>(lane->place_);
  std::erase(touched_, lane);
  sums_.total.erase(sums_.total.begin() + at);
  sums_.living.erase(sums_.living.begin() + at);
  sums_.min_weight.erase(sums_.min_weight.begin() + at);
  sums_.population.erase(sums_.population.begin() + at);
  sums_.queued.erase(sums_.queued.begin() + at);
  lanes_.erase(lanes_.begin() + at);
  summed_ = false;
  for (size_t i = static_cast<size_t>(at); i < lanes_.size(); ++i) lanes_[i]->place_ = i;
}

const Lanes::Sums& Lanes::sums() const {
  for (Lane* lane : touched_) {
    const size_t place = lane->place_;
    lane->touched_ = false;
    const Lane& of = lane->sums();
    const double living = lane->left ? 0 : of.total_;
    summed_ = summed_ && sums_.total[place] == of.total_ && sums_.living[place] == living && sums_.min_weight[place] == of.min_weight_ &&
              sums_.population[place] == of.population_;
    sums_.total[place] = of.total_;
    sums_.living[place] = living;
    sums_.min_weight[place] = of.min_weight_;
    sums_.population[place] = of.population_;
    sums_.queued[place] = lane->queue.length;
  }
  touched_.clear();
  return sums_;
}

void Lanes::sum_up() const {
  const Sums& now = sums();
  if (summed_) return;
  summed_ = true;
  total_ = 0;
  for (const double total : now.total) total_ += total;
  living_ = 0;
  for (const double total : now.living) living_ += total;
  population_ = 0;
  for (const uint64_t population : now.population) population_ += population;
  double low = kInf;
  for (const double weight : now.min_weight) low = weight > 0 ? std::min(low, weight) : low;
  min_weight_ = low == kInf ? 0 : low;
}

double Lanes::total() const {
  sum_up();
  return total_;
}

double Lanes::living() const {
  sum_up();
  return living_;
}

uint64_t Lanes::population() const {
  sum_up();
  return population_;
}

double Lanes::min_weight() const {
  sum_up();
  return min_weight_;
}

}  // namespace memsvc
