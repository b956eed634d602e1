// Stage two (DEFINITIONS 7): golden numbers, shares and frequencies, the closed loop with learners that cut and raise priorities, exponents,
// staleness, draws without replacement, little memory.
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

// A draw is kept with probability w_now / w_then; what learners raised comes beside the queue; a batch that cannot be filled uses nothing up.
void thinning() {
  const TableSpec spec = step_table(schema, Select::kPrioritized);
  const auto replay = make(spec);
  Weighted a(replay.get(), spec, "a", {1, 1, 1, 1});
  a.push({0, 1, 2, 3});
  const uint64_t keys[] = {a.key(0), a.key(1)};
  const double priorities[] = {0, .5};
  CHECK_EQ(replay->update(0, keys, priorities, 2).applied, uint64_t{2});
  CHECK_EQ(stats_of(*replay, a.number).population, uint64_t{3});
  CHECK_NEAR(stats_of(*replay, a.number).total, 2.5, 1e-12);
  // 0 is thinned out, 1 perhaps.
  for (int tries = 0; tries < 3; ++tries) {
    CHECK(!draw(*replay, spec, 4).any);
    const Reason reason = replay->why_not(0, 4);
    CHECK(reason.why == Why::kStock);
    CHECK(reason.have == 2 || reason.have == 3);
    CHECK_EQ(stats_of(*replay, a.number).queue, uint64_t{4});
    CHECK_OK(replay->check());
  }
  const Drawn drawn = draw(*replay, spec, static_cast<size_t>(replay->why_not(0, 4).have));
  CHECK(drawn.any);
  std::map<uint64_t, int> counts;
  for (const uint64_t key : drawn.keys) ++counts[key];
  CHECK_EQ(counts[a.key(0)], 0);
  CHECK_EQ(counts[a.key(2)], 1);
  CHECK_EQ(counts[a.key(3)], 1);
  CHECK_OK(replay->check());
  // The feedback is one batch, then empty.
  Feedback feedback;
  CHECK_EQ(replay->with_feedback(0).size(), size_t{1});
  CHECK(replay->take_feedback(a.number, 0, &feedback));
  CHECK_EQ(feedback.number, uint64_t{1});
  CHECK_EQ(feedback.keys.size(), size_t{2});
  CHECK(!replay->take_feedback(a.number, 0, &feedback));
  // A cache that does not contain it: W keeps the change, w_now keeps the learner's; one that does: the cache's.
  a.push(std::vector<size_t>(40, 1));
  CHECK_NEAR(stats_of(*replay, a.number).total, 2.5, 1e-12);
  const Drawn pending = draw(*replay, spec, 3);
  CHECK(pending.any);
  CHECK_NEAR(pending.probabilities[0], pending.keys[0] == a.key(1) ? .2 : .4, 1e-12);
  a.applied = 1;
  a.weights = {0, 2, 1, 1};
  while (draw(*replay, spec, 1).any) {
  }
  a.push({1});
  CHECK_NEAR(stats_of(*replay, a.number).total, 4, 1e-12);
  const Drawn applied = draw(*replay, spec, 1);
  CHECK_EQ(applied.keys[0], a.key(1));
  CHECK_NEAR(applied.probabilities[0], .5, 1e-12);
  CHECK_OK(replay->check());
}

