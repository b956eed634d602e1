#include "schema.h"

#include <algorithm>
#include <cmath>
#include <set>

namespace memsvc {
namespace {

Status invalid(const std::string& path, const std::string& rule) { return Status(Code::kInvalid, path + ": " + rule); }

size_t product(const std::vector<uint32_t>& shape) {
  size_t n = 1;
  for (uint32_t d : shape) n *= d;
  return n;
}

bool is_real(const Field& f) { return f.kind == 'f' && (f.itemsize == 4 || f.itemsize == 8); }

std::string quoted(const std::string& name) { return "\"" + name + "\""; }

// A field that the core reads as numbers: `dims` of them, or one where `one` allows it.
Status check_numeric(const Schema& schema, int field, const std::string& path, size_t dims, bool one) {
  const Field& f = schema.fields()[field];
  if (!is_real(f)) return invalid(path, "step field " + quoted(f.name) + " must be float32 or float64");
  const size_t n = product(f.shape);
  if (n == dims || (one && n == 1)) return {};
  return invalid(path, "step field " + quoted(f.name) + " has " + std::to_string(n) + " numbers, the reward has " + std::to_string(dims));
}

Status check_gamma(const Schema& schema, const Gamma& gamma, const std::string& path, size_t dims) {
  if (gamma.field >= 0) return check_numeric(schema, gamma.field, path, dims, true);
  if (gamma.values.size() != 1 && gamma.values.size() != dims) {
    return invalid(path,
                   "expected one number or " + std::to_string(dims) + ", one for each reward dimension, got " + std::to_string(gamma.values.size()));
  }
  for (double g : gamma.values) {
    if (!(g >= 0 && g <= 1)) return invalid(path, "expected numbers from 0 to 1, got " + std::to_string(g));
  }
  return {};
}

Column column(std::string name, char kind, uint32_t itemsize, std::vector<uint32_t> shape, Origin origin, int field = -1) {
  Column c;
  c.name = std::move(name);
  c.kind = kind;
  c.itemsize = itemsize;
  c.bytes = product(shape) * itemsize;
  c.shape = std::move(shape);
  c.origin = origin;
  c.field = field;
  return c;
}

std::vector<uint32_t> with_axis(uint32_t n, const std::vector<uint32_t>& shape) {
  std::vector<uint32_t> out{n};
  out.insert(out.end(), shape.begin(), shape.end());
  return out;
}

bool contains(const std::vector<int>& fields, int f) { return std::find(fields.begin(), fields.end(), f) != fields.end(); }

Status check_ranges(const TableSpec& t) {
  if (t.n_step < 1 || t.n_step > 65535) return invalid("item.n_step", "expected 1 to 65,535, got " + std::to_string(t.n_step));
  if (t.frame_stack < 1 || t.frame_stack > 1024) return invalid("item.frame_stack", "expected 1 to 1,024, got " + std::to_string(t.frame_stack));
  if (t.kind != Kind::kTransition && (t.frame_stack > 1 || !t.stack.empty())) {
    return invalid("item.frame_stack", "only items of kind \"transition\" are stacked");
  }
  if (t.frame_stack > 1 && t.stack.empty())
    return invalid("item.stack", "frame_stack is " + std::to_string(t.frame_stack) + ": name the fields to stack");
  if (t.kind == Kind::kStep && !t.next.empty())
    return invalid("item.next", "items of kind \"step\" have no next observation; use kind \"transition\"");
  if (t.kind != Kind::kSequence && !t.initial.empty()) return invalid("item.initial", "only items of kind \"sequence\" have an initial state");
  if (t.length < 1 || t.length > 1000000) return invalid("item.length", "expected 1 to 1,000,000, got " + std::to_string(t.length));
  if (t.stride < 1) return invalid("item.stride", "expected a positive integer, got 0");
  if (t.kind == Kind::kSequence && t.burn_in >= t.length) {
    return invalid("item.burn_in", "expected less than length (" + std::to_string(t.length) + "), got " + std::to_string(t.burn_in));
  }
  if (!(t.lambda >= 0 && t.lambda <= 1)) return invalid("returns.lambda", "expected a number from 0 to 1, got " + std::to_string(t.lambda));
  if (!(t.exponent >= 0 && std::isfinite(t.exponent)))
    return invalid("priority.exponent", "expected a number >= 0, got " + std::to_string(t.exponent));
  if (!(t.eta >= 0 && t.eta <= 1)) return invalid("priority.eta", "expected a number from 0 to 1, got " + std::to_string(t.eta));
  if (!(t.beta >= 0 && std::isfinite(t.beta))) return invalid("importance.beta", "expected a number >= 0, got " + std::to_string(t.beta));
  if (t.cache < 1) return invalid("actor.cache", "expected a positive integer, got 0");
  if (!(t.decay > 0 && t.decay <= 1)) return invalid("priority.decay", "expected a number above 0, up to 1, got " + std::to_string(t.decay));
  if (!(t.step_discount > 0 && t.step_discount <= 1)) {
    return invalid("actor.step_discount", "expected a number above 0, up to 1, got " + std::to_string(t.step_discount));
  }
  if (!(t.samples_per_insert >= 0 && std::isfinite(t.samples_per_insert))) {
    return invalid("limits.samples_per_insert", "expected a number >= 0, got " + std::to_string(t.samples_per_insert));
  }
  if (t.samples_per_insert > 0 && !(t.tolerance >= 1 + t.samples_per_insert)) {
    return invalid("limits.tolerance", "expected at least 1 + samples_per_insert (" + std::to_string(1 + t.samples_per_insert) +
                                           "), the smallest batch and one insert, or both sides could stop; got " + std::to_string(t.tolerance));
  }
  if (t.max_steps < 1 || t.max_steps > (1ULL << 31)) return invalid("actor.max_steps", "expected 1 to 2^31, got " + std::to_string(t.max_steps));
  return {};
}

// What only a union of all items has.
Status check_union(const TableSpec& t) {
  if (t.select == Select::kAll) return {};
  const char* only = ": only tables with actor.select = \"all\" have it, where the server holds the items themselves";
  if (t.sampler != Sampler::kPrioritized) return invalid("sampler", std::string("expected \"prioritized\"") + only);
  if (t.per_actor_episodes) return invalid("capacity.per_actor_episodes", std::string("expected 0") + only + "; actor.max_episodes bounds caches");
  if (t.per_actor_steps) return invalid("capacity.per_actor_steps", std::string("expected 0") + only + "; actor.max_steps bounds caches");
  if (t.blocks) return invalid("capacity.when_full", std::string("expected \"evict\"") + only);
  if (t.max_times_sampled) return invalid("limits.max_times_sampled", std::string("expected 0") + only);
  return {};
}

// Reward and value as far as the settings need them.
Status check_quantities(const Schema& schema, TableSpec* t) {
  const bool by_value = t->returns || t->source == Source::kReturn || t->source == Source::kTd;
  t->reward = schema.find("reward");
  t->value = schema.find("value");
  if (t->reward < 0 && (t->kind == Kind::kTransition || by_value)) {
    return invalid(by_value ? "returns" : "item.kind", "needs a step field \"reward\"");
  }
  if (t->reward >= 0) {
    t->reward_dims = static_cast<uint32_t>(product(schema.fields()[t->reward].shape));
    if (t->reward_dims < 1) return invalid("item.kind", "step field \"reward\" has no numbers");
    if (t->kind == Kind::kTransition || by_value) {
      if (Status s = check_numeric(schema, t->reward, "item.kind", t->reward_dims, false); !s.ok()) return s;
    }
  }
  if (t->source == Source::kReturn && !t->returns) return invalid("priority.source", "\"return\" needs a [table.returns] with gamma and lambda");
  if (t->source == Source::kTd && t->reward < 0) return invalid("priority.source", "\"td\" needs a step field \"reward\"");
  if (by_value) {
    if (t->value < 0) return invalid(t->returns ? "returns" : "priority.source", "needs a step field \"value\"");
    if (Status s = check_numeric(schema, t->value, "returns", t->reward_dims, false); !s.ok()) return s;
  }
  if (Status s = check_gamma(schema, t->gamma, "item.gamma", t->reward_dims); !s.ok()) return s;
  if (t->returns) {
    if (Status s = check_gamma(schema, t->returns_gamma, "returns.gamma", t->reward_dims); !s.ok()) return s;
  }
  if (t->source == Source::kTd) {
    if (t->baseline < 0) t->baseline = t->value;
    if (Status s = check_numeric(schema, t->baseline, "priority.baseline", t->reward_dims, false); !s.ok()) return s;
  }
  if (t->coefficients.size() == 1) t->coefficients.resize(t->reward_dims, t->coefficients[0]);
  if (t->coefficients.size() != t->reward_dims) {
    return invalid("priority.coefficients", "expected " + std::to_string(t->reward_dims) + " numbers, one for each reward dimension, got " +
                                                std::to_string(t->coefficients.size()));
  }
  t->gamma_dims = static_cast<uint32_t>(t->gamma.field >= 0 ? product(schema.fields()[t->gamma.field].shape) : t->gamma.values.size());
  return {};
}

}  // namespace

Status Schema::make(std::vector<Field> fields, Schema* out) {
  Schema schema;
  std::set<std::string> names;
  if (fields.empty()) return invalid("step", "expected at least one field");
  for (Field& f : fields) {
    const std::string path = "step." + f.name;
    if (f.name.empty() || !names.insert(f.name).second) return invalid(path, "field names must be different and not empty");
    if (std::string("biufc").find(f.kind) == std::string::npos || f.itemsize < 1 || f.itemsize > 16) {
      return invalid(path, "expected a bool, integer, float or complex dtype");
    }
    f.offset = schema.row_bytes_;
    double bytes = f.itemsize;
    for (uint32_t d : f.shape) bytes *= d;
    if (bytes + static_cast<double>(schema.row_bytes_) >= 2147483648.0) return invalid(path, "a step must be smaller than 2 GiB");
    f.bytes = product(f.shape) * f.itemsize;
    schema.row_bytes_ += f.bytes;
  }
  schema.row_stride_ = std::max<size_t>(8, (schema.row_bytes_ + 7) & ~size_t{7});
  schema.fields_ = std::move(fields);
  *out = std::move(schema);
  return {};
}

int Schema::find(const std::string& name) const {
  for (size_t i = 0; i < fields_.size(); ++i) {
    if (fields_[i].name == name) return static_cast<int>(i);
  }
  return -1;
}

Status TableSpec::derive(const Schema& schema) {
  if (Status s = check_ranges(*this); !s.ok()) return s;
  if (Status s = check_union(*this); !s.ok()) return s;
  if (Status s = check_quantities(schema, this); !s.ok()) return s;

  columns.clear();
  made_bytes = 0;
  auto add = [&](Column c) {
    if (c.origin == Origin::kMade) {
      c.made_offset = made_bytes;
      made_bytes += c.bytes;
    }
    columns.push_back(std::move(c));
  };
  const std::vector<Field>& fields = schema.fields();
  for (size_t i = 0; i < fields.size(); ++i) {
    const Field& f = fields[i];
    const int at = static_cast<int>(i);
    if (kind == Kind::kTransition && at == reward) {
      add(column(f.name, f.kind, f.itemsize, f.shape, Origin::kMade, at));
    } else if (contains(stack, at)) {
      add(column(f.name, f.kind, f.itemsize, with_axis(frame_stack, f.shape), Origin::kStack, at));
    } else if (kind == Kind::kSequence && contains(initial, at)) {
      add(column("initial_" + f.name, f.kind, f.itemsize, f.shape, Origin::kInitial, at));
    } else {
      add(column(f.name, f.kind, f.itemsize, kind == Kind::kSequence ? with_axis(length, f.shape) : f.shape, Origin::kField, at));
    }
  }
  // Numbers that the actor computes have the reward's precision and its shape; one discount for all dimensions has none.
  const uint32_t itemsize = reward >= 0 && fields[reward].itemsize == 8 ? 8 : 4;
  auto made = [&](const char* name, bool one) {
    std::vector<uint32_t> shape;
    if (!one) shape = fields[reward].shape;
    add(column(name, 'f', itemsize, kind == Kind::kSequence ? with_axis(length, shape) : shape, Origin::kMade));
  };
  if (kind == Kind::kSequence) {
    add(column("mask", 'b', 1, {length}, Origin::kMask));
    add(column("length", 'i', 4, {}, Origin::kLength));
  }
  if (kind != Kind::kStep) made("discount", gamma_dims == 1);
  for (int i : next) {
    const Field& f = fields[i];
    if (contains(stack, i)) {
      add(column("next_" + f.name, f.kind, f.itemsize, with_axis(frame_stack, f.shape), Origin::kNextStack, i));
    } else {
      add(column("next_" + f.name, f.kind, f.itemsize, f.shape, Origin::kNext, i));
    }
  }
  if (returns) {
    made("return", false);
    made("advantage", false);
  }
  std::set<std::string> names;
  for (const Column& c : columns) {
    if (!names.insert(c.name).second)
      return invalid("item", "step field " + quoted(c.name) + " has the name of a column that this item kind makes; rename the field");
  }
  add(column("keys", 'u', 8, {}, Origin::kKey));
  add(column("probabilities", 'f', 8, {}, Origin::kProbability));
  add(column("weights", 'f', 4, {}, Origin::kWeight));
  add(column("versions", 'i', 8, {}, Origin::kVersion));
  return {};
}

void TableSpec::change(const TableSpec& to) {
  exponent = to.exponent;
  beta = to.beta;
  if (gamma.field < 0 && to.gamma.field < 0 && gamma.values.size() == to.gamma.values.size()) gamma.values = to.gamma.values;
  if (returns_gamma.field < 0 && to.returns_gamma.field < 0 && returns_gamma.values.size() == to.returns_gamma.values.size()) {
    returns_gamma.values = to.returns_gamma.values;
  }
  lambda = to.lambda;
  min_items = to.min_items;
  samples_per_insert = to.samples_per_insert;
  tolerance = to.tolerance;
  max_staleness = to.max_staleness;
}

size_t TableSpec::batch_bytes(size_t n, std::vector<size_t>* offsets) const {
  size_t at = 0;
  if (offsets) offsets->clear();
  for (const Column& c : columns) {
    if (offsets) offsets->push_back(at);
    at += align_up(c.bytes * n);
  }
  return at;
}

}  // namespace memsvc
