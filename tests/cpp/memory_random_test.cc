// Random operations on a memory, held against the naive model and a mirror of the server after each of them: interleaved streams, wrapping, trimming,
// eviction at the server with and without notice, feedback, two tables over one memory, and the numbered invariants.
#include <functional>
#include <string>

#include "mirror.h"
#include "model.h"

using namespace memsvc;

namespace {

struct Case {
  const char* name;
  std::vector<std::function<void(TableSpec&)>> tables;
  size_t envs = 3;
  uint64_t max_steps = 200, max_episodes = 0;
  uint32_t k = 1;
  bool wide = false;
  int longest = 30;     // an episode ends with probability 1 / longest a step
  bool notices = true;  // the server says what it drops
  bool gates = false, ages = false, changes = false;
};

struct Run {
  const Case& c;
  Random random;
  Schema schema;
  std::vector<TableSpec> specs;
  std::unique_ptr<Memory> memory;
  model::Memory naive;
  model::Mirror server;
  std::vector<std::map<uint64_t, double>> learned;
  std::vector<std::set<uint64_t>> sent, asked;
  std::set<uint64_t> ever_asked;
  using Name = std::pair<const model::Episode*, size_t>;
  std::vector<std::map<Name, uint64_t>> times;      // drawn
  std::vector<std::set<Name>> made, spent, passed;  // ever made; sent without replacement; "all": too stale at some time
  std::vector<uint64_t> before;                     // made for the servers of before
  std::vector<uint64_t> allowed;
  std::vector<uint8_t> blocked, lowered;
  uint64_t feedbacks = 0;
  std::vector<uint64_t> numbers;
  bool trims;

  Run(const Case& given, uint64_t seed) : c(given), random(seed), schema(model::make_schema(c.k, c.wide)) {
    for (const auto& set : c.tables) {
      TableSpec spec;
      spec.max_steps = c.max_steps;
      spec.max_episodes = c.max_episodes;
      set(spec);
      CHECK_OK(spec.derive(schema));
      specs.push_back(spec);
    }
    for (size_t env = 0; env < c.envs; ++env) naive.streams.push_back(10 + 7 * env);
    memory = std::make_unique<Memory>(schema, specs, naive.streams, seed);
    naive.open.resize(c.envs);
    naive.next.resize(c.envs);
    naive.capacity = c.max_steps;
    naive.max_episodes = c.max_episodes;
    for (auto* list : {&sent, &asked}) list->resize(specs.size());
    for (auto* list : {&made, &spent, &passed}) list->resize(specs.size());
    times.resize(specs.size());
    allowed.assign(specs.size(), ~uint64_t{0});
    before.assign(specs.size(), 0);
    blocked.assign(specs.size(), 0);
    lowered.assign(specs.size(), 0);
    server.items.resize(specs.size());
    learned.resize(specs.size());
    numbers.resize(specs.size());
    trims = static_cast<uint64_t>(c.longest) * 8 > c.max_steps / c.envs;
  }

  std::vector<const uint8_t*> pointers(const model::Step& s) const {
    std::vector<const uint8_t*> p;
    for (const Field& f : schema.fields()) p.push_back(&s.row[f.offset]);
    return p;
  }

  void add() {
    const size_t env = random.below(c.envs);
    const model::Step s = model::random_step(schema, random, static_cast<int64_t>(naive.added / 10) - static_cast<int64_t>(random.below(4)));
    Status status = memory->add(env, pointers(s).data(), s.given, s.version);
    if (c.gates) {
      bool closed = false;
      for (size_t table = 0; table < specs.size(); ++table) closed = closed || blocked[table] || inserted(table) >= allowed[table];
      if (closed) {
        CHECK(status.code() == Code::kFull && status.message().find("table \"") != std::string::npos);
        return;
      }
    }
    for (int tries = 0; status.code() == Code::kFull && tries < 50; ++tries) {
      for (size_t table = 0; table < specs.size(); ++table) draw(table, true);
      status = memory->add(env, pointers(s).data(), s.given, s.version);
    }
    if (CHECK_OK(status)) naive.add(env, s);
    if (random.below(static_cast<uint64_t>(c.longest)) == 0) end(env);
  }

