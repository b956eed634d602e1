// Batches of megabytes, whose large fields are written past the caches: every byte of every column, as with small ones.
#include "world.h"

using namespace memsvc;
using namespace world;

namespace {

// As world's, but an observation of 5,001 bytes: no multiple of anything.
Schema large_schema() {
  std::vector<Field> fields(4);
  fields[0] = {"obs", 'u', 1, {5001}};
  fields[1] = {"action", 'i', 4, {}};
  fields[2] = {"reward", 'f', 4, {}};
  fields[3] = {"state", 'f', 8, {2}};
  Schema schema;
  CHECK_OK(Schema::make(fields, &schema));
  return schema;
}

void draws_every_byte(const Schema& schema, const TableSpec& spec, size_t batch) {
  std::unique_ptr<Replay> replay;
  CHECK_OK(Replay::make(schema, {spec}, 16 << 20, 7, 1, &replay));
  std::vector<uint64_t> streams;
  const uint64_t actor = replay->join("a", 1, &streams);
  Payload payload;
  for (uint64_t episode = 0; episode < 40; ++episode) {
    for (uint64_t t = 0; t < kSteps; t += 2) payload.items.push_back(record_of(spec, make_key(streams[0], episode * (kSteps + 1) + t)));
  }
  payload.add_rows(spec);
  CHECK_OK(world::push(*replay, actor, payload, spec, schema));
  std::vector<uint64_t> out(spec.batch_bytes(batch, nullptr) / 8 + 1);
  for (int round = 0; round < 2; ++round) {
    std::fill(out.begin(), out.end(), ~uint64_t{0});
    uint64_t population;
    double total;
    CHECK(replay->draw(0, batch, reinterpret_cast<uint8_t*>(out.data()), &population, &total));
    check_batch(spec, schema, out, batch);
    CHECK_EQ(out.back(), ~uint64_t{0});
  }
  CHECK_OK(replay->check());
}

}  // namespace

int main() {
  const Schema schema = large_schema();
  const TableSpec steps = step_table(schema, Select::kAll);
  for (const size_t batch : {size_t{1}, size_t{64}, size_t{500}}) draws_every_byte(schema, steps, batch);
  draws_every_byte(schema, transition_table(schema, Select::kAll, 3, Pad::kZero), 100);
  draws_every_byte(schema, transition_table(schema, Select::kAll, 3, Pad::kRepeat), 100);
  draws_every_byte(schema, sequence_table(schema, Select::kAll), 120);
  return check::summary();
}
