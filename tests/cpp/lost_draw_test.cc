// Of three items of weight 1 the memory loses one and a learner raises another to 3: P of that one is 3/4, whatever the queue says.
#include "world.h"

using namespace memsvc;
using namespace world;

int main() {
  const Schema schema = make_schema();
  TableSpec spec = step_table(schema, Select::kPrioritized);
  std::unique_ptr<Replay> replay;
  CHECK_OK(Replay::make(schema, {spec}, 16 << 20, 1, 1, &replay));
  std::vector<uint64_t> streams;
  const uint64_t actor = replay->join("a", 1, &streams);
  const auto push = [&](world::Payload& payload, uint64_t floor) {
    payload.head.total = payload.head.population = floor == 0 ? 3 : 2;
    payload.head.min_weight = 1;
    std::vector<uint64_t> words = payload.bytes(spec, schema);
    const size_t end = words.size();
    CacheHead head = *reinterpret_cast<const CacheHead*>(words.data());
    head.floors = 1;
    std::memcpy(words.data(), &head, sizeof(head));
    words.resize(cache_bytes(spec, head) / 8);
    words[end] = make_key(streams[0], floor);
    uint64_t items, draws;
    CHECK_OK(replay->push(actor, reinterpret_cast<const uint8_t*>(words.data()), words.size() * 8, &items, &draws));
  };
  replay->expect(0, 6000);
  world::Payload cache, later;
  Random random(5);
  for (uint64_t step = 0; step < 3; ++step) cache.items.push_back(record_of(spec, make_key(streams[0], step)));
  for (int i = 0; i < 6000; ++i) cache.draws.push_back({make_key(streams[0], random.below(3)), 1.0});
  cache.add_rows(spec);
  push(cache, 0);
  const uint64_t raised = make_key(streams[0], 1);
  const double three = 3;
  CHECK_EQ(replay->update(0, &raised, &three, 1).applied, uint64_t{1});
  push(later, 1);
  int n = 0, hits = 0;
  uint64_t population = 0, key = 0;
  double total;
  std::vector<uint64_t> out(spec.batch_bytes(1, nullptr) / 8);
  std::vector<size_t> offsets;
  spec.batch_bytes(1, &offsets);
  while (n < 5000 && replay->draw(0, 1, reinterpret_cast<uint8_t*>(out.data()), &population, &total)) {
    for (size_t c = 0; c < spec.columns.size(); ++c) {
      if (spec.columns[c].origin == Origin::kKey) std::memcpy(&key, reinterpret_cast<uint8_t*>(out.data()) + offsets[c], 8);
    }
    CHECK(step_of(key) != 0);
    ++n;
    hits += key == raised;
  }
  CHECK(n > 3000);
  CHECK_NEAR(static_cast<double>(hits) / n, .75, 4 * std::sqrt(.75 * .25 / n));
  std::printf("%d of %d\n", hits, n);
  return check::summary();
}