  void end(size_t env) {
    if (!naive.open[env]) {
      CHECK_OK(memory->end(env, false, nullptr));
      return;
    }
    const bool terminated = random.below(2), given = !terminated || random.below(2);
    const bool weighs = std::any_of(specs.begin(), specs.end(), [](const TableSpec& t) { return t.episode_weights; });
    const double weights[] = {0, .5, 1, 3}, weight = weights[weighs ? random.below(4) : 2];
    const model::Step last = given ? model::random_step(schema, random, 0) : naive.open[env]->steps.back();
    CHECK_OK(memory->end(env, terminated, given ? pointers(last).data() : nullptr, weight));
    naive.end(env, terminated, last, weight);
  }

  double priority(size_t table, const model::Item& item) const {
    const auto known = learned[table].find(item.episode->key(item.start));
    return known == learned[table].end() ? model::priority(specs[table], item) : known->second;
  }

  static bool near(double a, double b) { return std::abs(a - b) <= 1e-5 * std::max(std::abs(a), std::abs(b)) + 1e-7; }

  uint64_t times_of(size_t table, const model::Item& item) const {
    const auto known = times[table].find(item.name());
    return known == times[table].end() ? 0 : known->second;
  }

  double weight(size_t table, const model::Item& item, double scale) const {
    if (spent[table].count(item.name()) || !model::fresh(specs[table], item, naive.newest)) return 0;
    return model::weight(specs[table], priority(table, item), scale, model::factor(specs[table], item, times_of(table, item)));
  }

  // whole: as much as there may be.
  bool draw(size_t table, bool whole = false) {
    const TableSpec& spec = specs[table];
    const bool all = spec.select == Select::kAll;
    Buffer buffer;
    const uint64_t draws = spec.blocks ? (whole ? 1000 : random.below(12)) : all ? 0 : 1 + random.below(30);
    CHECK_OK(memory->draw(table, draws, whole || random.below(4) ? 1 << 20 : random.below(600), 64, &buffer));
    const std::map<uint64_t, model::Item> items = naive.items(spec);
    if (buffer.size() == 0) return false;
    CacheView view;
    if (!CHECK_OK(read_cache(spec, schema.row_stride(), buffer.data() + 64, buffer.size() - 64, &view))) return false;
    if (spec.blocks) CHECK(view.head.items <= draws);
    uint64_t unsent, bytes;
    memory->unsent(table, &unsent, &bytes);
    CHECK_EQ(view.head.unsent, unsent);

    std::map<uint64_t, std::vector<uint8_t>> here = server.rows;
    for (uint64_t r = 0; r < view.head.rows; ++r) {
      const uint8_t* row = view.rows + r * schema.row_stride();
      if (c.notices && !trims) CHECK(!server.rows.count(view.row_keys[r]) || !asked[table].empty());
      here[view.row_keys[r]].assign(row, row + schema.row_stride());
    }
    for (uint64_t i = 0; i < view.head.items; ++i) store(table, view, i, items, here);
    const bool once = spec.select == Select::kWithoutReplacement;
    if (!once) check_head(table, view, items);
    std::vector<model::Item> drawn;
    for (uint64_t d = 0; d < view.head.draws; ++d) {
      const auto item = items.find(view.draws[d].key);
      if (!CHECK(item != items.end())) continue;
      CHECK(near(view.draws[d].weight, weight(table, item->second, view.head.scale)));
      drawn.push_back(item->second);
      if (once) spent[table].insert(item->second.name());
      if (!server.items[table].count(view.draws[d].key)) miss(table, view.draws[d].key);
    }
    for (const model::Item& item : drawn) ++times[table][item.name()];
    if (once) check_head(table, view, items);
    for (uint64_t g = 0; g < view.head.gone; ++g) {
      asked[table].erase(view.gone[g]);
      CHECK(ever_asked.count(view.gone[g]));
      CHECK(!items.count(view.gone[g]));
    }
    CHECK(all || view.head.draws >= 1 || view.head.population == 0);
    lowered[table] = 0;
    return view.head.items > 0 || !all;
  }

