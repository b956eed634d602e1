// What a step is, what a table makes of it, and how its batches lie in memory. Immutable once made; shared by both sides.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "status.h"

namespace memsvc {

constexpr size_t kAlign = 64;  // columns of payloads and batches begin at multiples of this
inline size_t align_up(size_t n) { return (n + kAlign - 1) & ~(kAlign - 1); }

// A field of the step: numpy kind letter (b bool, i, u, f, c) and item size; little endian. Rows are packed, field after field.
struct Field {
  std::string name;
  char kind = 'f';
  uint32_t itemsize = 4;
  std::vector<uint32_t> shape;
  size_t offset = 0;  // in the row
  size_t bytes = 0;   // of one value
};

class Schema {
 public:
  // Refuses empty schemas, doubled names, kinds other than b i u f c, and rows of 2 GiB and more.
  static Status make(std::vector<Field> fields, Schema* out);
  const std::vector<Field>& fields() const { return fields_; }
  int find(const std::string& name) const;           // -1 when absent
  size_t row_bytes() const { return row_bytes_; }    // sum of the fields' bytes
  size_t row_stride() const { return row_stride_; }  // row_bytes rounded up to 8: distance of rows in memory and on the wire

 private:
  std::vector<Field> fields_;
  size_t row_bytes_ = 0;
  size_t row_stride_ = 0;
};

enum class Kind : uint8_t { kStep, kTransition, kSequence };
enum class Pad : uint8_t { kRepeat, kZero };
enum class Tail : uint8_t { kShift, kPad, kDrop };
enum class Source : uint8_t { kReturn, kTd, kGiven, kMax };
enum class Select : uint8_t { kPrioritized, kUniform, kAll, kWithoutReplacement };
enum class Sampler : uint8_t { kPrioritized, kUniform, kFifo, kLifo, kMax, kMin };
enum class Normalize : uint8_t { kTable, kBatch, kNone };

// gamma: one value, one per reward dimension, or a field of the step (DEFINITIONS 2).
struct Gamma {
  std::vector<double> values{0.99};
  int field = -1;
};

// Where a batch column comes from.
enum class Origin : uint8_t {
  kField,        // the row's field at t (step, transition), or at t .. t+L-1 (sequence)
  kStack,        // the field at t-s+1 .. t, oldest first (DEFINITIONS 3)
  kNext,         // the field at t+m (transition) or at the step after the window (sequence)
  kNextStack,    // the field at t+m-s+1 .. t+m
  kInitial,      // the field at the window's first step
  kMade,         // computed at the actor, part of the item: reward, discount, return, advantage
  kMask,         // bool[L]: true where the window has a real step
  kLength,       // int32: real steps of the window
  kKey,          // uint64
  kProbability,  // float64
  kWeight,       // float32
  kVersion,      // int64
};

struct Column {
  std::string name;
  char kind = 'f';
  uint32_t itemsize = 4;
  std::vector<uint32_t> shape;  // of one item, without the batch axis
  size_t bytes = 0;             // of one item
  Origin origin = Origin::kField;
  int field = -1;          // index into Schema::fields, where one is read
  size_t made_offset = 0;  // kMade: place in the item's made bytes
};

// One table's settings as the core needs them. Filled by the edge from memsvc.toml's normalised dictionary, then finished by `derive`.
struct TableSpec {
  std::string name;
  Kind kind = Kind::kStep;
  uint32_t n_step = 1;
  Gamma gamma;
  uint32_t frame_stack = 1;
  std::vector<int> stack;  // fields
  Pad pad = Pad::kRepeat;
  std::vector<int> next;  // fields
  uint32_t length = 1;    // sequence
  uint32_t stride = 1;
  uint32_t burn_in = 0;
  Tail tail = Tail::kShift;
  std::vector<int> initial;  // fields

  bool returns = false;
  Gamma returns_gamma;
  double lambda = 1.0;

  Source source = Source::kMax;
  double exponent = 0.6;
  std::vector<double> coefficients{1.0};  // one per reward dimension
  int baseline = -1;                      // field; source td
  double eta = 0.9;                       // sequence priorities (DEFINITIONS 4)
  double decay = 1;                       // of the weight, each time an item is drawn

  Select select = Select::kPrioritized;
  uint32_t cache = 64;
  uint64_t max_steps = 100000;
  uint64_t max_episodes = 0;     // 0: no bound
  double step_discount = 1;      // kappa: weights are multiplied by kappa^t, t the item's first step in its episode
  bool episode_weights = false;  // weights are multiplied by what end() says of the episode

  Sampler sampler = Sampler::kPrioritized;
  double beta = 0.4;
  Normalize normalize = Normalize::kTable;
  uint64_t capacity_items = 0;  // 0: as the memory allows
  uint64_t per_actor_episodes = 0;
  uint64_t per_actor_steps = 0;
  bool blocks = false;  // full: writers wait, and nothing is evicted
  uint64_t min_items = 1;
  double samples_per_insert = 0;   // 0: no limiter (DEFINITIONS 9)
  double tolerance = 0;            // width of the band in which sampled - samples_per_insert * inserted stays
  uint64_t max_times_sampled = 0;  // 0: no bound
  int64_t max_staleness = -1;      // -1: no bound (DEFINITIONS 10)

  // Derived.
  int reward = -1, value = -1;  // fields
  uint32_t reward_dims = 1;     // product of the reward's shape
  uint32_t gamma_dims = 1;      // values of one discount
  std::vector<Column> columns;  // the batch: the user's columns, then keys, probabilities, weights, versions
  size_t made_bytes = 0;        // of one item

  // The weight of an item is factor * p^exponent, factor = g * kappa^t * decay^n (g of its episode, n times drawn); false: always 1, and not stored.
  bool factors() const { return episode_weights || step_discount < 1 || decay < 1; }
  // Items go when they have been drawn often enough, and no actor is told: nobody may count on their rows.
  bool fleeting() const { return max_times_sampled > 0; }
  // Batches hold the first items of an order, each once, instead of random ones.
  bool ordered() const { return sampler != Sampler::kPrioritized && sampler != Sampler::kUniform; }
  // Whether an item of this version may be drawn when `newest` is the newest of its topic (0: none was published).
  bool fresh(int64_t version, int64_t newest) const { return max_staleness < 0 || newest <= 0 || version >= newest - max_staleness; }
  // Takes the settings that may change while running: exponent, beta, gammas' values, lambda, min_items, limiter, max_staleness.
  void change(const TableSpec& to);

  // Checks the settings against the schema and fills the derived members. Errors begin with the key's path inside the
  // table ("item.stack[0]: ..."), so that the configuration can put "table[0]." before them.
  Status derive(const Schema& schema);

  // Bytes of a batch of n items, columns one after the other, each at a multiple of 64; offsets[c] receives column c's place.
  size_t batch_bytes(size_t n, std::vector<size_t>* offsets) const;
};

}  // namespace memsvc
