// Replay: the server's side of the core. Every method converts under the GIL, makes one core call without it, and converts back.
#include "replay.h"

#include <cstring>

#include "bind.h"
#include "statistics.h"

namespace py = pybind11;

namespace memsvc {
namespace {

using Keys = py::array_t<uint64_t, py::array::c_style>;
using Doubles = py::array_t<double, py::array::c_style>;
using Bytes = py::array_t<uint8_t, py::array::c_style>;

template <typename T>
py::array_t<T> as_array(const std::vector<T>& values) {
  py::array_t<T> result(static_cast<py::ssize_t>(values.size()));
  if (!values.empty()) std::memcpy(result.mutable_data(), values.data(), values.size() * sizeof(T));
  return result;
}

std::vector<TableSpec> copies_of(const py::sequence& tables) {
  std::vector<TableSpec> specs;
  for (const py::handle table : tables) specs.push_back(table.cast<const TableSpec&>());
  return specs;
}

// A Replay and what only the edge needs of its settings.
class PyReplay {
 public:
  PyReplay(const Schema& schema, const py::sequence& tables, uint64_t memory_bytes, uint64_t seed, uint64_t first_stream)
      : specs_(copies_of(tables)) {
    Status status;
    {
      const Released release;
      status = Replay::make(schema, specs_, memory_bytes, seed, first_stream, &replay_);
    }
    check(status);
  }

  static py::dict footprint(const Schema& schema, const py::sequence& tables, uint64_t memory_bytes) {
    using namespace py::literals;
    const Footprint footprint = Replay::footprint(schema, copies_of(tables), memory_bytes);
    return py::dict("steps"_a = footprint.steps, "step_bytes"_a = footprint.step_bytes, "bytes"_a = footprint.bytes,
                    "least_bytes"_a = footprint.least_bytes, "items"_a = footprint.items);
  }

  py::tuple join(const std::string& name, size_t envs, const std::string& topic) {
    std::vector<uint64_t> streams;
    uint64_t actor;
    {
      const Released release;
      actor = replay_->join(name, envs, &streams, topic);
    }
    return py::make_tuple(actor, streams);
  }

  py::tuple resume(const std::string& name, size_t envs, const std::string& topic, uint64_t session, const std::vector<uint64_t>& streams,
                   uint64_t first, uint64_t fed) {
    if (session == 0) throw py::value_error("session: 0 is none");
    Joined joined;
    {
      const Released release;
      joined = replay_->resume(name, envs, topic, session, streams, first, fed);
    }
    return py::make_tuple(joined.actor, joined.streams, joined.stored, joined.resumed);
  }

  void leave(uint64_t actor) {
    const Released release;
    replay_->leave(actor);
  }

  py::object push(uint64_t actor, const py::buffer& payload, uint64_t number) {
    using namespace py::literals;
    const py::buffer_info info = contiguous(payload);
    uint64_t items = 0, draws = 0, stored = 0;
    Status status;
    {
      const Released release;
      status = replay_->push(actor, static_cast<const uint8_t*>(info.ptr), static_cast<size_t>(info.size * info.itemsize), &items, &draws, number,
                             &stored);
    }
    if (status.code() == Code::kDuplicate) return py::none();
    if (status.code() == Code::kGap) raise("Gap", status.message(), py::dict("expected"_a = stored + 1));
    if (status.code() == Code::kNotFound) raise("ServerError", status.message(), py::dict("hello"_a = true));
    check(status);
    return py::make_tuple(items, draws);
  }

  py::tuple notices(uint64_t actor, size_t table) {
    in_range(table);
    Notices notices;
    {
      const Released release;
      notices = replay_->notices(actor, table);
    }
    return py::make_tuple(notices.wanted, as_array(notices.missing), as_array(notices.evicted));
  }

  std::vector<uint64_t> hungry(size_t table) const {
    in_range(table);
    const Released release;
    return replay_->hungry(table);
  }

  py::object allowance(uint64_t actor, size_t table) {
    in_range(table);
    uint64_t allowed = 0;
    double ahead = 0;
    bool limited;
    {
      const Released release;
      limited = replay_->allowance(actor, table, &allowed, &ahead);
    }
    if (!limited) return py::none();
    return py::make_tuple(allowed, ahead);
  }

  void publish(const std::string& topic, int64_t version) {
    const Released release;
    replay_->publish(topic, version);
  }

  py::object take_feedback(uint64_t actor, size_t table) {
    in_range(table);
    Feedback feedback;
    bool any;
    {
      const Released release;
      any = replay_->take_feedback(actor, table, &feedback);
    }
    if (!any) return py::none();
    return py::make_tuple(feedback.number, as_array(feedback.keys), as_array(feedback.priorities));
  }

