#include "actors.h"

#include "window.h"

namespace memsvc {

Member* Actors::find(uint64_t number) {
  const auto at = members_.find(number);
  return at == members_.end() ? nullptr : &at->second;
}

Member* Actors::named(const std::string& name) {
  for (auto& [number, member] : members_) {
    if (member.name == name) return &member;
  }
  return nullptr;
}

const Member& Actors::add(const std::string& name, size_t envs) {
  Member member;
  member.number = next_number_++;
  member.name = name;
  while (member.streams.size() < envs) {
    if (next_stream_ == 0 || next_stream_ > kMaxStream) next_stream_ = 1;
    const uint64_t stream = next_stream_++;
    if (owners_.emplace(stream, member.number).second) member.streams.push_back(stream);
  }
  return members_.emplace(member.number, std::move(member)).first->second;
}

void Actors::remove(uint64_t number) {
  const auto at = members_.find(number);
  if (at == members_.end()) return;
  for (const uint64_t stream : at->second.streams) owners_.erase(stream);
  members_.erase(at);
}

std::string Actors::check() const {
  size_t streams = 0;
  for (const auto& [number, member] : members_) {
    streams += member.streams.size();
    for (const uint64_t stream : member.streams) {
      if (owner(stream) != number) return "I10: stream " + std::to_string(stream) + " is not " + member.name + "'s";
    }
  }
  return streams == owners_.size() ? "" : "I10: streams without an actor";
}

}  // namespace memsvc
