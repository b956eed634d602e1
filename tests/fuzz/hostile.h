// Replay against actors and learners that may say anything: payloads made by a grammar of operations, right, slightly wrong or noise, between draws,
// priorities, deletions, departures and changes of settings. Learners get numbers, whatever was said.
#pragma once

#include <algorithm>

#include "bytes.h"
#include "world.h"

namespace fuzz {

using namespace memsvc;
using namespace world;

struct Setup {
  std::vector<TableSpec> tables;
  uint64_t memory;
};

template <typename Change>
TableSpec changed(TableSpec spec, const Change& change) {
  change(spec);
  expect(spec.derive(make_schema()).ok(), "settings of the fuzzer are right");
  return spec;
}

inline const Schema& schema() {
  static const Schema made = make_schema();
  return made;
}

inline const std::vector<Setup>& setups() {
  static const std::vector<Setup> made = [] {
    const Schema& s = schema();
    const auto nothing = [](TableSpec&) {};
    const auto made_columns = [](TableSpec& t) {
      t.gamma.values = {.9};
      t.step_discount = .9, t.decay = .5, t.max_staleness = 40;
    };
    const auto bounds = [](TableSpec& t) { t.per_actor_episodes = 3, t.per_actor_steps = 60, t.max_staleness = 40; };
    const auto stale = [](TableSpec& t) { t.max_staleness = 40; };
    const auto limited = [](TableSpec& t) { t.samples_per_insert = 2, t.tolerance = 64, t.max_times_sampled = 3, t.min_items = 4; };
    const auto blocking = [](TableSpec& t) { t.blocks = true, t.capacity_items = 40; };
    const auto fifo = [](TableSpec& t) { t.sampler = Sampler::kFifo, t.max_times_sampled = 1; };
    const auto largest = [](TableSpec& t) { t.sampler = Sampler::kMax, t.capacity_items = 30; };
    const auto paced = [](TableSpec& t) { t.samples_per_insert = 1, t.tolerance = 32; };
    const auto transitions = [&](Select select, uint32_t n) { return transition_table(s, select, n, Pad::kRepeat); };
    return std::vector<Setup>{
        {{changed(transitions(Select::kPrioritized, 3), made_columns), changed(step_table(s, Select::kPrioritized), nothing)}, 240000},
        {{changed(sequence_table(s, Select::kAll), bounds), changed(step_table(s, Select::kAll), limited)}, 150000},
        {{changed(step_table(s, Select::kAll), blocking), changed(transitions(Select::kUniform, 2), paced)}, 230000},
        {{changed(step_table(s, Select::kWithoutReplacement), nothing), changed(sequence_table(s, Select::kPrioritized), made_columns)}, 240000},
        {{changed(step_table(s, Select::kAll), fifo), changed(transitions(Select::kAll, 4), largest)}, 120000},
        {{changed(sequence_table(s, Select::kAll), blocking), changed(sequence_table(s, Select::kPrioritized), stale)}, 230000},
    };
  }();
  return made;
}

struct Run {
  Run(Bytes& bytes, const Setup& setup) : in(bytes), tables(setup.tables), last(setup.tables.size()), tickets(setup.tables.size()) {
    const Status made = Replay::make(schema(), tables, setup.memory, 1, 5, &replay);
    expect(made.ok(), made.message());
    for (int i = 0; i < 3; ++i) join(i);
    for (size_t table = 0; table < tables.size(); ++table) replay->expect(table, 64);
  }

  void join(size_t who) {
    std::vector<uint64_t> streams;
    const uint64_t number = replay->join("actor-" + std::to_string(who), 2, &streams);
    if (actors.size() <= who) actors.resize(who + 1);
    actors[who] = {number, streams};
    all.insert(all.end(), streams.begin(), streams.end());
  }

