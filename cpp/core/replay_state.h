// What a Replay is made of, behind its lock.
#pragma once

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "actors.h"
#include "arena.h"
#include "cache.h"
#include "crew.h"
#include "lock.h"
#include "replay.h"
#include "restore.h"
#include "sizing.h"
#include "store.h"
#include "table.h"

namespace memsvc {

class Intake;

struct Replay::State {
  State(const Schema& s, const std::vector<TableSpec>& specs, uint64_t seed_, uint64_t first_stream_)
      : schema(s), seed(seed_), first_stream(first_stream_), actors(first_stream_), tables(make_tables(specs, seed_)) {}

  void flush() {
    for (const auto& table : tables) {
      if (table->whole()) table->united.flush();
    }
  }

  // Actors that have left go when the last of their draws is used up.
  void retire(uint64_t number) {
    Member* member = actors.find(number);
    if (!member || !member->left) return;
    bool remains = false;
    member->inserted.resize(tables.size());
    for (size_t i = 0; i < tables.size(); ++i) {
      Lane* lane = tables[i]->lanes.find(number);
      if (!lane) continue;
      if (tables[i]->finished(*lane)) {
        member->inserted[i] = lane->inserted;
        tables[i]->remove(lane);
      } else {
        remains = true;
      }
    }
    if (!remains) actors.remove(number, true);
  }

  // Makes a name free: its queue and its weight leave at once.
  void replace(const std::string& name) {
    Member* predecessor = actors.named(name);
    if (!predecessor) return;
    const uint64_t number = predecessor->number;
    predecessor->inserted.resize(tables.size());
    for (size_t i = 0; i < tables.size(); ++i) {
      if (Lane* lane = tables[i]->lanes.find(number)) {
        predecessor->inserted[i] = lane->inserted;
        tables[i]->remove(lane);
      }
    }
    // What is left in its spool may still come, under its session.
    actors.remove(number, true);
  }

  // The member whose session it is, found or made; *known: it had been here before.
  Member* member_of(const std::string& name, size_t envs, uint64_t session, const std::vector<uint64_t>& streams, bool* known, bool* adopted) {
    Member* member = actors.of_session(session);
    if (member && member->name == name && (streams.empty() ? member->streams.size() == envs : member->streams == streams)) {
      *known = true;
      return member;
    }
    replace(name);
    if ((member = actors.of_session(session))) member->session = 0;
    if ((member = actors.recall(session, name, streams))) {
      *known = true;
    } else if (streams.size() == envs && (member = actors.adopt(name, streams, session))) {
      *adopted = true;
    } else {
      member = &actors.add(name, envs, session);
    }
    return member;
  }

  // Checks a payload, and which table it is for; as read_cache().
  Status read(const uint8_t* data, size_t size, size_t* table, CacheView* view, Buffer* kept) const {
    if (size < sizeof(CacheHead)) return Status(Code::kMalformed, "a cache of " + std::to_string(size) + " bytes is shorter than its head");
    const uint32_t named = reinterpret_cast<const CacheHead*>(data)->table;
    std::atomic_signal_fence(std::memory_order_seq_cst);  // it is read once
    if (named >= tables.size()) {
      return Status(Code::kMalformed, "a cache is for table " + std::to_string(named) + " of " + std::to_string(tables.size()));
    }
    *table = named;
    return read_cache(tables[named]->spec, schema.row_stride(), data, size, view, kept);
  }

  // What a push's number is worth.
  Status admit(Member* member, uint64_t number) {
    if (number == 0) return Status();
    if (number <= member->stored) {
      count(member, &PushCounts::duplicate);
      return Status(Code::kDuplicate, "");
    }
    if (number == member->stored + 1 && !member->arriving) return Status();
    count(member, &PushCounts::gap);
    return Status(Code::kGap, "push " + std::to_string(number) + " of actor " + member->name + " has come, and push " +
                                  std::to_string(member->stored + 1) + " before it has not: send on from there");
  }

  // A push counts as received when it is known what becomes of it. member: null where it has been replaced meanwhile.
  void count(Member* member, uint64_t PushCounts::* what) {
    for (PushCounts* counts : {member ? &member->pushes : nullptr, &pushes}) {
      if (!counts) continue;
      ++counts->received;
      ++(counts->*what);
    }
  }

  void retire_all(const Table& table) {
    if (table.departed == 0) return;
    std::vector<uint64_t> done;
    for (const auto& lane : table.lanes.all()) {
      if (lane->left && table.finished(*lane)) done.push_back(lane->actor);
    }
    for (const uint64_t number : done) retire(number);
  }

  const Schema schema;
  const uint64_t seed, first_stream;
  mutable Lock mutex;  // guards everything below
  Arena arena;
  Store store;
  Actors actors;
  PushCounts pushes;
  std::vector<const Intake*> intakes;  // whose rows are being copied
  std::unique_ptr<Restore> restore;    // under way
  Tables tables;
  size_t bytes = 0;
  // One core is left to who uses the batches.
  Crew crew{std::clamp(std::thread::hardware_concurrency(), 2u, 4u) - 1};
};

}  // namespace memsvc
