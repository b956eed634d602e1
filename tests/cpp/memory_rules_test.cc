// What a table's settings do to an actor's memory, one rule at a time: factors, draws without replacement, staleness, gates, heads alone, changes.
#include <map>

#include "bench.h"

using namespace memsvc;
using bench::Bench;

namespace {

void by_priority(TableSpec& t) {
  t.source = Source::kGiven;
  t.exponent = 1;
}

double weight_of_step(const Bench& b, uint64_t step) {
  for (uint64_t d = 0; d < b.view.head.draws; ++d) {
    if (step_of(b.view.draws[d].key) == step) return b.view.draws[d].weight;
  }
  return 0;
}

// w = g * kappa^t * decay^n * p^exponent: g from the end on, n as of before the cache.
void factors() {
  Bench b([](TableSpec& t) { by_priority(t), t.episode_weights = true, t.step_discount = .5, t.decay = .25; });
  b.given({8, 8, 8});
  CHECK(b.draw(0) && b.view.head.total == 8 + 4);  // the newest step is not drawable; g = 1 so far
  CHECK_OK(b.end(true, 0, 3));
  CHECK(b.draw(1));
  CHECK_EQ(b.view.head.total, 3 * (8 + 4 + 2.0));  // before its own decays
  const uint64_t drawn = step_of(b.view.draws[0].key);
  CHECK_EQ(b.view.draws[0].weight, 3 * 8 * std::pow(.5, static_cast<double>(drawn)));
  CHECK_EQ(b.view.factors[0], 3 * std::pow(.5, static_cast<double>(drawn)));
  CHECK_EQ(b.view.items[0].priority, 8.0);
  CHECK(b.draw(400));
  double total = 0;
  for (uint64_t t = 0; t < 3; ++t) {
    const double w = 24 * std::pow(.5, static_cast<double>(t)) * (t == drawn ? .25 : 1);
    CHECK_EQ(weight_of_step(b, t), w);
    total += w;
  }
  CHECK_EQ(b.view.head.total, total);
  // A learner's priority replaces p, the factor stays.
  Bench c([](TableSpec& t) { by_priority(t), t.episode_weights = true, t.decay = .5; });
  c.given({1, 1});
  CHECK_OK(c.end(true, 0, 2));
  CHECK(c.draw(1));
  const uint64_t key = c.view.draws[0].key;
  const double p = 10;
  c.memory->feedback(0, 1, &key, &p, 1);
  CHECK(c.draw(0) && c.view.head.total == 2 + 10 * 2 * .5);
  // No weight, no draws.
  c.given({5, 5});
  CHECK_OK(c.end(true, 0, 0));
  CHECK(c.draw(0) && c.view.head.population == 2);
  for (double bad : {-1.0, HUGE_VAL, std::nan("")}) CHECK(c.end(true, 0, bad).code() == Code::kInvalid);
  Bench plain([](TableSpec&) {});
  CHECK_OK(plain.add(0, 0));
  const Status refused = plain.end(true, 0, 2);
  CHECK(refused.code() == Code::kInvalid && refused.message().find("episode_weights") != std::string::npos);
  CHECK_EQ(plain.memory->stats().ended, 0u);
  CHECK_OK(plain.end(true, 0, 1));
}

void extreme_factors_keep_sums_finite() {
  Bench b([](TableSpec& t) { by_priority(t), t.episode_weights = true, t.step_discount = 1e-3, t.decay = 1e-6; });
  for (double g : {1e300, 1e-300, 1.0}) {
    b.given(std::vector<double>(200, g == 1 ? 1e-30 : g));
    CHECK_OK(b.end(true, 0, g));
  }
  for (int i = 0; i < 5; ++i) {
    CHECK(b.draw(1000));
    CHECK_EQ(b.view.head.population, 600u);
    CHECK(std::isfinite(b.view.head.total) && b.view.head.total > 0 && b.view.head.min_weight > 0);
  }
  CHECK_EQ(b.memory->verify(), 0);
}

// Successive draws, each by the weights left: the order of all of them has the probability of that process; each item comes once.
void without_replacement() {
  const double p[] = {1, 2, 3, 6};
  std::map<std::vector<uint64_t>, double> seen;
  const int rounds = 20000;
  Bench b([](TableSpec& t) { by_priority(t), t.select = Select::kWithoutReplacement; });
  b.given({1, 2, 3, 6});
  CHECK_OK(b.end());
  for (int round = 0; round < rounds; ++round) {
    std::vector<uint64_t> order;
    double left = 12;
    for (uint64_t draws : {1, 2, 5}) {
      CHECK(b.draw(draws));
      for (uint64_t d = 0; d < b.view.head.draws; ++d) {
        order.push_back(step_of(b.view.draws[d].key) % 5);
        left -= b.view.draws[d].weight;
      }
      CHECK_EQ(b.view.head.total, left);
      CHECK_EQ(b.view.head.population, 4 - order.size());
    }
    ++seen[order];
    CHECK(!b.draw(5));
    const double raised = 9;
    const uint64_t key = b.view.draws[0].key;
    b.memory->feedback(0, 1, &key, &raised, 1);  // a learner's update revives nothing
    CHECK(!b.draw(5));
    const double as_before = p[step_of(key) % 5];
    b.memory->feedback(0, 2, &key, &as_before, 1);
    b.memory->reopen({5});  // a new server has seen nothing
  }
  double chi = 0;
  CHECK_EQ(seen.size(), 24u);
  for (const auto& [order, count] : seen) {
    double mean = rounds, left = 12;
    for (uint64_t i : order) mean *= p[i] / left, left -= p[i];
    chi += (count - mean) * (count - mean) / mean;
  }
  CHECK(chi < 49.7);  // 23 degrees of freedom, one in a thousand
  CHECK_EQ(b.memory->verify(), 0);
}

void stale_items_are_not_drawn() {
  Bench b([](TableSpec& t) { by_priority(t), t.max_staleness = 2; });
  for (int64_t version : {3, 1, 2, 5}) b.given({1, 1}, version);
  CHECK_OK(b.end());
  CHECK(b.draw(0) && b.view.head.population == 8 && b.view.head.newest == 0 && b.view.head.stale == 0);  // nothing published: all is fresh
  b.memory->newest(4);
  CHECK(b.draw(300) && b.view.head.newest == 4 && b.view.head.stale == 2 && b.view.head.population == 6 && b.view.head.total == 6);
  for (uint64_t d = 0; d < b.view.head.draws; ++d) CHECK(step_of(b.view.draws[d].key) / 2 != 1);
  b.memory->newest(2);  // an older word changes nothing
  CHECK(b.draw(0) && b.view.head.newest == 4 && b.view.head.stale == 2);
  b.memory->newest(9);
  CHECK(b.draw(8) && b.view.head.draws == 0 && b.view.head.stale == 8 && b.view.head.population == 0 && b.view.head.min_weight == 0);
  CHECK(!b.draw(8));
  b.given({1, 1}, 6);  // stale when it is made
  b.given({1, 1}, 7);
  CHECK_OK(b.end());
  CHECK(b.draw(8) && b.view.head.stale == 10 && b.view.head.population == 2);
  TableSpec looser = b.spec;
  looser.max_staleness = 4;
  b.memory->configure(0, looser);
  CHECK(b.draw(0) && b.view.head.stale == 6 && b.view.head.population == 6);
  looser.max_staleness = -1;
  b.memory->configure(0, looser);
  CHECK(b.draw(0) && b.view.head.stale == 0 && b.view.head.population == 12);
  looser.max_staleness = 0;
  b.memory->configure(0, looser);
  CHECK(b.draw(0) && b.view.head.stale == 12 && b.view.head.population == 0);
  CHECK_EQ(b.memory->verify(), 0);
}

// Of select = "all" they are not sent, and nothing waits for them.
void stale_items_are_not_sent() {
  Bench b([](TableSpec& t) { t.select = Select::kAll, t.max_staleness = 1, t.max_steps = 10; });
  for (int64_t version : {1, 2}) {
    for (int i = 0; i < 4; ++i) CHECK_OK(b.add(0, 0, std::nan(""), 0, version));
    CHECK_OK(b.end());
  }
  b.memory->newest(3);
  CHECK_EQ(b.stats().unsent, 4u);
  CHECK_EQ(b.stats().stale, 4u);
  for (int i = 0; i < 4; ++i) CHECK_OK(b.add(0, 0, std::nan(""), 0, 2));  // the first episode gives way
  CHECK_EQ(b.memory->stats().steps, 8u);
  CHECK(b.draw(0) && b.view.head.items == 7 && b.view.head.unsent == 0 && b.view.head.stale == 0 && b.view.head.inserted == 11);
  CHECK(!b.draw(0));
  b.memory->newest(4);  // what is here is stale now; the server is told which version that is by
  CHECK(b.draw(0) && b.view.head.items == 0 && b.view.head.newest == 4 && b.view.head.stale == 7);
  CHECK(!b.draw(0));
  // An open episode of stale steps loses its oldest without having sent them, in a table that sends at the end.
  Bench late([](TableSpec& t) { t.select = Select::kAll, t.max_staleness = 1, t.max_steps = 10, t.episode_weights = true; });
  for (int i = 0; i < 8; ++i) CHECK_OK(late.add(0, 0, std::nan(""), 0, 1));
  late.memory->newest(9);
  for (int i = 0; i < 8; ++i) CHECK_OK(late.add(0, 0, std::nan(""), 0, 9));
  CHECK_OK(late.end(true, 0, 2));
  CHECK(late.draw(0) && late.view.head.items == 8 && late.view.factors[0] == 2);
  CHECK_EQ(late.memory->verify(), 0);
}

void gates() {
  Bench b([](TableSpec& t) { t.name = "queue"; });
  auto refused = [&](const char* says) {
    const uint64_t added = b.memory->added();
    const Status s = b.add(0, 0);
    const bool named = s.message().find("\"queue\"") != std::string::npos && s.message().find(says) != std::string::npos;
    return s.code() == Code::kFull && named && b.memory->added() == added;
  };
  b.memory->gate(0, 3, false);
  for (int i = 0; i < 4; ++i) CHECK_OK(b.add(0, 0));  // the fourth makes the third item
  CHECK(refused("samples_per_insert"));
  CHECK(refused("has made 3 items and may make 3"));
  CHECK_OK(b.end());  // never refused: it makes the fourth
  CHECK_EQ(b.stats().inserted, 4u);
  b.memory->gate(0, 5, false);
  CHECK_OK(b.add(0, 0));
  CHECK_OK(b.add(0, 0));
  CHECK(refused("has made 5 items and may make 5"));
  b.memory->gate(0, ~uint64_t{0}, true);
  CHECK(refused("when_full"));
  b.memory->gate(0, ~uint64_t{0}, false);
  for (int i = 0; i < 100; ++i) CHECK_OK(b.add(0, 0));
  CHECK(b.draw(0) && b.view.head.allowed == ~uint64_t{0});  // lowered since the last payload, but raised again
}

// Items that become final at an episode's end count exactly too.
void gates_count_what_an_end_makes() {
  Bench b([](TableSpec& t) { t.select = Select::kAll, t.returns = true; });
  b.memory->gate(0, 7, false);
  b.episode({1, 1, 1}, {0, 0, 0}, true);
  b.episode({1, 1, 1, 1}, {0, 0, 0, 0}, true);
  CHECK(b.add(0, 0).code() == Code::kFull);
  b.memory->gate(0, 8, false);
  for (int i = 0; i < 20; ++i) CHECK_OK(b.add(0, 0));  // an open episode has none
  CHECK_OK(b.end());
  CHECK_EQ(b.stats().inserted, 27u);
  CHECK(b.add(0, 0).code() == Code::kFull);
}

void lowered_allowances_are_told() {
  Bench b([](TableSpec& t) { t.select = Select::kAll; });
  CHECK(!b.draw(0));
  b.memory->gate(0, 10, false);
  CHECK(b.draw(1) && b.view.head.allowed == 10 && b.view.head.items == 0);
  CHECK(!b.draw(1));
  CHECK(b.draw(0) && b.view.head.allowed == ~uint64_t{0} && b.view.head.items == 0);  // it waits for more
  b.memory->gate(0, 20, false);
  CHECK(!b.draw(1));
  b.memory->gate(0, 4, false);
  CHECK_OK(b.add(0, 0));
  CHECK_OK(b.end());
  CHECK(b.draw(0) && b.view.head.allowed == 4 && b.view.head.items == 1);
  CHECK_OK(b.add(0, 0));
  CHECK_OK(b.end());
  CHECK(b.draw(0) && b.view.head.allowed == ~uint64_t{0});
}

void blocking_tables_send_what_there_is_room_for() {
  Bench b([](TableSpec& t) { t.select = Select::kAll, t.blocks = true; });
  CHECK(b.draw(0) && b.view.head.items == 0);
  for (int i = 0; i < 10; ++i) CHECK_OK(b.add(0, 0));
  CHECK_OK(b.end());
  CHECK(b.draw(0) && b.view.head.items == 0 && b.view.head.unsent == 10 && b.view.head.inserted == 10);
  CHECK(b.draw(4) && b.view.head.items == 4 && b.view.head.unsent == 6);
  CHECK(b.draw(40) && b.view.head.items == 6 && b.view.head.unsent == 0 && step_of(b.view.items[0].key) == 4);
  CHECK(!b.draw(40));
  CHECK(b.draw(0) && b.view.head.items == 0);
  const uint64_t keys[] = {make_key(5, 0), make_key(5, 1), make_key(5, 77)};
  b.memory->missing(0, keys, 3);
  CHECK(b.draw(0) && b.view.head.items == 0 && b.view.head.gone == 1 && b.view.head.unsent == 2);
  CHECK(b.draw(1) && b.view.head.items == 1 && b.view.items[0].key == keys[0]);
  CHECK(b.draw(9) && b.view.head.items == 1 && b.view.items[0].key == keys[1]);
}

void short_episodes_are_told() {
  Bench b([](TableSpec& t) { t.kind = Kind::kSequence, t.length = 3, t.stride = 3, t.select = Select::kAll; });
  b.episode({1, 1}, {0, 0}, true);
  CHECK_OK(b.add(1, 0));
  CHECK(b.draw(0) && b.view.head.items == 0 && b.view.head.short_episodes == 1 && b.view.head.episodes == 1);
  CHECK(!b.draw(0));
  CHECK_OK(b.end());
  b.episode({1, 1, 1, 1}, {0, 0, 0, 0}, true);
  CHECK(b.draw(0) && b.view.head.items == 2 && b.view.head.short_episodes == 2 && b.view.head.episodes == 3);
  b.episode({1}, {0}, true);
  CHECK(!b.draw(0));  // other episodes were long enough
  CHECK_EQ(b.stats().short_episodes, 3u);
}

// New gammas and lambda: what no learner has said is as if they had been there from the start, and what is sent from now on is made of them.
void changed_settings_hold_from_now_on() {
  auto set = [](TableSpec& t) {
    t.kind = Kind::kTransition;
    t.n_step = 3;
    t.gamma.values = t.returns_gamma.values = {.5};
    t.next = {0};
    t.returns = true;
    t.lambda = .3;
    t.source = Source::kReturn;
  };
  auto play = [](Bench* b) {
    b->episode({1, 0, 2, -1, 3}, {.5, .4, .3, .2, .1}, false, .7);
    for (double r : {2., 1., 5.}) CHECK_OK(b->add(r, .5));
  };
  Bench b(set), truth([&](TableSpec& t) { set(t), t.gamma.values = t.returns_gamma.values = {.9}, t.lambda = .8, t.exponent = .4; });
  play(&b);
  play(&truth);
  CHECK(b.draw(1));
  const uint64_t learned = make_key(5, 1);
  const double p = 4;
  for (Bench* m : {&b, &truth}) m->memory->feedback(0, 1, &learned, &p, 1);
  b.memory->configure(0, truth.spec);
  b.spec.change(truth.spec);
  CHECK_NEAR(b.stats().total, truth.stats().total, 1e-6);
  CHECK_EQ(b.stats().exponent, .4);
  const uint64_t sent = b.view.items[0].key;
  CHECK(b.draw(400) && truth.draw(400));
  CHECK_EQ(b.view.head.items, 6u);
  for (uint64_t i = 0; i < b.view.head.items; ++i) {
    CHECK(b.view.items[i].key != sent);
    for (uint64_t j = 0; j < truth.view.head.items; ++j) {
      if (truth.view.items[j].key != b.view.items[i].key) continue;
      CHECK_NEAR(b.view.items[i].priority, truth.view.items[j].priority, 1e-6);
      for (const char* name : {"reward", "discount", "return", "advantage"}) CHECK_EQ(b.made(i, name), truth.made(j, name));
    }
  }
  for (Bench* m : {&b, &truth}) {
    CHECK_OK(m->add(7, .5));
    CHECK_OK(m->end(true));
  }
  CHECK_NEAR(b.stats().total, truth.stats().total, 1e-6);
  CHECK_EQ(b.memory->verify(), 0);
}

}  // namespace

int main() {
  factors();
  extreme_factors_keep_sums_finite();
  without_replacement();
  stale_items_are_not_drawn();
  stale_items_are_not_sent();
  gates();
  gates_count_what_an_end_makes();
  lowered_allowances_are_told();
  blocking_tables_send_what_there_is_room_for();
  short_episodes_are_told();
  changed_settings_hold_from_now_on();
  return check::summary();
}
