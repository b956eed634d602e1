// What learners say of a table's items, by key: priorities and deletions.
#include <algorithm>
#include <cmath>
#include <vector>

#include "table.h"

namespace memsvc {
namespace {

constexpr size_t kTogether = 256;  // keys that are looked up together

}  // namespace

// Each step fetches for all keys what the next one reads: one key after the other would wait for memory at every step.
void Table::find(const uint64_t* keys, size_t n, uint32_t* found) const {
  for (size_t i = 0; i < n; ++i) items.prefetch(keys[i]);
  for (size_t i = 0; i < n; ++i) found[i] = items.guess(keys[i]);
  for (size_t i = 0; i < n; ++i) items.prefetch_guess(found[i]);
  for (size_t i = 0; i < n; ++i) {
    found[i] = items.find(keys[i]);
    if (found[i] != kNone && !whole()) caches.prefetch(found[i]);
  }
}

UpdateResult Table::update(const Actors& actors, const uint64_t* keys, const double* priorities, size_t n) {
  UpdateResult result;
  Owners owners(actors, lanes);
  uint32_t found[kTogether];
  for (size_t begin = 0; begin < n; begin += kTogether) {
    const size_t many = std::min(kTogether, n - begin);
    find(keys + begin, many, found);
    for (size_t i = 0; i < many && !whole(); ++i) {
      const Lane* lane = owners.of(stream_of(keys[begin + i]));
      if (lane && lane->raised && found[i] != kNone) lane->raised->prefetch(found[i]);
    }
    for (size_t i = 0; i < many; ++i) set(&owners, keys[begin + i], priorities[begin + i], found[i], &result);
  }
  if (whole()) united.flush();
  stale += result.stale;
  refused += result.refused.size();
  return result;
}

void Table::set(Owners* owners, uint64_t key, double p, uint32_t item, UpdateResult* result) {
  if (!std::isfinite(p) || p < 0) {
    result->refused.push_back(key);
    return;
  }
  // A union's actors draw no caches: of learners' priorities they need the largest, if new items begin with it.
  const bool feeds = !whole() || spec.source == Source::kMax;
  Lane* lane = owners->of(stream_of(key));
  // What the actor has no more, or may not draw any more, needs no priority.
  const bool gone = lane && !whole() && (lane->lost(key) || (item != kNone && !spec.fresh(items.version(item), lane->newest)));
  if (feeds && lane && !lane->left && !gone) lane->feed(key, p);
  // A union's item that comes back after its eviction must not be drawn before its rows are there: the old one's update is stale.
  if (item == kNone || gone || (whole() && !items.published(item))) {
    ++result->stale;
    return;
  }
  ++result->applied;
  if (whole()) {
    united.set(item, std::min(p * (lane ? lane->scale() : last_scale), 1e300));
  } else {
    caches.update(lane, item, caches.weigh(lane, item, p, last_scale));
  }
}

UpdateResult Table::erase(const Actors& actors, const uint64_t* keys, size_t n) {
  UpdateResult result;
  if (!whole()) {
    result = update(actors, keys, std::vector<double>(n).data(), n);
  } else {
    for (size_t i = 0; i < n; ++i) {
      const uint32_t item = items.find(keys[i]);
      if (item == kNone || !items.published(item)) {
        ++result.stale;
        continue;
      }
      drop(item);
      ++result.applied;
    }
    united.flush();
  }
  deleted += result.applied;
  return result;
}

}  // namespace memsvc
