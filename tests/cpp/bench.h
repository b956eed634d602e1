// A memory of one table for tests of single promises: episodes go in as numbers, payloads are read back.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "model.h"

namespace bench {

using namespace memsvc;

// A memory over {obs float32[2], action, reward, value, g} whose payloads are read back. Episodes are given as numbers.
struct Bench {
  Schema schema = model::make_schema(1, true);
  TableSpec spec;
  std::unique_ptr<Memory> memory;
  Buffer buffer;
  CacheView view;
  int count = 0;

  explicit Bench(const std::function<void(TableSpec&)>& set, std::vector<uint64_t> streams = {5}) {
    set(spec);
    CHECK_OK(spec.derive(schema));
    memory = std::make_unique<Memory>(schema, std::vector<TableSpec>{spec}, streams, 11);
  }
  std::vector<uint8_t> row(double reward, double value) {
    std::vector<uint8_t> bytes(schema.row_stride());
    const float obs[2] = {static_cast<float>(++count), 0}, g = 1;
    std::memcpy(&bytes[schema.fields()[0].offset], obs, 8);
    std::memcpy(&bytes[schema.fields()[2].offset], &reward, 8);
    std::memcpy(&bytes[schema.fields()[3].offset], &value, 8);
    std::memcpy(&bytes[schema.fields()[4].offset], &g, 4);
    return bytes;
  }
  std::vector<const uint8_t*> fields(const std::vector<uint8_t>& row) const {
    std::vector<const uint8_t*> p;
    for (const Field& f : schema.fields()) p.push_back(&row[f.offset]);
    return p;
  }
  Status add(double reward, double value, double priority = std::nan(""), size_t env = 0, int64_t version = 0) {
    const std::vector<uint8_t> r = row(reward, value);
    return memory->add(env, fields(r).data(), priority, version);
  }
  Status end(bool terminated = true, double last = 0, double weight = 1, size_t env = 0) {
    const std::vector<uint8_t> r = row(0, last);
    return memory->end(env, terminated, fields(r).data(), weight);
  }
  void episode(const std::vector<double>& reward, const std::vector<double>& value, bool terminated, double last = 0) {
    for (size_t t = 0; t < reward.size(); ++t) CHECK_OK(add(reward[t], value[t]));
    CHECK_OK(end(terminated, last));
  }
  // Steps with these priorities, by parameters of this version.
  void given(const std::vector<double>& priorities, int64_t version = 0) {
    for (double p : priorities) CHECK_OK(add(0, 0, p, 0, version));
  }
  bool draw(uint64_t draws, size_t max_bytes = 1 << 20) {
    CHECK_OK(memory->draw(0, draws, max_bytes, 0, &buffer));
    if (buffer.size() == 0) return false;
    return CHECK_OK(read_cache(spec, schema.row_stride(), buffer.data(), buffer.size(), &view));
  }
  double made(uint64_t item, const char* name) const {
    double x = std::nan("");
    for (const Column& c : spec.columns) {
      if (c.origin == Origin::kMade && c.name == name) std::memcpy(&x, view.made + item * spec.made_bytes + c.made_offset, 8);
    }
    return x;
  }
  ViewStats stats() const { return memory->stats().tables[0]; }
};

}  // namespace bench
