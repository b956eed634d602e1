// Numbers of 64 bits kept as codes of 32: -1 and what is below 2^31 - 1 by itself, the others by their place among the distinct ones in use.
// Versions count from 0, so a table keeps 4 bytes an item for them; who numbers them by a clock pays for each distinct one, not for each item.
// O(1). Takes memory only for numbers that are not small: at most one place for each code in use. Not thread-safe.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

namespace memsvc {

class Wide {
 public:
  // The number's code, in use until as many calls of forget() as of keep() have been made with it. Fewer than 2^31 codes at a time.
  uint32_t keep(int64_t number) {
    if (number >= -1 && number < kSmall - 1) return static_cast<uint32_t>(number + 1);
    const auto [found, fresh] = places_.try_emplace(number, static_cast<uint32_t>(large_.size()));
    if (fresh && free_.empty()) {
      large_.push_back({number, 0});
    } else if (fresh) {
      found->second = free_.back();
      free_.pop_back();
      large_[found->second] = {number, 0};
    }
    ++large_[found->second].users;
    return kSmall + found->second;
  }
  int64_t number(uint32_t code) const { return code < kSmall ? int64_t{code} - 1 : large_[code - kSmall].number; }
  void forget(uint32_t code) {
    if (code < kSmall || --large_[code - kSmall].users > 0) return;
    places_.erase(large_[code - kSmall].number);
    free_.push_back(code - kSmall);
  }

 private:
  static constexpr uint32_t kSmall = uint32_t{1} << 31;  // codes below it are small numbers
  struct Large {
    int64_t number;
    uint32_t users;
  };
  std::vector<Large> large_;
  std::vector<uint32_t> free_;
  std::unordered_map<int64_t, uint32_t> places_;
};

}  // namespace memsvc
