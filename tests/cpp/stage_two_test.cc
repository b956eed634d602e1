// Stage two (DEFINITIONS 7): golden numbers, shares and frequencies, the closed loop with learners that cut priorities, thinning and splitting.
#include "weighted.h"

using namespace memsvc;
using namespace world;

namespace {

// DEFINITIONS 7: w = {a: [1, 3], b: [2, 2, 4]}.
void golden() {
  for (const Normalize normalize : {Normalize::kNone, Normalize::kTable, Normalize::kBatch}) {
    TableSpec spec = step_table(schema, Select::kPrioritized);
    spec.beta = 1;
    spec.normalize = normalize;
    const auto replay = make(spec);
    Weighted a(replay.get(), spec, "a", {1, 3}), b(replay.get(), spec, "b", {2, 2, 4});
    a.push({0, 1});
    b.push({0, 1, 2});
    const Drawn drawn = draw(*replay, spec, 3);
    CHECK(drawn.any);
    CHECK_EQ(drawn.population, uint64_t{5});
    CHECK_NEAR(drawn.total, 12, 1e-12);
    const std::map<uint64_t, std::pair<double, double>> want = {
        {a.key(0), {.083333, 2.4}}, {a.key(1), {.25, .8}}, {b.key(0), {.166667, 1.2}}, {b.key(1), {.166667, 1.2}}, {b.key(2), {.333333, .6}}};
    double largest = 0;
    for (const uint64_t key : drawn.keys) largest = std::max(largest, want.at(key).second);
    const double by = normalize == Normalize::kNone ? 1 : normalize == Normalize::kTable ? 2.4 : largest;
    for (size_t i = 0; i < 3; ++i) {
      CHECK_NEAR(drawn.probabilities[i], want.at(drawn.keys[i]).first, 1e-6);
      CHECK_NEAR(drawn.weights[i], want.at(drawn.keys[i]).second / by, 1e-6);
    }
    CHECK_OK(replay->check());
  }
}

// Three actors of equal weight pushing 1:1:8 supply a third each; frequencies follow w over the union. Learners change nothing here.
void shares(size_t batches) {
  const TableSpec spec = step_table(schema, Select::kPrioritized);
  const auto replay = make(spec);
  Random random(5);
  std::vector<Weighted> actors;
  for (const char* name : {"a", "b", "c"}) {
    std::vector<double> weights(40);
    double sum = 0;
    for (double& w : weights) sum += w = random.uniform() + .01;
    for (double& w : weights) w /= sum;
    actors.emplace_back(replay.get(), spec, name, weights);
  }
  std::map<uint64_t, double> counts;
  double drawn = 0;
  std::vector<double> share(3);
  for (size_t n = 0; n < batches; ++n) {
    for (size_t k = 0; k < 3; ++k) {
      while (stats_of(*replay, actors[k].number).queue < 256) actors[k].push_drawn(k == 2 ? 256 : 32, random);
    }
    const Drawn batch = draw(*replay, spec, 64);
    CHECK(batch.any);
    for (const uint64_t key : batch.keys) {
      ++counts[key];
      ++drawn;
      for (size_t k = 0; k < 3; ++k) share[k] += stream_of(key) == actors[k].stream;
    }
  }
  double chi = 0;
  for (const Weighted& actor : actors) {
    for (size_t i = 0; i < actor.weights.size(); ++i) {
      const double expected = drawn * actor.weights[i] / 3;
      chi += std::pow(counts[actor.key(i)] - expected, 2) / expected;
    }
  }
  CHECK(chi < 173);  // 119 degrees of freedom, p = .001
  for (const double s : share) CHECK_NEAR(s / drawn, 1.0 / 3, .01);
}

// DEFINITIONS 7's simulation: learners cut what they are given to .3, caches are far smaller than the memories.
void closed_loop(size_t batches) {
  const TableSpec spec = step_table(schema, Select::kPrioritized);
  const auto replay = make(spec, 8 << 20, 3);
  replay->expect(0, 192);
  Random random(9);
  std::vector<Weighted> actors;
  for (const char* name : {"a", "b", "c"}) {
    std::vector<double> weights(1000);
    for (double& w : weights) w = random.uniform() + .05;
    actors.emplace_back(replay.get(), spec, name, weights);
  }
  double updated = 0, exact = 0, seen = 0;
  std::set<uint64_t> cut;
  for (size_t n = 0; n < batches; ++n) {
    for (Weighted& actor : actors) {
      actor.take_feedback();
      uint64_t wanted = replay->notices(actor.number, 0).wanted;
      while (wanted > 0) {
        actor.push_drawn(std::min<uint64_t>(wanted, 64), random);
        wanted -= std::min<uint64_t>(wanted, 64);
      }
    }
    // What the union's exact share of the updated items is now.
    double all = 0, low = 0;
    for (const Weighted& actor : actors) {
      for (size_t i = 0; i < actor.weights.size(); ++i) {
        all += actor.weights[i];
        if (cut.count(actor.key(i))) low += actor.weights[i];
      }
    }
    const Drawn batch = draw(*replay, spec, 64);
    if (!batch.any) continue;
    if (n > batches / 4) {
      exact += low / all * 64;
      seen += 64;
      for (const uint64_t key : batch.keys) updated += cut.count(key);
    }
    std::vector<uint64_t> keys;
    std::vector<double> priorities;
    for (const uint64_t key : batch.keys) {
      if (cut.size() < 900 && cut.insert(key).second) {
        keys.push_back(key);
        priorities.push_back(.05);
      }
    }
    replay->update(0, keys.data(), priorities.data(), keys.size());
    if (n % 50 == 0) CHECK_OK(replay->check());
  }
  CHECK(seen > static_cast<double>(batches) * 64 / 2);
  CHECK_NEAR(updated / seen, exact / seen, .01);
}

// r = w_now / w_then: 0 is none, 2.5 is two or three, copies follow at the end of the queue; a batch that cannot be filled uses nothing up.
void thinning() {
  const TableSpec spec = step_table(schema, Select::kPrioritized);
  const auto replay = make(spec);
  Weighted a(replay.get(), spec, "a", {1, 1, 1, 1});
  a.push({0, 1, 2, 3});
  const uint64_t keys[] = {a.key(0), a.key(1)};
  const double priorities[] = {0, 3};
  CHECK_EQ(replay->update(0, keys, priorities, 2).applied, uint64_t{2});
  CHECK_EQ(stats_of(*replay, a.number).population, uint64_t{3});
  CHECK_NEAR(stats_of(*replay, a.number).total, 5, 1e-12);
  // 0 is thinned out; 1 makes three; 2 and 3 one each.
  for (int tries = 0; tries < 3; ++tries) {
    CHECK(!draw(*replay, spec, 6).any);
    const Reason reason = replay->why_not(0, 6);
    CHECK(reason.why == Why::kStock);
    CHECK_EQ(reason.have, uint64_t{5});
    CHECK_EQ(stats_of(*replay, a.number).queue, uint64_t{4});
    CHECK_OK(replay->check());
  }
  const Drawn drawn = draw(*replay, spec, 5);
  CHECK(drawn.any);
  std::map<uint64_t, int> counts;
  for (const uint64_t key : drawn.keys) ++counts[key];
  CHECK_EQ(counts[a.key(0)], 0);
  CHECK_EQ(counts[a.key(1)], 3);
  CHECK_EQ(counts[a.key(2)], 1);
  CHECK(!draw(*replay, spec, 1).any);
  CHECK_OK(replay->check());
  // The feedback is one batch, then empty.
  Feedback feedback;
  CHECK_EQ(replay->with_feedback(0).size(), size_t{1});
  CHECK(replay->take_feedback(a.number, 0, &feedback));
  CHECK_EQ(feedback.number, uint64_t{1});
  CHECK_EQ(feedback.keys.size(), size_t{2});
  CHECK(!replay->take_feedback(a.number, 0, &feedback));
  // A cache that does not contain it: W keeps the change, w_now keeps the learner's; one that does: the cache's.
  a.push({1});
  CHECK_NEAR(stats_of(*replay, a.number).total, 5, 1e-12);
  const Drawn pending = draw(*replay, spec, 3);
  CHECK(pending.any);
  for (const uint64_t key : pending.keys) CHECK_EQ(key, a.key(1));
  CHECK_NEAR(pending.probabilities[0], 3.0 / 5, 1e-12);
  a.applied = 1;
  a.weights = {0, 2, 1, 1};
  a.push({1});
  CHECK_NEAR(stats_of(*replay, a.number).total, 4, 1e-12);
  const Drawn applied = draw(*replay, spec, 1);
  CHECK_NEAR(applied.probabilities[0], .5, 1e-12);
  CHECK_OK(replay->check());
}

// Fractional ratios come out right on average, up and down.
void splitting() {
  const TableSpec spec = step_table(schema, Select::kPrioritized);
  for (const double now : {.37, 2.5}) {
    const auto replay = make(spec);
    replay->expect(0, 4096);
    Weighted a(replay.get(), spec, "a", {1, 1});
    a.push({0});
    CHECK(draw(*replay, spec, 1).any);
    const uint64_t key = a.key(0);
    replay->update(0, &key, &now, 1);
    a.push(std::vector<size_t>(3000, 0));
    size_t delivered = 0;
    while (draw(*replay, spec, 1).any) ++delivered;
    CHECK_NEAR(static_cast<double>(delivered), 3000 * now, 4 * std::sqrt(3000.0));
    CHECK_OK(replay->check());
  }
}

}  // namespace

int main(int argc, char**) {
  const size_t scale = argc > 1 ? 1 : 8;
  golden();
  shares(300 * scale);
  closed_loop(150 * scale);
  thinning();
  splitting();
  return check::summary();
}