// Two segments with different reports and updates between: the exact shares of every item, in each segment and across the boundary in one batch.
void raising(size_t games) {
  const TableSpec spec = step_table(schema, Select::kPrioritized);
  // Items 0 to 3. Segment 1 is drawn from `first`; feedback 1 then raises 0 and cuts 1; segment 2 contains it and is drawn from `second`;
  // feedback 2 raises 2 and cuts 0. So draws of segment 1 and of segment 2 both stand for `now`, which they reach on different ways.
  const std::vector<double> first = {1, 2, 3, 4}, second = {3, .5, 3, 4}, now = {2, .5, 6, 4};
  constexpr double kSum = 12.5;
  std::vector<double> counts(4);
  Random random(11);
  for (size_t game = 0; game < games; ++game) {
    const auto replay = make(spec, 1 << 20, 1000 + game);
    replay->expect(0, 256);
    Weighted a(replay.get(), spec, "a", first);
    a.push({0, 1, 2, 3});
    const auto learn = [&](std::vector<size_t> items, std::vector<double> priorities) {
      std::vector<uint64_t> keys;
      for (const size_t i : items) keys.push_back(a.key(i));
      CHECK_EQ(replay->update(0, keys.data(), priorities.data(), keys.size()).applied, items.size());
    };
    while (draw(*replay, spec, 1).any) {
    }
    a.push_drawn(40, random);
    learn({0, 1}, {3, .5});
    a.take_feedback();
    CHECK_EQ(a.applied, uint64_t{1});
    CHECK(a.weights == second);
    a.push_drawn(40, random);
    learn({2, 0}, {6, 2});
    CHECK_NEAR(stats_of(*replay, a.number).total, kSum, 1e-12);
    CHECK_OK(replay->check());
    // A batch that is one too large passes the boundary and comes back.
    const uint64_t queue = stats_of(*replay, a.number).queue;
    CHECK(!draw(*replay, spec, 500).any);
    CHECK(replay->why_not(0, 500).have < 500);
    CHECK_EQ(stats_of(*replay, a.number).queue, queue);
    CHECK_OK(replay->check());
    const Drawn drawn = draw(*replay, spec, 60);
    CHECK(drawn.any);
    for (size_t n = 0; n < drawn.keys.size(); ++n) {
      const size_t i = static_cast<size_t>(step_of(drawn.keys[n]));
      counts[i] += 1;
      CHECK_NEAR(drawn.probabilities[n], now[i] / kSum, 1e-12);
    }
    CHECK_OK(replay->check());
  }
  double chi = 0;
  const double all = static_cast<double>(games) * 60;
  for (size_t i = 0; i < 4; ++i) chi += std::pow(counts[i] - all * now[i] / kSum, 2) / (all * now[i] / kSum);
  CHECK(chi < 16.3);  // 3 degrees of freedom, p = .001; stratification only lowers it
}

// What an actor that has left may still supply ends with its queue, however much learners have raised.
void left_actors_end() {
  const TableSpec spec = step_table(schema, Select::kPrioritized);
  const auto replay = make(spec);
  Weighted a(replay.get(), spec, "a", {1, 1, 1}), b(replay.get(), spec, "b", {1});
  a.push({0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2});
  b.push(std::vector<size_t>(60, 0));
  const uint64_t keys[] = {a.key(0), a.key(1), a.key(2)};
  const double priorities[] = {1e9, 0, 0};
  replay->update(0, keys, priorities, 3);
  replay->leave(a.number);
  for (int n = 0; n < 12; ++n) {
    CHECK_EQ(draw(*replay, spec, 1).keys[0], a.key(0));
    CHECK_OK(replay->check());
  }
  CHECK_EQ(draw(*replay, spec, 1).keys[0], b.key(0));
  CHECK_EQ(replay->stats().tables[0].population, uint64_t{1});
}

// A report with another exponent forgets draws, log and pending changes; learners' priorities are weighed as the lane weighs.
void exponents() {
  TableSpec spec = step_table(schema, Select::kPrioritized);
  const auto replay = make(spec);
  Weighted a(replay.get(), spec, "a", {4, 9, 1});
  a.push({0, 1, 2, 0, 1, 2});
  const uint64_t keys[] = {a.key(0), a.key(1)};
  const double priorities[] = {16, 4};
  replay->update(0, keys, priorities, 2);
  CHECK_NEAR(stats_of(*replay, a.number).total, 21, 1e-12);
  TableSpec changed = spec;
  changed.exponent = .5;
  replay->configure(0, changed);
  // The actor does not know yet: its lane weighs as before.
  replay->update(0, keys, priorities, 1);
  CHECK_NEAR(stats_of(*replay, a.number).total, 21, 1e-12);
  spec.exponent = .5;
  a.weights = {2, 3, 1};
  a.push({2, 2});
  CHECK_EQ(stats_of(*replay, a.number).queue, uint64_t{2});
  CHECK_NEAR(stats_of(*replay, a.number).total, 6, 1e-12);
  CHECK_OK(replay->check());
  // 0's weight is of another exponent: what an update changes is not known before the next report. 2's is.
  replay->update(0, keys, priorities, 1);
  CHECK_NEAR(stats_of(*replay, a.number).total, 6, 1e-12);
  const uint64_t known = a.key(2);
  const double raised = 16;
  replay->update(0, &known, &raised, 1);
  CHECK_NEAR(stats_of(*replay, a.number).total, 9, 1e-12);
  CHECK_OK(replay->check());
  a.take_feedback();
  CHECK(a.weights == (std::vector<double>{4, 2, 4}));
  a.push({0, 1, 2});
  CHECK_NEAR(stats_of(*replay, a.number).total, 10, 1e-12);
  CHECK_OK(replay->check());
}

