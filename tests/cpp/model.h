// A naive model of an actor's memory: whole histories in vectors, everything computed anew from the definitions, nothing kept up to date.
// The randomised tests hold the product against it, and against a mirror of the rows and items that a server would have.
#pragma once

#include <cmath>
#include <cstring>
#include <deque>
#include <map>
#include <set>
#include <vector>

#include "cache.h"
#include "check.h"
#include "memory.h"
#include "random.h"
#include "window.h"

namespace model {

using namespace memsvc;

struct Step {
  std::vector<uint8_t> row;
  std::vector<double> reward, value;
  double gamma = 0, given = 0;
  int64_t version = 0;
};

struct Episode {
  uint64_t stream = 0, base = 0;
  size_t env = 0, first = 0;
  std::vector<Step> steps;
  Step last;  // the final observation
  bool ended = false, terminated = false;
  double weight = 1;
  size_t T() const { return ended || steps.empty() ? steps.size() : steps.size() - 1; }
  uint64_t key(size_t t) const { return make_key(stream, base + t); }
  const Step& at(size_t t) const { return t < steps.size() ? steps[t] : last; }
};

struct Item {
  const Episode* episode;
  size_t start, span;
  std::pair<const Episode*, size_t> name() const { return {episode, start}; }  // stays when the keys change
};

// {obs float32[2], action int32, reward [k], value [k], g float32}, reward and value float32 or float64.
inline Schema make_schema(uint32_t k, bool wide) {
  std::vector<Field> fields(5);
  const char* names[] = {"obs", "action", "reward", "value", "g"};
  for (int i = 0; i < 5; ++i) fields[i].name = names[i];
  fields[0].shape = {2};
  fields[1].kind = 'i';
  for (int i : {2, 3}) {
    fields[i].itemsize = wide ? 8 : 4;
    if (k > 1) fields[i].shape = {k};
  }
  Schema schema;
  CHECK_OK(Schema::make(fields, &schema));
  return schema;
}

inline Step random_step(const Schema& schema, Random& random, int64_t version) {
  Step s;
  s.row.resize(schema.row_stride());
  for (const Field& f : schema.fields()) {
    for (size_t j = 0; j < f.bytes / f.itemsize; ++j) {
      double x = 2 * random.uniform() - 1;
      if (f.name == "g") x = random.uniform();
      float narrow = static_cast<float>(x);
      if (f.itemsize == 4) x = narrow;
      std::memcpy(&s.row[f.offset + j * f.itemsize], f.itemsize == 8 ? static_cast<void*>(&x) : &narrow, f.itemsize);
      if (f.name == "reward") s.reward.push_back(x);
      if (f.name == "value") s.value.push_back(x);
      if (f.name == "g") s.gamma = x;
    }
  }
  s.given = random.below(8) ? random.uniform() * 3 : 0;
  s.version = version;
  return s;
}

inline double gamma_of(const Gamma& gamma, const Step& s, size_t j) {
  return gamma.field >= 0 ? s.gamma : gamma.values[gamma.values.size() == 1 ? 0 : j];
}

inline double value_after(const Episode& e, size_t t, size_t j) { return e.ended && e.terminated && t == e.T() ? 0 : e.at(t).value[j]; }

// DEFINITIONS 2: the sum and discount of the transition at t.
inline double n_step_reward(const TableSpec& spec, const Episode& e, size_t t, size_t j) {
  double sum = 0, power = 1;
  for (size_t i = t; i < std::min(t + spec.n_step, e.T()); ++i) {
    sum += power * e.at(i).reward[j];
    power *= gamma_of(spec.gamma, e.at(i), j);
  }
  return sum;
}

inline double discount(const TableSpec& spec, const Episode& e, size_t t, size_t m, size_t j) {
  if (e.ended && e.terminated && t + m == e.T()) return 0;
  double power = 1;
  for (size_t i = t; i < t + m; ++i) power *= gamma_of(spec.gamma, e.at(i), j);
  return power;
}

// DEFINITIONS 5: A_t as the sum of discounted errors; q = A + v.
inline double advantage(const TableSpec& spec, const Episode& e, size_t t, size_t j) {
  double sum = 0, decay = 1;
  for (size_t u = t; u < e.T(); ++u) {
    const double g = gamma_of(spec.returns_gamma, e.at(u), j);
    sum += decay * (e.at(u).reward[j] + g * value_after(e, u + 1, j) - e.at(u).value[j]);
    decay *= g * spec.lambda;
  }
  return sum;
}

inline double step_number(const TableSpec& spec, const Episode& e, size_t t) {
  if (spec.source == Source::kGiven) return e.at(t).given;
  double sum = 0;
  for (size_t j = 0; j < spec.reward_dims; ++j) {
    const size_t m = std::min<size_t>(spec.n_step, e.T() - t);
    const double target = n_step_reward(spec, e, t, j) + discount(spec, e, t, m, j) * value_after(e, t + m, j);
    sum += spec.coefficients[j] * (spec.source == Source::kReturn ? advantage(spec, e, t, j) : target - e.at(t).value[j]);
  }
  return std::abs(sum);
}

// DEFINITIONS 6: p of an item that no learner has touched. Source "max" without learners: 1.
inline double priority(const TableSpec& spec, const Item& item) {
  if (spec.select == Select::kUniform || spec.source == Source::kMax) return 1;
  if (spec.kind != Kind::kSequence) return step_number(spec, *item.episode, item.start);
  double largest = 0, sum = 0;
  size_t n = 0;
  for (size_t i = item.span > spec.burn_in ? spec.burn_in : 0; i < item.span; ++i, ++n) {
    const double d = step_number(spec, *item.episode, item.start + i);
    largest = std::max(largest, d);
    sum += d;
  }
  return spec.eta * largest + (1 - spec.eta) * sum / static_cast<double>(n);
}

// g * kappa^t * decay^n
inline double factor(const TableSpec& spec, const Item& item, uint64_t times) {
  double f = spec.episode_weights ? item.episode->weight : 1;
  for (size_t t = 0; t < item.start; ++t) f *= spec.step_discount;
  for (uint64_t n = 0; n < times; ++n) f *= spec.decay;
  return f;
}

// The weight of an item with raw priority p.
inline double weight(const TableSpec& spec, double p, double scale, double factor) {
  return p == 0 ? 0 : factor * (spec.select == Select::kUniform ? 1 : std::pow(p * scale, spec.exponent));
}

// DEFINITIONS 10.
inline bool fresh(const TableSpec& spec, const Item& item, int64_t newest) {
  return spec.max_staleness < 0 || newest == 0 || item.episode->at(item.start).version + spec.max_staleness >= newest;
}

// Whether select = "all" may send it.
inline bool final(const TableSpec& spec, const Item& item) {
  const size_t reach = spec.kind == Kind::kTransition ? spec.n_step : spec.kind == Kind::kSequence ? spec.length : 1;
  const bool at_end = spec.returns || spec.episode_weights;
  return item.episode->ended || (!at_end && item.start + reach + (spec.source == Source::kTd ? spec.n_step : 0) <= item.episode->T());
}

// Every item of an episode, as the definitions have them; of what is still here, or of the whole.
inline std::vector<Item> items_of(const TableSpec& spec, const Episode& e, bool whole = false) {
  std::vector<Item> all;
  const size_t T = e.T(), L = spec.length;
  if (spec.kind == Kind::kSequence) {
    size_t covered = 0, start = 0;
    for (; start + L <= T; start += spec.stride) {
      all.push_back({&e, start, L});
      covered = start + L;
    }
    if (e.ended && covered < T && spec.tail == Tail::kShift && T >= L && start < T) all.push_back({&e, T - L, L});
    if (e.ended && covered < T && spec.tail == Tail::kPad && start < T) all.push_back({&e, start, T - start});
  } else {
    for (size_t t = 0; t < T; ++t) all.push_back({&e, t, spec.kind == Kind::kStep ? 1 : std::min<size_t>(spec.n_step, T - t)});
  }
  if (!whole) std::erase_if(all, [&](const Item& i) { return i.start - std::min<size_t>(i.start, spec.frame_stack - 1) < e.first; });
  return all;
}

// The bounds: what a memory of `capacity` steps over `envs` streams still has.
struct Memory {
  std::deque<Episode> episodes;  // by the time of their first step; references stay
  std::deque<Episode*> finished;
  std::vector<Episode*> open;
  std::vector<uint64_t> streams, next;
  uint64_t capacity, max_episodes, steps = 0, added = 0, ended = 0;
  int64_t newest = 0;

