// Random histories (history.h) of many settings and sizes.
#include "history.h"

using namespace memsvc;
using namespace history;

namespace {

TableSpec bounded(TableSpec spec) {
  spec.max_staleness = 400;
  return spec;
}

}  // namespace

int main(int argc, char**) {
  const int rounds = argc > 1 ? 300 : 2500;
  const Schema schema = make_schema();
  const std::vector<std::vector<TableSpec>> settings = {
      {transition_table(schema, Select::kPrioritized, 3, Pad::kRepeat)},
      {transition_table(schema, Select::kUniform, 7, Pad::kZero)},
      {sequence_table(schema, Select::kPrioritized), step_table(schema, Select::kAll)},
      {transition_table(schema, Select::kAll, 6, Pad::kRepeat), sequence_table(schema, Select::kAll)},
      {bounded(sequence_table(schema, Select::kPrioritized)), bounded(step_table(schema, Select::kAll))},
      {step_table(schema, Select::kWithoutReplacement), bounded(transition_table(schema, Select::kUniform, 2, Pad::kZero))},
      {step_table(schema, Select::kPrioritized), transition_table(schema, Select::kPrioritized, 1, Pad::kRepeat),
       sequence_table(schema, Select::kAll)},
  };
  uint64_t seed = 1;
  for (const std::vector<TableSpec>& tables : settings) {
    for (const uint64_t extra : {24000, 60000, 300000}) {
      Run run(schema, tables, 100000 * tables.size() + extra, seed++);
      for (int round = 0; round < rounds && check::failed == 0; ++round) run.step();
      CHECK(run.batches > static_cast<uint64_t>(rounds) / 30);
      const ReplayStats stats = run.replay->stats();
      uint64_t evicted = 0;
      for (const TableStats& table : stats.tables) evicted += table.evicted;
      std::printf("seed %d: %d of %d steps, %d batches, %d evicted\n", static_cast<int>(seed - 1), static_cast<int>(stats.steps),
                  static_cast<int>(stats.capacity_steps), static_cast<int>(run.batches), static_cast<int>(evicted));
    }
  }
  return check::summary();
}
