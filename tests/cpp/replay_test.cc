// The server's tables, rule by rule: the union, updates, demand, missing payloads, departures, eviction, seeds, footprints (DEFINITIONS 6, 7).
#include "weighted.h"

using namespace memsvc;
using namespace world;

namespace {

// DEFINITIONS 6 over a union: p = [1, 2, 3, 4], exponent .6, beta .4.
void golden_union() {
  for (const bool uniform : {false, true}) {
    TableSpec spec = step_table(schema, Select::kAll);
    spec.exponent = .6;
    spec.normalize = Normalize::kNone;
    spec.sampler = uniform ? Sampler::kUniform : Sampler::kPrioritized;
    const auto replay = make(spec);
    Weighted a(replay.get(), spec, "a", {1, 1, 1, 1});
    Payload payload;
    for (size_t i = 0; i < 4; ++i) {
      payload.items.push_back(record_of(spec, a.key(i)));
      payload.items.back().priority = static_cast<double>(i + 1);
    }
    payload.add_rows(spec);
    CHECK_OK(push(*replay, a.number, payload, spec, schema));
    const Drawn drawn = draw(*replay, spec, 4000);
    const double p[] = {.148230, .224674, .286555, .340542}, w[] = {1.232543, 1.043650, .946876, .883706};
    std::map<uint64_t, int> counts;
    for (size_t i = 0; i < drawn.keys.size(); ++i) {
      const size_t item = step_of(drawn.keys[i]);
      ++counts[item];
      CHECK_NEAR(drawn.probabilities[i], uniform ? .25 : p[item], 1e-6);
      CHECK_NEAR(drawn.weights[i], uniform ? 1 : w[item], 1e-6);
    }
    for (size_t i = 0; i < 4; ++i) CHECK_NEAR(counts[i], 4000 * (uniform ? .25 : p[i]), 2.0);  // stratified
    // p = 0 is never drawn, and comes back.
    const uint64_t key = a.key(3);
    const double zero = 0, again = 8;
    CHECK_EQ(replay->update(0, &key, &zero, 1).applied, uint64_t{1});
    const Drawn without = draw(*replay, spec, 4000);
    CHECK_EQ(without.population, uint64_t{3});
    CHECK(std::find(without.keys.begin(), without.keys.end(), key) == without.keys.end());
    replay->update(0, &key, &again, 1);
    CHECK_EQ(draw(*replay, spec, 10).population, uint64_t{4});
    CHECK_OK(replay->check());
  }
}

void updates_refused_and_stale() {
  const TableSpec spec = step_table(schema, Select::kPrioritized);
  const auto replay = make(spec);
  Weighted a(replay.get(), spec, "a", {1, 1, 1});
  a.push({0, 1});
  const uint64_t keys[] = {a.key(0), a.key(1), a.key(2), make_key(99, 1), a.key(1), a.key(0)};
  const double priorities[] = {NAN, 2, 5, 5, 4, -INFINITY};
  const UpdateResult result = replay->update(0, keys, priorities, 6);
  CHECK_EQ(result.applied, uint64_t{2});
  CHECK_EQ(result.stale, uint64_t{2});
  CHECK_EQ(result.refused.size(), size_t{2});
  CHECK_EQ(result.refused[0], a.key(0));
  CHECK_NEAR(stats_of(*replay, a.number).total, 6, 1e-12);  // the last of two counts; the unheld one changes nothing here
  Feedback feedback;
  CHECK(replay->take_feedback(a.number, 0, &feedback));
  CHECK_EQ(feedback.keys.size(), size_t{3});  // but reaches its actor
  CHECK_EQ(replay->stats().tables[0].stale_updates, uint64_t{2});
  CHECK_EQ(replay->stats().tables[0].refused_updates, uint64_t{2});
}

void missing_and_gone() {
  const TableSpec spec = transition_table(schema, Select::kPrioritized, 3, Pad::kRepeat);
  const auto replay = make(spec);
  Weighted a(replay.get(), spec, "a", {1, 1, 1, 1});
  const auto weighing_1 = [&](uint64_t key) {  // as its draws say
    ItemRecord record = record_of(spec, key);
    record.priority = 1;
    return record;
  };
  Payload payload = a.cache({0, 1});
  payload.draws.push_back({a.key(2), 1});  // of an item that nobody sent
  payload.draws.push_back({a.key(3), 1});
  CHECK_OK(push(*replay, a.number, payload, spec, schema));
  Notices notices = replay->notices(a.number, 0);
  CHECK_EQ(notices.missing.size(), size_t{2});
  CHECK_EQ(replay->notices(a.number, 0).missing.size(), size_t{0});
  CHECK(!draw(*replay, spec, 3).any);
  CHECK_OK(replay->check());
  // One arrives, without the rows that are here already; the other is gone.
  payload = a.cache({});
  payload.items = {weighing_1(a.key(2))};
  payload.rows = {a.key(5)};
  payload.gone = {a.key(3)};
  uint64_t items = 0;
  CHECK_OK(push(*replay, a.number, payload, spec, schema, &items));
  CHECK_EQ(items, uint64_t{1});
  CHECK(draw(*replay, spec, 3).any);
  CHECK(!draw(*replay, spec, 1).any);
  // An item whose rows are nowhere: asked for again as long as a draw waits for it.
  payload = a.cache({});
  payload.items = {weighing_1(a.key(8))};
  payload.draws = {{a.key(8), 1}};
  CHECK_OK(push(*replay, a.number, payload, spec, schema, &items));
  CHECK_EQ(items, uint64_t{0});
  CHECK_EQ(replay->notices(a.number, 0).missing.size(), size_t{1});
  CHECK_OK(push(*replay, a.number, payload, spec, schema, &items));
  CHECK_EQ(replay->notices(a.number, 0).missing.size(), size_t{1});
  CHECK_OK(replay->check());
}

void demand() {
  const TableSpec spec = step_table(schema, Select::kPrioritized);
  const auto replay = make(spec);
  Weighted a(replay.get(), spec, "a", {1, 2}), b(replay.get(), spec, "b", {9});
  CHECK_EQ(replay->notices(a.number, 0).wanted, uint64_t{spec.cache});  // nothing known yet: one cache
  CHECK_EQ(replay->hungry(0).size(), size_t{2});
  replay->expect(0, 1200);
  a.push({0});
  b.push({0});
  CHECK_EQ(replay->notices(a.number, 0).wanted, uint64_t{300 - 1});
  CHECK_EQ(replay->notices(b.number, 0).wanted, uint64_t{900 - 1});
  a.push(std::vector<size_t>(160, 0));
  CHECK_EQ(replay->hungry(0).size(), size_t{1});
  a.push(std::vector<size_t>(2000, 1));
  CHECK_EQ(stats_of(*replay, a.number).queue, uint64_t{600});  // what exceeds twice the target gives way
  CHECK_EQ(replay->notices(a.number, 0).wanted, uint64_t{0});
  replay->expect(0, 100);
  CHECK_EQ(replay->notices(b.number, 0).wanted, uint64_t{75 - 1});
  b.weights = {0};
  b.push({});
  CHECK_EQ(replay->notices(b.number, 0).wanted, uint64_t{0});
  CHECK_OK(replay->check());
}

void departures() {
  const TableSpec spec = step_table(schema, Select::kPrioritized);
  const auto replay = make(spec);
  Weighted a(replay.get(), spec, "a", {1, 1}), b(replay.get(), spec, "b", {2});
  a.push({0, 1});
  b.push({0, 0});
  replay->leave(a.number);
  Payload late = a.cache({0});
  CHECK(push(*replay, a.number, late, spec, schema).code() == Code::kNotFound);
  CHECK_NEAR(replay->stats().tables[0].total, 4, 1e-12);
  CHECK(draw(*replay, spec, 4).any);  // its queue is used up, then its weight leaves
  CHECK_NEAR(replay->stats().tables[0].total, 2, 1e-12);
  CHECK_EQ(replay->stats().tables[0].actors.size(), size_t{1});
  CHECK_OK(replay->check());
  b.push({0, 0, 0});
  Weighted again(replay.get(), spec, "b", {7});
  CHECK(again.stream != b.stream && again.number != b.number);
  CHECK_EQ(replay->stats().tables[0].population, uint64_t{0});
  CHECK(!draw(*replay, spec, 1).any);
  CHECK(replay->why_not(0, 1).why == Why::kEmpty);
  CHECK(push(*replay, b.number, late, spec, schema).code() == Code::kNotFound);
  Payload foreign = a.cache({0});
  CHECK(push(*replay, again.number, foreign, spec, schema).code() == Code::kMalformed);
  CHECK_OK(replay->check());
}

void min_items() {
  TableSpec spec = step_table(schema, Select::kPrioritized);
  spec.min_items = 3;
  const auto replay = make(spec);
  Weighted a(replay.get(), spec, "a", {1, 1});
  a.push({0, 1});
  CHECK(!draw(*replay, spec, 1).any);
  const Reason reason = replay->why_not(0, 1);
  CHECK(reason.why == Why::kMinItems);
  CHECK_EQ(reason.have, uint64_t{2});
  CHECK_EQ(reason.need, uint64_t{3});
  a.weights.push_back(1);
  a.push({});
  CHECK(draw(*replay, spec, 1).any);
}

// An evicted payload is asked for again; draws that wait in queues keep theirs until everything is needed, then the oldest give way.
void eviction() {
  const TableSpec spec = step_table(schema, Select::kPrioritized);
  uint64_t memory = 90000;
  while (Replay::footprint(schema, {spec}, memory).steps < 100) memory += 500;
  const auto replay = make(spec, memory);
  const uint64_t capacity = replay->stats().capacity_steps;
  Weighted a(replay.get(), spec, "a", std::vector<double>(2000, 1.0));
  std::vector<size_t> first, second;
  for (size_t i = 0; i < capacity; ++i) first.push_back(i), second.push_back(1000 + i);
  a.push(first);
  CHECK_EQ(replay->stats().steps, capacity);
  CHECK(draw(*replay, spec, capacity / 2).any);
  const std::vector<size_t> half(second.begin(), second.begin() + static_cast<std::ptrdiff_t>(capacity / 2));
  a.push(half);  // the drawn half goes, nothing that waits does
  CHECK_EQ(stats_of(*replay, a.number).queue, capacity / 2 + capacity - capacity / 2);
  CHECK_EQ(replay->stats().tables[0].evicted, capacity / 2);
  CHECK_EQ(a.held.size(), capacity);  // the actor was told
  a.push({1900, 1901});               // now draws give way, oldest first
  CHECK_EQ(stats_of(*replay, a.number).queue, capacity);
  CHECK_OK(replay->check());
  // A payload larger than the store: what fits is kept, the rest reported.
  std::vector<size_t> huge;
  for (size_t i = 0; i < 3 * capacity; ++i) huge.push_back(i);
  a.push(huge);
  CHECK_EQ(replay->stats().steps, capacity);
  CHECK_EQ(a.held.size(), capacity);
  CHECK_OK(replay->check());
}

void ring() {
  TableSpec spec = step_table(schema, Select::kAll);
  spec.capacity_items = 10;
  const auto replay = make(spec);
  Weighted a(replay.get(), spec, "a", {});
  size_t end = 0;
  for (const size_t many : {7, 7, 1, 25, 3, 10, 11, 40, 2}) {
    Payload payload;
    for (size_t i = end; i < end + many; ++i) payload.items.push_back(record_of(spec, a.key(i)));
    end += many;
    payload.add_rows(spec);
    CHECK_OK(push(*replay, a.number, payload, spec, schema));
    CHECK_OK(replay->check());
    const Drawn drawn = draw(*replay, spec, 400);
    const std::set<uint64_t> keys(drawn.keys.begin(), drawn.keys.end());
    CHECK_EQ(keys.size(), std::min<size_t>(end, 10));
    for (size_t i = end - keys.size(); i < end; ++i) CHECK(keys.count(a.key(i)));  // the newest
    CHECK_EQ(replay->stats().tables[0].items, keys.size());
  }
  replay->leave(a.number);
  CHECK(draw(*replay, spec, 5).any);  // the union stays
}

void seeds() {
  for (const Select select : {Select::kPrioritized, Select::kAll}) {
    const TableSpec spec = step_table(schema, select);
    std::vector<std::vector<uint64_t>> drawn;
    for (const uint64_t seed : {7, 7, 8}) {
      const auto replay = make(spec, 4 << 20, seed);
      Weighted a(replay.get(), spec, "a", std::vector<double>(50, 1.0)), b(replay.get(), spec, "b", std::vector<double>(50, 2.0));
      for (Weighted* actor : {&a, &b}) {
        std::vector<size_t> all;
        for (size_t i = 0; i < 50; ++i) all.push_back(i);
        Payload payload = actor->cache(all);
        if (select == Select::kAll) payload.draws.clear();
        CHECK_OK(push(*replay, actor->number, payload, spec, schema));
      }
      drawn.push_back(draw(*replay, spec, 40).keys);
    }
    CHECK(drawn[0] == drawn[1]);
    CHECK(drawn[0] != drawn[2]);
  }
}

void footprints() {
  std::vector<Field> fields(5);
  fields[0] = {"obs", 'f', 4, {17}};
  fields[1] = {"action", 'f', 4, {6}};
  fields[2] = {"reward", 'f', 4, {}};
  fields[3] = {"discount", 'f', 4, {}};
  fields[4] = {"next_obs", 'f', 4, {17}};
  Schema rows;
  CHECK_OK(Schema::make(fields, &rows));
  CHECK_EQ(rows.row_stride(), size_t{168});
  for (const Select select : {Select::kAll, Select::kPrioritized}) {
    TableSpec spec;
    spec.select = select;
    CHECK_OK(spec.derive(rows));
    const Footprint footprint = Replay::footprint(rows, {spec}, uint64_t{256} << 20);
    std::printf("168-byte steps: %llu bytes each, %.3f of raw\n", static_cast<unsigned long long>(footprint.step_bytes),
                static_cast<double>(footprint.bytes) / static_cast<double>(footprint.steps) / 168);
    CHECK(footprint.bytes <= uint64_t{256} << 20);
    CHECK(footprint.bytes > (uint64_t{256} << 20) - 4096);
    CHECK(static_cast<double>(footprint.bytes) <= 1.3 * 168 * static_cast<double>(footprint.steps));
  }
  std::unique_ptr<Replay> replay;
  const Status status = Replay::make(rows, {step_table(schema, Select::kAll)}, 1000, 1, 1, &replay);
  CHECK(status.code() == Code::kInvalid);
}

}  // namespace

int main() {
  golden_union();
  updates_refused_and_stale();
  missing_and_gone();
  demand();
  departures();
  min_items();
  eviction();
  ring();
  seeds();
  footprints();
  return check::summary();
}
