// Memory: the actor's side of the core.
#include "memory.h"

#include <cmath>
#include <mutex>

#include "bind.h"
#include "step.h"

namespace py = pybind11;

namespace memsvc {
namespace {

using Doubles = py::array_t<double, py::array::c_style | py::array::forcecast>;
using Keys = py::array_t<uint64_t, py::array::c_style | py::array::forcecast>;
using Bools = py::array_t<bool, py::array::c_style | py::array::forcecast>;
using Bytes = py::array_t<uint8_t, py::array::c_style>;
using Ints = py::array_t<int64_t, py::array::c_style | py::array::forcecast>;

constexpr size_t kLongCopy = 32 << 10;  // bytes from which a copy is made without the GIL

// Payload buffers come back here when numpy lets go of them, so that their pages stay touched.
class BufferPool {
 public:
  std::unique_ptr<Buffer> take() {
    std::lock_guard<std::mutex> lock(mutex_);
    if (free_.empty()) return std::make_unique<Buffer>();
    std::unique_ptr<Buffer> buffer = std::move(free_.back());
    free_.pop_back();
    return buffer;
  }
  void give(std::unique_ptr<Buffer> buffer) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (free_.size() < kKept) free_.push_back(std::move(buffer));
  }

 private:
  static constexpr size_t kKept = 16;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Buffer>> free_;
};

struct Loan {
  std::unique_ptr<Buffer> buffer;
  std::shared_ptr<BufferPool> pool;
};

py::object as_array(std::unique_ptr<Buffer> buffer, std::shared_ptr<BufferPool> pool) {
  uint8_t* data = buffer->data();
  const size_t size = buffer->size();
  py::capsule owner(new Loan{std::move(buffer), std::move(pool)}, [](void* p) {
    std::unique_ptr<Loan> loan(static_cast<Loan*>(p));
    loan->pool->give(std::move(loan->buffer));
  });
  return py::array_t<uint8_t>(static_cast<Py_ssize_t>(size), data, owner);
}

void check_step(const Status& status) {
  if (status.code() == Code::kInvalid) raise("SchemaError", status.message());
  if (status.code() == Code::kFull) raise("WindowFull", status.message());
  check(status);
}

class PyMemory {
 public:
  PyMemory(const Schema& schema, std::vector<TableSpec> tables, std::vector<uint64_t> streams, uint64_t seed)
      : reader_(schema), pool_(std::make_shared<BufferPool>()), tables_(tables.size()), row_bytes_(schema.row_bytes()) {
    for (const TableSpec& t : tables) needs_priority_ = needs_priority_ || t.source == Source::kGiven;
    memory_ = std::make_unique<Memory>(schema, std::move(tables), std::move(streams), seed);
  }

  void add(int64_t env, py::handle step, py::object priority, int64_t version) {
    const double p = given_priority(priority);
    const Borrowed view(this);
    reader_.one(step, view.get());
    const size_t at = environment(env);
    Status status;
    quickly([&] { status = memory_->add(at, view.get()->data.data(), p, version); });
    check_step(status);
  }

  void add_batch(std::optional<Ints> envs, std::optional<Bools> active, py::handle step, std::optional<Doubles> priority, int64_t version,
                 std::optional<Bools> terminated, std::optional<Bools> truncated, py::object final_step) {
    StepView view, last;
    reader_.many(step, &view);
    StepBatch batch;
    batch.rows = view.rows;
    batch.fields = view.data.data();
    batch.strides = view.strides.data();
    batch.version = version;
    auto rows = [&](const py::array& a, const char* name) {
      if (a.ndim() != 1 || static_cast<size_t>(a.shape(0)) != view.rows) {
        raise("SchemaError", std::string(name) + " must have one entry an environment: expected [" + std::to_string(view.rows) + "]");
      }
    };
    auto mask = [&](const std::optional<Bools>& m, const char* name) -> const uint8_t* {
      if (!m) return nullptr;
      rows(*m, name);
      return reinterpret_cast<const uint8_t*>(m->data());
    };
    if (envs) {
      rows(*envs, "env");
      batch.envs = envs->data();
    }
    batch.active = mask(active, "active");
    batch.terminated = mask(terminated, "terminated");
    batch.truncated = mask(truncated, "truncated");
    if (priority) {
      if (!needs_priority_) refuse_priority();
      rows(*priority, "priority");
      for (size_t i = 0; i < view.rows; ++i) check_priority(priority->data()[i]);
      batch.priority = priority->data();
    } else if (needs_priority_) {
      refuse_missing_priority();
    }
    if (!final_step.is_none()) {
      last.rows = view.rows;
      reader_.some_of_many(final_step, &last);
      batch.final_fields = last.data.data();
      batch.final_strides = last.strides.data();
    }
    Status status;
    const auto call = [&] { status = memory_->add_batch(batch); };
    view.rows* row_bytes_ >= kLongCopy ? apart(call) : quickly(call);
    check_step(status);
  }

