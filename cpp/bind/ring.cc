// Ring over a buffer that two processes map.
#include "ring.h"

#include <cstring>
#include <optional>

#include "bind.h"

namespace py = pybind11;

namespace memsvc {
namespace {

using Bytes = py::array_t<uint8_t, py::array::c_style>;

constexpr size_t kLongCopy = 1 << 16;  // from here on other threads run meanwhile

struct PyRing {
  PyRing(Bytes memory, size_t bytes) : kept(std::move(memory)), ring(kept.mutable_data(), bytes - Ring::kHeadBytes) {}

  static std::unique_ptr<PyRing> over(Bytes memory) {
    const size_t bytes = static_cast<size_t>(memory.size());
    if (bytes < Ring::kHeadBytes + Ring::kLeastBytes || bytes % Ring::kLine != 0) {
      throw py::value_error(std::to_string(bytes) + " bytes are no ring: a multiple of 64 is needed, at least " +
                            std::to_string(Ring::kHeadBytes + Ring::kLeastBytes));
    }
    if (reinterpret_cast<uintptr_t>(memory.mutable_data()) % Ring::kLine != 0) throw py::value_error("a ring begins at a multiple of 64");
    return std::make_unique<PyRing>(std::move(memory), bytes);
  }

  void check_whole() const {
    if (ring.broken()) raise("ProtocolError", "the other side has written into shared memory what cannot be");
  }

  int push(const py::buffer& frame) {
    const py::buffer_info info = frame.request();
    const size_t bytes = static_cast<size_t>(info.size * info.itemsize);
    if (bytes > 0 && info.ptr == ring.reserved()) return commit(bytes);
    uint8_t* to = ring.reserve(bytes);
    check_whole();
    if (to == nullptr) return 0;
    if (bytes >= kLongCopy) {
      Released others;
      std::memcpy(to, info.ptr, bytes);
    } else {
      std::memcpy(to, info.ptr, bytes);
    }
    return ring.commit(bytes) ? 2 : 1;
  }

  py::object reserve(size_t bytes) {
    uint8_t* to = ring.reserve(bytes);
    check_whole();
    if (to == nullptr) return py::none();
    return Bytes({static_cast<py::ssize_t>(bytes)}, {1}, to, kept);
  }

  int commit(size_t bytes) { return ring.commit(bytes) ? 2 : 1; }

  int mark() {
    const bool marked = ring.mark();
    check_whole();
    if (!marked) return 0;
    return ring.sleeper() ? 2 : 1;
  }

  void keep(std::optional<uint64_t> from) {
    // What lies behind has been written over already; what lies ahead is nobody's yet.
    if (from && (*from > ring.written() || *from % Ring::kLine != 0)) throw py::value_error("keep: expected a position that `written` has told");
    ring.keep(from ? *from : Ring::kNothing);
  }

  int64_t front() {
    const Ring::Front found = ring.front();
    has_front = found != Ring::Front::kNone;
    check_whole();
    if (!has_front) return -1;
    return found == Ring::Front::kMark ? 0 : static_cast<int64_t>(ring.size());
  }

  void check_front() const {
    if (!has_front) throw py::value_error("there is no front: ask front() first");
  }

  py::object take() {
    check_front();
    PyObject* copy = PyByteArray_FromStringAndSize(reinterpret_cast<const char*>(ring.data()), static_cast<py::ssize_t>(ring.size()));
    if (copy == nullptr) throw py::error_already_set();
    pop();
    return py::reinterpret_steal<py::object>(copy);
  }

  Bytes view() {
    check_front();
    Bytes found({static_cast<py::ssize_t>(ring.size())}, {1}, ring.data(), kept);
    found.attr("setflags")(false);
    return found;
  }

  void pop() {
    check_front();
    has_front = false;
    ring.pop();
  }

  bool spin(uint32_t rounds) {
    bool found;
    {
      Released others;
      found = ring.spin(rounds);
    }
    check_whole();
    return found;
  }

  bool doze() {
    const bool sleeps = ring.doze();
    check_whole();
    return sleeps;
  }

  Bytes kept;
  Ring ring;
  bool has_front = false;
};

}  // namespace

void bind_ring(py::module_& m) {
  py::class_<PyRing>(m, "Ring")
      .def(py::init(&PyRing::over), py::arg("memory").noconvert())
      .def_property_readonly("most", [](const PyRing& self) { return self.ring.most(); })
      .def("push", &PyRing::push, py::arg("frame"))
      .def("reserve", &PyRing::reserve, py::arg("bytes"))
      .def("commit", &PyRing::commit, py::arg("bytes"))
      .def("room", [](PyRing& self) { return self.ring.room(); })
      .def("mark", &PyRing::mark)
      .def_property_readonly("written", [](const PyRing& self) { return self.ring.written(); })
      .def("keep", &PyRing::keep, py::arg("position"))
      .def("front", &PyRing::front)
      .def("take", &PyRing::take)
      .def("view", &PyRing::view)
      .def("pop", &PyRing::pop)
      .def("spin", &PyRing::spin, py::arg("rounds"))
      .def("doze", &PyRing::doze);
}

}  // namespace memsvc
