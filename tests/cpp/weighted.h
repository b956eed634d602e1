// The server's tables under a naive actor whose memory is an array of weights, and batches taken apart again.
#pragma once

#include <cmath>
#include <map>

#include "world.h"

namespace world {

inline const Schema schema = make_schema();

struct Drawn {
  bool any = false;
  uint64_t population = 0;
  double total = 0;
  std::vector<uint64_t> keys;
  std::vector<double> probabilities;
  std::vector<float> weights;
};

inline Drawn draw(Replay& replay, const TableSpec& spec, size_t batch) {
  Drawn drawn;
  std::vector<size_t> offsets;
  std::vector<uint64_t> out(spec.batch_bytes(batch, &offsets) / 8);
  uint8_t* data = reinterpret_cast<uint8_t*>(out.data());
  drawn.any = replay.draw(0, batch, data, &drawn.population, &drawn.total);
  if (!drawn.any) return drawn;
  drawn.keys = check_batch(spec, schema, out, batch);
  drawn.probabilities.resize(batch);
  drawn.weights.resize(batch);
  for (size_t c = 0; c < spec.columns.size(); ++c) {
    if (spec.columns[c].origin == Origin::kProbability) std::memcpy(drawn.probabilities.data(), data + offsets[c], batch * 8);
    if (spec.columns[c].origin == Origin::kWeight) std::memcpy(drawn.weights.data(), data + offsets[c], batch * 4);
  }
  return drawn;
}

inline std::unique_ptr<Replay> make(const TableSpec& spec, uint64_t memory = 4 << 20, uint64_t seed = 1) {
  std::unique_ptr<Replay> replay;
  CHECK_OK(Replay::make(schema, {spec}, memory, seed, 1, &replay));
  return replay;
}

// An actor whose memory is an array of weights; item i is step i of its stream.
struct Weighted {
  Weighted(Replay* r, const TableSpec& s, const std::string& name, std::vector<double> w) : replay(r), spec(s), weights(std::move(w)) {
    std::vector<uint64_t> streams;
    number = replay->join(name, 1, &streams);
    stream = streams[0];
  }

  // The i-th item of kind `step`, spread over episodes so that no key is a final observation's.
  uint64_t key(size_t i) const { return make_key(stream, i / kSteps * (kSteps + 1) + i % kSteps); }

  Payload cache(const std::vector<size_t>& drawn) {
    Payload payload;
    double low = 0;
    for (const double w : weights) {
      payload.head.total += w;
      payload.head.population += w > 0;
      if (w > 0 && (low == 0 || w < low)) low = w;
    }
    payload.head.min_weight = low;
    payload.head.applied = applied;
    payload.head.newest = newest;
    payload.head.steps = steps;
    for (const size_t i : drawn) {
      payload.draws.push_back({key(i), weights[i]});
      if (held.insert(i).second) payload.items.push_back(record_of(spec, key(i)));
    }
    payload.add_rows(spec);
    return payload;
  }

  void push(const std::vector<size_t>& drawn) {
    Payload payload = cache(drawn);
    CHECK_OK(world::push(*replay, number, payload, spec, schema));
    for (const uint64_t gone : replay->notices(number, 0).evicted) held.erase(step_of(gone) / (kSteps + 1) * kSteps + step_of(gone) % (kSteps + 1));
  }

  // Stage one: n independent draws by weight.
  void push_drawn(size_t n, Random& random) {
    double total = 0;
    for (const double w : weights) total += w;
    std::vector<double> sums;
    double sum = 0;
    for (const double w : weights) sums.push_back(sum += w);
    std::vector<size_t> drawn;
    while (n-- > 0) {
      size_t i = static_cast<size_t>(std::upper_bound(sums.begin(), sums.end(), random.uniform() * total) - sums.begin());
      drawn.push_back(std::min(i, weights.size() - 1));
    }
    push(drawn);
  }

  void take_feedback() {
    Feedback feedback;
    if (!replay->take_feedback(number, 0, &feedback)) return;
    applied = feedback.number;
    for (size_t i = 0; i < feedback.keys.size(); ++i) {
      const uint64_t step = step_of(feedback.keys[i]);
      weights[step / (kSteps + 1) * kSteps + step % (kSteps + 1)] = std::pow(feedback.priorities[i], spec.exponent);
    }
  }

  Replay* replay;
  const TableSpec& spec;
  std::vector<double> weights;
  std::set<size_t> held;
  uint64_t number = 0, stream = 0, applied = 0, steps = 0;
  int64_t newest = 0;
};

inline ActorStats stats_of(const Replay& replay, uint64_t actor) {
  const ReplayStats all = replay.stats();
  for (const ActorStats& stats : all.tables[0].actors) {
    if (stats.actor == actor) return stats;
  }
  return {};
}

}  // namespace world
