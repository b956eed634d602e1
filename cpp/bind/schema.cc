// Schema and TableSpec: from numpy dtype strings and the normalised settings dictionary to the core's structures.
#include "schema.h"

#include <pybind11/pybind11.h>

#include <map>

#include "bind.h"
#include "bind_schema.h"

namespace py = pybind11;

namespace memsvc {
namespace {

[[noreturn]] void refuse(const std::string& path, const std::string& rule) { raise("ConfigError", path + ": " + rule); }

py::tuple shape_tuple(const std::vector<uint32_t>& shape) {
  py::tuple t(shape.size());
  for (size_t i = 0; i < shape.size(); ++i) t[i] = shape[i];
  return t;
}

Field parse_field(const std::string& name, const std::string& dtype, const std::vector<uint32_t>& shape) {
  py::dtype d = py::reinterpret_steal<py::dtype>(nullptr);
  try {
    d = py::dtype(dtype);
  } catch (py::error_already_set&) {
    refuse("step." + name, "\"" + dtype + "\" is no numpy dtype");
  }
  const char order = d.byteorder();
  if (order == '>') refuse("step." + name, "dtype \"" + dtype + "\" is big endian; declare the little-endian one");
  Field f;
  f.name = name;
  f.kind = d.kind();
  f.itemsize = static_cast<uint32_t>(d.itemsize());
  f.shape = shape;
  return f;
}

// Reads one key of a settings group, keeping the default where it is absent, with the key's path in the error.
class Group {
 public:
  Group(const py::dict& settings, const char* name) : name_(name) {
    if (!settings.contains(name) || settings[name].is_none()) return;
    if (!py::isinstance<py::dict>(settings[name])) refuse(name, "expected a table of settings");
    dict_ = settings[name].cast<py::dict>();
    given_ = true;
  }
  // The settings beside the groups.
  explicit Group(const py::dict& settings) : name_(""), dict_(settings), given_(true) {}
  bool given() const { return given_; }

  template <class T>
  void read(const char* key, T* out, const char* expected) const {
    if (!dict_.contains(key)) return;
    try {
      *out = dict_[key].cast<T>();
    } catch (const py::cast_error&) {
      refuse(path(key), std::string("expected ") + expected + ", got " + py::repr(dict_[key]).cast<std::string>());
    }
  }

  template <class E>
  void choose(const char* key, E* out, const std::map<std::string, E>& names) const {
    std::string given;
    if (!dict_.contains(key)) return;
    read(key, &given, "a name");
    auto it = names.find(given);
    if (it != names.end()) {
      *out = it->second;
      return;
    }
    std::string list;
    for (const auto& n : names) list += (list.empty() ? "\"" : ", \"") + n.first + "\"";
    refuse(path(key), "expected one of " + list + ", got \"" + given + "\"");
  }

  void fields(const char* key, const Schema& schema, std::vector<int>* out) const {
    std::vector<std::string> names;
    read(key, &names, "a list of step fields");
    for (size_t i = 0; i < names.size(); ++i) out->push_back(find(schema, names[i], path(key) + "[" + std::to_string(i) + "]"));
  }

  void gamma(const char* key, const Schema& schema, Gamma* out) const {
    if (!dict_.contains(key)) return;
    if (py::isinstance<py::str>(dict_[key])) {
      out->field = find(schema, dict_[key].cast<std::string>(), path(key));
    } else if (py::isinstance<py::sequence>(dict_[key])) {
      read(key, &out->values, "a list of numbers");
    } else {
      out->values.resize(1);
      read(key, &out->values[0], "a number, a list of numbers or the name of a step field");
    }
  }

  int find(const Schema& schema, const std::string& name, const std::string& at) const {
    const int f = schema.find(name);
    if (f < 0) refuse(at, "the step has no field \"" + name + "\"");
    return f;
  }
  std::string path(const char* key) const { return name_[0] ? std::string(name_) + "." + key : key; }

