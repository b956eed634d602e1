// Saved, and the methods of Replay that save and restore.
#include "saved.h"

#include <cstring>
#include <memory>
#include <vector>

#include "bind.h"
#include "released.h"
#include "replay.h"
#include "restore.h"

namespace py = pybind11;

namespace memsvc {
namespace {

template <typename T>
using Array = py::array_t<T, py::array::c_style>;
using Keys = Array<uint64_t>;
using Bytes = Array<uint8_t>;

// What Python was given, and the bytes of an item's computed columns. Giving back so much memory takes milliseconds, in which others run.
struct PySaved {
  ~PySaved() {
    const Released release;
    saved = Saved();
  }

  Saved saved;
  std::vector<size_t> made_bytes;
};

// A view that keeps its owner alive.
template <typename T>
Array<T> view(const std::vector<T>& values, const py::object& owner) {
  return Array<T>(static_cast<py::ssize_t>(values.size()), values.data(), owner);
}

template <typename T>
std::vector<T> column(const py::dict& items, const char* name) {
  if (!items.contains(name)) raise("ProtocolError", std::string("saved items have no column \"") + name + "\"");
  const py::object given = items[name];
  if (!py::isinstance<py::array_t<T>>(given)) raise("ProtocolError", std::string("saved items have a column \"") + name + "\" of another dtype");
  const auto values = Array<T>::ensure(given);
  return std::vector<T>(values.data(), values.data() + values.size());
}

std::unique_ptr<SavedItems> items_of(const py::handle& given) {
  if (given.is_none()) return nullptr;
  const auto from = py::dict(given.cast<py::object>());
  auto items = std::make_unique<SavedItems>();
  items->keys = column<uint64_t>(from, "key");
  items->versions = column<int64_t>(from, "version");
  items->values = column<double>(from, "value");
  items->spans = column<uint32_t>(from, "span");
  items->heads = column<uint16_t>(from, "head");
  items->episodes = column<uint16_t>(from, "episode");
  items->factors = column<double>(from, "factor");
  items->times = column<uint16_t>(from, "times");
  items->updated = column<uint32_t>(from, "updated");
  items->eras = column<uint32_t>(from, "era");
  items->made = column<uint8_t>(from, "made");
  return items;
}

py::dict as_dict(const py::object& owner, size_t table) {
  using namespace py::literals;
  const auto& of = owner.cast<const PySaved&>();
  if (table >= of.saved.items.size()) throw py::index_error("table " + std::to_string(table) + " of " + std::to_string(of.saved.items.size()));
  const SavedItems& items = of.saved.items[table];
  const Bytes made({items.keys.size(), of.made_bytes[table]}, items.made.data(), owner);
  return py::dict("key"_a = view(items.keys, owner), "version"_a = view(items.versions, owner), "value"_a = view(items.values, owner),
                  "span"_a = view(items.spans, owner), "head"_a = view(items.heads, owner), "episode"_a = view(items.episodes, owner),
                  "factor"_a = view(items.factors, owner), "times"_a = view(items.times, owner), "updated"_a = view(items.updated, owner),
                  "era"_a = view(items.eras, owner), "made"_a = made);
}

std::unique_ptr<PySaved> save(const py::object& self) {
  auto out = std::make_unique<PySaved>();
  for (const TableSpec& spec : specs_of(self)) out->made_bytes.push_back(spec.made_bytes);
  Status status;
  {
    Replay& replay = core_of(self);
    const Released release;
    status = replay.save(&out->saved);
  }
  check(status);
  return out;
}

// A save whose copy its caller times.
struct PyCapture {
  ~PyCapture() {
    const Released release;
    capture.reset();
  }

