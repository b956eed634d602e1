#include "episodes.h"

#include <algorithm>

namespace memsvc {
namespace {

constexpr uint64_t kAhead = 8;  // slots that are fetched ahead

}  // namespace

Episodes::Episodes(size_t row_stride, uint64_t max_steps, const std::vector<uint64_t>& streams)
    : row_stride_(row_stride),
      capacity_(std::min<uint64_t>(std::max<uint64_t>(max_steps, 2 * streams.size()), (1ULL << 31) - 1)),
      share_(std::max<uint64_t>(2, capacity_ / std::max<size_t>(1, streams.size()))),
      // Every ended episode has a step, so final rows never outnumber steps.
      rows_(2 * capacity_ * row_stride),
      steps_of_(capacity_),
      uses_(2 * capacity_),
      streams_(streams.size()) {
  for (size_t env = 0; env < streams.size(); ++env) {
    streams_[env].id = streams[env];
    env_of_[streams[env]] = static_cast<uint32_t>(env);
  }
}

uint64_t Episodes::bytes() const { return fresh_ * (row_stride_ + sizeof(Step) + sizeof(RowUse)) + fresh_finals_ * (row_stride_ + sizeof(RowUse)); }

std::vector<uint64_t> Episodes::streams() const {
  std::vector<uint64_t> ids;
  for (const Stream& s : streams_) ids.push_back(s.id);
  return ids;
}

bool Episodes::numbers_left(size_t env) const {
  const Stream& s = streams_[env];
  const uint64_t next = s.open == kNone ? s.next : episodes_[s.open]->base + episodes_[s.open]->count;
  return next + 2 < (1ULL << kStepBits);
}

uint32_t Episodes::take(std::vector<uint32_t>* free, uint64_t* fresh, uint64_t begin) {
  // The slot freed last is the likeliest to be in the cache, and memory never used stays unused.
  if (free->empty()) return static_cast<uint32_t>(begin + (*fresh)++);
  const uint32_t slot = free->back();
  free->pop_back();
  return slot;
}

uint32_t Episodes::new_episode(size_t env) {
  uint32_t id;
  if (free_episodes_.empty()) {
    id = static_cast<uint32_t>(episodes_.size());
    episodes_.push_back(std::make_unique<Episode>());
  } else {
    id = free_episodes_.back();
    free_episodes_.pop_back();
    std::vector<uint32_t> slots = std::move(episodes_[id]->slots);
    slots.clear();
    *episodes_[id] = Episode();
    episodes_[id]->slots = std::move(slots);
  }
  Stream& s = streams_[env];
  Episode& e = *episodes_[id];
  e.ordinal = s.begun++;
  e.env = static_cast<uint32_t>(env);
  e.stream = s.id;
  e.base = s.next;
  s.open = id;
  s.episodes.push_back(id);
  return id;
}

uint64_t Episodes::floor(size_t env) const {
  const Stream& s = streams_[env];
  if (s.episodes.empty()) return make_key(s.id, s.next);
  const Episode& oldest = *episodes_[s.episodes.front()];
  return oldest.key(oldest.first);
}

uint32_t Episodes::append(size_t env, double priority, int64_t version, uint32_t* episode) {
  const uint32_t id = streams_[env].open == kNone ? new_episode(env) : streams_[env].open;
  Episode& e = *episodes_[id];
  const uint32_t slot = take(&free_, &fresh_, 0);
  steps_of_[slot] = Step{e.count++, version, priority, id};
  e.slots.push_back(slot);
  ++steps_;
  *episode = id;
  return slot;
}

uint32_t Episodes::finish(size_t env, bool terminated, double weight) {
  Stream& s = streams_[env];
  Episode& e = *episodes_[s.open];
  e.final_slot = take(&free_finals_, &fresh_finals_, capacity_);
  e.ended = true;
  e.terminated = terminated;
  e.weight = weight;
  s.next = e.base + e.count + 1;
  finished_.push_back(s.open);
  s.open = kNone;
  return e.final_slot;
}

void Episodes::drop_first(Episode& e) {
  const uint32_t slot = e.slot(e.first);
  uses_[slot].held = 0;
  free_.push_back(slot);
  --steps_;
  ++e.first;
  // The list is moved up only when half of it is dead, so that losing a step costs O(1) on average.
  if (e.first - e.offset > e.slots.size() / 2) {
    e.slots.erase(e.slots.begin(), e.slots.begin() + static_cast<std::ptrdiff_t>(e.first - e.offset));
    e.offset = e.first;
  }
}

void Episodes::drop_oldest() {
  const uint32_t id = finished_.front();
  Episode& e = *episodes_[id];
  for (uint64_t i = e.count; i-- > e.first;) {
    const uint32_t slot = e.slot(i);
    if (i >= e.first + kAhead) __builtin_prefetch(&uses_[e.slot(i - kAhead)], 1);
    uses_[slot].held = 0;
    free_.push_back(slot);
  }
  steps_ -= e.present();
  uses_[e.final_slot].held = 0;
  free_finals_.push_back(e.final_slot);
  // A stream's episodes end in the order of their numbers, so the first to end is its stream's front.
  streams_[e.env].episodes.pop_front();
  finished_.pop_front();
  free_episodes_.push_back(id);
}

bool Episodes::locate(uint64_t key, uint32_t* episode, uint64_t* index) const {
  const auto env = env_of_.find(stream_of(key));
  if (env == env_of_.end()) return false;
  const std::deque<uint32_t>& list = streams_[env->second].episodes;
  const uint64_t number = step_of(key);
  auto after = std::upper_bound(list.begin(), list.end(), number, [this](uint64_t n, uint32_t id) { return n < episodes_[id]->base; });
  if (after == list.begin()) return false;
  *episode = *--after;
  const Episode& e = *episodes_[*episode];
  *index = number - e.base;
  return *index >= e.first && *index < e.count;
}

void Episodes::renumber(const std::vector<uint64_t>& streams) {
  std::unordered_map<uint64_t, uint64_t> next_of;
  for (const Stream& s : streams_) next_of[s.id] = s.open == kNone ? s.next : episodes_[s.open]->base + episodes_[s.open]->count + 1;
  env_of_.clear();
  for (size_t env = 0; env < streams_.size(); ++env) {
    Stream& s = streams_[env];
    s.id = streams[env];
    const auto known = next_of.find(s.id);
    s.next = known == next_of.end() ? 0 : known->second;
    env_of_[s.id] = static_cast<uint32_t>(env);
    for (uint32_t id : s.episodes) {
      Episode& e = *episodes_[id];
      e.stream = s.id;
      e.base = s.next;
      if (id != s.open) s.next = e.base + e.count + 1;
    }
  }
}

void Episodes::release_all() {
  for (uint64_t slot = 0; slot < fresh_; ++slot) uses_[slot].held = 0;
  for (uint64_t slot = capacity_; slot < capacity_ + fresh_finals_; ++slot) uses_[slot].held = 0;
}

int Episodes::verify() const {
  uint64_t total = 0, ended = 0;
  for (size_t env = 0; env < streams_.size(); ++env) {
    const Stream& s = streams_[env];
    for (size_t i = 0; i < s.episodes.size(); ++i) {
      const Episode& e = *episodes_[s.episodes[i]];
      const bool newest = i + 1 == s.episodes.size();
      if (e.env != env || e.stream != s.id) return 1;
      if (!newest && episodes_[s.episodes[i + 1]]->base < e.base + e.count + 1) return 1;
      if (newest && e.ended && s.next != e.base + e.count + 1) return 1;
      for (uint64_t t = e.first; t < e.count; ++t) {
        const Step& step = steps_of_[e.slot(t)];
        if (step.index != t || step.episode != s.episodes[i]) return 2;
      }
      total += e.present();
      ended += e.ended;
      if (e.ended != (e.final_slot != kNone)) return 3;
      if (!e.ended && (!newest || s.open != s.episodes[i])) return 4;
      if (e.present() == 0) return 5;
    }
  }
  if (total != steps_ || steps_ > capacity_ || fresh_ - free_.size() != steps_) return 3;
  if (ended != finished_.size() || fresh_finals_ - free_finals_.size() != ended) return 3;
  return 0;
}

}  // namespace memsvc
