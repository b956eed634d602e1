// What the files of this room share: the bind_* functions, and how a Status becomes an exception of memsvc_proto.errors.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <string>
#include <vector>

#include "released.h"
#include "status.h"

namespace memsvc {

void bind_schema(pybind11::module_& m);
void bind_memory(pybind11::module_& m);
void bind_returns(pybind11::module_& m);
void bind_replay(pybind11::module_& m);
void bind_saved(pybind11::module_& m);  // after the class Replay
void bind_tree(pybind11::module_& m);
void bind_views(pybind11::module_& m);
void bind_ring(pybind11::module_& m);

// Of a Python Replay.
class Replay;
struct TableSpec;
Replay& core_of(pybind11::handle replay);
const std::vector<TableSpec>& specs_of(pybind11::handle replay);

// Raises memsvc_proto.errors.<name>(message, **details). Holds the GIL.
[[noreturn]] inline void raise(const char* name, const std::string& message, const pybind11::dict& details = pybind11::dict()) {
  namespace py = pybind11;
  py::object error = py::module_::import("memsvc_proto.errors").attr(name)(py::str(message), **details);
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.ptr())), error.ptr());
  throw py::error_already_set();
}

// Raises the exception of a Status that is not ok. Holds the GIL.
inline void check(const Status& status) {
  if (status.ok()) return;
  switch (status.code()) {
    case Code::kMalformed:
      raise("ProtocolError", status.message());
    case Code::kInvalid:
      raise("ConfigError", status.message());
    case Code::kClosed:
      raise("Closed", status.message());
    default:
      raise("ServerError", status.message());
  }
}

}  // namespace memsvc