// Items that a new version makes too stale leave W, N and the draws, until the actor reports without them.
void staleness() {
  TableSpec spec = step_table(schema, Select::kPrioritized);
  spec.max_staleness = 2;
  const auto replay = make(spec);
  Weighted a(replay.get(), spec, "a", {1, 2, 4, 8});
  // record_of: version key % 1000 - 1, so the items of a stream are of neighbouring versions.
  const int64_t oldest = record_of(spec, a.key(0)).version;
  CHECK_EQ(record_of(spec, a.key(3)).version, oldest + 3);
  replay->publish("default", oldest + 2);
  a.push({0, 1, 2, 3, 0, 1, 2, 3});
  CHECK_EQ(stats_of(*replay, a.number).queue, uint64_t{8});
  const uint64_t keys[] = {a.key(0), a.key(3)};
  const double priorities[] = {5, 10};
  replay->update(0, keys, priorities, 2);
  CHECK_NEAR(stats_of(*replay, a.number).total, 21, 1e-12);
  replay->publish("other", oldest + 100);
  CHECK_NEAR(stats_of(*replay, a.number).total, 21, 1e-12);
  replay->publish("default", oldest + 3);
  CHECK_NEAR(stats_of(*replay, a.number).total, 16, 1e-12);
  CHECK_EQ(stats_of(*replay, a.number).population, uint64_t{3});
  CHECK_OK(replay->check());
  // A learner's priority does not make it fresh.
  replay->update(0, keys, priorities, 1);
  CHECK_NEAR(stats_of(*replay, a.number).total, 16, 1e-12);
  // Judged by the old version: the same items are still too stale, new draws of them are not queued.
  a.push({0, 0, 1});
  CHECK_EQ(stats_of(*replay, a.number).queue, uint64_t{9});
  CHECK_NEAR(stats_of(*replay, a.number).total, 16, 1e-12);
  // Judged by the new one, without the pending feedback; then with it.
  a.weights[0] = 0;
  a.newest = oldest + 3;
  a.push({1});
  CHECK_NEAR(stats_of(*replay, a.number).total, 16, 1e-12);
  CHECK_EQ(stats_of(*replay, a.number).population, uint64_t{3});
  a.take_feedback();
  a.weights[0] = 0;
  a.push({1});
  CHECK_NEAR(stats_of(*replay, a.number).total, 16, 1e-12);
  CHECK_OK(replay->check());
  for (Drawn drawn; (drawn = draw(*replay, spec, 1)).any;) CHECK(drawn.keys[0] != a.key(0));
  CHECK_OK(replay->check());
}