  void check_head(size_t table, const CacheView& view, const std::map<uint64_t, model::Item>& items) {
    const TableSpec& spec = specs[table];
    double total = 0, least = 0;
    uint64_t population = 0, stale = 0;
    for (const auto& [key, item] : items) {
      const double w = weight(table, item, view.head.scale);
      total += w;
      population += w > 0;
      if (w > 0 && (least == 0 || w < least)) least = w;
      stale += !model::fresh(spec, item, naive.newest) && (spec.select != Select::kAll || model::final(spec, item));
    }
    CHECK_EQ(view.head.table, table);
    CHECK_EQ(view.head.steps, naive.added);
    CHECK_EQ(view.head.applied, numbers[table]);
    CHECK_NEAR(view.head.scale, spec.source == Source::kReturn ? std::sqrt(2.0) : 1, 1e-4);
    CHECK_EQ(view.head.exponent, spec.exponent);
    CHECK_EQ(view.head.newest, naive.newest);
    CHECK_EQ(view.head.episodes, naive.ended);
    CHECK_EQ(view.head.short_episodes, naive.too_short(spec));
    CHECK_EQ(view.head.allowed, lowered[table] ? allowed[table] : ~uint64_t{0});
    if (spec.select != Select::kAll || !trims) CHECK_EQ(view.head.stale, stale);
    if (spec.select == Select::kAll) return;
    CHECK_EQ(view.head.population, population);
    CHECK(near(view.head.total, total));
    CHECK(near(view.head.min_weight, least));
  }

  void store(size_t table, const CacheView& view, uint64_t i, const std::map<uint64_t, model::Item>& items,
             const std::map<uint64_t, std::vector<uint8_t>>& here) {
    const TableSpec& spec = specs[table];
    const ItemRecord& record = view.items[i];
    const auto item = items.find(record.key);
    if (!CHECK(item != items.end())) return;
    if (spec.select == Select::kAll) {
      const bool again = asked[table].count(record.key);
      CHECK(sent[table].insert(record.key).second || again);
      CHECK(again || model::fresh(spec, item->second, naive.newest));
      CHECK(near(record.priority, priority(table, item->second) * view.head.scale));
      if (!trims) CHECK(model::final(spec, item->second));
    }
    const double f = model::factor(spec, item->second, times_of(table, item->second));
    CHECK_EQ(view.factors != nullptr, spec.factors());
    if (view.factors) CHECK(near(view.factors[i], f));
    bool whole = true;
    model::Mirror::each(spec, record, [&](uint64_t row) { whole = whole && here.count(row); });
    if (!whole) {
      CHECK(!c.notices && !asked[table].count(record.key));
      miss(table, record.key);
      return;
    }
    asked[table].erase(record.key);
    model::check_item(spec, item->second, record, view.made + i * spec.made_bytes, here);
    if (server.items[table].count(record.key)) server.drop(spec, table, record.key);
    model::Mirror::each(spec, record, [&](uint64_t row) { server.rows[row] = here.at(row), ++server.refs[row]; });
    server.items[table][record.key] = record;
  }

  void miss(size_t table, uint64_t key) {
    CHECK(!c.notices);
    asked[table].insert(key);
    ever_asked.insert(key);
    memory->missing(table, &key, 1);
  }

  void drop_at_server() {
    const size_t table = random.below(specs.size());
    std::vector<uint64_t> keys;
    for (const auto& [key, record] : server.items[table]) {
      if (random.below(3) == 0) keys.push_back(key);
    }
    for (uint64_t key : keys) server.drop(specs[table], table, key);
    if (c.notices) memory->evicted(table, keys.data(), keys.size());
    if (!c.notices && !keys.empty() && random.below(2)) miss(table, keys[0]);
  }

  void feedback() {
    const size_t table = random.below(specs.size());
    if (specs[table].source == Source::kMax) return;  // new items depend on it: memory_test.cc
    const std::map<uint64_t, model::Item> items = naive.items(specs[table]);
    std::vector<uint64_t> keys;
    std::vector<double> p;
    uint64_t expected = 0;
    for (const auto& [key, item] : items) {
      if (random.below(20) || (specs[table].select == Select::kAll && !sent[table].count(key))) continue;
      keys.push_back(key);
      p.push_back(random.below(4) ? random.uniform() * 2 : 0);
      learned[table][key] = p.back();
      ++expected;
    }
    keys.push_back(make_key(3, 3));
    p.push_back(1);
    if (keys.size() > 1) keys.push_back(keys[0]), p.push_back(std::nan(""));
    CHECK_EQ(memory->feedback(table, ++feedbacks, keys.data(), p.data(), keys.size()), expected);
    numbers[table] = feedbacks;
  }

