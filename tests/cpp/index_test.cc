// Index against std::map, under load, over many lives: small tables and large ones whose entries have no bits to spare.
#include "index.h"

#include <map>
#include <vector>

#include "check.h"
#include "random.h"

using namespace memsvc;

int main(int argc, char**) {
  Random random(1);
  for (const uint32_t capacity : {1u, 2u, 7u, 64u, 1000u, 20000u}) {
    Arena arena;
    CHECK_OK(arena.map(size_t{capacity} * 8 + 4096));
    Index index;
    index.place(&arena, capacity);
    std::vector<uint64_t> keys(capacity);
    const auto key_of = [&](uint32_t place) { return keys[place]; };
    std::map<uint64_t, uint32_t> model;
    std::vector<uint32_t> free;
    for (uint32_t place = capacity; place-- > 0;) free.push_back(place);
    const int rounds = argc > 1 ? 20000 : 400000;
    for (int round = 0; round < rounds; ++round) {
      // Long phases of filling and of emptying, so that full tables and long chains occur.
      const bool fill = round / 5000 % 2 == 0 ? random.below(8) != 0 : random.below(8) == 0;
      if (fill && !free.empty()) {
        const uint64_t key = random.below(2) ? random.next() : random.below(4ull * capacity);
        if (model.count(key)) continue;
        CHECK_EQ(index.find(key, key_of), kNone);
        keys[free.back()] = key;
        model[key] = free.back();
        index.insert(key, free.back());
        free.pop_back();
      } else if (!fill && !model.empty()) {
        auto at = model.lower_bound(random.next());
        if (at == model.end()) at = model.begin();
        index.erase(at->first, at->second, key_of);
        free.push_back(at->second);
        model.erase(at);
      }
      if (round % 997 == 0) {
        for (const auto& [key, place] : model) CHECK_EQ(index.find(key, key_of), place);
        CHECK_EQ(index.count(), model.size());
      }
    }
  }
  return check::summary();
}
