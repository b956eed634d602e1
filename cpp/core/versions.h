// A view's items by the version of their first step, so that those which a new version makes too stale are found without a pass over the others
// (DEFINITIONS 10). Lists through the slots: O(1) to add and to take out, but for finding the version among those that are here.
// Not thread-safe: its owner's lock guards it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>

#include "episodes.h"
#include "reserve.h"

namespace memsvc {

class Versions {
 public:
  // Room for items in slots below `capacity`, reserved but not touched.
  explicit Versions(size_t capacity) : links_(capacity) {}

  // `slot` is in no list.
  void add(uint32_t slot, int64_t version) {
    uint32_t& first = first_.try_emplace(version, kNone).first->second;
    links_[slot] = {kNone, first};
    if (first != kNone) links_[first].before = slot;
    first = slot;
  }
  // `slot` was added with this version.
  void remove(uint32_t slot, int64_t version) {
    const Link link = links_[slot];
    if (link.after != kNone) links_[link.after].before = link.before;
    if (link.before != kNone) {
      links_[link.before].after = link.after;
    } else if (link.after != kNone) {
      first_.find(version)->second = link.after;
    } else {
      first_.erase(version);
    }
  }
  // Takes out all items with versions below `version` and calls f(slot) for each.
  template <class F>
  void take_below(int64_t version, F&& f) {
    const auto end = first_.lower_bound(version);
    for (auto list = first_.begin(); list != end; ++list) {
      for (uint32_t slot = list->second; slot != kNone; slot = links_[slot].after) f(slot);
    }
    first_.erase(first_.begin(), end);
  }
  void clear() { first_.clear(); }
  // Items here. O(items): for tests.
  uint64_t count() const {
    uint64_t n = 0;
    for (const auto& [version, first] : first_) {
      for (uint32_t slot = first; slot != kNone; slot = links_[slot].after) ++n;
    }
    return n;
  }

 private:
  struct Link {
    uint32_t before, after;
  };
  Reserve<Link> links_;
  std::map<int64_t, uint32_t> first_;
};

}  // namespace memsvc