  // Every item that there is has been made; those that are too stale now are passed over.
  void count() {
    for (size_t table = 0; table < specs.size(); ++table) {
      const TableSpec& spec = specs[table];
      for (const auto& [key, item] : naive.items(spec)) {
        if (spec.select != Select::kAll || model::final(spec, item)) made[table].insert(item.name());
        if (!model::fresh(spec, item, naive.newest)) passed[table].insert(item.name());
      }
      if (spec.select != Select::kAll || !trims) CHECK_EQ(memory->stats().tables[table].inserted, inserted(table));
    }
  }

  // What the server is told: those made for it.
  uint64_t inserted(size_t table) const { return made[table].size() - before[table]; }

  void gate() {
    const size_t table = random.below(specs.size());
    const uint64_t was = allowed[table];
    allowed[table] = random.below(3) ? inserted(table) + random.below(40) : ~uint64_t{0};
    if (allowed[table] < was) lowered[table] = 1;
    blocked[table] = random.below(4) == 0;
    memory->gate(table, allowed[table], blocked[table]);
  }

  void newest() {
    const int64_t version = static_cast<int64_t>(naive.added / 10) - static_cast<int64_t>(random.below(6));
    memory->newest(version);
    naive.newest = std::max(naive.newest, version);
  }

  void change() {
    const size_t table = random.below(specs.size());
    TableSpec to = specs[table];
    to.exponent = random.uniform();
    if (random.below(2)) to.lambda = random.uniform();
    for (double& g : to.gamma.values) g = random.below(2) ? random.uniform() : g;
    for (double& g : to.returns_gamma.values) g = random.below(2) ? random.uniform() : g;
    if (c.ages) to.max_staleness = static_cast<int64_t>(random.below(8)) - 1;
    memory->configure(table, to);
    specs[table].change(to);
  }

  void reopen() {
    std::vector<uint64_t> next(c.envs, 0);
    for (size_t env = 0; env < c.envs; ++env) naive.streams[env] += 1000;
    for (model::Episode& e : naive.episodes) {
      if (e.first == SIZE_MAX) continue;
      for (size_t table = 0; table < specs.size(); ++table) {
        for (size_t t = 0; t < e.steps.size(); ++t) {
          const uint64_t key = make_key(naive.streams[e.env], next[e.env] + t);
          if (learned[table].count(e.key(t))) learned[table][key] = learned[table][e.key(t)];
          if (sent[table].count(e.key(t))) sent[table].insert(key);
        }
      }
      e.stream = naive.streams[e.env];
      e.base = next[e.env];
      next[e.env] += e.steps.size() + 1;
    }
    for (size_t env = 0; env < c.envs; ++env) naive.next[env] = next[env];
    count();
    memory->reopen(naive.streams);
    for (size_t table = 0; table < specs.size(); ++table) {
      const ViewStats now = memory->stats().tables[table];
      CHECK_EQ(now.inserted, specs[table].select == Select::kAll ? now.unsent : 0);
      before[table] = made[table].size() - now.inserted;
    }
    server = model::Mirror();
    server.items.resize(specs.size());
    for (auto& a : asked) a.clear();
    for (auto& names : spent) names.clear();
    std::fill(numbers.begin(), numbers.end(), 0);
  }

