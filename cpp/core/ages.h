// Keys of items by the version of the parameters that made them, so that those which become too stale (DEFINITIONS 10) are found without a pass over
// all. An item that goes leaves its note behind: whoever takes notes looks whether the item is there. Bounded by prune(). Not thread-safe.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace memsvc {

class Ages {
 public:
  void note(const std::string& topic, int64_t version, uint64_t key) {
    topics_[topic][version].push_back(key);
    ++notes_;
  }
  uint64_t notes() const { return notes_; }

  void clear() {
    topics_.clear();
    notes_ = 0;
  }

  // Takes the notes of versions below `oldest` and calls stale(key) for each.
  template <typename Stale>
  void take_below(const std::string& topic, int64_t oldest, const Stale& stale) {
    const auto found = topics_.find(topic);
    if (found == topics_.end()) return;
    auto& versions = found->second;
    while (!versions.empty() && versions.begin()->first < oldest) {
      const std::vector<uint64_t> keys = std::move(versions.begin()->second);
      versions.erase(versions.begin());
      notes_ -= keys.size();
      for (const uint64_t key : keys) stale(key);
    }
  }

  // Forgets notes for which holds(key) is false, and doubled ones.
  template <typename Holds>
  void prune(const Holds& holds) {
    notes_ = 0;
    for (auto& [topic, versions] : topics_) {
      for (auto& [version, keys] : versions) {
        std::erase_if(keys, [&holds](uint64_t key) { return !holds(key); });
        std::sort(keys.begin(), keys.end());
        keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
        notes_ += keys.size();
      }
      std::erase_if(versions, [](const auto& one) { return one.second.empty(); });
    }
  }

 private:
  std::map<std::string, std::map<int64_t, std::vector<uint64_t>>> topics_;
  uint64_t notes_ = 0;
};

}  // namespace memsvc
