// What learners changed since a lane's draws (Raised) against an O(everything) model: updates, reports, advances that are taken back or kept,
// oldest entries dropped; pins, gains and losses after every operation.
#include "raised.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <vector>

#include "check.h"
#include "random.h"

using namespace memsvc;

namespace {

constexpr uint32_t kItems = 40;

struct Model {
  struct Entry {
    uint64_t number;
    uint32_t item;
    double before;
  };
  std::vector<Entry> log;
  uint64_t applied = 0;  // of the segment under way

  // Base of every item that an update beyond `applied` has changed.
  std::map<uint32_t, double> bases() const {
    std::map<uint32_t, double> found;
    for (const Entry& entry : log) {
      if (entry.number > applied) found.try_emplace(entry.item, entry.before);
    }
    return found;
  }
};

struct Run {
  explicit Run(uint64_t seed) : random(seed), items(spec), places(kItems, Raised::kAbsent) {
    Arena counting;
    Schema schema;
    CHECK_OK(Schema::make({{"x", 'f', 4, {}}}, &schema));
    CHECK_OK(spec.derive(schema));
    place(&counting);
    CHECK_OK(arena.map(counting.used()));
    place(&arena);
    std::vector<uint8_t> made(spec.made_bytes + 1);
    for (uint32_t i = 0; i < kItems; ++i) {
      ItemRecord record;
      record.key = make_key(1, i);
      uint32_t slot;
      store.run(1, &slot);
      store.take(slot, record.key);
      CHECK_EQ(items.add(record, made.data(), 1, &slot, 1, 1 + random.uniform()), i);
    }
  }

  void place(Arena* from) {
    store.place(from, kItems, 8);
    items.place(from, &store, kItems);
  }

  void compare(Raised& raised, const Model& model) {
    const std::map<uint32_t, double> bases = model.bases();
    double excess = 0, deficit = 0;
    for (uint32_t item = 0; item < kItems; ++item) {
      const auto base = bases.find(item);
      CHECK_EQ(raised.has(item), base != bases.end());
      if (base == bases.end()) continue;
      excess += std::max(0.0, items.value(item) - base->second);
      deficit += std::max(0.0, base->second - items.value(item));
    }
    CHECK_NEAR(raised.excess(), excess, 1e-9 * (1 + excess));
    CHECK_NEAR(raised.deficit(), deficit, 1e-9 * (1 + deficit));
    if (raised.excess() > 0) {
      const uint32_t item = raised.find(random.uniform() * raised.excess());
      CHECK(bases.count(item) && items.value(item) > bases.at(item));
    }
  }

  void check(Raised& raised, Model& model) {
    // Same feedback, same item: one entry, with the first `before`.
    std::vector<uint32_t> pins(kItems);
    CHECK_EQ(raised.check(pins.data()), std::string());
    std::map<std::pair<uint64_t, uint32_t>, int> kept;
    std::vector<uint32_t> want(kItems);
    for (const Model::Entry& entry : model.log) want[entry.item] += kept[{entry.number, entry.item}]++ == 0;
    for (uint32_t item = 0; item < kItems; ++item) {
      CHECK_EQ(pins[item], want[item]);
      CHECK_EQ(items.pins(item), want[item] + 1);
    }
    CHECK_EQ(raised.size(), static_cast<size_t>(kept.size()));
  }

  void forget_contained(Model& model) {
    std::erase_if(model.log, [&model](const Model::Entry& entry) { return entry.number <= model.applied; });
  }

  void play(int rounds) {
    Raised raised(&items, places.data(), Raised::kAbsent | 5);
    Model model;
    uint64_t open = 1;
    for (int round = 0; round < rounds && check::failed == 0; ++round) {
      const uint32_t item = static_cast<uint32_t>(random.below(kItems));
      switch (random.below(8)) {
        case 0:
          ++open;
          break;
        case 1: {  // a report changes a weight
          items.set_value(item, random.below(4) ? 2 * random.uniform() : 0);
          raised.follow(item);
          break;
        }
        case 2: {  // a batch that passes several segments, and was one too few
          const Model before = model;
          const double gained = raised.excess(), lost = raised.deficit();
          for (int segment = 0; segment < 3; ++segment) {
            model.applied = std::min(open - 1, model.applied + random.below(3));
            raised.advance(model.applied);
            compare(raised, model);
          }
          raised.rollback();
          model = before;
          CHECK_EQ(raised.excess(), gained);
          CHECK_EQ(raised.deficit(), lost);
          break;
        }
        case 3: {
          model.applied = std::min(open - 1, model.applied + random.below(3));
          raised.advance(model.applied);
          compare(raised, model);
          raised.commit();
          forget_contained(model);
          break;
        }
        case 4:
          if (random.below(10) == 0 && !model.log.empty()) {
            raised.drop_oldest();
            const Model::Entry first = model.log.front();
            std::erase_if(model.log, [&](const Model::Entry& entry) { return entry.number == first.number && entry.item == first.item; });
          }
          if (random.below(40) == 0) {
            raised.clear();
            model.log.clear();
            CHECK(raised.empty());
          }
          break;
        default: {
          const double before = items.value(item);
          const double after = random.below(5) == 0 ? 0 : std::pow(10, 4 * random.uniform() - 2);
          items.set_value(item, after);
          raised.add(open, item, before);
          model.log.push_back({open, item, before});
        }
      }
      compare(raised, model);
      check(raised, model);
    }
    raised.clear();
    for (const uint32_t place : places) CHECK(place == (Raised::kAbsent | 5) || place == Raised::kAbsent);
  }

  Random random;
  TableSpec spec;
  Store store;
  Items items;
  Arena arena;
  std::vector<uint32_t> places;
};

// A weight of 1e30 comes and goes beside weights of 1: what is left is exact.
void no_residue() {
  Run run(3);
  Raised raised(&run.items, run.places.data(), Raised::kAbsent);
  run.items.set_value(0, 1e30);
  run.items.set_value(1, 1);
  for (const uint32_t item : {0, 1}) {
    const double before = run.items.value(item);
    run.items.set_value(item, before / 2);
    raised.add(1, item, before);
  }
  CHECK_NEAR(raised.deficit(), 5e29, 1e15);
  run.items.set_value(0, 1e30);
  raised.follow(0);
  CHECK_EQ(raised.deficit(), .5);
  CHECK_EQ(raised.excess(), 0.0);
  raised.clear();
  CHECK_EQ(raised.deficit(), 0.0);
}

}  // namespace

int main(int argc, char**) {
  for (uint64_t seed = 1; seed <= (argc > 1 ? 4 : 20); ++seed) Run(seed).play(2000);
  no_residue();
  return check::summary();
}
