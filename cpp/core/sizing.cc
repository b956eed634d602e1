#include "sizing.h"

#include <algorithm>

#include "random.h"

namespace memsvc {

Tables make_tables(const std::vector<TableSpec>& specs, uint64_t seed) {
  // Each table's stream begins at a random place of the seed's own stream: neighbouring seeds share nothing.
  Random seeds(seed);
  Tables tables;
  for (const TableSpec& spec : specs) tables.push_back(std::make_unique<Table>(spec, seeds.next()));
  return tables;
}

uint32_t draw_entries(uint64_t memory_bytes) { return static_cast<uint32_t>(std::clamp<uint64_t>(memory_bytes / 845, 4096, uint64_t{1} << 20)); }

size_t place(Arena* arena, Store* store, const Tables& tables, size_t stride, uint32_t steps, uint32_t entries) {
  size_t outside = 0;
  store->place(arena, steps, stride);
  const auto blocking = std::count_if(tables.begin(), tables.end(), [](const auto& table) { return table->spec.blocks; });
  for (const auto& table : tables) {
    table->place(arena, store, steps, entries, static_cast<uint32_t>(blocking));
    outside += table->tree_bytes();
  }
  return outside;
}

size_t bytes_for(const Tables& tables, size_t stride, uint32_t steps, uint32_t entries) {
  Arena counting;
  Store store;
  const size_t outside = place(&counting, &store, tables, stride, steps, entries);
  return counting.used() + outside;
}

uint32_t steps_within(const Tables& tables, size_t stride, uint64_t memory_bytes, uint32_t entries) {
  uint64_t fits = 0, above = std::min<uint64_t>(memory_bytes / std::max<size_t>(stride, 1), Store::kMostSlots) + 1;
  while (above - fits > 1) {
    const uint64_t middle = (fits + above) / 2;
    (bytes_for(tables, stride, static_cast<uint32_t>(middle), entries) <= memory_bytes ? fits : above) = middle;
  }
  return static_cast<uint32_t>(fits);
}

}  // namespace memsvc