// Every draw once, P = 1 / all queued, whatever the weights are and learners say; a deleted item goes.
void without_replacement() {
  const TableSpec spec = step_table(schema, Select::kWithoutReplacement);
  const auto replay = make(spec);
  Weighted a(replay.get(), spec, "a", {1, 2, 3, 4, 5, 6}), b(replay.get(), spec, "b", {100, 200, 300});
  a.push({5, 0, 3, 1, 2, 4});
  b.push({1, 0});
  CHECK_EQ(replay->stats().tables[0].population, uint64_t{8});
  const uint64_t keys[] = {a.key(0), a.key(1), b.key(0)};
  const double priorities[] = {.001, 0, 50};
  CHECK_EQ(replay->update(0, keys, priorities, 3).applied, uint64_t{3});
  CHECK_EQ(replay->stats().tables[0].population, uint64_t{7});
  CHECK_OK(replay->check());
  CHECK(!draw(*replay, spec, 8).any);
  std::map<uint64_t, int> counts;
  for (size_t left = 7; left > 0; left -= left == 7 ? 4 : 1) {
    const size_t many = left == 7 ? 4 : 1;
    const Drawn drawn = draw(*replay, spec, many);
    CHECK(drawn.any);
    CHECK_EQ(drawn.population, static_cast<uint64_t>(left));
    for (size_t i = 0; i < many; ++i) {
      CHECK_NEAR(drawn.probabilities[i], 1.0 / static_cast<double>(left), 1e-12);
      CHECK_NEAR(drawn.weights[i], 1, 1e-6);
      CHECK_EQ(++counts[drawn.keys[i]], 1);
    }
    CHECK_OK(replay->check());
  }
  CHECK_EQ(counts.size(), size_t{7});
  CHECK_EQ(counts.count(a.key(1)), size_t{0});
  CHECK(!draw(*replay, spec, 1).any);
  // Nothing gives way beyond the stock.
  Weighted c(replay.get(), spec, "c", std::vector<double>(2000, 1.0));
  replay->expect(0, 64);
  std::vector<size_t> all(2000);
  for (size_t i = 0; i < all.size(); ++i) all[i] = i;
  c.push(all);
  CHECK_EQ(stats_of(*replay, c.number).queue, uint64_t{2000});
}

// The mean age of delivered draws, in the actor's steps.
void ages() {
  const TableSpec spec = step_table(schema, Select::kPrioritized);
  const auto replay = make(spec);
  Weighted a(replay.get(), spec, "a", {1, 1});
  a.steps = 100;
  a.push({0, 1});
  a.steps = 130;
  a.push({0, 1});
  CHECK(draw(*replay, spec, 3).any);
  CHECK_NEAR(stats_of(*replay, a.number).age_steps, 20, 1e-12);
  CHECK_NEAR(replay->stats().tables[0].age_steps, 20, 1e-12);
}

// A memory that is too small for everything: draws give way, and learners' changes, before anything breaks.
void little_memory() {
  const TableSpec spec = step_table(schema, Select::kPrioritized);
  const auto replay = make(spec, 400000);
  Random random(4);
  std::vector<Weighted> actors;
  for (const char* name : {"a", "b"}) actors.emplace_back(replay.get(), spec, name, std::vector<double>(4000, 1.0));
  for (int round = 0; round < 300; ++round) {
    for (Weighted& actor : actors) {
      actor.push_drawn(200, random);
      if (random.below(3) == 0) actor.take_feedback();
    }
    CHECK_OK(replay->check());
    for (int n = 0; n < 4; ++n) {
      const Drawn drawn = draw(*replay, spec, 50);
      if (!drawn.any) continue;
      std::vector<double> priorities(50);
      for (double& p : priorities) p = random.below(60) == 0 ? 0 : 2.5 * random.uniform() + .01;
      replay->update(0, drawn.keys.data(), priorities.data(), 50);
      CHECK_OK(replay->check());
    }
  }
  CHECK(replay->stats().tables[0].evicted > 0);
  CHECK(replay->stats().tables[0].drawn > 10000);
}

// Cuts come out right on average.
void cutting() {
  const TableSpec spec = step_table(schema, Select::kPrioritized);
  const auto replay = make(spec);
  replay->expect(0, 4096);
  Weighted a(replay.get(), spec, "a", {1, 1});
  a.push({0});
  CHECK(draw(*replay, spec, 1).any);
  const uint64_t key = a.key(0);
  const double now = .37;
  replay->update(0, &key, &now, 1);
  a.push(std::vector<size_t>(2000, 0));
  size_t delivered = 0;
  while (draw(*replay, spec, 1).any) ++delivered;
  CHECK_NEAR(static_cast<double>(delivered), 2000 * now, 4 * std::sqrt(2000 * now * (1 - now)));
  CHECK_OK(replay->check());
}

}  // namespace

int main(int argc, char**) {
  const size_t scale = argc > 1 ? 1 : 8;
  golden();
  shares(300 * scale);
  closed_loop(150 * scale);
  thinning();
  raising(100 * scale);
  left_actors_end();
  exponents();
  staleness();
  without_replacement();
  ages();
  little_memory();
  cutting();
  return check::summary();
}
