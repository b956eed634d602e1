#include "actors.h"

#include <algorithm>
#include <iterator>
#include <unordered_set>
#include <utility>

#include "window.h"

namespace memsvc {
namespace {

constexpr size_t kMostEarlier = 256;  // lives whose streams are remembered

}  // namespace

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

Member* Actors::of_session(uint64_t session) {
  const auto at = sessions_.find(session);
  return at == sessions_.end() ? nullptr : find(at->second);
}

Member& Actors::enter(Member member) {
  member.number = next_number_++;
  member.left = false;
  member.arriving = false;  // what was arriving when it left came as the one that it was then
  if (const auto gone = gone_sessions_.find(member.session); gone != gone_sessions_.end()) forget(gone->second);
  for (const uint64_t stream : member.streams) owners_[stream] = member.number;
  if (member.session != 0) sessions_[member.session] = member.number;
  return members_.emplace(member.number, std::move(member)).first->second;
}

Member& Actors::add(const std::string& name, size_t envs, uint64_t session) {
  Member member;
  member.name = name;
  member.session = session;
  while (member.streams.size() < envs) {
    if (next_stream_ == 0 || next_stream_ > kMaxStream) {
      wrapped_ = wrapped_ || next_stream_ > kMaxStream;
      next_stream_ = 1;
    }
    for (const auto& [from, to] : earlier_) {
      if (next_stream_ >= from && next_stream_ < to && !wrapped_) next_stream_ = to;
    }
    if (next_stream_ > kMaxStream) continue;
    const uint64_t stream = next_stream_++;
    if (owners_.emplace(stream, 0).second) member.streams.push_back(stream);
  }
  return enter(std::move(member));
}

void Actors::begin_again(uint64_t first_stream) {
  if (wrapped_) earlier_.push_back({1, kMaxStream + 1});
  earlier_.push_back({std::min(first_stream_, next_stream_), std::max(first_stream_, next_stream_)});
  if (earlier_.size() > kMostEarlier) earlier_.erase(earlier_.begin());
  first_stream_ = next_stream_ = first_stream;
  wrapped_ = false;
}

bool Actors::find_all() {
  owners_.clear();
  sessions_.clear();
  gone_sessions_.clear();
  std::unordered_set<std::string> names;
  for (auto& [number, member] : members_) {
    if (member.number != number || number == 0 || number >= next_number_ || !names.insert(member.name).second) return false;
    if (member.session != 0 && !sessions_.emplace(member.session, number).second) return false;
  }
  for (auto one = gone_.begin(); one != gone_.end(); ++one) {
    if (one->session == 0 || sessions_.contains(one->session) || !gone_sessions_.emplace(one->session, one).second) return false;
  }
  const auto own = [this](const Member& member, uint64_t number) {
    return std::all_of(member.streams.begin(), member.streams.end(),
                       [&](uint64_t stream) { return stream > 0 && stream <= kMaxStream && owners_.emplace(stream, number).second; });
  };
  return std::all_of(members_.begin(), members_.end(), [&](const auto& one) { return own(one.second, one.first); }) &&
         std::all_of(gone_.begin(), gone_.end(), [&](const Member& member) { return own(member, 0); });
}

bool Actors::given(uint64_t stream) const {
  for (const auto& [from, to] : earlier_) {
    if (stream >= from && stream < to) return true;
  }
  const bool after = stream >= first_stream_, before = stream < next_stream_;
  return wrapped_ ? after || before : after && before;
}

Member* Actors::recall(uint64_t session, const std::string& name, const std::vector<uint64_t>& streams) {
  const auto at = gone_sessions_.find(session);
  if (at == gone_sessions_.end() || at->second->name != name || at->second->streams != streams) return nullptr;
  Member member = std::move(*at->second);
  gone_.erase(at->second);
  gone_sessions_.erase(at);
  return &enter(std::move(member));
}

Member* Actors::adopt(const std::string& name, const std::vector<uint64_t>& streams, uint64_t session) {
  std::vector<uint64_t> sorted = streams;
  std::sort(sorted.begin(), sorted.end());
  if (sorted.empty() || std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end()) return nullptr;
  for (const uint64_t stream : sorted) {
    if (stream == 0 || stream > kMaxStream || given(stream) || owners_.contains(stream)) return nullptr;
  }
  Member member;
  member.name = name;
  member.streams = streams;
  member.session = session;
  return &enter(std::move(member));
}

void Actors::forget(std::list<Member>::iterator one) {
  for (const uint64_t stream : one->streams) owners_.erase(stream);
  gone_sessions_.erase(one->session);
  gone_.erase(one);
}

void Actors::remove(uint64_t number, bool remember) {
  const auto at = members_.find(number);
  if (at == members_.end()) return;
  Member member = std::move(at->second);
  members_.erase(at);
  const auto known = sessions_.find(member.session);
  if (known != sessions_.end() && known->second == number) sessions_.erase(known);
  if (!remember || member.session == 0) {
    for (const uint64_t stream : member.streams) owners_.erase(stream);
    return;
  }
  for (const uint64_t stream : member.streams) owners_[stream] = 0;
  gone_.push_back(std::move(member));
  gone_sessions_[gone_.back().session] = std::prev(gone_.end());
  if (gone_.size() > kMostSessions) forget(gone_.begin());
}

std::string Actors::check() const {
  size_t streams = 0;
  for (const auto& [number, member] : members_) {
    streams += member.streams.size();
    for (const uint64_t stream : member.streams) {
      if (owner(stream) != number) return "I10: stream " + std::to_string(stream) + " is not " + member.name + "'s";
    }
    const auto known = sessions_.find(member.session);
    if (member.session != 0 && (known == sessions_.end() || known->second != number)) return "I10: " + member.name + "'s session is not found";
  }
  for (const Member& member : gone_) {
    streams += member.streams.size();
    if (!gone_sessions_.contains(member.session)) return "I10: the session of " + member.name + ", who is gone, is not found";
  }
  if (gone_sessions_.size() != gone_.size()) return "I10: sessions of nobody";
  return streams == owners_.size() ? "" : "I10: streams without an actor";
}

}  // namespace memsvc
