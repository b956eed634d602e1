#include "quota.h"

#include <iterator>

namespace memsvc {

void Quota::add(const std::string& actor, uint64_t key, uint16_t episode, uint32_t span) {
  Actor& of = actors_[actor];
  Stream& stream = streams_[stream_of(key)];
  if (stream.items++ == 0) stream.actor = actor;
  ++of.items;
  of.steps += steps_of(span);
  if (spec_.per_actor_steps > 0) of.keys.push_back(key);
  if (spec_.per_actor_episodes == 0) return;
  const uint64_t name = name_of(key, episode);
  const auto found = of.by_name.find(name);
  if (found == of.by_name.end()) {
    of.episodes.push_back({name, 0, {}});
    of.by_name[name] = std::prev(of.episodes.end());
  } else {
    of.episodes.splice(of.episodes.end(), of.episodes, found->second);
  }
  Episode& newest = of.episodes.back();
  ++newest.items;
  newest.keys.push_back(key);
}

void Quota::remove(uint64_t key, uint16_t episode, uint32_t span) {
  const auto stream = streams_.find(stream_of(key));
  if (stream == streams_.end()) return;
  const std::string name = stream->second.actor;
  if (--stream->second.items == 0) streams_.erase(stream);
  Actor& of = actors_[name];
  of.steps -= steps_of(span);
  if (--of.items == 0) {
    actors_.erase(name);
    return;
  }
  // Those further back are found to be gone when their turn comes, or by tidy().
  if (!of.keys.empty() && of.keys.front() == key) of.keys.pop_front();
  const auto found = of.by_name.find(name_of(key, episode));
  if (found == of.by_name.end() || --found->second->items > 0) return;
  of.episodes.erase(found->second);
  of.by_name.erase(found);
}

void Quota::surplus(const std::string& actor, std::vector<uint64_t>* keys) {
  const auto found = actors_.find(actor);
  if (found == actors_.end()) return;
  Actor& of = found->second;
  if (spec_.per_actor_episodes > 0 && of.episodes.size() > spec_.per_actor_episodes) {
    uint64_t many = of.episodes.size() - spec_.per_actor_episodes;
    for (auto episode = of.episodes.begin(); many > 0; ++episode, --many) keys->insert(keys->end(), episode->keys.begin(), episode->keys.end());
  }
  if (spec_.per_actor_steps == 0 || of.steps <= spec_.per_actor_steps || of.keys.empty()) return;
  keys->push_back(of.keys.front());
  of.keys.pop_front();
}

}  // namespace memsvc
