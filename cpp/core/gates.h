// What actors have last told, and what they may do without asking: items they may insert (a table with a limiter) or send (a table that blocks when
// it is full). Grants are never worth more together than what there is, so nothing that was granted has to be refused. Not thread-safe: Replay's lock
// guards it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>

#include "cache.h"

namespace memsvc {

class Gates {
 public:
  static constexpr uint64_t kFirstGrant = 16;

  struct Actor {
    std::string topic;      // of the parameters it follows
    CacheHead head;         // of its newest push
    uint64_t allowed = 0;   // its counter of inserted items may reach this
    uint64_t progress = 0;  // items it had made between the last two pushes that told of any
    uint64_t room = 0;      // items it may send
    bool idle = false;      // it has handed allowance back, and said nothing since
    template <class A>
    void fields(A& archive) {
      archive(topic, head, allowed, progress, room, idle);
    }
    uint64_t outstanding() const { return allowed > head.inserted ? allowed - head.inserted : 0; }
  };

  void join(uint64_t actor, const std::string& topic) { actors_[actor].topic = topic; }
  // One that was here before, with its newest push.
  void rejoin(uint64_t actor, const std::string& topic, const CacheHead& head) {
    const auto [at, anew] = actors_.try_emplace(actor);
    if (!anew) return;
    at->second.topic = topic;
    at->second.head = head;
    at->second.allowed = head.inserted;
  }
  void leave(uint64_t actor) { actors_.erase(actor); }
  Actor* find(uint64_t actor) {
    const auto at = actors_.find(actor);
    return at == actors_.end() ? nullptr : &at->second;
  }
  const std::map<uint64_t, Actor>& all() const { return actors_; }
  template <class A>
  void fields(A& archive) {
    archive(actors_);
  }

  // A push of the actor, with so many items. An allowance in its head is one that it keeps, having handed back the rest.
  void pushed(uint64_t actor, const CacheHead& head, uint64_t items) {
    Actor* of = find(actor);
    if (!of) return;
    const uint64_t inserted = std::max(of->head.inserted, head.inserted);
    if (inserted > of->head.inserted) of->progress = inserted - of->head.inserted;
    of->head = head;
    of->head.inserted = inserted;
    of->idle = head.allowed < of->allowed;
    of->allowed = std::max(std::min(of->allowed, head.allowed), inserted);
    of->room -= std::min(of->room, items);
  }

  // What of `budget`, which covers all allowances together, nobody has; of `free` places likewise.
  uint64_t spare(uint64_t budget) const {
    uint64_t granted = 0;
    for (const auto& [number, of] : actors_) granted += of.outstanding();
    return budget - std::min(budget, granted);
  }
  uint64_t spare_room(uint64_t free) const {
    uint64_t granted = 0;
    for (const auto& [number, of] : actors_) granted += of.room;
    return free - std::min(free, granted);
  }

  // An actor is given more when it has used half of what it may hold. One that has handed back is given nothing before it makes items, or waits for
  // some: else those that pause would hold what others could use.
  bool wants(const Actor& of, uint64_t share) const { return !of.idle && 2 * of.outstanding() < grant(of, share); }
  uint64_t allow(uint64_t actor, uint64_t budget) {
    Actor* of = find(actor);
    if (!of) return 0;
    const uint64_t each = share(budget);
    if (wants(*of, each)) of->allowed = of->head.inserted + of->outstanding() + std::min(spare(budget), grant(*of, each) - of->outstanding());
    return of->allowed;
  }

  // It may send what it has, or its share of half of the table.
  bool wants_room(const Actor& of, uint64_t capacity) const { return of.room < wish(of, capacity); }
  uint64_t give_room(uint64_t actor, uint64_t free, uint64_t capacity) {
    Actor* of = find(actor);
    if (!of) return 0;
    if (wants_room(*of, capacity)) of->room += std::min(spare_room(free), wish(*of, capacity) - of->room);
    return of->room;
  }

  // What each of those that are not idle may hold. O(actors).
  uint64_t share(uint64_t budget) const {
    const auto active = std::count_if(actors_.begin(), actors_.end(), [](const auto& actor) { return !actor.second.idle; });
    return std::max<uint64_t>(1, budget / static_cast<uint64_t>(std::max<int64_t>(1, active)));
  }

 private:
  // What it may hold: its share, or, so that a slow one does not keep for long what others could use, a few times what it makes between two pushes.
  static uint64_t grant(const Actor& of, uint64_t share) { return std::min(share, std::max(kFirstGrant, 4 * of.progress)); }
  // Where half of the table has no place for each of them, actors get what they ask for alone: places given ahead could all be with those that pause.
  uint64_t wish(const Actor& of, uint64_t capacity) const {
    return std::max<uint64_t>(of.head.unsent, capacity / (2 * std::max<size_t>(1, actors_.size())));
  }

  std::map<uint64_t, Actor> actors_;
};

}  // namespace memsvc