  void go(int operations) {
    const int before = check::failed;
    for (int i = 0; i < operations && check::failed == before; ++i) {
      const uint64_t what = random.below(200);
      if (what < 160) add();
      if (what >= 160 && what < 185) draw(random.below(specs.size()));
      if (c.gates && what % 16 == 3) gate();
      if (c.ages && what % 16 == 5) newest();
      if (c.changes && what % 32 == 7) change();
      if (what >= 185 && what < 192) feedback();
      if (what >= 192 && what < 199) drop_at_server();
      if (what == 199 && random.below(5) == 0) reopen();
      CHECK_EQ(memory->verify(), 0);
      count();
      const MemoryStats s = memory->stats();
      CHECK_EQ(s.steps, naive.steps);
      CHECK_EQ(s.episodes, naive.finished.size());
      CHECK_EQ(s.ended, naive.ended);
      for (size_t table = 0; table < specs.size(); ++table) CHECK(s.tables[table].held <= server.items[table].size() || !c.notices);
    }
    for (size_t env = 0; env < c.envs; ++env) end(env);
    for (size_t table = 0; table < specs.size(); ++table) {
      if (specs[table].select != Select::kAll) continue;
      count();
      while (draw(table, true)) CHECK_EQ(memory->verify(), 0);
      uint64_t items, bytes;
      memory->unsent(table, &items, &bytes);
      CHECK_EQ(items, 0u);
      for (const model::Episode& e : naive.episodes) {
        if (e.first == SIZE_MAX || (trims && specs[table].kind == Kind::kSequence)) continue;
        for (const model::Item& i : model::items_of(specs[table], e, true)) {
          CHECK(sent[table].count(e.key(i.start)) || passed[table].count({&e, i.start}));
        }
      }
    }
    if (check::failed != before) std::cerr << "in case " << c.name << "\n";
  }
};

void transition(TableSpec& t) {
  t.kind = Kind::kTransition;
  t.n_step = 3;
  t.next = {0};
}
void stacked(TableSpec& t) {
  transition(t);
  t.frame_stack = 4;
  t.stack = {0};
}
void sequence(TableSpec& t) {
  t.kind = Kind::kSequence;
  t.length = 8;
  t.stride = 5;
  t.burn_in = 3;
  t.next = {0};
}
void with_returns(TableSpec& t) {
  t.returns = true;
  t.returns_gamma.values = {.9};
  t.lambda = .8;
  t.source = Source::kReturn;
}

const auto step_given = [](TableSpec& t) { t.source = Source::kGiven; };
const auto step_return = [](TableSpec& t) { with_returns(t); };
const auto stack_td = [](TableSpec& t) { stacked(t), t.source = Source::kTd, t.n_step = 5; };
const auto stack_return_many = [](TableSpec& t) {
  stacked(t);
  with_returns(t);
  t.gamma.values = {.9, .5};
  t.returns_gamma.values = {.8, .95};
  t.coefficients = {1, -.5};
};
const auto gamma_field = [](TableSpec& t) { transition(t), with_returns(t), t.gamma.field = t.returns_gamma.field = 4, t.n_step = 4; };
const auto sequence_td_pad = [](TableSpec& t) { sequence(t), t.source = Source::kTd, t.n_step = 2, t.tail = Tail::kPad; };
const auto sequence_return = [](TableSpec& t) { sequence(t), with_returns(t); };
const auto sequence_given_gap = [](TableSpec& t) { sequence(t), t.source = Source::kGiven, t.stride = 11, t.tail = Tail::kPad; };
const auto uniform = [](TableSpec& t) { transition(t), t.select = Select::kUniform; };
const auto all_transition = [](TableSpec& t) { stacked(t), t.select = Select::kAll; };
const auto all_return = [](TableSpec& t) { transition(t), with_returns(t), t.select = Select::kAll; };
const auto all_sequence = [](TableSpec& t) { sequence(t), t.select = Select::kAll, t.source = Source::kGiven, t.tail = Tail::kDrop; };
const auto weighed = [](TableSpec& t) { stack_td(t), t.episode_weights = true, t.step_discount = .9, t.decay = .7; };
const auto uniform_weighed = [](TableSpec& t) { uniform(t), t.episode_weights = true, t.decay = .5; };
const auto sequence_discounted = [](TableSpec& t) { sequence(t), with_returns(t), t.step_discount = .8, t.tail = Tail::kPad; };
const auto once = [](TableSpec& t) { transition(t), t.source = Source::kGiven, t.select = Select::kWithoutReplacement; };
const auto once_weighed = [](TableSpec& t) {
  sequence_discounted(t), t.select = Select::kWithoutReplacement, t.decay = .5, t.episode_weights = true;
};
const auto aging = [](TableSpec& t) { stack_td(t), t.max_staleness = 5; };
const auto once_aging = [](TableSpec& t) { once(t), t.max_staleness = 4; };
const auto all_weighed = [](TableSpec& t) { all_transition(t), t.episode_weights = true, t.step_discount = .9; };
const auto all_aging = [](TableSpec& t) { all_transition(t), t.max_staleness = 3; };
const auto all_return_aging = [](TableSpec& t) { all_return(t), t.max_staleness = 2; };
const auto all_blocking = [](TableSpec& t) { all_sequence(t), t.blocks = true, t.max_staleness = 6; };

}  // namespace