  // Of the actor; of a rogue's keys some are anybody's, or nobody's.
  uint64_t key(const TableSpec& spec, size_t who) {
    if (rogue && in.one_in(16)) return in.word();
    const uint64_t stream = rogue && in.one_in(16) ? all[in.below(all.size())] : actors[who].streams[in.byte() % 2];
    const uint64_t t = spec.kind == Kind::kSequence ? in.below((kSteps + 1) / 2) * 2 : in.below(kSteps);
    return make_key(stream, in.below(24) * (kSteps + 1) + t);
  }

  void push() {
    const size_t table = in.below(tables.size()), who = in.below(actors.size());
    const TableSpec& spec = tables[table];
    const uint8_t wrong = in.byte() < 128 ? 0 : in.byte();
    rogue = wrong != 0;
    Payload payload;
    CacheHead& head = payload.head;
    head.table = static_cast<uint32_t>(table);
    head.total = 1 + in.byte();
    head.population = 1 + in.byte();
    head.min_weight = .25;
    head.inserted = inserted += in.byte() % 32;
    head.steps = inserted;
    head.newest = in.byte() % 64;
    head.applied = in.byte() % 8;
    head.exponent = in.one_in(32) ? .5 : 1;
    head.unsent = in.byte() % 16;
    if (in.one_in(8)) head.allowed = inserted + in.byte();
    if (wrong & 1) {
      head.total = in.real(), head.population = in.count(), head.min_weight = in.real(), head.scale = in.real(), head.exponent = in.real();
    }
    if (wrong & 2) {
      head.applied = in.count(), head.inserted = in.count(), head.steps = in.count(), head.newest = static_cast<int64_t>(in.count());
      head.stale = in.count(), head.episodes = in.count(), head.short_episodes = in.count(), head.unsent = in.count(), head.allowed = in.count();
    }
    for (uint64_t n = in.byte() % 24; n-- > 0;) {
      payload.items.push_back(record_of(spec, key(spec, who)));
      ItemRecord& item = payload.items.back();
      item.version = in.one_in(8) ? static_cast<int64_t>(in.count()) : in.byte() % 64;
      item.episode = static_cast<uint16_t>(step_of(item.key) / (kSteps + 1));
      if (wrong & 4) {
        item.priority = in.real(), item.span = static_cast<uint32_t>(in.count()), item.head = static_cast<uint16_t>(in.count());
        if (in.byte() % 2) item.key = make_key(stream_of(item.key), in.count());
      }
      payload.factors.push_back(wrong & 8 ? in.real() : 1);
    }
    if (!(wrong & 4)) payload.add_rows(spec);
    for (uint64_t n = spec.select == Select::kAll ? rogue && in.one_in(8) : in.byte() % 24; n-- > 0;) {
      const bool new_one = !payload.items.empty() && in.byte() % 4;
      payload.draws.push_back(
          {new_one ? payload.items[in.byte() % payload.items.size()].key : key(spec, who), wrong & 8 ? in.real() : 1.0 + in.byte() % 4});
    }
    for (uint64_t n = in.one_in(4) ? in.byte() % 4 : 0; n-- > 0;) payload.gone.push_back(key(spec, who));
    if (in.one_in(4)) std::erase_if(payload.rows, [&](uint64_t) { return in.one_in(8); });
    if (wrong & 16) payload.rows.push_back(key(spec, who));
    if (wrong & 4) keep_small(payload);
    std::vector<uint64_t> words = payload.bytes(spec, schema());
    with_floors(&words, spec, who);
    uint8_t* raw = reinterpret_cast<uint8_t*>(words.data());
    size_t size = words.size() * 8;
    if (wrong & 32) {
      for (uint64_t n = 1 + in.byte() % 4; n-- > 0;)
        raw[in.below(in.byte() % 2 ? sizeof(CacheHead) : size)] ^= static_cast<uint8_t>(1 << in.byte() % 8);
    }
    if (wrong & 64) size = in.below(size + 1);
    // A payload of its own size: what is read beyond its end is found.
    const std::vector<uint64_t> exact(words.begin(), words.begin() + static_cast<std::ptrdiff_t>((size + 7) / 8));
    uint64_t items = 0, draws = 0;
    const Status status = replay->push(actors[who].number, reinterpret_cast<const uint8_t*>(exact.data()), size, &items, &draws);
    expect(wrong || status.ok() || status.code() == Code::kNotFound, status.message());
  }

