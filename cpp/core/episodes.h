// The rows of an actor's recent episodes: slots for steps and for final observations, episodes as lists of slots, and the numbers (window.h) that
// name them for ever. Knows nothing of tables. Not thread-safe: its owner's lock guards it.
//
// Invariants (checked by `verify`):
//   1. A stream's episodes take consecutive, never reused numbers; an episode of T steps takes T + 1.
//   2. Every step slot in use belongs to exactly one present step of one episode, and says so.
//   3. steps() is the number of step slots in use, never above capacity(); an ended episode has exactly one final slot, another has none.
//   4. Each stream has at most one episode that has not ended, and it is the stream's newest.
//   5. An ended episode has at least one step.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <memory>
#include <unordered_map>
#include <vector>

#include "fetch.h"
#include "reserve.h"
#include "status.h"
#include "window.h"

namespace memsvc {

constexpr uint32_t kNone = UINT32_MAX;

// What is known of a step besides its row.
struct Step {
  uint64_t index;   // in its episode
  int64_t version;  // of the parameters that chose its action
  double priority;  // as given with the step, NaN when none was
  uint32_t episode;
};

// A row's place at the server: how many items that the server holds need it, and the last payload with an item that needs it. A number twice as large
// as the payload's, and one more where the payload carries the row.
struct RowUse {
  uint32_t held;
  uint32_t stamp;
};

struct Episode {
  uint32_t env = 0;
  uint64_t stream = 0;
  uint64_t base = 0;   // number of step 0
  uint64_t first = 0;  // oldest step still here; above 0 where an episode longer than its share has lost steps
  uint64_t count = 0;  // steps ever added
  bool ended = false, terminated = false;
  double weight = 1;  // as given with the end
  uint32_t final_slot = kNone;
  bool dirty = false;   // has changed since the views last looked at it
  uint64_t looked = 0;  // count when they did
  uint32_t stamp = 0;   // of the last payload with an item of it, as in RowUse
  std::vector<uint32_t> slots;
  uint64_t offset = 0;   // the step of slots[0]
  uint16_t ordinal = 0;  // in its stream, modulo 2^16

  // T of DEFINITIONS: the newest step of an unfinished episode serves as obs_T only.
  uint64_t steps() const { return ended || count == 0 ? count : count - 1; }
  uint64_t present() const { return count - first; }
  uint64_t key(uint64_t index) const { return make_key(stream, base + index); }
  // Slot of the row of a present step, or of the final observation at index == count.
  uint32_t slot(uint64_t index) const { return index == count && ended ? final_slot : slots[index - offset]; }
};

class Episodes {
 public:
  // Room for max_steps steps, at least two a stream, reserved but not touched.
  Episodes(size_t row_stride, uint64_t max_steps, const std::vector<uint64_t>& streams);

  size_t envs() const { return streams_.size(); }
  size_t row_stride() const { return row_stride_; }
  uint64_t capacity() const { return capacity_; }
  uint64_t share() const { return share_; }  // the most steps that an unfinished episode keeps
  uint64_t steps() const { return steps_; }
  uint64_t bytes() const;                      // memory touched so far, without the lists
  uint64_t touched() const { return fresh_; }  // step slots that were ever in use are below
  std::vector<uint64_t> streams() const;

  uint8_t* row(uint32_t slot) { return &rows_[slot * row_stride_]; }
  const uint8_t* row(uint32_t slot) const { return &rows_[slot * row_stride_]; }
  Step& step(uint32_t slot) { return steps_of_[slot]; }
  const Step& step(uint32_t slot) const { return steps_of_[slot]; }
  RowUse& use(uint32_t slot) { return uses_[slot]; }
  const RowUse& use(uint32_t slot) const { return uses_[slot]; }
  // Fetches what is known of a step.
  MEMSVC_FETCHES void prefetch(uint32_t slot) const {
    __builtin_prefetch(&steps_of_[slot]);
    __builtin_prefetch(&uses_[slot], 1);
  }
  // Fetches the beginning of a row, all of it where it is small; larger ones are found by the processor itself.
  MEMSVC_FETCHES void prefetch_row(uint32_t slot) const {
    constexpr size_t kLine = 64, kMost = 4;
    for (size_t at = 0; at < std::min(row_stride_, kMost * kLine); at += kLine) __builtin_prefetch(&rows_[slot * row_stride_ + at]);
  }
  // The slot of the step that is appended after `ahead` others, kNone where it is not known yet.
  uint32_t next_slot(size_t ahead) const { return ahead < free_.size() ? free_[free_.size() - 1 - ahead] : kNone; }
  Episode& episode(uint32_t id) { return *episodes_[id]; }
  const Episode& episode(uint32_t id) const { return *episodes_[id]; }
  size_t ids() const { return episodes_.size(); }                     // episode ids are below
  uint32_t open(size_t env) const { return streams_[env].open; }      // kNone between episodes
  const std::deque<uint32_t>& finished() const { return finished_; }  // in the order of their ends
  const std::deque<uint32_t>& of(size_t env) const { return streams_[env].episodes; }

  // The oldest step of `env` that is here, or the next one.
  uint64_t floor(size_t env) const;
  // False when the stream of `env` has used up its numbers.
  bool numbers_left(size_t env) const;
  // A new step of `env`, of a new episode where none is open. Its row's bytes are the caller's to write. Room must be there: steps() < capacity().
  uint32_t append(size_t env, double priority, int64_t version, uint32_t* episode);
  // Ends the open episode and returns the final row's slot.
  uint32_t finish(size_t env, bool terminated, double weight);
  // Takes the oldest present step out of an episode that has two or more.
  void drop_first(Episode& episode);
  // Takes the episode that finished first out: its id may come back as another episode.
  void drop_oldest();
  // The episode and index of a present step; false when it is not here.
  bool locate(uint64_t key, uint32_t* episode, uint64_t* index) const;
  // New numbers for everything that is here, in new streams (one an environment); a stream that stays goes on counting.
  void renumber(const std::vector<uint64_t>& streams);
  // No row is at the server any more.
  void release_all();
  // Number of the first invariant that does not hold, 0 when all do. O(everything): for tests.
  int verify() const;

 private:
  struct Stream {
    uint64_t id = 0;
    uint64_t next = 0;  // number of the next episode's first step
    uint32_t open = kNone;
    uint16_t begun = 0;             // episodes so far, modulo 2^16
    std::deque<uint32_t> episodes;  // by base
  };

  uint32_t take(std::vector<uint32_t>* free, uint64_t* fresh, uint64_t begin);
  uint32_t new_episode(size_t env);

  size_t row_stride_;
  uint64_t capacity_, share_, steps_ = 0;
  uint64_t fresh_ = 0, fresh_finals_ = 0;  // slots never used so far begin here; final rows have the slots from capacity_ on
  std::vector<uint32_t> free_, free_finals_, free_episodes_;
  Reserve<uint8_t> rows_;
  Reserve<Step> steps_of_;
  Reserve<RowUse> uses_;
  std::vector<std::unique_ptr<Episode>> episodes_;
  std::vector<Stream> streams_;
  std::unordered_map<uint64_t, uint32_t> env_of_;
  std::deque<uint32_t> finished_;
};

}  // namespace memsvc