  void forget_oldest() {
    steps -= finished.front()->steps.size() - finished.front()->first;
    finished.front()->first = SIZE_MAX;  // stays as history, has nothing to draw
    finished.pop_front();
  }
  void add(size_t env, const Step& s) {
    if (!open[env]) {
      episodes.push_back({});
      open[env] = &episodes.back();
      open[env]->env = env;
      open[env]->stream = streams[env];
      open[env]->base = next[env];
    }
    Episode& e = *open[env];
    if (e.steps.size() - e.first >= capacity / streams.size()) ++e.first, --steps;
    while (steps >= capacity) forget_oldest();
    e.steps.push_back(s);
    ++steps;
    ++added;
  }
  void end(size_t env, bool terminated, const Step& last, double weight) {
    Episode& e = *open[env];
    e.ended = true;
    e.weight = weight;
    ++ended;
    e.terminated = terminated;
    e.last = last;
    next[env] = e.base + e.steps.size() + 1;
    finished.push_back(&e);
    open[env] = nullptr;
    while (max_episodes && finished.size() > max_episodes) forget_oldest();
  }
  std::map<uint64_t, Item> items(const TableSpec& t) const {
    std::map<uint64_t, Item> all;
    for (const Episode& e : episodes) {
      if (e.first == SIZE_MAX) continue;
      for (const Item& i : items_of(t, e)) all[e.key(i.start)] = i;
    }
    return all;
  }
  // Ended episodes that gave no item.
  uint64_t too_short(const TableSpec& t) const {
    uint64_t n = 0;
    for (const Episode& e : episodes) n += t.kind == Kind::kSequence && e.ended && items_of(t, e, true).empty();
    return n;
  }
};

// Checks an item as it travels: its window's rows are in `rows` and hold what was added, its computed columns are those of the definitions now.
inline void check_item(const TableSpec& spec, const Item& i, const ItemRecord& record, const uint8_t* made,
                       const std::map<uint64_t, std::vector<uint8_t>>& rows) {
  const Episode& e = *i.episode;
  CHECK_EQ(record.span, i.span);
  CHECK_EQ(record.head, std::min<size_t>(i.start, spec.frame_stack - 1));
  CHECK_EQ(record.version, e.at(i.start).version);
  const Window w = window_of(spec, record.key, record.span, record.head);
  for (int part = 0; part < 2; ++part) {
    for (uint64_t key = w.first[part]; key < w.first[part] + w.count[part]; ++key) {
      const auto row = rows.find(key);
      if (!CHECK(row != rows.end())) continue;
      CHECK(row->second == e.at(key - e.key(0)).row);
    }
  }
  for (const Column& c : spec.columns) {
    if (c.origin != Origin::kMade) continue;
    const size_t places = spec.kind == Kind::kSequence ? spec.length : 1, dims = c.bytes / c.itemsize / places;
    for (size_t p = 0; p < places; ++p) {
      for (size_t j = 0; j < dims; ++j) {
        const size_t t = i.start + p;
        double expected = 0, got;
        if (p < i.span) {
          if (c.name == "reward") expected = n_step_reward(spec, e, t, j);
          if (c.name == "discount") expected = discount(spec, e, t, spec.kind == Kind::kSequence ? 1 : i.span, j);
          if (c.name == "advantage") expected = advantage(spec, e, t, j);
          if (c.name == "return") expected = advantage(spec, e, t, j) + e.at(t).value[j];
        }
        const uint8_t* from = made + c.made_offset + (p * dims + j) * c.itemsize;
        float narrow;
        std::memcpy(&narrow, from, 4);
        got = narrow;
        if (c.itemsize == 8) std::memcpy(&got, from, 8);
        CHECK_NEAR(got, expected, c.itemsize == 8 ? 1e-10 : 2e-6);
      }
    }
  }
}

}  // namespace model