  std::vector<uint64_t> with_feedback(size_t table) const {
    in_range(table);
    const Released release;
    return replay_->with_feedback(table);
  }

  void expect(size_t table, uint64_t draws) {
    in_range(table);
    const Released release;
    replay_->expect(table, draws);
  }

  uint64_t largest_batch(size_t table) const {
    in_range(table);
    return replay_->largest_batch(table);
  }

  py::object draw(size_t table, size_t batch, Bytes out, size_t offset, std::optional<int64_t> min_version, uint64_t ticket) {
    in_range(table);
    if (batch < 1) throw py::value_error("batch: expected at least 1, got 0");
    uint8_t* to = room_for(table, batch, out, offset);
    uint64_t population = 0;
    double total = 0;
    const int64_t version = checked_version(table, min_version);
    bool drawn;
    {
      const Released release;
      drawn = replay_->draw(table, batch, to, &population, &total, version, ticket);
    }
    if (!drawn) return py::none();
    return py::make_tuple(population, total);
  }

  void taken(size_t table, uint64_t ticket) {
    in_range(table);
    const Released release;
    replay_->taken(table, ticket);
  }

  void put_back(size_t table, uint64_t ticket) {
    in_range(table);
    const Released release;
    replay_->put_back(table, ticket);
  }

  py::tuple why_not(size_t table, size_t batch, std::optional<int64_t> min_version) const {
    in_range(table);
    const int64_t version = checked_version(table, min_version);
    Reason reason;
    {
      const Released release;
      reason = replay_->why_not(table, batch, version);
    }
    return py::make_tuple(name_of(reason.why), reason.have, reason.need);
  }

  py::tuple get(size_t table, const Keys& keys, Bytes out, size_t offset) {
    in_range(table);
    uint8_t* to = room_for(table, static_cast<size_t>(keys.size()), out, offset);
    uint64_t population = 0;
    double total = 0;
    size_t found;
    {
      const uint64_t* first = keys.data();
      const size_t n = static_cast<size_t>(keys.size());
      const Released release;
      found = replay_->get(table, first, n, to, &population, &total);
    }
    return py::make_tuple(found, population, total);
  }

  py::tuple erase(size_t table, const Keys& keys) {
    in_range(table);
    UpdateResult result;
    {
      const uint64_t* first = keys.data();
      const size_t n = static_cast<size_t>(keys.size());
      const Released release;
      result = replay_->erase(table, first, n);
    }
    return py::make_tuple(result.applied, result.stale);
  }

  void configure(size_t table, const TableSpec& spec) {
    in_range(table);
    const Released release;
    replay_->configure(table, spec);
  }

  py::tuple update(size_t table, const Keys& keys, const Doubles& priorities) {
    in_range(table);
    if (keys.size() != priorities.size()) {
      throw py::value_error(std::to_string(keys.size()) + " keys with " + std::to_string(priorities.size()) + " priorities");
    }
    UpdateResult result;
    {
      const uint64_t* first_key = keys.data();
      const double* first_priority = priorities.data();
      const size_t n = static_cast<size_t>(keys.size());
      const Released release;
      result = replay_->update(table, first_key, first_priority, n);
    }
    return py::make_tuple(result.applied, result.stale, as_array(result.refused));
  }

  py::dict stats() const {
    using namespace py::literals;
    ReplayStats stats;
    {
      const Released release;
      stats = replay_->stats();
    }
    py::list tables;
    for (const TableStats& table : stats.tables) tables.append(as_dict(table));
    py::list actors;
    for (const PushStats& one : stats.actors) {
      py::dict actor = as_dict(one.counts);
      actor["name"] = one.name;
      actor["actor"] = one.actor;
      actor["number"] = one.stored;
      actors.append(actor);
    }
    return py::dict("steps"_a = stats.steps, "capacity_steps"_a = stats.capacity_steps, "bytes"_a = stats.bytes, "seed"_a = stats.seed,
                    "pushes"_a = as_dict(stats.pushes), "actors"_a = actors, "sessions"_a = stats.sessions, "tables"_a = tables);
  }

  Replay& core() { return *replay_; }
  const std::vector<TableSpec>& specs() const { return specs_; }

 private:
  void in_range(size_t table) const {
    if (table >= specs_.size()) throw py::index_error("table " + std::to_string(table) + " of " + std::to_string(specs_.size()));
  }