  void end(int64_t env, bool terminated, py::object final_step, double weight) {
    StepView last;
    if (!final_step.is_none()) reader_.some(final_step, &last);
    const size_t at = environment(env);
    Status status;
    quickly([&] { status = memory_->end(at, terminated, final_step.is_none() ? nullptr : last.data.data(), weight); });
    check_step(status);
  }

  void gate(size_t table, std::optional<uint64_t> allowed, bool blocked) {
    check_table(table);
    quickly([&] { memory_->gate(table, allowed.value_or(~uint64_t{0}), blocked); });
  }
  void newest(int64_t version) {
    apart([&] { memory_->newest(version); });
  }
  void configure(size_t table, const TableSpec& spec) {
    check_table(table);
    apart([&] { memory_->configure(table, spec); });
  }

  py::object draw(size_t table, uint64_t draws, size_t max_bytes, size_t head, std::optional<Bytes> out) {
    check_table(table);
    std::unique_ptr<Buffer> buffer;
    Status status;
    uint8_t* const to = out ? out->mutable_data() : nullptr;
    const size_t room = out ? static_cast<size_t>(out->nbytes()) : 0;
    if (reinterpret_cast<uintptr_t>(to) % kAlign != 0) throw py::value_error("out: expected memory at a multiple of " + std::to_string(kAlign));
    apart([&] {
      buffer = pool_->take();
      buffer->lend(to, room);
      status = memory_->draw(table, draws, max_bytes, head, buffer.get());
    });
    check(status);
    const size_t size = buffer->size();
    if (size > 0 && !buffer->lent()) return as_array(std::move(buffer), pool_);
    buffer->lend(nullptr, 0);
    pool_->give(std::move(buffer));
    if (size == 0) return py::none();
    return py::array_t<uint8_t>(static_cast<Py_ssize_t>(size), to, *out);
  }

  uint64_t feedback(size_t table, uint64_t number, const Keys& keys, const Doubles& priorities) {
    check_table(table);
    if (keys.size() != priorities.size()) raise("ProtocolError", "feedback has as many priorities as keys");
    uint64_t applied = 0;
    apart([&] { applied = memory_->feedback(table, number, keys.data(), priorities.data(), static_cast<size_t>(keys.size())); });
    return applied;
  }
  void evicted(size_t table, const Keys& keys) {
    check_table(table);
    apart([&] { memory_->evicted(table, keys.data(), static_cast<size_t>(keys.size())); });
  }
  void missing(size_t table, const Keys& keys) {
    check_table(table);
    apart([&] { memory_->missing(table, keys.data(), static_cast<size_t>(keys.size())); });
  }
  void settled(uint64_t payloads) {
    quickly([&] { memory_->settled(payloads); });
  }
  void forget() {
    apart([&] { memory_->forget(); });
  }

  void reopen(std::vector<uint64_t> streams) {
    apart([&] { memory_->reopen(std::move(streams)); });
  }
  uint64_t added() {
    uint64_t added = 0;
    quickly([&] { added = memory_->added(); });
    return added;
  }
  py::tuple unsent(size_t table) {
    check_table(table);
    uint64_t items = 0, bytes = 0;
    quickly([&] { memory_->unsent(table, &items, &bytes); });
    return py::make_tuple(items, bytes);
  }

  py::dict stats() {
    MemoryStats s;
    apart([&] { s = memory_->stats(); });
    py::list tables;
    for (const ViewStats& v : s.tables) {
      py::dict d;
      d["total"] = v.total;
      d["population"] = v.population;
      d["min_weight"] = v.min_weight;
      d["scale"] = v.scale;
      d["exponent"] = v.exponent;
      d["inserted"] = v.inserted;
      d["held"] = v.held;
      d["unsent"] = v.unsent;
      d["applied"] = v.applied;
      d["stale"] = v.stale;
      d["short_episodes"] = v.short_episodes;
      tables.append(d);
    }
    py::dict out;
    out["steps"] = s.steps;
    out["episodes"] = s.episodes;
    out["added"] = s.added;
    out["ended"] = s.ended;
    out["bytes"] = s.bytes;
    out["streams"] = s.streams;
    out["tables"] = tables;
    return out;
  }

 private:
  // The one kept view, whose vectors have their size already, or another while a thread is in it: reading a step may let go of the GIL (numpy does
  // while it copies what is not contiguous, and so may the code of foreign arrays).
  class Borrowed {
   public:
    explicit Borrowed(PyMemory* memory) : memory_(memory), kept_(!memory->view_in_use_) {
      if (kept_) {
        memory_->view_in_use_ = true;
      } else {
        own_ = std::make_unique<StepView>();
      }
    }
    ~Borrowed() {
      if (kept_) memory_->view_in_use_ = false;
    }
    Borrowed(const Borrowed&) = delete;
    Borrowed& operator=(const Borrowed&) = delete;
    StepView* get() const { return kept_ ? &memory_->view_ : own_.get(); }

