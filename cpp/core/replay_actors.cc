// The half of Replay that faces actors: who comes and goes, and what they push.
#include <algorithm>
#include <mutex>
#include <new>
#include <utility>

#include "buffer.h"
#include "intake.h"
#include "replay_state.h"

namespace memsvc {
namespace {

Status no_memory(size_t size) { return Status(Code::kFull, "there is no memory for a push of " + std::to_string(size) + " bytes now"); }

}  // namespace

uint64_t Replay::join(const std::string& name, size_t envs, std::vector<uint64_t>* streams, const std::string& topic) {
  const std::lock_guard lock(state_->mutex);
  for (const auto& table : state_->tables) state_->retire_all(*table);  // a table that nobody draws from keeps none of those that are done
  state_->replace(name);
  const Member& member = state_->actors.add(name, envs);
  for (const auto& table : state_->tables) table->join(member.number, name, topic);
  *streams = member.streams;
  return member.number;
}

Joined Replay::resume(const std::string& name, size_t envs, const std::string& topic, uint64_t session, const std::vector<uint64_t>& streams,
                      uint64_t first, uint64_t fed) {
  const std::lock_guard lock(state_->mutex);
  for (const auto& table : state_->tables) state_->retire_all(*table);
  bool known = false, adopted = false;
  Member* member = state_->member_of(name, envs, session, streams, &known, &adopted);
  member->left = false;
  member->inserted.resize(state_->tables.size());
  for (size_t i = 0; i < state_->tables.size(); ++i) {
    state_->tables[i]->rejoin(member->number, name, topic, member->inserted[i], fed);
    if (adopted) state_->tables[i]->lanes.find(member->number)->adopted = true;
  }
  const Joined joined{member->number, member->streams, member->stored, known};
  // What the actor has no more does not come.
  if (first > member->stored + 1) member->stored = first - 1;
  return joined;
}

void Replay::leave(uint64_t actor) {
  const std::lock_guard lock(state_->mutex);
  Member* member = state_->actors.find(actor);
  if (!member) return;
  member->left = true;
  for (const auto& table : state_->tables) table->leave(actor);
  state_->retire(actor);
}

Status Replay::push(uint64_t actor, const uint8_t* data, size_t size, uint64_t* items, uint64_t* draws, uint64_t number, uint64_t* stored) {
  Buffer aligned, kept;
  if (reinterpret_cast<uintptr_t>(data) % alignof(CacheHead) != 0) {
    aligned.resize(size);
    std::copy_n(data, size, aligned.data());
    data = aligned.data();
  }
  CacheView view;
  size_t table = 0;
  const Status read = state_->read(data, size, &table, &view, &kept);
  Intake intake(&state_->store, &state_->actors, &state_->tables, table, actor, view);
  {
    const std::lock_guard lock(state_->mutex);
    Member* member = state_->actors.find(actor);
    if (!member || member->left) state_->count(nullptr, &PushCounts::unknown);
    if (!member || member->left) return Status(Code::kNotFound, "actor " + std::to_string(actor) + " has left or was replaced by one of its name");
    Status status = state_->admit(member, number);
    if (stored) *stored = member->stored;
    if (!status.ok()) return status;
    try {
      status = read.ok() ? intake.reserve() : read;
    } catch (const std::bad_alloc&) {
      state_->count(member, &PushCounts::failed);
      return no_memory(size);
    }
    if (!status.ok()) {
      // It would be no better the next time.
      member->stored = std::max(member->stored, number);
      if (stored) *stored = member->stored;
      state_->count(member, &PushCounts::malformed);
      return status;
    }
    member->arriving = number > 0;
    state_->intakes.push_back(&intake);
    state_->flush();
  }
  intake.copy();
  const std::lock_guard lock(state_->mutex);
  Member* member = state_->actors.find(actor);  // it may have been replaced meanwhile
  if (member) member->arriving = false;
  std::erase(state_->intakes, &intake);
  try {
    intake.publish();
    state_->flush();
  } catch (const std::bad_alloc&) {
    state_->count(member, &PushCounts::failed);
    return no_memory(size);
  }
  *items = intake.items_stored();
  *draws = intake.draws_queued();
  if (member) member->stored = std::max(member->stored, number);
  if (member && stored) *stored = member->stored;
  state_->count(member, &PushCounts::stored);
  return Status();
}

}  // namespace memsvc