  // Where a batch is to be written, which raises where it does not fit.
  uint8_t* room_for(size_t table, size_t batch, Bytes& out, size_t offset) const {
    const size_t bytes = specs_[table].batch_bytes(batch, nullptr);
    const size_t size = static_cast<size_t>(out.size());
    if (offset > size || size - offset < bytes) {
      throw py::value_error("out: " + std::to_string(size) + " bytes with offset " + std::to_string(offset) + " do not hold a batch of " +
                            std::to_string(bytes) + " bytes");
    }
    uint8_t* to = out.mutable_data() + offset;  // raises for a read-only array
    if (reinterpret_cast<uintptr_t>(to) % 8 != 0) throw py::value_error("out: out[offset:] must begin at a multiple of 8 bytes");
    return to;
  }

  int64_t checked_version(size_t table, const std::optional<int64_t>& version) const {
    if (!version) return kAnyVersion;
    if (specs_[table].select == Select::kAll) return *version;
    raise("ConfigError", "min_version: table \"" + specs_[table].name +
                             "\" has actor.select other than \"all\", so its items are at the actors: bound their age with limits.max_staleness");
  }

  static py::buffer_info contiguous(const py::buffer& payload) {
    py::buffer_info info = payload.request();
    py::ssize_t expected = info.itemsize;
    for (py::ssize_t axis = info.ndim; axis-- > 0; expected *= info.shape[static_cast<size_t>(axis)]) {
      if (info.strides[static_cast<size_t>(axis)] != expected) throw py::value_error("payload: expected contiguous bytes, got a strided array");
    }
    return info;
  }

  std::vector<TableSpec> specs_;
  std::unique_ptr<Replay> replay_;
};

}  // namespace

Replay& core_of(py::handle replay) { return replay.cast<PyReplay&>().core(); }
const std::vector<TableSpec>& specs_of(py::handle replay) { return replay.cast<PyReplay&>().specs(); }

void bind_replay(py::module_& m) {
  py::class_<PyReplay>(m, "Replay")
      .def(py::init<const Schema&, const py::sequence&, uint64_t, uint64_t, uint64_t>(), py::arg("schema"), py::arg("tables"),
           py::arg("memory_bytes"), py::arg("seed"), py::arg("first_stream"))
      .def_static("footprint", &PyReplay::footprint, py::arg("schema"), py::arg("tables"), py::arg("memory_bytes"))
      .def("join", &PyReplay::join, py::arg("name"), py::arg("envs"), py::arg("topic") = "default")
      .def("resume", &PyReplay::resume, py::arg("name"), py::arg("envs"), py::arg("topic"), py::arg("session"), py::arg("streams"), py::arg("first"),
           py::arg("fed") = 0)
      .def("leave", &PyReplay::leave, py::arg("actor"))
      .def("push", &PyReplay::push, py::arg("actor"), py::arg("payload"), py::arg("number") = 0)
      .def("notices", &PyReplay::notices, py::arg("actor"), py::arg("table"))
      .def("hungry", &PyReplay::hungry, py::arg("table"))
      .def("take_feedback", &PyReplay::take_feedback, py::arg("actor"), py::arg("table"))
      .def("with_feedback", &PyReplay::with_feedback, py::arg("table"))
      .def("expect", &PyReplay::expect, py::arg("table"), py::arg("draws"))
      .def("largest_batch", &PyReplay::largest_batch, py::arg("table"))
      .def("allowance", &PyReplay::allowance, py::arg("actor"), py::arg("table"))
      .def("publish", &PyReplay::publish, py::arg("topic"), py::arg("version"))
      .def("draw", &PyReplay::draw, py::arg("table"), py::arg("batch"), py::arg("out").noconvert(), py::arg("offset"),
           py::arg("min_version") = py::none(), py::arg("ticket") = 0)
      .def("taken", &PyReplay::taken, py::arg("table"), py::arg("ticket"))
      .def("put_back", &PyReplay::put_back, py::arg("table"), py::arg("ticket"))
      .def("why_not", &PyReplay::why_not, py::arg("table"), py::arg("batch"), py::arg("min_version") = py::none())
      .def("get", &PyReplay::get, py::arg("table"), py::arg("keys"), py::arg("out").noconvert(), py::arg("offset"))
      .def("delete", &PyReplay::erase, py::arg("table"), py::arg("keys"))
      .def("configure", &PyReplay::configure, py::arg("table"), py::arg("spec"))
      .def("update", &PyReplay::update, py::arg("table"), py::arg("keys"), py::arg("priorities"))
      .def("stats", &PyReplay::stats);
  bind_saved(m);
}

}  // namespace memsvc
