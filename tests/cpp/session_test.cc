// Sessions: who is known again, which numbers are taken; a push that finds no memory leaves nothing behind; what a ring keeps for its producer.
#include <cstdlib>
#include <new>

#include "actors.h"
#include "ring.h"
#include "weighted.h"

namespace {

// The allocation after so many fails, in this thread; 0: none does.
thread_local long left = 0;

}  // namespace

void* operator new(size_t size) {
  if (left > 0 && --left == 0) throw std::bad_alloc();
  if (void* found = std::malloc(size ? size : 1)) return found;
  throw std::bad_alloc();
}
void operator delete(void* at) noexcept { std::free(at); }
void operator delete(void* at, size_t) noexcept { std::free(at); }

using namespace memsvc;
using namespace world;

namespace {

void sessions_are_remembered_up_to_a_bound() {
  Actors actors(1);
  std::vector<uint64_t> first;
  for (uint64_t session = 1; session <= Actors::kMostSessions + 2; ++session) {
    const Member& member = actors.add("a", 1, session);
    if (session <= 3) first.push_back(member.streams[0]);
    actors.remove(member.number, true);
  }
  CHECK_EQ(actors.gone().size(), Actors::kMostSessions);
  CHECK(actors.recall(1, "a", {first[0]}) == nullptr);
  CHECK(actors.adopt("a", {first[0]}, 1) == nullptr);  // this server had given it out
  CHECK(actors.recall(3, "b", {first[2]}) == nullptr);
  CHECK(actors.recall(3, "a", {first[1]}) == nullptr);
  const Member* again = actors.recall(3, "a", {first[2]});
  CHECK(again != nullptr && again->session == 3);
  CHECK(actors.of_session(3) == again);
  CHECK_EQ(actors.check(), std::string());
}

void who_left_while_a_push_arrived_may_push_when_it_is_back() {
  Actors actors(1);
  Member& member = actors.add("a", 1, 7);
  const std::vector<uint64_t> streams = member.streams;
  member.arriving = true;
  actors.remove(member.number, true);
  const Member* again = actors.recall(7, "a", streams);
  CHECK(again != nullptr && !again->arriving);
}

void streams_are_adopted_once() {
  Actors actors(kMaxStream - 1);
  actors.add("a", 4);  // the last two, then 1 and 2
  CHECK(actors.adopt("b", {kMaxStream}, 7) == nullptr);
  CHECK(actors.adopt("b", {2}, 7) == nullptr);
  CHECK(actors.adopt("b", {0}, 7) == nullptr);
  CHECK(actors.adopt("b", {kMaxStream + 1}, 7) == nullptr);
  CHECK(actors.adopt("b", {50, 50}, 7) == nullptr);
  CHECK(actors.adopt("b", {50, 3}, 7) != nullptr);
  CHECK(actors.adopt("c", {50}, 8) == nullptr);
  CHECK_EQ(actors.add("d", 1).streams[0], uint64_t{4});  // 3 is taken
  CHECK_EQ(actors.check(), std::string());
}

// Fails over every single allocation of a push in turn. The number stays open, and the push can come again.
void no_memory_for_a_push(Select select) {
  const TableSpec spec = transition_table(schema, select, 3, Pad::kRepeat);
  const auto replay = make(spec);
  const Joined joined = replay->resume("a", 1, "default", 5, {}, 1);
  uint64_t number = 1;
  for (long fails = 1;; ++fails) {
    Payload payload;
    const uint64_t episode = (number - 1) * (kSteps + 1);
    for (uint64_t t = 0; t < kSteps; ++t) {
      const ItemRecord record = record_of(spec, make_key(joined.streams[0], episode + t));
      payload.items.push_back(record);
      if (select != Select::kAll) payload.draws.push_back({record.key, 1});
    }
    payload.add_rows(spec);
    payload.head.total = payload.head.min_weight = 1;
    payload.head.population = payload.head.inserted = number * kSteps;
    const std::vector<uint64_t> words = payload.bytes(spec, schema);
    const auto* data = reinterpret_cast<const uint8_t*>(words.data());
    uint64_t items = 0, draws = 0, stored = 0;
    const ReplayStats before = replay->stats();
    left = fails;
    const Status status = replay->push(joined.actor, data, words.size() * 8, &items, &draws, number, &stored);
    const bool failed = left == 0;
    left = 0;
    CHECK_OK(replay->check());
    CHECK_EQ(status.ok(), !failed);
    if (failed) {
      CHECK(status.code() == Code::kFull);
      CHECK_EQ(replay->stats().pushes.failed, before.pushes.failed + 1);
      CHECK_OK(replay->push(joined.actor, data, words.size() * 8, &items, &draws, number, &stored));
      CHECK_OK(replay->check());
    }
    CHECK_EQ(stored, number);
    CHECK(replay->push(joined.actor, data, words.size() * 8, &items, &draws, number, &stored).code() == Code::kDuplicate);
    CHECK_EQ(replay->stats().tables[0].items, number * kSteps);
    ++number;
    if (!failed) break;
  }
  CHECK(number > 3);
  const PushCounts counts = replay->stats().pushes;
  CHECK_EQ(counts.received, counts.stored + counts.duplicate + counts.gap + counts.malformed + counts.unknown + counts.failed);
}

void a_ring_keeps_what_its_producer_wants_again() {
  constexpr size_t kCapacity = Ring::kLeastBytes;
  alignas(64) static uint8_t memory[Ring::kHeadBytes + kCapacity];
  Ring in(memory, kCapacity), out(memory, kCapacity);
  const uint64_t begin = in.written();
  in.keep(begin);
  const size_t bytes = in.most() / 2;
  uint8_t* kept = in.reserve(bytes);
  std::memset(kept, 1, bytes);
  in.commit(bytes);
  const auto read = [&out] {
    while (out.front() != Ring::Front::kNone) out.pop();
  };
  read();
  // The others go round behind it until there is no room: it has been read, and stays.
  size_t sent = 0;
  for (uint8_t* to; (to = in.reserve(bytes / 4)) != nullptr; ++sent) {
    std::memset(to, 2, bytes / 4);
    in.commit(bytes / 4);
    read();
  }
  CHECK(sent > 3 && (sent + 4) * (bytes / 4) <= kCapacity);
  for (size_t i = 0; i < bytes; ++i) CHECK_EQ(int{kept[i]}, 1);
  CHECK(in.room());
  in.keep(Ring::kNothing);
  CHECK(in.reserve(bytes / 4) != nullptr);
}

}  // namespace

int main(int, char**) {
  sessions_are_remembered_up_to_a_bound();
  who_left_while_a_push_arrived_may_push_when_it_is_back();
  streams_are_adopted_once();
  for (const Select select : {Select::kAll, Select::kPrioritized}) no_memory_for_a_push(select);
  a_ring_keeps_what_its_producer_wants_again();
  return check::summary();
}
