// What each actor may keep in a union: capacity.per_actor_episodes and per_actor_steps. An episode counts from its first item on; the one whose items
// stopped coming first goes first. An item counts for the steps that it begins with: min(stride, span) of a sequence, else 1.
// Knows keys, not items: who asks removes them. Not thread-safe: Replay's lock guards it.
//
//   Q1 steps() is the sum over the items that were added and not removed
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <list>
#include <string>
#include <unordered_map>
#include <vector>

#include "schema.h"
#include "window.h"

namespace memsvc {

class Quota {
 public:
  explicit Quota(const TableSpec& spec) : spec_(spec) {}

  bool bounds() const { return spec_.per_actor_episodes > 0 || spec_.per_actor_steps > 0; }
  // An item of the actor of this name came (a successor of its name goes on counting); an item went, for whatever reason.
  void add(const std::string& actor, uint64_t key, uint16_t episode, uint32_t span);
  void remove(uint64_t key, uint16_t episode, uint32_t span);
  // Keys that must go so that the actor keeps within its bounds, oldest first: to be asked again until there are none. remove() is still to be called
  // for those that are there.
  void surplus(const std::string& actor, std::vector<uint64_t>* keys);
  // Forgets keys of items that went by another way, for which holds(key) is false, once they are the larger part.
  template <typename Holds>
  void tidy(const std::string& actor, const Holds& holds) {
    const auto found = actors_.find(actor);
    if (found == actors_.end()) return;
    Actor& of = found->second;
    const auto gone = [&holds](uint64_t key) { return !holds(key); };
    if (of.keys.size() > 2 * of.items + kSlack) std::erase_if(of.keys, gone);
    for (Episode& episode : of.episodes) {
      if (episode.keys.size() > 2 * episode.items + kSlack) std::erase_if(episode.keys, gone);
    }
  }

  // Calls visit(stream, name of the actor) for every stream that has items here.
  template <typename Visit>
  void streams(const Visit& visit) const {
    for (const auto& [number, stream] : streams_) visit(number, stream.actor);
  }

 private:
  static constexpr size_t kSlack = 1024;
  struct Episode {
    uint64_t name;  // stream and ordinal
    uint64_t items = 0;
    std::vector<uint64_t> keys;
  };
  struct Actor {
    std::list<Episode> episodes;  // by their newest items
    std::unordered_map<uint64_t, std::list<Episode>::iterator> by_name;
    std::deque<uint64_t> keys;  // by arrival, with per_actor_steps; some are gone
    uint64_t items = 0, steps = 0;
  };
  static uint64_t name_of(uint64_t key, uint16_t episode) { return stream_of(key) << 16 | episode; }
  uint64_t steps_of(uint32_t span) const { return spec_.kind == Kind::kSequence ? std::min(spec_.stride, span) : 1; }

  const TableSpec& spec_;
  std::unordered_map<std::string, Actor> actors_;  // those that have items here
  struct Stream {
    std::string actor;
    uint64_t items = 0;
  };
  std::unordered_map<uint64_t, Stream> streams_;  // likewise
};

}  // namespace memsvc
