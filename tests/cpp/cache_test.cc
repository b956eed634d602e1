// read_cache against damaged payloads: every count, length and number is checked, nothing beyond the payload is read (run under a sanitizer).
#include <limits>

#include "world.h"

using namespace memsvc;
using namespace world;

namespace {

const Schema schema = make_schema();

Payload sample(const TableSpec& spec) {
  Payload payload;
  for (const uint64_t step : {0, 2, 14}) {
    payload.items.push_back(record_of(spec, make_key(3, step)));
    if (spec.select != Select::kAll) payload.draws.push_back({make_key(3, step), 0.5});
  }
  payload.gone = {make_key(3, 50)};
  payload.head.total = 3;
  payload.head.population = 3;
  payload.add_rows(spec);
  return payload;
}

Status read(const TableSpec& spec, const std::vector<uint64_t>& words, size_t size) {
  // A copy of exactly this size, so that a sanitizer sees a read beyond it.
  std::vector<uint64_t> exact(words.begin(), words.begin() + static_cast<std::ptrdiff_t>((size + 7) / 8));
  CacheView view;
  return read_cache(spec, schema.row_stride(), reinterpret_cast<const uint8_t*>(exact.data()), size, &view);
}

void good_and_cut(const TableSpec& spec) {
  Payload payload = sample(spec);
  const std::vector<uint64_t> words = payload.bytes(spec, schema);
  CHECK_OK(read(spec, words, words.size() * 8));
  CHECK_EQ(words.size() % 8, size_t{0});
  for (size_t size = 0; size < words.size() * 8; size += 4) CHECK(read(spec, words, size).code() == Code::kMalformed);
  CacheView view;
  const uint8_t* data = reinterpret_cast<const uint8_t*>(words.data());
  CHECK(read_cache(spec, schema.row_stride(), data + 4, words.size() * 8 - 8, &view).code() == Code::kMalformed);
  CHECK(read_cache(spec, schema.row_stride() + 8, data, words.size() * 8, &view).code() == Code::kMalformed);
}

template <typename Damage>
void refused(const TableSpec& spec, const char* what, const Damage& damage) {
  Payload payload = sample(spec);
  damage(payload);
  const std::vector<uint64_t> words = payload.bytes(spec, schema);
  check::report(read(spec, words, words.size() * 8).code() == Code::kMalformed, __FILE__, __LINE__, what, " was accepted");
}

void bad_numbers(const TableSpec& spec) {
  const double nan = std::numeric_limits<double>::quiet_NaN(), inf = std::numeric_limits<double>::infinity();
  for (const double bad : {nan, inf, -1.0}) {
    refused(spec, "total", [&](Payload& p) { p.head.total = bad; });
    refused(spec, "min_weight", [&](Payload& p) { p.head.min_weight = bad; });
    refused(spec, "scale", [&](Payload& p) { p.head.scale = bad; });
    refused(spec, "priority", [&](Payload& p) { p.items[1].priority = bad; });
    refused(spec, "exponent", [&](Payload& p) { p.head.exponent = bad; });
    if (spec.factors()) refused(spec, "factor", [&](Payload& p) { p.factors = {1, bad}; });
    refused(spec, "draw", [&](Payload& p) { p.draws.push_back({make_key(3, 0), bad}); });
  }
  if (spec.factors()) refused(spec, "factor too large", [](Payload& p) { p.factors = {1e101}; });
  refused(spec, "scale 0", [](Payload& p) { p.head.scale = 0; });
  refused(spec, "weight 0", [](Payload& p) { p.draws.push_back({make_key(3, 0), 0}); });
  refused(spec, "span 0", [](Payload& p) { p.items[0].span = 0; });
  refused(spec, "span", [&](Payload& p) { p.items[0].span = std::max(spec.n_step, spec.length) + 1; });
  refused(spec, "head", [&](Payload& p) { p.items[2].head = static_cast<uint16_t>(spec.frame_stack); });
  refused(spec, "step", [](Payload& p) { p.items[2].key = make_key(3, (uint64_t{1} << kStepBits) - 1); });
  refused(spec, "row", [](Payload& p) { p.rows.push_back(~uint64_t{0}); });
  refused(spec, "population", [](Payload& p) { p.head.population = ~uint64_t{0}; });
  if (spec.frame_stack > 1) refused(spec, "before the stream", [](Payload& p) { p.items[0].head = 1; });
}

void factors_are_read(TableSpec spec) {
  spec.step_discount = .5;
  Payload payload = sample(spec);
  payload.factors = {.25, 0, 1e100};
  const std::vector<uint64_t> words = payload.bytes(spec, schema);
  CacheView view;
  CHECK_OK(read_cache(spec, schema.row_stride(), reinterpret_cast<const uint8_t*>(words.data()), words.size() * 8, &view));
  CHECK(view.factors[0] == .25 && view.factors[1] == 0 && view.factors[2] == 1e100);
  CHECK(view.gone[0] == make_key(3, 50));
  spec.step_discount = 1;  // a table without factors has no such part
  CHECK(read(spec, words, words.size() * 8).code() == Code::kMalformed);
}

void bytes_do_not_overflow(const TableSpec& spec) {
  for (const uint64_t huge : {~uint64_t{0}, uint64_t{1} << 61, uint64_t{1} << 58}) {
    CacheHead head;
    head.row_stride = 1u << 31;
    head.rows = huge;
    CHECK_EQ(cache_bytes(spec, head), size_t{0});
    head.rows = 0;
    head.items = huge;
    CHECK_EQ(cache_bytes(spec, head), size_t{0});
  }
}

// Random damage to heads and bodies: accepted or refused, never read beyond, and a Replay that is pushed it keeps its invariants.
void fuzz(const TableSpec& spec, int rounds) {
  Random random(17);
  std::unique_ptr<Replay> replay;
  CHECK_OK(Replay::make(schema, {spec}, 200000, 1, 3, &replay));
  std::vector<uint64_t> streams;
  const uint64_t actor = replay->join("fuzz", 1, &streams);
  for (int round = 0; round < rounds; ++round) {
    Payload payload = sample(spec);
    std::vector<uint64_t> words = payload.bytes(spec, schema);
    uint8_t* data = reinterpret_cast<uint8_t*>(words.data());
    for (uint64_t n = 1 + random.below(4); n-- > 0;) {
      const size_t at = random.below(2) ? random.below(sizeof(CacheHead)) : random.below(words.size() * 8);
      data[at] = static_cast<uint8_t>(random.next());
    }
    const std::vector<uint64_t> exact(words);
    uint64_t items = 0, draws = 0;
    // One in two arrives where the network put it, at no multiple of 8.
    std::vector<uint8_t> shifted(exact.size() * 8 + 3);
    std::memcpy(shifted.data() + 3, exact.data(), exact.size() * 8);
    const uint8_t* from = round % 2 ? shifted.data() + 3 : reinterpret_cast<const uint8_t*>(exact.data());
    const Status status = replay->push(actor, from, exact.size() * 8, &items, &draws);
    CHECK(status.ok() || status.code() == Code::kMalformed);
    if (round % 16 == 0) CHECK_OK(replay->check());
    replay->notices(actor, 0);
  }
}

}  // namespace

int main(int argc, char**) {
  for (const Select select : {Select::kPrioritized, Select::kAll}) {
    for (const TableSpec& spec : {step_table(schema, select), transition_table(schema, select, 3, Pad::kRepeat), sequence_table(schema, select)}) {
      factors_are_read(spec);
      TableSpec weighed = spec;
      weighed.decay = .5;
      for (const TableSpec& one : {spec, weighed}) {
        good_and_cut(one);
        bad_numbers(one);
      }
      bytes_do_not_overflow(spec);
      fuzz(spec, argc > 1 ? 500 : 5000);
      fuzz(weighed, argc > 1 ? 500 : 5000);
    }
  }
  return check::summary();
}
