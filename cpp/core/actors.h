// Who writes: actors by number and name, the streams that are theirs, and which of their pushes have come. Not thread-safe: Replay's lock guards it.
//
// A session is one client object's life, however often its connection breaks: its pushes are numbered 1, 2, 3 ..., and those up to `stored` are not
// taken again. It outlives the actor's place here by as much as kMostSessions allows, so that who comes back after hours still pushes nothing twice.
//
//   I10 every stream of every actor is found, and no other; no two actors have one name, one stream or one session
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace memsvc {

// What became of pushes: received is the sum of the others.
struct PushCounts {
  static constexpr bool kFlat = true;  // archive.h
  uint64_t received = 0;
  uint64_t stored = 0;
  uint64_t duplicate = 0;  // had come before
  uint64_t gap = 0;        // one before it has not come
  uint64_t malformed = 0;
  uint64_t unknown = 0;  // of an actor that has left or was replaced
  uint64_t failed = 0;   // this side had no memory to take it
};

struct Member {
  uint64_t number = 0;
  std::string name;
  std::vector<uint64_t> streams;
  bool left = false;
  uint64_t session = 0;   // 0: of a client that does not number its pushes
  uint64_t stored = 0;    // number of the newest push that was stored, or refused for good
  bool arriving = false;  // that of the next one is being stored
  PushCounts pushes;
  std::vector<uint64_t> inserted;  // items that it had told of when a table forgot it, by table

  template <class A>
  void fields(A& archive) {
    archive(number, name, streams, left, session, stored, pushes, inserted);
  }
};

class Actors {
 public:
  static constexpr size_t kMostSessions = 1 << 16;

  // Stream ids are handed out from first_stream upward, from 1 again after the largest, never one that somebody has.
  explicit Actors(uint64_t first_stream) : first_stream_(first_stream), next_stream_(first_stream) {}

  Member* find(uint64_t number);
  Member* named(const std::string& name);
  // The number of the actor whose stream it is, 0 for none.
  uint64_t owner(uint64_t stream) const {
    const auto at = owners_.find(stream);
    return at == owners_.end() ? 0 : at->second;
  }
  // Nobody has the name.
  Member& add(const std::string& name, size_t envs, uint64_t session = 0);
  // The session's, among those that are here; null for none.
  Member* of_session(uint64_t session);
  // The actor of a session that was here before, under a new number: streams and counts are as they were. Null where it is not known, or of another
  // name or other streams. Nobody has the name.
  Member* recall(uint64_t session, const std::string& name, const std::vector<uint64_t>& streams);
  // A new actor with streams that it brings from a server that has gone; null where one of them is, or may have been, somebody else's here, or is no
  // stream at all. Nobody has the name.
  Member* adopt(const std::string& name, const std::vector<uint64_t>& streams, uint64_t session);
  // `remember`: its session can be recalled.
  void remove(uint64_t number, bool remember = false);
  const std::map<uint64_t, Member>& all() const { return members_; }
  // Sessions whose actors are gone, the one that went last at the end.
  const std::list<Member>& gone() const { return gone_; }
  // I10; what is broken, or "".
  std::string check() const;

  template <class A>
  void fields(A& archive) {
    archive(first_stream_, next_stream_, wrapped_, earlier_, next_number_, members_, gone_);
    if constexpr (A::kReads) {
      if (!archive.broken() && !find_all()) archive.fail();
    }
  }
  // From here on streams come from `first_stream` upward, and none that may have been given before, as far as anybody remembers.
  void begin_again(uint64_t first_stream);

 private:
  // What is found by stream and session, from the members; false where two have the same.
  bool find_all();
  Member& enter(Member member);
  // Whether this server may have given the stream to somebody.
  bool given(uint64_t stream) const;
  void forget(std::list<Member>::iterator one);

  uint64_t first_stream_, next_stream_;
  bool wrapped_ = false;
  std::vector<std::pair<uint64_t, uint64_t>> earlier_;  // streams that earlier lives of this server gave: from, and up to this one
  uint64_t next_number_ = 1;
  std::map<uint64_t, Member> members_;
  std::unordered_map<uint64_t, uint64_t> owners_;    // of streams; 0: of an actor that is gone, and may come back
  std::unordered_map<uint64_t, uint64_t> sessions_;  // numbers of actors
  std::list<Member> gone_;
  std::unordered_map<uint64_t, std::list<Member>::iterator> gone_sessions_;
};

}  // namespace memsvc