   private:
    PyMemory* memory_;
    bool kept_;
    std::unique_ptr<StepView> own_;
  };

  class Counted {
   public:
    explicit Counted(int* count) : count_(count) { ++*count_; }
    ~Counted() { --*count_; }
    Counted(const Counted&) = delete;
    Counted& operator=(const Counted&) = delete;

   private:
    int* count_;
  };

  // Calls into the core without the GIL.
  template <class Call>
  void apart(Call&& call) {
    const Counted counted(&apart_);
    const Released free;
    call();
  }
  // A call that takes no longer than letting go of the GIL and taking it again, which a busy thread gives back only after its switch interval: with
  // the GIL, unless the core's lock may be taken. Nobody ever waits for that with the GIL: whoever has it without the GIL is counted in apart_.
  template <class Call>
  void quickly(Call&& call) {
    if (apart_ == 0) return call();
    apart(call);
  }

  static size_t environment(int64_t env) {
    if (env < 0) raise("SchemaError", "env " + std::to_string(env) + ": environments are numbered from 0");
    return static_cast<size_t>(env);
  }
  void check_table(size_t table) const {
    if (table >= tables_) raise("UnknownTable", "table number " + std::to_string(table) + " of " + std::to_string(tables_));
  }
  [[noreturn]] static void refuse_missing_priority() {
    raise("PriorityError", "a table's priority.source is \"given\": pass priority= with every step");
  }
  [[noreturn]] static void refuse_priority() {
    raise("PriorityError", "priority= was passed, but no table has priority.source = \"given\": leave it out, or change the source");
  }
  static void check_priority(double p) {
    if (!(p >= 0 && std::isfinite(p))) raise("PriorityError", "priority " + std::to_string(p) + ": a priority is a finite number >= 0");
  }
  double given_priority(const py::object& priority) const {
    if (priority.is_none()) {
      if (needs_priority_) refuse_missing_priority();
      return std::nan("");
    }
    if (!needs_priority_) refuse_priority();
    const double p = PyFloat_AsDouble(priority.ptr());
    if (PyErr_Occurred()) throw py::error_already_set();
    check_priority(p);
    return p;
  }

  StepReader reader_;
  StepView view_;  // of add(): guarded by the GIL, taken by Borrowed
  bool view_in_use_ = false;
  std::unique_ptr<Memory> memory_;
  int apart_ = 0;  // calls into the core by threads without the GIL; guarded by it
  std::shared_ptr<BufferPool> pool_;
  size_t tables_;
  size_t row_bytes_;
  bool needs_priority_ = false;
};

}  // namespace

void bind_memory(py::module_& m) {
  py::class_<PyMemory>(m, "Memory")
      .def(py::init<const Schema&, std::vector<TableSpec>, std::vector<uint64_t>, uint64_t>(), py::arg("schema"), py::arg("tables"),
           py::arg("streams"), py::arg("seed"))
      .def("add", &PyMemory::add, py::arg("env"), py::arg("step"), py::arg("priority").none(true), py::arg("version"))
      .def("add_batch", &PyMemory::add_batch, py::arg("envs"), py::arg("active"), py::arg("step"), py::arg("priority"), py::arg("version"),
           py::arg("terminated"), py::arg("truncated"), py::arg("final"))
      .def("end", &PyMemory::end, py::arg("env"), py::arg("terminated"), py::arg("final").none(true), py::arg("weight") = 1.0)
      .def("gate", &PyMemory::gate, py::arg("table"), py::arg("allowed").none(true), py::arg("blocked"))
      .def("newest", &PyMemory::newest, py::arg("version"))
      .def("configure", &PyMemory::configure, py::arg("table"), py::arg("spec"))
      .def("draw", &PyMemory::draw, py::arg("table"), py::arg("draws"), py::arg("max_bytes"), py::arg("head"),
           py::arg("out").noconvert().none(true) = py::none())
      .def("feedback", &PyMemory::feedback, py::arg("table"), py::arg("number"), py::arg("keys"), py::arg("priorities"))
      .def("evicted", &PyMemory::evicted, py::arg("table"), py::arg("keys"))
      .def("settled", &PyMemory::settled, py::arg("payloads"))
      .def("missing", &PyMemory::missing, py::arg("table"), py::arg("keys"))
      .def("forget", &PyMemory::forget)
      .def("reopen", &PyMemory::reopen, py::arg("streams"))
      .def_property_readonly("added", &PyMemory::added)
      .def("unsent", &PyMemory::unsent, py::arg("table"))
      .def("stats", &PyMemory::stats);
}

}  // namespace memsvc
