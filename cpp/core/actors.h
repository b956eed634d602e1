// Who writes: actors by number and name, and the streams that are theirs. Not thread-safe: Replay's lock guards it.
//
//   I10 every stream of every actor is found, and no other; no two actors have one name or one stream
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

namespace memsvc {

struct Member {
  uint64_t number = 0;
  std::string name;
  std::vector<uint64_t> streams;
  bool left = false;
};

class Actors {
 public:
  // Stream ids are handed out from first_stream upward, from 1 again after the largest, never one that somebody has.
  explicit Actors(uint64_t first_stream) : next_stream_(first_stream) {}

  Member* find(uint64_t number);
  Member* named(const std::string& name);
  // The number of the actor whose stream it is, 0 for none.
  uint64_t owner(uint64_t stream) const {
    const auto at = owners_.find(stream);
    return at == owners_.end() ? 0 : at->second;
  }
  // Nobody has the name.
  const Member& add(const std::string& name, size_t envs);
  void remove(uint64_t number);
  const std::map<uint64_t, Member>& all() const { return members_; }
  // I10; what is broken, or "".
  std::string check() const;

 private:
  uint64_t next_stream_;
  uint64_t next_number_ = 1;
  std::map<uint64_t, Member> members_;
  std::unordered_map<uint64_t, uint64_t> owners_;
};

}  // namespace memsvc
