// Keys of items by the version of the parameters that made them, so that those which become too stale (DEFINITIONS 10) are found without a pass over
// all. An item that goes leaves its note behind: whoever takes notes looks whether the item is there. Bounded by prune(). Not thread-safe.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace memsvc {

class Ages {
 public:
  void note(const std::string& topic, int64_t version, uint64_t key) {
    topics_[topic][version].keys.push_back(key);
    ++notes_;
  }
  uint64_t notes() const { return notes_; }

  void clear() {
    topics_.clear();
    notes_ = 0;
  }

  // Takes notes of versions below `oldest`, the oldest first, and calls stale(key) for each, but for no more than `most`. Whether some are left.
  template <typename Stale>
  bool take_below(const std::string& topic, int64_t oldest, size_t most, const Stale& stale) {
    const auto found = topics_.find(topic);
    if (found == topics_.end()) return false;
    auto& versions = found->second;
    for (; !versions.empty() && versions.begin()->first < oldest; versions.erase(versions.begin())) {
      Notes& notes = versions.begin()->second;
      for (; notes.taken < notes.keys.size(); --most, --notes_) {
        if (most == 0) return true;
        stale(notes.keys[notes.taken++]);
      }
    }
    return false;
  }

  // Forgets notes for which holds(key) is false, and doubled ones.
  template <typename Holds>
  void prune(const Holds& holds) {
    notes_ = 0;
    for (auto& [topic, versions] : topics_) {
      for (auto& [version, notes] : versions) {
        auto& keys = notes.keys;
        keys.erase(keys.begin(), keys.begin() + static_cast<std::ptrdiff_t>(std::exchange(notes.taken, 0)));
        std::erase_if(keys, [&holds](uint64_t key) { return !holds(key); });
        std::sort(keys.begin(), keys.end());
        keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
        notes_ += keys.size();
      }
      std::erase_if(versions, [](const auto& one) { return one.second.keys.empty(); });
    }
  }

  // Calls visit(topic, keys) for the notes of every version.
  template <typename Visit>
  void each(const Visit& visit) const {
    for (const auto& [topic, versions] : topics_) {
      for (const auto& [version, notes] : versions) visit(topic, notes.keys);
    }
  }

 private:
  struct Notes {
    std::vector<uint64_t> keys;
    size_t taken = 0;  // of the first ones
  };
  std::map<std::string, std::map<int64_t, Notes>> topics_;
  uint64_t notes_ = 0;
};

}  // namespace memsvc
