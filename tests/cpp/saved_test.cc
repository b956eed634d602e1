// A Replay saved at any moment of a random history, restored into memory of the same size, or another one, and gone on with; and damaged states.
#include "history.h"
#include "restored.h"

using namespace memsvc;
using namespace world;
using history::Run;

namespace {

struct Item {
  int64_t version;
  double value, factor;
  uint32_t span, era;
  uint16_t head, episode, times;
  bool operator==(const Item&) const = default;
};

std::map<uint64_t, Item> by_key(const SavedItems& items) {
  std::map<uint64_t, Item> all;
  for (size_t i = 0; i < items.keys.size(); ++i) {
    all[items.keys[i]] = {items.versions[i], items.values[i], items.factors[i],  items.spans[i],
                          items.eras[i],     items.heads[i],  items.episodes[i], items.times[i]};
  }
  return all;
}

uint64_t all_shrunk = 0;

// Saved, restored and gone on with, again and again; sometimes into another memory.
void histories(const std::vector<TableSpec>& tables, uint64_t memory, uint64_t seed, int rounds) {
  Run run(schema, tables, memory, seed);
  uint64_t now = memory, shrunk = 0;
  for (int round = 0; round < rounds && check::failed == 0; ++round) {
    run.step();
    if (run.random.below(60) != 0) continue;
    const Saved saved = save(*run.replay);
    for (const auto& [table, ticket] : run.open) run.replay->put_back(table, ticket);
    run.open.clear();
    for (size_t i = 0; i < tables.size(); ++i) CHECK_EQ(saved.items[i].keys.size(), run.replay->stats().tables[i].items);
    std::unique_ptr<Replay> next;
    Restored result;
    const uint64_t dice = now < memory ? 4 : run.random.below(6);
    if (dice < 3) {
      next = restored(saved, tables, now, &result);
      for (const uint64_t dropped : result.dropped) CHECK_EQ(dropped, uint64_t{0});
      same(*run.replay, *next);
      const Saved again = save(*next);
      CHECK(again.row_keys == saved.row_keys);
      for (size_t i = 0; i < tables.size(); ++i) {
        CHECK(by_key(saved.items[i]) == by_key(again.items[i]));
        if (tables[i].select == Select::kAll) CHECK(saved.items[i].keys == again.items[i].keys);
      }
    } else {
      // Smaller, larger, or with rows that are lost: what is kept is sound, and the newest.
      now = dice == 3 ? memory * 9 / 10 : dice == 4 ? now * 2 : memory;
      next = restored(saved, tables, now, &result, [&](uint64_t key) { return dice != 5 || key % 13 != 0; });
      for (size_t i = 0; i < tables.size(); ++i) {
        CHECK_EQ(result.items[i] + result.dropped[i], saved.items[i].keys.size());
        if (dice == 4) CHECK_EQ(result.dropped[i], uint64_t{0});
        if (dice == 3) shrunk += result.dropped[i];
      }
    }
    next->restored();
    CHECK_OK(next->check());
    run.replay = std::move(next);
    for (history::Actor& actor : run.actors) actor.rows.clear();
  }
  CHECK(run.batches > static_cast<uint64_t>(rounds) / 40);
  all_shrunk += shrunk;
}

// What is torn, flipped or made up is refused, or is a state that can be worked with: never a crash.
void damaged(const std::vector<TableSpec>& tables, uint64_t seed, int tries) {
  Run run(schema, tables, 100000 * tables.size() + 60000, seed);
  for (int round = 0; round < 200; ++round) run.step();
  const Saved saved = save(*run.replay);
  Random random(seed);
  int worked = 0;
  const auto attempt = [&](const std::vector<uint8_t>& state, std::vector<std::unique_ptr<SavedItems>> items, bool must_fail) {
    std::unique_ptr<Replay> replay;
    CHECK_OK(Replay::make(schema, tables, 100000 * tables.size() + 60000, 1, 1, &replay));
    std::vector<uint64_t> needed;
    const Status status = replay->begin_restore(state.data(), state.size(), std::move(items), &needed);
    if (must_fail) CHECK(status.code() == Code::kMalformed);
    if (!status.ok()) {
      // Nothing has changed: the undamaged one is taken.
      CHECK_OK(replay->check());
      CHECK_OK(replay->begin_restore(saved.state.data(), saved.state.size(), copies(saved), &needed));
      return;
    }
    ++worked;
    bring(*replay, needed, [](uint64_t) { return true; });
    replay->finish_restore();
    replay->restored();
    CHECK_OK(replay->check());
    for (size_t table = 0; table < tables.size(); ++table) {
      std::vector<uint64_t> out(tables[table].batch_bytes(4, nullptr) / 8);
      uint64_t population;
      double total;
      for (int i = 0; i < 3; ++i) replay->draw(table, 4, reinterpret_cast<uint8_t*>(out.data()), &population, &total);
    }
  };
  for (int i = 0; i < tries && check::failed == 0; ++i) {
    std::vector<uint8_t> state = saved.state;
    state.resize(random.below(state.size()));
    attempt(state, copies(saved), true);
    if (state.size() > 8) {
      seal(&state);
      attempt(state, copies(saved), true);
    }
    state = saved.state;
    state[random.below(state.size())] ^= static_cast<uint8_t>(1 << random.below(8));
    attempt(state, copies(saved), true);
    // The same by somebody who knows how.
    state = saved.state;
    state.resize(state.size() - 8);
    for (uint64_t n = 1 + random.below(3); n-- > 0;) {
      const size_t at = random.below(state.size());
      if (random.below(2) == 0) {
        state[at] ^= static_cast<uint8_t>(1 << random.below(8));
      } else {
        const uint64_t words[] = {0, 1, ~uint64_t{0}, uint64_t{1} << 60, 0x7FF8000000000000, 0xFFF0000000000000, random.next()};
        std::memcpy(&state[at / 8 * 8], &words[random.below(7)], std::min<size_t>(8, state.size() - at / 8 * 8));
      }
    }
    seal(&state);
    attempt(state, copies(saved), false);
    std::vector<std::unique_ptr<SavedItems>> items = copies(saved);
    SavedItems& some = *items[random.below(items.size())];
    const size_t at = random.below(some.keys.size());
    switch (random.below(8)) {
      case 0:
        some.keys[at] ^= uint64_t{1} << random.below(64);
        break;
      case 1:
        some.values[at] = random.below(2) ? NAN : -1;
        break;
      case 2:
        some.spans[at] += static_cast<uint32_t>(random.next());
        break;
      case 3:
        some.heads[at] = static_cast<uint16_t>(random.below(9));
        break;
      case 4:
        some.keys[at] = some.keys[0];
        break;
      case 5:
        some.factors.resize(at);
        break;
      case 6:
        some.eras[at] = some.updated[at] = static_cast<uint32_t>(random.next());
        break;
      default:
        some.versions[at] = static_cast<int64_t>(random.next());
    }
    attempt(saved.state, std::move(items), false);
  }
  CHECK(worked > 0);
  // In no state but at the beginning; and not into other steps.
  std::vector<uint64_t> needed;
  CHECK(run.replay->begin_restore(saved.state.data(), saved.state.size(), copies(saved), &needed).code() == Code::kInvalid);
}

}  // namespace

