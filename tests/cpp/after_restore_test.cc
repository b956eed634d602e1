// What follows a restore: draws stay exact, each is used once, what was used up after the save stays so, and actors come back or never do.
#include "restored.h"

using namespace memsvc;
using namespace world;

namespace {

// The loop of stage two (stage_two_test), saved and restored all the time: shares of actors and of what learners have changed stay exact.
void closed_loop(size_t batches) {
  const TableSpec spec = step_table(schema, Select::kPrioritized);
  auto replay = make(spec, 4 << 20, 77);
  replay->expect(0, 256);
  Random random(5);
  std::vector<Weighted> actors;
  for (const char* name : {"a", "b", "c"}) {
    std::vector<double> weights(1000);
    for (double& w : weights) w = random.uniform() + .05;
    actors.emplace_back(replay.get(), spec, name, weights);
  }
  double updated = 0, exact = 0, seen = 0;
  std::set<uint64_t> cut;
  std::map<uint64_t, double> shares;
  for (size_t n = 0; n < batches; ++n) {
    if (n % 7 == 3) {
      // What was taken just before has not always arrived.
      for (const Weighted& actor : actors) {
        Feedback lost;
        if (random.below(2) == 0) replay->take_feedback(actor.number, 0, &lost);
      }
      auto next = restored(save(*replay), {spec}, 4 << 20);
      next->restored();
      replay = std::move(next);
      for (Weighted& actor : actors) actor.replay = replay.get();
    }
    for (Weighted& actor : actors) {
      actor.take_feedback();
      for (uint64_t wanted = replay->notices(actor.number, 0).wanted, some = 0; wanted > 0; wanted -= some) {
        some = std::min<uint64_t>(wanted, 64);
        actor.push_drawn(some, random);
      }
    }
    double all = 0, low = 0;
    for (const Weighted& actor : actors) {
      for (size_t i = 0; i < actor.weights.size(); ++i) {
        const double w = cut.count(actor.key(i)) ? .05 : actor.weights[i];
        all += w;
        if (cut.count(actor.key(i))) low += w;
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
    for (const uint64_t key : batch.keys) {
      if (cut.size() < 900 && cut.insert(key).second) keys.push_back(key);
    }
    const std::vector<double> priorities(keys.size(), .05);
    replay->update(0, keys.data(), priorities.data(), keys.size());
    if (n % 50 == 0) CHECK_OK(replay->check());
  }
  CHECK(seen > static_cast<double>(batches) * 64 / 2);
  CHECK_NEAR(updated / seen, exact / seen, .012);
  // In the end the actors' memories and the server agree about what learners said.
  auto last = restored(save(*replay), {spec}, 4 << 20);
  last->restored();
  for (Weighted& actor : actors) {
    actor.replay = last.get();
    while (!last->with_feedback(0).empty() && stats_of(*last, actor.number).name != "") {
      const uint64_t before = actor.applied;
      actor.take_feedback();
      if (actor.applied == before) break;
    }
    actor.push_drawn(1, random);
    for (size_t i = 0; i < actor.weights.size(); ++i) {
      if (cut.count(actor.key(i))) CHECK_NEAR(actor.weights[i], .05, 1e-12);
    }
    double total = 0;
    for (const double w : actor.weights) total += w;
    CHECK_NEAR(stats_of(*last, actor.number).total, total, 1e-9 * total);
  }
}

// Without replacement each item is drawn once: over batches that are given back, saves, and what is used up after a save.
void once_each() {
  const TableSpec spec = step_table(schema, Select::kWithoutReplacement);
  auto replay = make(spec, 1 << 20);
  Weighted a(replay.get(), spec, "a", std::vector<double>(400, 1.0));
  std::vector<size_t> all(400);
  for (size_t i = 0; i < all.size(); ++i) all[i] = i;
  a.push(all);
  std::map<uint64_t, int> seen;
  const auto take = [&](Replay& from, size_t batch, uint64_t ticket) {
    std::vector<size_t> offsets;
    std::vector<uint64_t> out(spec.batch_bytes(batch, &offsets) / 8);
    uint64_t population;
    double total;
    CHECK(from.draw(0, batch, reinterpret_cast<uint8_t*>(out.data()), &population, &total, kAnyVersion, ticket));
    return check_batch(spec, schema, out, batch);
  };
  const auto count = [&seen](const std::vector<uint64_t>& keys) {
    for (const uint64_t key : keys) ++seen[key];
  };
  // Given back, also by who has left, and deleted meanwhile.
  take(*replay, 50, 1);
  replay->put_back(0, 1);
  CHECK_OK(replay->check());
  CHECK_EQ(stats_of(*replay, a.number).queue, uint64_t{400});
  count(take(*replay, 60, 2));
  replay->taken(0, 2);
  const std::vector<uint64_t> out = take(*replay, 40, 3);
  CHECK_OK(replay->check());
  replay->erase(0, out.data(), 1);
  ++seen[out[0]];
  replay->progress();
  const Saved saved = save(*replay);
  // The older state, and what was used up since.
  count(take(*replay, 30, 4));
  replay->taken(0, 4);
  take(*replay, 20, 5);
  const std::vector<uint8_t> used = replay->progress();
  count(take(*replay, 10, 6));
  replay->taken(0, 6);
  const std::vector<uint8_t> more = replay->progress();
  auto next = restored(saved, {spec}, 1 << 20);
  CHECK_EQ(stats_of(*next, a.number).queue, uint64_t{339});
  CHECK_OK(next->advance(used.data(), used.size()));
  CHECK_OK(next->check());
  CHECK_EQ(stats_of(*next, a.number).queue, uint64_t{309});
  CHECK_OK(next->advance(more.data(), more.size()));
  CHECK(next->advance(more.data(), more.size() - 1).code() == Code::kMalformed);
  CHECK_EQ(next->stats().tables[0].drawn, uint64_t{100});
  next->restored();
  next->leave(a.number);
  count(take(*next, 299, 7));
  CHECK_EQ(next->stats().tables[0].actors.size(), size_t{1});  // some may still come back
  next->taken(0, 7);
  CHECK_EQ(next->stats().tables[0].actors.size(), size_t{0});
  CHECK_OK(next->check());
  CHECK_EQ(seen.size(), size_t{400});
  for (const auto& [key, times] : seen) CHECK_EQ(times, 1);
}

// An older state, the pushes since, and what draws have used up since: queues, counts and the draws that come are those of the one that went on.
void used_up(const TableSpec& spec, uint64_t seed) {
  auto replay = make(spec, 1 << 20, seed);
  Random random(seed);
  replay->progress();
  std::vector<Weighted> actors;
  for (const char* name : {"a", "b", "c"})
    actors.emplace_back(replay.get(), spec, name, std::vector<double>(300, 1.0 + static_cast<double>(random.below(3))));
  const auto push = [&](Replay* to, Weighted* actor, uint64_t number) {
    Random same(number);
    actor->replay = to;
    if (spec.select == Select::kAll) {
      std::vector<size_t> some;
      for (size_t i = 0; i < 40; ++i) some.push_back(same.below(300));
      Payload payload = actor->cache(some);
      payload.draws.clear();
      CHECK_OK(world::push(*to, actor->number, payload, spec, schema));
    } else {
      actor->push_drawn(40, same);
    }
  };
  for (int i = 0; i < 12; ++i) push(replay.get(), &actors[static_cast<size_t>(i % 3)], static_cast<uint64_t>(i));
  for (int i = 0; i < 4; ++i) draw(*replay, spec, 20);
  const Saved saved = save(*replay);
  std::vector<std::set<size_t>> held;
  for (const Weighted& actor : actors) held.push_back(actor.held);
  std::vector<std::function<void(Replay*)>> again;
  for (uint64_t i = 100; i < 140; ++i) {
    const size_t who = random.below(3);
    if (random.below(2) == 0) {
      push(replay.get(), &actors[who], i);
      again.push_back([&, who, i](Replay* to) { push(to, &actors[who], i); });
    }
    draw(*replay, spec, 1 + random.below(25));
    if (random.below(3) == 0) {
      const std::vector<uint8_t> bytes = replay->progress();
      again.push_back([bytes](Replay* to) { CHECK_OK(to->advance(bytes.data(), bytes.size())); });
    }
  }
  const std::vector<uint8_t> bytes = replay->progress();
  again.push_back([bytes](Replay* to) { CHECK_OK(to->advance(bytes.data(), bytes.size())); });
  auto next = restored(saved, {spec}, 1 << 20);
  for (size_t i = 0; i < 3; ++i) actors[i].held = held[i];
  for (const auto& one : again) one(next.get());
  next->restored();
  CHECK_OK(next->check());
  same(*replay, *next);
  for (int i = 0; i < 10; ++i) {
    const Drawn one = draw(*replay, spec, 10), other = draw(*next, spec, 10);
    CHECK_EQ(one.any, other.any);
    if (spec.select != Select::kAll || spec.ordered()) CHECK(one.keys == other.keys);
  }
}

// A restored actor that never comes back leaves when its queue is used up; one that comes goes on with its session.
void actors_come_back() {
  const TableSpec spec = step_table(schema, Select::kPrioritized);
  std::unique_ptr<Replay> replay;
  CHECK_OK(Replay::make(schema, {spec}, 1 << 20, 1, 1, &replay));
  Weighted a(replay.get(), spec, "a", {1, 1, 1}), b(replay.get(), spec, "b", {1, 1});
  const Joined c = replay->resume("c", 2, "default", 77, {}, 1);
  a.push({0, 1, 2});
  b.push({0, 1});
  const uint64_t key = b.key(1);
  const double priority = 3;
  replay->update(0, &key, &priority, 1);
  Feedback taken;
  CHECK(replay->take_feedback(b.number, 0, &taken));
  auto next = restored(save(*replay), {spec}, 1 << 20);
  next->restored();
  next->leave(a.number);
  CHECK_EQ(next->stats().tables[0].actors.size(), size_t{3});
  while (draw(*next, spec, 1).any) {
  }
  CHECK_EQ(stats_of(*next, a.number).name, std::string());
  CHECK_OK(next->check());
  const Joined again = next->resume("c", 2, "default", 77, c.streams, 1);
  CHECK(again.resumed && again.streams == c.streams && again.actor == c.actor);
  // New streams are none that anybody has had.
  std::vector<uint64_t> streams;
  next->join("d", 3, &streams);
  for (const uint64_t stream : streams) CHECK(stream >= 1000);
  // Feedback that nobody is known to have got comes again, under a number of its own.
  Feedback feedback;
  CHECK(next->take_feedback(b.number, 0, &feedback));
  CHECK(feedback.number > taken.number + 1000);
  CHECK(feedback.keys == taken.keys && feedback.priorities == taken.priorities);
  CHECK(!next->take_feedback(b.number, 0, &feedback));
}

}  // namespace

int main(int argc, char**) {
  const auto times = [](TableSpec* spec) {
    spec->max_times_sampled = 3;
    spec->decay = .9;
  };
  const auto once = [](TableSpec* spec) {
    spec->max_times_sampled = 1;
    spec->sampler = Sampler::kFifo;
  };
  const TableSpec counted = changed(step_table(schema, Select::kAll), times), queue = changed(step_table(schema, Select::kAll), once);
  closed_loop(argc > 1 ? 250 : 1500);
  once_each();
  for (uint64_t i = 0; i < 8; ++i) {
    used_up(step_table(schema, Select::kUniform), i);
    used_up(step_table(schema, Select::kPrioritized), 100 + i);
    used_up(counted, 200 + i);
    used_up(queue, 300 + i);
  }
  actors_come_back();
  return check::summary();
}
