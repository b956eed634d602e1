// Actors, learners and readers at once on one Replay: batches stay right byte for byte, and when all is quiet every invariant holds.
#include <atomic>
#include <thread>

#include "world.h"

using namespace memsvc;
using namespace world;

namespace {

const Schema schema = make_schema();

void act(Replay& replay, const std::vector<TableSpec>& tables, int number, int rounds, std::atomic<int>* failures) {
  Random random(100 + static_cast<uint64_t>(number));
  std::vector<uint64_t> streams;
  uint64_t actor = replay.join("actor-" + std::to_string(number), 1, &streams);
  for (int round = 0; round < rounds; ++round) {
    const size_t table = random.below(tables.size());
    const TableSpec& spec = tables[table];
    Payload payload;
    payload.head.table = static_cast<uint32_t>(table);
    payload.head.total = 10;
    payload.head.population = 10;
    payload.head.min_weight = 1;
    std::set<uint64_t> keys;
    for (int i = 0; i < 12; ++i) keys.insert(random_key(spec, streams[0], 100, random));
    for (const uint64_t key : keys) {
      payload.items.push_back(record_of(spec, key));
      if (spec.select != Select::kAll) payload.draws.push_back({key, 1.0});
    }
    payload.add_rows(spec);
    if (!world::push(replay, actor, payload, spec, schema).ok()) ++*failures;
    replay.notices(actor, table);
    Feedback feedback;
    replay.take_feedback(actor, table, &feedback);
    if (random.below(50) == 0) {
      replay.leave(actor);
      actor = replay.join("actor-" + std::to_string(number), 1, &streams);
    }
  }
}

void learn(Replay& replay, const std::vector<TableSpec>& tables, int number, const std::atomic<bool>* stop, std::atomic<int>* batches,
           std::vector<std::vector<uint64_t>>* kept) {
  Random random(200 + static_cast<uint64_t>(number));
  while (!*stop) {
    const size_t table = random.below(tables.size());
    std::vector<uint64_t> out(tables[table].batch_bytes(16, nullptr) / 8);
    uint64_t population;
    double total;
    if (!replay.draw(table, 16, reinterpret_cast<uint8_t*>(out.data()), &population, &total)) {
      std::this_thread::yield();
      continue;
    }
    ++*batches;
    std::vector<size_t> offsets;
    tables[table].batch_bytes(16, &offsets);
    std::vector<uint64_t> keys(16);
    for (size_t c = 0; c < tables[table].columns.size(); ++c) {
      if (tables[table].columns[c].origin == Origin::kKey) std::memcpy(keys.data(), reinterpret_cast<uint8_t*>(out.data()) + offsets[c], 16 * 8);
    }
    std::vector<double> priorities(16);
    for (double& p : priorities) p = random.uniform();
    replay.update(table, keys.data(), priorities.data(), 16);
    replay.stats();
    out.push_back(table);
    if (kept->size() < 2000) kept->push_back(std::move(out));
  }
}

}  // namespace

int main(int argc, char**) {
  const int rounds = argc > 1 ? 300 : 3000;
  const std::vector<TableSpec> tables = {transition_table(schema, Select::kPrioritized, 3, Pad::kRepeat), sequence_table(schema, Select::kAll)};
  std::unique_ptr<Replay> replay;
  CHECK_OK(Replay::make(schema, tables, 260000, 1, 1, &replay));
  std::atomic<int> failures = 0, batches = 0;
  std::atomic<bool> stop = false;
  std::vector<std::vector<std::vector<uint64_t>>> kept(2);
  std::vector<std::thread> learners, actors;
  for (int i = 0; i < 2; ++i) learners.emplace_back([&, i] { learn(*replay, tables, i, &stop, &batches, &kept[static_cast<size_t>(i)]); });
  for (int i = 0; i < 3; ++i) actors.emplace_back([&, i] { act(*replay, tables, i, rounds, &failures); });
  for (std::thread& thread : actors) thread.join();
  stop = true;
  for (std::thread& thread : learners) thread.join();
  CHECK_EQ(failures.load(), 0);
  CHECK(batches > 0);
  for (std::vector<std::vector<uint64_t>>& batches_of : kept) {
    for (std::vector<uint64_t>& batch : batches_of) {
      const size_t table = batch.back();
      batch.pop_back();
      check_batch(tables[table], schema, batch, 16);
    }
  }
  CHECK_OK(replay->check());
  std::printf("%d batches\n", batches.load());
  return check::summary();
}
