// Work that is done in pieces, long lists of priorities and versions that make many items too stale: what it leaves is what the same work one by one
// leaves, and nobody waits for all of it.
#include <atomic>
#include <thread>

#include "lock.h"
#include "weighted.h"

using namespace memsvc;
using namespace world;

namespace {

constexpr size_t kItems = 1500;

// Keys of items and of none, in random order and with duplicates; among the priorities 0 and such that are none.
void random_updates(const Weighted& actor, size_t n, std::vector<uint64_t>* keys, std::vector<double>* priorities) {
  Random random(5);
  for (size_t i = 0; i < n; ++i) {
    keys->push_back(actor.key(random.below(kItems + 50)));
    const uint64_t kind = random.below(40);
    priorities->push_back(kind == 0 ? 0 : kind == 1 ? NAN : random.uniform() + .01);
  }
}

void as_one_by_one(Select select) {
  TableSpec spec = step_table(schema, select);
  const auto whole = make(spec), single = make(spec);
  std::vector<double> weights(kItems, 1);
  Weighted a(whole.get(), spec, "a", weights), b(single.get(), spec, "a", weights);
  for (Weighted* actor : {&a, &b}) {
    std::vector<size_t> all(kItems);
    for (size_t i = 0; i < kItems; ++i) all[i] = i;
    Payload payload = select == Select::kAll ? Payload() : actor->cache(all);
    for (size_t i = 0; i < kItems && select == Select::kAll; ++i) payload.items.push_back(record_of(spec, actor->key(i)));
    payload.add_rows(spec);
    CHECK_OK(world::push(actor == &a ? *whole : *single, actor->number, payload, spec, schema));
  }
  std::vector<uint64_t> keys;
  std::vector<double> priorities;
  random_updates(a, 5000, &keys, &priorities);
  const UpdateResult result = whole->update(0, keys.data(), priorities.data(), keys.size());
  UpdateResult sum;
  for (size_t i = 0; i < keys.size(); ++i) {
    const UpdateResult one = single->update(0, &keys[i], &priorities[i], 1);
    sum.applied += one.applied;
    sum.stale += one.stale;
    sum.refused.insert(sum.refused.end(), one.refused.begin(), one.refused.end());
  }
  CHECK_EQ(result.applied, sum.applied);
  CHECK_EQ(result.stale, sum.stale);
  CHECK(result.refused == sum.refused);
  CHECK(result.stale > 0 && !result.refused.empty());
  CHECK_EQ(whole->stats().tables[0].total, single->stats().tables[0].total);
  CHECK_EQ(whole->stats().tables[0].population, single->stats().tables[0].population);
  const Drawn one = draw(*whole, spec, 300), other = draw(*single, spec, 300);
  CHECK(one.keys == other.keys);
  CHECK(one.weights == other.weights);
  CHECK_OK(whole->check());
}

// More than one piece of items that a new version makes too stale.
void a_version_that_stales_many(Select select) {
  TableSpec spec = step_table(schema, select);
  spec.max_staleness = 10;
  const auto replay = make(spec);
  const size_t n = select == Select::kAll ? 4000 : kItems;
  Weighted a(replay.get(), spec, "a", std::vector<double>(n, 1));
  std::vector<size_t> all(n);
  for (size_t i = 0; i < n; ++i) all[i] = i;
  Payload payload = select == Select::kAll ? Payload() : a.cache(all);
  for (size_t i = 0; i < n && select == Select::kAll; ++i) payload.items.push_back(record_of(spec, a.key(i)));
  payload.add_rows(spec);
  CHECK_OK(world::push(*replay, a.number, payload, spec, schema));
  uint64_t older = 0;
  for (size_t i = 0; i < n; ++i) older += record_of(spec, a.key(i)).version < 900;
  replay->publish("default", 910);
  CHECK_EQ(replay->stats().tables[0].aged, older);
  CHECK_EQ(replay->stats().tables[0].population, n - older);
  CHECK_OK(replay->check());
  replay->publish("default", 2000);
  CHECK_EQ(replay->stats().tables[0].aged, uint64_t{n});
  CHECK_EQ(replay->stats().tables[0].population, uint64_t{0});
  CHECK_OK(replay->check());
}

// The holder alone would never end.
void who_waits_gets_its_turn() {
  Lock lock;
  std::atomic<bool> served{false};
  lock.lock();
  std::thread other([&] {
    lock.lock();
    served = true;
    lock.unlock();
  });
  while (!served) lock.give_way();
  lock.unlock();
  other.join();
  CHECK(served);
}

}  // namespace

int main() {
  as_one_by_one(Select::kAll);
  as_one_by_one(Select::kPrioritized);
  a_version_that_stales_many(Select::kAll);
  a_version_that_stales_many(Select::kPrioritized);
  who_waits_gets_its_turn();
  return check::summary();
}