  std::unique_ptr<Capture> capture = std::make_unique<Capture>();
  py::object replay;
};

std::unique_ptr<PyCapture> prepare(const py::object& self) {
  auto out = std::make_unique<PyCapture>();
  out->replay = self;
  Status status;
  {
    const Replay& replay = core_of(self);
    const Released release;
    status = replay.prepare(out->capture.get());
  }
  check(status);
  return out;
}

Capture& open(const PyCapture& of) {
  if (!of.capture) throw py::value_error("saved() has been called, which ends a capture: prepare() another");
  return *of.capture;
}

bool copy(const PyCapture& of) {
  Capture& capture = open(of);
  Replay& replay = core_of(of.replay);
  const Released release;
  return replay.copy(&capture);
}

std::unique_ptr<PySaved> saved(PyCapture& of) {
  Capture& capture = open(of);
  auto out = std::make_unique<PySaved>();
  for (const TableSpec& spec : specs_of(of.replay)) out->made_bytes.push_back(spec.made_bytes);
  const Replay& replay = core_of(of.replay);
  const Released release;
  replay.decode(&capture, &out->saved);
  of.capture.reset();
  return out;
}

void check_rows(const Replay& replay, const Keys& keys, const Bytes& rows) {
  if (rows.ndim() == 2 && rows.shape(0) == keys.size() && static_cast<size_t>(rows.shape(1)) == replay.row_stride()) return;
  throw py::value_error("rows: expected uint8[" + std::to_string(keys.size()) + ", " + std::to_string(replay.row_stride()) + "], a row for each key");
}

Array<bool> rows(const py::object& self, const Keys& keys, Bytes out) {
  Replay& replay = core_of(self);
  check_rows(replay, keys, out);
  Array<bool> here(keys.size());
  const uint64_t* first = keys.data();
  uint8_t* to = out.mutable_data();
  bool* flags = here.mutable_data();
  const size_t n = static_cast<size_t>(keys.size());
  const Released release;
  replay.rows(first, n, to, flags);
  return here;
}

// `bytes` as they lie, for any contiguous buffer.
std::pair<const uint8_t*, size_t> contiguous(const py::buffer_info& info) {
  if (info.ndim > 1 || (info.ndim == 1 && info.strides[0] != info.itemsize)) throw py::value_error("expected contiguous bytes");
  return {static_cast<const uint8_t*>(info.ptr), static_cast<size_t>(info.size * info.itemsize)};
}

Keys begin_restore(const py::object& self, const py::buffer& state, const py::sequence& items) {
  std::vector<std::unique_ptr<SavedItems>> all;
  for (const py::handle one : items) all.push_back(items_of(one));
  const py::buffer_info info = state.request();
  const auto [data, size] = contiguous(info);
  std::vector<uint64_t> needed;
  Status status;
  {
    Replay& replay = core_of(self);
    const Released release;
    status = replay.begin_restore(data, size, std::move(all), &needed);
  }
  check(status);
  Keys keys(static_cast<py::ssize_t>(needed.size()));
  if (!needed.empty()) std::memcpy(keys.mutable_data(), needed.data(), needed.size() * sizeof(uint64_t));
  return keys;
}

size_t restore_rows(const py::object& self, const Keys& keys, const Bytes& rows) {
  Replay& replay = core_of(self);
  check_rows(replay, keys, rows);
  const uint64_t* first = keys.data();
  const uint8_t* from = rows.data();
  const size_t n = static_cast<size_t>(keys.size());
  const Released release;
  return replay.restore_rows(first, from, n);
}

py::dict finish_restore(const py::object& self) {
  using namespace py::literals;
  Restored restored;
  {
    Replay& replay = core_of(self);
    const Released release;
    restored = replay.finish_restore();
  }
  return py::dict("items"_a = restored.items, "dropped"_a = restored.dropped, "draws"_a = restored.draws);
}

void restored(const py::object& self) {
  Replay& replay = core_of(self);
  const Released release;
  replay.restored();
}

py::bytes progress(const py::object& self) {
  std::vector<uint8_t> bytes;
  {
    Replay& replay = core_of(self);
    const Released release;
    bytes = replay.progress();
  }
  return py::bytes(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

void advance(const py::object& self, const py::buffer& progress) {
  const py::buffer_info info = progress.request();
  const auto [data, size] = contiguous(info);
  Status status;
  {
    Replay& replay = core_of(self);
    const Released release;
    status = replay.advance(data, size);
  }
  check(status);
}

}  // namespace

void bind_saved(py::module_& m) {
  py::class_<PySaved>(m, "Saved")
      .def_property_readonly("state",
                             [](const PySaved& of) { return py::bytes(reinterpret_cast<const char*>(of.saved.state.data()), of.saved.state.size()); })
      .def("items", &as_dict, py::arg("table"))
      .def_property_readonly("row_keys", [](const py::object& owner) { return view(owner.cast<const PySaved&>().saved.row_keys, owner); });

  py::class_<PyCapture>(m, "Capture").def("copy", &copy).def("saved", &saved);

  const py::object replay = m.attr("Replay");
  const auto method = [&replay](const char* name, auto&& function, auto&&... arguments) {
    replay.attr(name) = py::cpp_function(function, py::name(name), py::is_method(replay), arguments...);
  };
  method("save", &save);
  method("prepare", &prepare);
  method("rows", &rows, py::arg("keys"), py::arg("out").noconvert());
  method("begin_restore", &begin_restore, py::arg("state"), py::arg("items"));
  method("restore_rows", &restore_rows, py::arg("keys"), py::arg("rows"));
  method("finish_restore", &finish_restore);
  method("restored", &restored);
  method("progress", &progress);
  method("advance", &advance, py::arg("progress"));
}

}  // namespace memsvc
