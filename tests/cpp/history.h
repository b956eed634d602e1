// Random histories of a Replay over several tables and a store that is always full: pushes, draws, updates, departures, by actors that are sometimes
// wrong about what is held. Every invariant after every operation, and every byte of every batch against a function of its key.
#pragma once

#include <map>
#include <string>

#include "world.h"

namespace history {

using namespace memsvc;
using namespace world;

struct Actor {
  uint64_t number = 0;
  std::vector<uint64_t> streams;
  std::vector<std::set<uint64_t>> sent;  // a table: items believed to be held
  std::set<uint64_t> rows;               // ever sent since the last doubt
  std::vector<uint64_t> applied;
  double exponent = 1;
};

struct Run {
  Run(const Schema& s, std::vector<TableSpec> t, uint64_t memory, uint64_t seed) : schema(s), tables(std::move(t)), random(seed) {
    CHECK_OK(Replay::make(schema, tables, memory, seed, 5, &replay));
    for (int i = 0; i < 3; ++i) actors.push_back(join(i));
    for (size_t table = 0; table < tables.size(); ++table) replay->expect(table, 96);
  }

  Actor join(int i) {
    Actor actor;
    actor.number = replay->join("actor-" + std::to_string(i), 2, &actor.streams);
    CHECK_EQ(actor.streams.size(), size_t{2});
    actor.sent.resize(tables.size());
    actor.applied.resize(tables.size());
    return actor;
  }

  void push(Actor& actor, size_t table) {
    const TableSpec& spec = tables[table];
    Payload payload;
    payload.head.table = static_cast<uint32_t>(table);
    payload.head.total = 1 + random.uniform() * 10;
    payload.head.population = 5 + random.below(40);
    payload.head.min_weight = 0.01;
    payload.head.applied = actor.applied[table];
    payload.head.inserted = ++inserted;
    payload.head.newest = static_cast<int64_t>(random.below(1000));
    if (random.below(60) == 0) actor.exponent = .25 + random.uniform();
    payload.head.exponent = actor.exponent;
    std::set<uint64_t> fresh;
    for (uint64_t n = 1 + random.below(24); n-- > 0;) {
      const uint64_t key = random_key(spec, actor.streams[random.below(2)], 40, random);
      // Sometimes an item is sent that is believed held, or drawn that is not sent at all: the server must cope with both.
      if (!actor.sent[table].count(key) || random.below(10) == 0) {
        if (random.below(15) != 0) fresh.insert(key);
      }
      if (spec.select != Select::kAll) payload.draws.push_back({key, 0.1 + random.uniform()});
    }
    for (const uint64_t key : fresh) payload.items.push_back(record_of(spec, key));
    if (!payload.items.empty() && random.below(8) == 0) payload.items.push_back(payload.items.front());
    payload.add_rows(spec);
    // Rows that travelled before are left out, rightly or not.
    if (random.below(3) != 0) std::erase_if(payload.rows, [&](uint64_t key) { return actor.rows.count(key) && random.below(20) != 0; });
    if (!payload.rows.empty() && random.below(8) == 0) payload.rows.push_back(payload.rows.front());
    if (random.below(4) == 0) payload.gone.push_back(random_key(spec, actor.streams[0], 40, random));
    CHECK_OK(world::push(*replay, actor.number, payload, spec, schema));
    actor.rows.insert(payload.rows.begin(), payload.rows.end());
    for (const ItemRecord& item : payload.items) actor.sent[table].insert(item.key);
    const Notices notices = replay->notices(actor.number, table);
    for (const uint64_t key : notices.evicted) {
      actor.sent[table].erase(key);
      actor.rows.clear();
    }
    for (const uint64_t key : notices.missing) actor.sent[table].erase(key);
    if (random.below(30) == 0) actor.rows.clear();
  }

  void draw(size_t table) {
    const size_t batch = 1 + random.below(40);
    std::vector<uint64_t> out(tables[table].batch_bytes(batch, nullptr) / 8);
    uint64_t population = 0;
    double total = 0;
    const Reason reason = replay->why_not(table, batch);
    // Some batches are confirmed later, or given back.
    const uint64_t ticket = random.below(3) == 0 ? ++tickets : 0;
    const bool drawn = replay->draw(table, batch, reinterpret_cast<uint8_t*>(out.data()), &population, &total, kAnyVersion, ticket);
    CHECK_EQ(drawn, reason.why == Why::kReady);
    if (!drawn) return;
    ++batches;
    CHECK(population > 0 && total > 0);
    last[table] = check_batch(tables[table], schema, out, batch);
    if (ticket > 0) open.push_back({table, ticket});
    while (open.size() > random.below(6)) {
      const size_t at = random.below(open.size());
      const auto [of, one] = open[at];
      random.below(2) == 0 ? replay->taken(of, one) : replay->put_back(of, one);
      open.erase(open.begin() + static_cast<std::ptrdiff_t>(at));
    }
  }

  void update(size_t table) {
    std::vector<uint64_t> keys = last[table];
    keys.push_back(make_key(4000, 7));  // of nobody
    std::vector<double> priorities(keys.size());
    for (double& p : priorities) p = random.below(6) == 0 ? 0 : random.uniform() * 3;
    uint64_t bad = 0;
    if (random.below(3) == 0) priorities[random.below(priorities.size())] = -1, bad = 1;
    const UpdateResult result = replay->update(table, keys.data(), priorities.data(), keys.size());
    CHECK_EQ(result.refused.size(), bad);
    CHECK_EQ(result.applied + result.stale + bad, keys.size());
  }

  void erase(size_t table) {
    std::vector<uint64_t> keys = last[table];
    keys.resize(random.below(keys.size() + 1));
    const UpdateResult result = replay->erase(table, keys.data(), keys.size());
    CHECK_EQ(result.applied + result.stale, keys.size());
  }

  void step() {
    const size_t table = random.below(tables.size());
    const size_t who = random.below(actors.size());
    Actor& actor = actors[who];
    switch (random.below(20)) {
      case 0: {
        Feedback feedback;
        if (replay->take_feedback(actor.number, table, &feedback)) actor.applied[table] = feedback.number - random.below(2);
        break;
      }
      case 1:
        if (random.below(4) == 0) {
          if (random.below(2) == 0) replay->leave(actor.number);
          actors[who] = join(static_cast<int>(random.below(2) ? who : 10 + joined++));
        }
        break;
      case 2:
        // Versions of items are below 1,000: now and then most become too stale.
        if (random.below(3) == 0) replay->publish("default", static_cast<int64_t>(random.below(900)));
        if (random.below(6) == 0) erase(table);
        break;
      case 3:
        update(table);
        break;
      case 4:
      case 5:
      case 6:
      case 7:
      case 8:
        draw(table);
        break;
      default:
        push(actor, table);
        break;
    }
    CHECK_OK(replay->check());
  }

  const Schema schema;
  const std::vector<TableSpec> tables;
  Random random;
  std::unique_ptr<Replay> replay;
  std::vector<Actor> actors;
  std::map<size_t, std::vector<uint64_t>> last;
  std::vector<std::pair<size_t, uint64_t>> open;  // tables and tickets
  uint64_t inserted = 0, batches = 0, tickets = 0;
  int joined = 0;
};

}  // namespace history