int main(int argc, char**) {
  const int rounds = argc > 1 ? 300 : 2000;
  const auto stale = [](TableSpec* spec) { spec->max_staleness = 400; };
  const std::vector<std::vector<TableSpec>> settings = {
      {step_table(schema, Select::kAll)},
      {transition_table(schema, Select::kAll, 6, Pad::kRepeat), sequence_table(schema, Select::kAll)},
      {changed(step_table(schema, Select::kAll),
               [](TableSpec* spec) {
                 spec->max_times_sampled = 3;
                 spec->decay = .9;
               })},
      {changed(step_table(schema, Select::kAll),
               [](TableSpec* spec) {
                 spec->max_times_sampled = 1;
                 spec->sampler = Sampler::kFifo;
               })},
      {changed(step_table(schema, Select::kAll),
               [](TableSpec* spec) {
                 spec->sampler = Sampler::kMax;
                 spec->per_actor_steps = 100;
               })},
      {changed(sequence_table(schema, Select::kAll), stale), changed(transition_table(schema, Select::kPrioritized, 3, Pad::kRepeat), stale)},
      {transition_table(schema, Select::kPrioritized, 3, Pad::kRepeat)},
      {changed(sequence_table(schema, Select::kPrioritized), stale), step_table(schema, Select::kAll)},
      {step_table(schema, Select::kWithoutReplacement), changed(transition_table(schema, Select::kUniform, 2, Pad::kZero), stale)},
      {step_table(schema, Select::kPrioritized), transition_table(schema, Select::kPrioritized, 1, Pad::kRepeat)},
  };
  uint64_t seed = 1;
  for (const std::vector<TableSpec>& tables : settings) {
    for (const uint64_t extra : {40000, 300000}) {
      histories(tables, 100000 * tables.size() + extra, seed++, rounds);
      if (check::failed) std::printf("settings of seed %d\n", static_cast<int>(seed - 1));
    }
  }
  CHECK(all_shrunk > 0);
  for (const size_t i : {2, 4, 7, 8, 9}) damaged(settings[i], seed++, argc > 1 ? 60 : 600);
  return check::summary();
}