// With any argument: a quarter of the operations.
int main(int argc, char**) {
  const std::vector<Case> cases = {
      {"step given", {step_given}},
      {"step return, wide", {step_return}, 3, 200, 0, 1, true, 5},
      {"stacked td", {stack_td}, 2, 150},
      {"stacked td, trimming", {stack_td}, 2, 60, 0, 1, false, 100},
      {"stacked return, two rewards, trimming", {stack_return_many}, 3, 90, 0, 2, true, 60},
      {"stacked return, no notices", {stack_return_many}, 3, 200, 0, 2, false, 12, false},
      {"gamma field", {gamma_field}, 2, 333, 9},
      {"sequence td pad", {sequence_td_pad}, 3, 300, 0, 1, false, 10},
      {"sequence td pad, trimming", {sequence_td_pad}, 2, 50, 0, 1, false, 90},
      {"sequence return", {sequence_return}, 3, 400, 7},
      {"sequence with gaps", {sequence_given_gap}, 1, 200},
      {"uniform, one stream", {uniform}, 1, 37, 3, 1, false, 4},
      {"tables that share steps", {stack_td, sequence_return, uniform}, 3, 240, 0, 1, false, 9},
      {"tables that share steps, trimming, no notices", {stack_td, sequence_return}, 3, 120, 0, 1, false, 70, false},
      {"all, transitions", {all_transition}, 3, 200, 0, 1, false, 8},
      {"all, transitions, trimming, no notices", {all_transition}, 3, 60, 0, 1, false, 60, false},
      {"all, returns", {all_return}, 2, 150, 0, 1, false, 9},
      {"all, returns, trimming", {all_return}, 2, 40, 0, 1, false, 60},
      {"all, sequences, and a cache", {all_sequence, stack_td}, 3, 300, 0, 1, false, 12},
      {"smallest", {uniform, stack_td}, 2, 4, 0, 1, false, 3},
      {"weighed, trimming", {weighed, uniform_weighed}, 2, 100, 0, 1, false, 40},
      {"weighed, changing", {weighed, sequence_discounted}, 3, 240, 0, 1, false, 9, true, false, false, true},
      {"two rewards, changing", {stack_return_many, all_return}, 2, 200, 0, 2, false, 15, true, false, false, true},
      {"without replacement", {once, once_weighed}, 3, 300, 0, 1, false, 12},
      {"without replacement, no notices", {once, once_aging}, 2, 90, 0, 1, false, 30, false, true, true, true},
      {"aging", {aging, uniform_weighed, once_aging}, 3, 240, 0, 1, false, 9, true, true, true, true},
      {"aging, trimming", {aging, sequence_td_pad}, 2, 60, 0, 1, false, 90, true, false, true, true},
      {"all, weighed", {all_weighed}, 2, 200, 0, 1, false, 9, true, true},
      {"all, weighed, trimming", {all_weighed}, 2, 50, 0, 1, false, 60},
      {"all, aging", {all_aging, aging}, 3, 200, 0, 1, false, 8, true, true, true, true},
      {"all, aging, trimming, no notices", {all_aging}, 3, 60, 0, 1, false, 60, false, false, true, true},
      {"all, returns, aging, trimming", {all_return_aging}, 2, 40, 0, 1, false, 60, true, false, true, true},
      {"sequences, gates", {sequence_td_pad, sequence_return}, 3, 300, 0, 1, false, 10, true, true},
      {"all, blocking", {all_blocking, all_return}, 3, 300, 0, 1, false, 12, true, true, true, true},
  };
  for (const Case& c : cases) {
    for (uint64_t seed = 1; seed <= 3; ++seed) Run(c, seed).go(argc > 1 ? 500 : 2000);
  }
  return check::summary();
}