  static void keep_small(Payload& payload) { payload.items.resize(std::min<size_t>(payload.items.size(), 16)); }

  // Payload::bytes knows no floors: they stand last.
  void with_floors(std::vector<uint64_t>* words, const TableSpec& spec, size_t who) {
    if (!in.one_in(8)) return;
    CacheHead head;
    head = *reinterpret_cast<const CacheHead*>(words->data());
    head.floors = 1 + in.byte() % (rogue ? 3 : 2);
    std::memcpy(words->data(), &head, sizeof(head));
    const size_t at = words->size();
    words->resize(at + align_up(head.floors * 8) / 8);
    for (uint64_t i = 0; i < head.floors; ++i) (*words)[at + i] = key(spec, who);
  }

  void noise() {
    std::vector<uint64_t> words(24 + in.byte());
    for (uint64_t& word : words) word = in.empty() ? 0 : in.count();
    uint32_t head[2] = {static_cast<uint32_t>(in.below(tables.size())), static_cast<uint32_t>(schema().row_stride())};
    std::memcpy(words.data(), head, sizeof(head));
    uint64_t items = 0, draws = 0;
    replay->push(actors[0].number, reinterpret_cast<const uint8_t*>(words.data()), words.size() * 8 - in.byte() % 8, &items, &draws);
  }

  void draw() {
    const size_t table = in.below(tables.size()), batch = 1 + in.below(48);
    const TableSpec& spec = tables[table];
    std::vector<uint64_t> out(spec.batch_bytes(batch, nullptr) / 8);
    uint64_t population = 0;
    double total = 0;
    const int64_t version = spec.select == Select::kAll && in.one_in(8) ? static_cast<int64_t>(in.count()) : kAnyVersion;
    const uint64_t ticket = in.one_in(4) ? ++numbers : 0;
    const Reason reason = replay->why_not(table, batch, version);
    const bool drawn = replay->draw(table, batch, reinterpret_cast<uint8_t*>(out.data()), &population, &total, version, ticket);
    expect(drawn == (reason.why == Why::kReady), "why_not() knows what draw() does");
    if (!drawn) return;
    if (ticket) tickets[table].push_back(ticket);
    expect(population > 0 && std::isfinite(total), "what is drawn from has numbers");
    numbers_are(spec, out, batch);
  }

  // Learners divide by these.
  void numbers_are(const TableSpec& spec, const std::vector<uint64_t>& out, size_t batch) {
    std::vector<size_t> offsets;
    spec.batch_bytes(batch, &offsets);
    const uint8_t* data = reinterpret_cast<const uint8_t*>(out.data());
    for (size_t c = 0; c < spec.columns.size(); ++c) {
      const uint8_t* column = data + offsets[c];
      if (spec.columns[c].origin == Origin::kKey) {
        last[&spec - tables.data()].assign(reinterpret_cast<const uint64_t*>(column), reinterpret_cast<const uint64_t*>(column) + batch);
      } else if (spec.columns[c].origin == Origin::kWeight) {
        for (size_t i = 0; i < batch; ++i) expect(std::isfinite(reinterpret_cast<const float*>(column)[i]), "weights are numbers");
      } else if (spec.columns[c].origin == Origin::kProbability) {
        for (size_t i = 0; i < batch; ++i) expect(std::isfinite(reinterpret_cast<const double*>(column)[i]), "probabilities are numbers");
      }
    }
  }

