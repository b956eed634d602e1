// Replay as it is saved, restored, and brought up to what was done after the save.
#include <algorithm>
#include <mutex>

#include "intake.h"
#include "replay_state.h"
#include "saved.h"

namespace memsvc {
namespace {

constexpr uint64_t kProgressMagic = 0x5353524750564D4DULL;  // "MMVPGRSS"

}  // namespace

size_t Replay::row_stride() const { return state_->schema.row_stride(); }

Status Replay::prepare(Capture* capture) const {
  {
    const std::lock_guard lock(state_->mutex);
    capture->measure(state_->store, state_->tables);
  }
  return capture->allocate(state_->tables);
}

bool Replay::copy(Capture* capture) {
  const std::lock_guard lock(state_->mutex);
  return capture->copy(state_->store, &state_->actors, state_->pushes, state_->tables);
}

void Replay::decode(Capture* capture, Saved* out) const { capture->decode(state_->tables, state_->schema.row_stride(), out); }

Status Replay::save(Saved* out) {
  Capture capture;
  do {
    if (Status status = prepare(&capture); !status.ok()) return status;
  } while (!copy(&capture));
  decode(&capture, out);
  return Status();
}

void Replay::rows(const uint64_t* keys, size_t n, uint8_t* out, bool* here) {
  Store& store = state_->store;
  uint32_t slots[kPiece];
  for (size_t begin = 0; begin < n; begin += kPiece) {
    const size_t many = std::min(kPiece, n - begin);
    {
      const std::lock_guard lock(state_->mutex);
      for (size_t i = 0; i < many; ++i) store.prefetch(keys[begin + i]);
      for (size_t i = 0; i < many; ++i) {
        slots[i] = store.find(keys[begin + i]);
        const auto written = [&](const Intake* intake) { return intake->writes(slots[i]); };
        if (slots[i] != kNone && std::any_of(state_->intakes.begin(), state_->intakes.end(), written)) slots[i] = kNone;
        if (slots[i] != kNone) store.hold(slots[i]);
      }
    }
    for (size_t i = 0; i < many; ++i) {
      here[begin + i] = slots[i] != kNone;
      if (slots[i] != kNone) std::copy_n(store.row(slots[i]), store.stride(), out + (begin + i) * store.stride());
    }
    const std::lock_guard lock(state_->mutex);
    for (size_t i = 0; i < many; ++i) {
      if (slots[i] != kNone) store.drop(slots[i]);
    }
  }
}

Status Replay::begin_restore(const uint8_t* state, size_t size, std::vector<std::unique_ptr<SavedItems>> items, std::vector<uint64_t>* needed) {
  const std::lock_guard lock(state_->mutex);
  if (items.size() != state_->tables.size()) {
    return Status(Code::kInvalid, "items of " + std::to_string(items.size()) + " tables are to be restored into " +
                                      std::to_string(state_->tables.size()) + ": give one for each, or None");
  }
  if (state_->restore || state_->store.used() > 0 || state_->pushes.received > 0 || !state_->actors.all().empty()) {
    return Status(Code::kInvalid, "a Replay is restored before anything else is done with it: make a new one");
  }
  auto restore = std::make_unique<Restore>(&state_->store, &state_->actors, &state_->tables);
  if (Status status = restore->begin(state, size, std::move(items)); !status.ok()) return status;
  *needed = restore->needed();
  state_->restore = std::move(restore);
  return Status();
}

size_t Replay::restore_rows(const uint64_t* keys, const uint8_t* rows, size_t n) {
  const std::lock_guard lock(state_->mutex);
  return state_->restore ? state_->restore->rows(keys, rows, n) : 0;
}

Restored Replay::finish_restore() {
  const std::lock_guard lock(state_->mutex);
  if (!state_->restore) return {};
  const std::unique_ptr<Restore> restore = std::move(state_->restore);
  Restored restored = restore->finish(&state_->pushes);
  for (const auto& table : state_->tables) state_->retire_all(*table);
  return restored;
}

void Replay::restored() {
  const std::lock_guard lock(state_->mutex);
  state_->actors.begin_again(state_->first_stream);
  for (const auto& table : state_->tables) {
    for (const auto& lane : table->lanes.all()) lane->go_on();
  }
}

std::vector<uint8_t> Replay::progress() {
  std::vector<Progress> tables;
  {
    const std::lock_guard lock(state_->mutex);
    for (const auto& table : state_->tables) table->progress(&tables.emplace_back());
  }
  std::vector<uint8_t> bytes;
  Writer writer(&bytes);
  writer(kProgressMagic, tables);
  seal(&bytes);
  return bytes;
}

Status Replay::advance(const uint8_t* data, size_t size) {
  uint64_t magic = 0;
  std::vector<Progress> progress;
  Reader archive(data, size - std::min(size, sizeof(uint64_t)));
  archive(magic, progress);
  if (!sealed(data, size) || archive.broken() || archive.left() > 0 || magic != kProgressMagic) {
    return Status(Code::kMalformed, "a progress of " + std::to_string(size) + " bytes is damaged");
  }
  const std::lock_guard lock(state_->mutex);
  for (const Progress& one : progress) {
    for (const auto& table : state_->tables) {
      if (table->spec.name != one.name) continue;
      table->advance(state_->actors, one);
      state_->retire_all(*table);
    }
  }
  return Status();
}

}  // namespace memsvc
