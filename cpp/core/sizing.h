// How many steps a memory holds with everything that belongs to them, and where all of it lies.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "arena.h"
#include "store.h"
#include "table.h"

namespace memsvc {

constexpr uint64_t kFewestSteps = 64;  // that a server serves with

using Tables = std::vector<std::unique_ptr<Table>>;

// Tables with random streams of their own.
Tables make_tables(const std::vector<TableSpec>& specs, uint64_t seed);
// Entries for draws: about 3 % of the memory, enough for batches of 2,048 in the smallest.
uint32_t draw_entries(uint64_t memory_bytes);
// Places everything for `steps` rows (an unmapped arena is only counted); returns the bytes that are outside the arena.
size_t place(Arena* arena, Store* store, const Tables& tables, size_t stride, uint32_t steps, uint32_t entries);
// What that takes in all.
size_t bytes_for(const Tables& tables, size_t stride, uint32_t steps, uint32_t entries);
// The most steps that fit with everything that belongs to them.
uint32_t steps_within(const Tables& tables, size_t stride, uint64_t memory_bytes, uint32_t entries);

}  // namespace memsvc