 private:
  const char* name_;
  py::dict dict_;
  bool given_ = false;
};

TableSpec parse_table(const Schema& schema, const py::dict& settings) {
  TableSpec t;
  if (settings.contains("name")) t.name = settings["name"].cast<std::string>();

  const Group item(settings, "item");
  item.choose<Kind>("kind", &t.kind, {{"step", Kind::kStep}, {"transition", Kind::kTransition}, {"sequence", Kind::kSequence}});
  item.read("n_step", &t.n_step, "a positive integer");
  item.gamma("gamma", schema, &t.gamma);
  item.read("frame_stack", &t.frame_stack, "a positive integer");
  item.fields("stack", schema, &t.stack);
  item.choose<Pad>("pad", &t.pad, {{"repeat", Pad::kRepeat}, {"zero", Pad::kZero}});
  item.fields("next", schema, &t.next);
  item.read("length", &t.length, "a positive integer");
  item.read("stride", &t.stride, "a positive integer");
  item.read("burn_in", &t.burn_in, "an integer >= 0");
  item.choose<Tail>("tail", &t.tail, {{"shift", Tail::kShift}, {"pad", Tail::kPad}, {"drop", Tail::kDrop}});
  item.fields("initial", schema, &t.initial);

  const Group returns(settings, "returns");
  t.returns = returns.given();
  returns.gamma("gamma", schema, &t.returns_gamma);
  returns.read("lambda", &t.lambda, "a number");

  const Group priority(settings, "priority");
  priority.choose<Source>("source", &t.source, {{"return", Source::kReturn}, {"td", Source::kTd}, {"given", Source::kGiven}, {"max", Source::kMax}});
  priority.read("exponent", &t.exponent, "a number");
  priority.read("coefficients", &t.coefficients, "a list of numbers");
  priority.read("eta", &t.eta, "a number");
  priority.read("decay", &t.decay, "a number");
  std::string baseline = "value";
  priority.read("baseline", &baseline, "the name of a step field");
  if (t.source == Source::kTd) t.baseline = priority.find(schema, baseline, "priority.baseline");

  const Group actor(settings, "actor");
  actor.choose<Select>("select", &t.select,
                       {{"prioritized", Select::kPrioritized},
                        {"uniform", Select::kUniform},
                        {"all", Select::kAll},
                        {"without_replacement", Select::kWithoutReplacement}});
  actor.read("cache", &t.cache, "a positive integer");
  actor.read("max_steps", &t.max_steps, "a positive integer");
  actor.read("max_episodes", &t.max_episodes, "an integer >= 0");

  actor.read("step_discount", &t.step_discount, "a number");
  actor.read("episode_weights", &t.episode_weights, "true or false");

  const Group whole(settings);
  whole.choose<Sampler>("sampler", &t.sampler,
                        {{"prioritized", Sampler::kPrioritized},
                         {"uniform", Sampler::kUniform},
                         {"fifo", Sampler::kFifo},
                         {"lifo", Sampler::kLifo},
                         {"max", Sampler::kMax},
                         {"min", Sampler::kMin}});

  const Group importance(settings, "importance");
  importance.read("beta", &t.beta, "a number");
  importance.choose<Normalize>("normalize", &t.normalize, {{"table", Normalize::kTable}, {"batch", Normalize::kBatch}, {"none", Normalize::kNone}});
  const Group capacity(settings, "capacity");
  capacity.read("items", &t.capacity_items, "an integer >= 0");
  capacity.read("per_actor_episodes", &t.per_actor_episodes, "an integer >= 0");
  capacity.read("per_actor_steps", &t.per_actor_steps, "an integer >= 0");
  bool blocks = false;
  capacity.choose<bool>("when_full", &blocks, {{"evict", false}, {"block", true}});
  t.blocks = blocks;
  const Group limits(settings, "limits");
  limits.read("min_items", &t.min_items, "an integer >= 0");
  limits.read("samples_per_insert", &t.samples_per_insert, "a number");
  limits.read("tolerance", &t.tolerance, "a number");
  limits.read("max_times_sampled", &t.max_times_sampled, "an integer >= 0");
  limits.read("max_staleness", &t.max_staleness, "an integer >= -1");
  check(t.derive(schema));
  return t;
}

}  // namespace

std::string dtype_name(char kind, uint32_t itemsize) { return (itemsize == 1 ? "|" : "<") + std::string(1, kind) + std::to_string(itemsize); }

void bind_schema(py::module_& m) {
  py::class_<Schema>(m, "Schema")
      .def(py::init([](const std::vector<std::tuple<std::string, std::string, std::vector<uint32_t>>>& fields) {
             std::vector<Field> parsed;
             for (const auto& [name, dtype, shape] : fields) parsed.push_back(parse_field(name, dtype, shape));
             Schema schema;
             check(Schema::make(std::move(parsed), &schema));
             return schema;
           }),
           py::arg("fields"))
      .def_property_readonly("fields",
                             [](const Schema& s) {
                               py::list out;
                               for (const Field& f : s.fields())
                                 out.append(py::make_tuple(f.name, dtype_name(f.kind, f.itemsize), shape_tuple(f.shape)));
                               return out;
                             })
      .def_property_readonly("row_bytes", &Schema::row_bytes)
      .def_property_readonly("row_stride", &Schema::row_stride);

  py::class_<TableSpec>(m, "TableSpec")
      .def(py::init([](const Schema& schema, const py::dict& settings) { return parse_table(schema, settings); }), py::arg("schema"),
           py::arg("settings"))
      .def_property_readonly("columns",
                             [](const TableSpec& t) {
                               py::list out;
                               for (const Column& c : t.columns)
                                 out.append(py::make_tuple(c.name, dtype_name(c.kind, c.itemsize), shape_tuple(c.shape)));
                               return out;
                             })
      .def_property_readonly("burn_in", [](const TableSpec& t) { return t.burn_in; })
      .def_property_readonly("item_bytes", [](const TableSpec& t) { return t.made_bytes; })
      .def(
          "layout",
          [](const TableSpec& t, size_t batch) {
            std::vector<size_t> offsets;
            const size_t size = t.batch_bytes(batch, &offsets);
            py::list out;
            for (size_t i = 0; i < offsets.size(); ++i) {
              const Column& c = t.columns[i];
              py::tuple shape(c.shape.size() + 1);
              shape[0] = batch;
              for (size_t d = 0; d < c.shape.size(); ++d) shape[d + 1] = c.shape[d];
              out.append(py::make_tuple(c.name, dtype_name(c.kind, c.itemsize), shape, offsets[i]));
            }
            return py::make_tuple(size, out);
          },
          py::arg("batch"));
}

}  // namespace memsvc