  void settle() {
    const size_t table = in.below(tables.size());
    const uint64_t ticket = tickets[table].empty() || in.one_in(8) ? in.count() : tickets[table][in.byte() % tickets[table].size()];
    in.byte() % 2 ? replay->taken(table, ticket) : replay->put_back(table, ticket);
  }

  void by_key() {
    const size_t table = in.below(tables.size());
    const TableSpec& spec = tables[table];
    std::vector<uint64_t> keys = last[table];
    for (uint64_t n = in.byte() % 8; n-- > 0;) keys.push_back(key(spec, in.below(actors.size())));
    keys.resize(std::min<size_t>(keys.size(), 1 + in.byte() % 64));
    const uint8_t what = in.byte() % 8;
    if (what == 0) {
      replay->erase(table, keys.data(), keys.size());
    } else if (what < 3) {
      std::vector<uint64_t> out(spec.batch_bytes(keys.size(), nullptr) / 8 + 1);
      uint64_t population = 0;
      double total = 0;
      const size_t found = replay->get(table, keys.data(), keys.size(), reinterpret_cast<uint8_t*>(out.data()), &population, &total);
      const std::vector<uint64_t> before = last[table];
      numbers_are(spec, out, found);
      last[table] = before;
    } else {
      std::vector<double> priorities(keys.size());
      for (double& p : priorities) p = in.real();
      const UpdateResult result = replay->update(table, keys.data(), priorities.data(), keys.size());
      expect(result.applied + result.stale + result.refused.size() == keys.size(), "each priority is applied, stale or refused");
    }
  }

  void configure() {
    const size_t table = in.below(tables.size());
    TableSpec spec = tables[table];
    spec.beta = in.byte() % 5 / 4.0;
    spec.exponent = in.byte() % 5 / 4.0;
    spec.min_items = 1 + in.byte() % 16;
    spec.max_staleness = in.byte() % 2 ? in.byte() % 64 : -1;
    if (spec.samples_per_insert > 0) spec.samples_per_insert = 1 + in.byte() % 4;
    replay->configure(table, spec);
    tables[table].change(spec);
  }

  void step() {
    const size_t table = in.below(tables.size()), who = in.below(actors.size());
    switch (in.byte() % 24) {
      case 0: {
        Feedback feedback;
        replay->take_feedback(actors[who].number, table, &feedback);
        break;
      }
      case 1:
        if (in.byte() % 2) replay->leave(actors[who].number);
        join(in.byte() % 4 ? who : in.below(std::min<size_t>(actors.size() + 1, 6)));
        break;
      case 2:
        replay->publish("default", static_cast<int64_t>(in.byte() % 8 ? in.byte() % 128 : in.count() >> 2));
        break;
      case 3:
        configure();
        break;
      case 4:
        noise();
        break;
      case 5: {
        uint64_t allowed = 0;
        double ahead = 0;
        if (replay->allowance(actors[who].number, table, &allowed, &ahead)) expect(std::isfinite(ahead), "the limiter counts");
        break;
      }
      case 6:
        replay->hungry(table);
        replay->with_feedback(table);
        replay->stats();
        replay->expect(table, in.count());
        break;
      case 7:
      case 8:
        settle();
        break;
      case 9:
      case 10:
      case 11:
        by_key();
        break;
      case 12:
      case 13:
      case 14:
      case 15:
        draw();
        break;
      default:
        push();
        if (in.byte() % 2) replay->notices(actors[who].number, table);
        break;
    }
  }

  struct Actor {
    uint64_t number = 0;
    std::vector<uint64_t> streams;
  };
  Bytes& in;
  std::vector<TableSpec> tables;
  std::unique_ptr<Replay> replay;
  std::vector<Actor> actors;
  std::vector<uint64_t> all;  // streams of everybody, also of those that are gone
  std::vector<std::vector<uint64_t>> last, tickets;
  bool rogue = false;
  uint64_t inserted = 0, numbers = 0;
};

}  // namespace fuzz
