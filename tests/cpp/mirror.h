// A naive mirror of what a server holds of one actor, kept by what travels and by what it drops.
#pragma once

#include <functional>
#include <map>
#include <vector>

#include "cache.h"
#include "window.h"

namespace model {

using namespace memsvc;

// Items by table, and rows with the number of items that need them.
struct Mirror {
  std::vector<std::map<uint64_t, ItemRecord>> items;
  std::map<uint64_t, std::vector<uint8_t>> rows;
  std::map<uint64_t, int> refs;

  static void each(const TableSpec& spec, const ItemRecord& r, const std::function<void(uint64_t)>& f) {
    const Window w = window_of(spec, r.key, r.span, r.head);
    for (int part = 0; part < 2; ++part) {
      for (uint64_t i = 0; i < w.count[part]; ++i) f(w.first[part] + i);
    }
  }
  void drop(const TableSpec& spec, size_t table, uint64_t key) {
    each(spec, items[table].at(key), [&](uint64_t row) {
      if (--refs[row] == 0) rows.erase(row), refs.erase(row);
    });
    items[table].erase(key);
  }
};

}  // namespace model
