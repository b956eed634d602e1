// An actor's memory, one promise at a time: golden numbers through the payload, priorities, what travels, bounds, refusals, threads.
#include "memory.h"

#include <thread>

#include "bench.h"

using namespace memsvc;

using bench::Bench;

namespace {

void golden() {
  const double rewards[] = {2.62, .99, 3.53, 1.7, 3.0}, weights[] = {1.924809, 1.710907, 2.176209, 1.214821, 2.332103};
  const double discounts[2][5] = {{.729, .729, .729, .81, .9}, {.729, .729, 0, 0, 0}};
  const double returns[2][5] = {{2.775334, 2.365741, 3.210752, 1.6316, 3.63}, {2.606029, 2.130595, 2.884160, 1.178, 3.0}};
  const double values[] = {.5, .4, .3, .2, .1};
  for (int terminated = 0; terminated < 2; ++terminated) {
    Bench b([](TableSpec& t) {
      t.kind = Kind::kTransition;
      t.n_step = 3;
      t.gamma.values = t.returns_gamma.values = {.9};
      t.next = {0};
      t.returns = true;
      t.lambda = .8;
      t.source = Source::kReturn;
    });
    b.episode({1, 0, 2, -1, 3}, {.5, .4, .3, .2, .1}, terminated, .7);
    CHECK(b.draw(300));
    CHECK_EQ(b.view.head.items, 5u);
    CHECK_EQ(b.view.head.rows, 6u);
    CHECK_EQ(b.view.head.draws, 300u);
    for (uint64_t i = 0; i < b.view.head.items; ++i) {
      const uint64_t t = step_of(b.view.items[i].key);
      CHECK_NEAR(b.made(i, "reward"), rewards[t], 1e-6);
      CHECK_NEAR(b.made(i, "discount"), discounts[terminated][t], 1e-6);
      CHECK_NEAR(b.made(i, "return"), returns[terminated][t], 1e-6);
      CHECK_NEAR(b.made(i, "advantage"), returns[terminated][t] - values[t], 1e-6);
    }
    for (uint64_t d = 0; terminated && d < b.view.head.draws; ++d) CHECK_NEAR(b.view.draws[d].weight, weights[step_of(b.view.draws[d].key)], 1e-6);
    CHECK_NEAR(b.view.head.scale, std::sqrt(2.0), 1e-6);
  }
}

void nothing_to_say() {
  Bench b([](TableSpec&) {});
  CHECK(!b.draw(8));
  CHECK(b.draw(0) && b.view.head.total == 0 && b.view.head.population == 0);
  CHECK_OK(b.memory->end(0, false, nullptr));  // no step so far
  CHECK_OK(b.add(1, 1));
  CHECK(!b.draw(8));  // the newest step of an unfinished episode
  CHECK_OK(b.add(1, 1));
  CHECK(b.draw(8) && b.view.head.population == 1 && b.view.head.items == 1 && b.view.head.draws == 8);
  const uint64_t key = b.view.draws[0].key;
  const double zero = 0;
  CHECK_EQ(b.memory->feedback(0, 4, &key, &zero, 1), 1u);
  CHECK(b.draw(8) && b.view.head.draws == 0 && b.view.head.total == 0 && b.view.head.applied == 4);  // said once
  CHECK(!b.draw(8));
  const double one = 1;
  b.memory->feedback(0, 5, &key, &one, 1);
  CHECK(b.draw(8) && b.view.head.draws == 8 && b.view.head.items == 0);  // still held
}

void newest_items_get_the_largest() {
  Bench b([](TableSpec& t) { t.exponent = 1; });
  b.episode({0, 0}, {0, 0}, true);
  CHECK_EQ(b.stats().total, 2.0);
  const uint64_t keys[] = {make_key(5, 0), make_key(5, 1)};
  double p[] = {7, .5};
  b.memory->feedback(0, 1, keys, p, 2);
  b.episode({0}, {0}, true);
  CHECK_EQ(b.stats().total, 14.5);
  p[0] = 2;  // the newcomer of 7 is the largest now
  b.memory->feedback(0, 2, keys, p, 1);
  b.episode({0}, {0}, true);
  CHECK_EQ(b.stats().total, 2 + .5 + 7 + 7);
  Bench zeros([](TableSpec& t) { t.exponent = 1; });
  zeros.episode({0}, {0}, true);
  p[0] = 0;
  zeros.memory->feedback(0, 1, keys, p, 1);
  zeros.episode({0}, {0}, true);
  CHECK_EQ(zeros.stats().total, 1.0);
  CHECK_EQ(zeros.stats().population, 1u);
}

// Draws follow the weights (chi-square), and an item of weight 0 never comes, in 1e6 draws.
void frequencies() {
  Bench b([](TableSpec& t) { t.source = Source::kGiven; });
  const double p[] = {1, 2, 0, 3, 4, .01};
  for (double x : p) CHECK_OK(b.add(0, 0, x));
  CHECK_OK(b.memory->end(0, true, nullptr));
  double expected[6], total = 0, seen[6] = {};
  for (int i = 0; i < 6; ++i) total += expected[i] = p[i] > 0 ? std::pow(p[i], .6) : 0;
  for (int round = 0; round < 100; ++round) {
    CHECK(b.draw(10000));
    for (uint64_t d = 0; d < b.view.head.draws; ++d) ++seen[step_of(b.view.draws[d].key)];
  }
  double chi = 0;
  for (int i = 0; i < 6; ++i) {
    const double mean = 1e6 * expected[i] / total;
    if (mean > 0) chi += (seen[i] - mean) * (seen[i] - mean) / mean;
  }
  CHECK_EQ(seen[2], 0.0);
  CHECK(chi < 18.5);  // 4 degrees of freedom, one in a thousand
  CHECK_NEAR(b.view.head.total, total, 1e-12);
}

// The running mean takes every step once, in whatever way it leaves the unfinished part: ended, evicted unseen, trimmed.
void normaliser_counts_each_step_once() {
  auto set = [](TableSpec& t) {
    t.returns = true;
    t.returns_gamma.values = {0};
    t.source = Source::kReturn;
    t.max_steps = 20;
  };
  Bench b(set);
  double mean = 1;
  auto count = [&](double x) { mean += 1e-8 * (x * x - mean); };
  for (int e = 0; e < 30; ++e) {
    b.episode({1e4 + e, 2e4, 3e4}, {0, 0, 0}, true);
    for (double x : {1e4 + e, 2e4, 3e4}) count(x);
    if (e % 7 == 0) CHECK_NEAR(b.stats().scale, 1 / std::sqrt(mean / 2), 1e-9);
  }
  for (int i = 0; i < 100; ++i) CHECK_OK(b.add(1e4 * i, 0));
  for (int i = 0; i < 80; ++i) count(1e4 * i);
  CHECK_NEAR(b.stats().scale, 1 / std::sqrt(mean / 2), 1e-9);
  CHECK_OK(b.memory->end(0, true, nullptr));
  for (int i = 80; i < 100; ++i) count(1e4 * i);
  CHECK_NEAR(b.stats().scale, 1 / std::sqrt(mean / 2), 1e-9);
  CHECK_EQ(b.stats().inserted, 190u);
}

void a_payload_travels_once() {
  Bench b([](TableSpec& t) { t.kind = Kind::kTransition, t.next = {0}, t.n_step = 2; });
  b.episode({1, 2, 3, 4}, {0, 0, 0, 0}, true);
  CHECK(b.draw(200) && b.view.head.items == 4 && b.view.head.rows == 5);
  CHECK(b.draw(200) && b.view.head.items == 0 && b.view.head.rows == 0 && b.view.head.draws == 200);
  const uint64_t keys[] = {make_key(5, 0), make_key(5, 1), make_key(5, 77)};
  b.memory->evicted(0, keys, 1);  // item 0 needs rows 0 and 2; 2 is still needed by item 2
  CHECK(b.draw(200) && b.view.head.items == 1 && b.view.head.rows == 1 && b.view.row_keys[0] == keys[0]);
  b.memory->missing(0, keys + 1, 2);
  CHECK_EQ(b.stats().held, 3u);
  CHECK(b.draw(1) && b.view.head.items == 1 && b.view.head.rows == 2 && b.view.items[0].key == keys[1]);
  CHECK(b.view.head.gone == 1 && b.view.gone[0] == keys[2]);
  CHECK(b.draw(1) && b.view.head.items == 0 && b.view.head.gone == 0);
  CHECK_EQ(b.stats().held, 4u);

  // A bound on bytes ends the draws, but never below one.
  b.memory->evicted(0, keys, 2);
  CHECK(b.draw(200, 1) && b.view.head.draws == 1);
  CHECK(b.draw(200, 1000) && b.view.head.draws > 1 && b.view.head.draws < 200);

  b.memory->reopen({9});
  CHECK_EQ(b.stats().held, 0u);
  CHECK(b.draw(200) && b.view.head.items == 4 && b.view.head.rows == 5 && stream_of(b.view.items[0].key) == 9);
  b.memory->reopen({9});  // a stream that stays counts on
  CHECK(b.draw(200));
  for (uint64_t i = 0; i < b.view.head.items; ++i) CHECK(step_of(b.view.items[i].key) >= 5 && step_of(b.view.items[i].key) < 10);
}

void refusals_change_nothing() {
  Bench b([](TableSpec& t) { t.kind = Kind::kTransition, t.next = {0}, t.source = Source::kGiven; }, {1, 2});
  auto code = [](const Status& s) { return s.code(); };
  CHECK(code(b.add(0, 0, 1, 2)) == Code::kInvalid);
  for (double p : {std::nan(""), HUGE_VAL, -1.0}) CHECK(code(b.add(0, 0, p)) == Code::kInvalid);
  CHECK_EQ(b.memory->stats().added, 0u);
  CHECK_OK(b.add(0, 0, 1));
  CHECK(code(b.memory->end(0, false, nullptr)) == Code::kInvalid);
  std::vector<const uint8_t*> none(b.schema.fields().size(), nullptr);
  CHECK(code(b.memory->end(0, false, none.data())) == Code::kInvalid);
  CHECK(code(b.memory->end(7, true, nullptr)) == Code::kInvalid);
  CHECK_EQ(b.memory->stats().episodes, 0u);

  std::vector<uint8_t> rows;
  for (int i = 0; i < 2; ++i) {
    const std::vector<uint8_t> r = b.row(i, i);
    rows.insert(rows.end(), r.begin(), r.end());
  }
  const std::vector<const uint8_t*> fields = b.fields(rows);
  const std::vector<size_t> strides(fields.size(), b.schema.row_stride());
  const double priority[] = {1, 2}, bad[] = {1, -2};
  const int64_t twice[] = {1, 1};
  const uint8_t yes[] = {1, 1}, second[] = {0, 1};
  StepBatch batch;
  batch.rows = 2;
  batch.fields = fields.data();
  batch.strides = strides.data();
  batch.priority = bad;
  CHECK(code(b.memory->add_batch(batch)) == Code::kInvalid);
  batch.priority = priority;
  batch.envs = twice;
  CHECK(code(b.memory->add_batch(batch)) == Code::kInvalid);
  batch.envs = nullptr;
  batch.truncated = yes;
  CHECK(code(b.memory->add_batch(batch)) == Code::kInvalid);  // no final observation
  CHECK_EQ(b.memory->stats().added, 1u);
  batch.final_fields = fields.data();
  batch.final_strides = strides.data();
  batch.active = second;
  CHECK_OK(b.memory->add_batch(batch));
  MemoryStats s = b.memory->stats();
  CHECK(s.added == 2 && s.episodes == 1 && s.tables[0].population == 1);
  batch.active = nullptr;
  CHECK_OK(b.memory->add_batch(batch));
  s = b.memory->stats();
  CHECK(s.added == 4 && s.episodes == 3 && s.tables[0].population == 4);
  CHECK_EQ(b.memory->verify(), 0);
}

void all_waits_for_the_push() {
  Bench b([](TableSpec& t) { t.select = Select::kAll, t.max_steps = 10, t.max_episodes = 2; });
  for (int e = 0; e < 3; ++e) b.episode({1, 2, 3}, {0, 0, 0}, true);
  CHECK_EQ(b.memory->stats().episodes, 3u);  // above the bound until they have been sent
  CHECK_OK(b.add(0, 0));
  CHECK(b.add(0, 0).code() == Code::kFull);
  CHECK_EQ(b.memory->stats().added, 10u);
  uint64_t items, bytes;
  b.memory->unsent(0, &items, &bytes);
  CHECK(items == 9 && bytes > 9 * b.schema.row_stride());
  uint64_t next = 0;
  while (b.draw(0, 200)) {
    for (uint64_t i = 0; i < b.view.head.items; ++i, ++next) CHECK_EQ(step_of(b.view.items[i].key), next + next / 3);  // oldest first, each once
  }
  CHECK_EQ(next, 9u);
  CHECK_EQ(b.memory->stats().episodes, 2u);
  CHECK_OK(b.add(0, 0));
  CHECK(b.draw(0) && b.view.head.items == 1);
  const uint64_t key = make_key(5, 0), kept = make_key(5, 4);
  b.memory->missing(0, &key, 1);  // evicted here
  b.memory->missing(0, &kept, 1);
  CHECK(b.draw(0) && b.view.head.gone == 1 && b.view.head.items == 1 && b.view.head.rows == 1);
}

void broken_numbers_are_never_drawn() {
  Bench b([](TableSpec& t) { t.kind = Kind::kTransition, t.source = Source::kTd; });
  b.episode({1, std::nan(""), 3, HUGE_VAL}, {.5, .5, .5, .5}, true);
  const ViewStats s = b.stats();
  CHECK(std::isfinite(s.total) && s.population == 2);
  // Past a termination the value's row does not count, whatever it says.
  b.episode({1}, {.5}, true, std::nan(""));
  CHECK_EQ(b.stats().population, 3u);
}

size_t resident_bytes() {
  size_t pages = 0, resident = 0;
  if (FILE* f = std::fopen("/proc/self/statm", "r")) {
    CHECK_EQ(std::fscanf(f, "%zu %zu", &pages, &resident), 2);
    std::fclose(f);
  }
  return resident * 4096;
}

void a_large_bound_costs_nothing() {
  const size_t before = resident_bytes();
  Bench b([](TableSpec& t) { t.max_steps = 50'000'000; });
  for (int i = 0; i < 10000; ++i) CHECK_OK(b.add(0, 0));
  CHECK(b.draw(10));
  CHECK_EQ(b.stats().population, 9999u);
  CHECK_EQ(b.memory->verify(), 0);
  CHECK(resident_bytes() < before + (16 << 20));
  CHECK(b.memory->stats().bytes < 2 << 20);
}

void threads_may_share_it() {
  Bench b([](TableSpec& t) { t.kind = Kind::kTransition, t.next = {0}, t.n_step = 3, t.max_steps = 500; }, {1, 2});
  const std::vector<uint8_t> r = b.row(1, 1);
  std::vector<std::thread> threads;
  for (size_t env = 0; env < 2; ++env) {
    threads.emplace_back([&, env] {
      for (int i = 1; i <= 5000; ++i) {
        if (!b.memory->add(env, b.fields(r).data(), std::nan(""), 0).ok()) std::abort();
        if (i % 23 == 0 && !b.memory->end(env, true, nullptr).ok()) std::abort();
      }
    });
  }
  threads.emplace_back([&] {
    Buffer buffer;
    for (int i = 0; i < 500; ++i) {
      CacheView view;
      if (!b.memory->draw(0, 32, 1 << 20, 0, &buffer).ok()) std::abort();
      if (buffer.size() == 0) continue;
      if (!read_cache(b.spec, b.schema.row_stride(), buffer.data(), buffer.size(), &view).ok()) std::abort();
      std::vector<double> p(view.head.draws, .5);
      std::vector<uint64_t> keys;
      for (uint64_t d = 0; d < view.head.draws; ++d) keys.push_back(view.draws[d].key);
      b.memory->feedback(0, static_cast<uint64_t>(i), keys.data(), p.data(), p.size());
      b.memory->evicted(0, keys.data(), keys.size() / 2);
      b.memory->stats();
    }
  });
  for (std::thread& t : threads) t.join();
  CHECK_EQ(b.memory->stats().added, 10000u);
  CHECK_EQ(b.memory->verify(), 0);
}

}  // namespace

int main() {
  golden();
  nothing_to_say();
  newest_items_get_the_largest();
  frequencies();
  normaliser_counts_each_step_once();
  a_payload_travels_once();
  refusals_change_nothing();
  all_waits_for_the_push();
  broken_numbers_are_never_drawn();
  a_large_bound_costs_nothing();
  threads_may_share_it();
  return check::summary();
}
