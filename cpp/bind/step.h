// Reads a Python step (a mapping of field name to array or scalar) against a schema: checks everything, casts nothing.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <string>
#include <vector>

#include "schema.h"

namespace memsvc {

// Where the fields' bytes are, each contiguous. Valid while the step's arrays live and until the view is read into again.
struct StepView {
  size_t rows = 0;
  std::vector<const uint8_t*> data;    // per field; nullptr where absent (partial reads only)
  std::vector<size_t> strides;         // bytes from row to row
  std::vector<uint8_t> scalars;        // 16 bytes a field: what came as Python scalars
  std::vector<pybind11::object> keep;  // contiguous copies of what was not contiguous
};

// Called under the GIL.
class StepReader {
 public:
  explicit StepReader(const Schema& schema);

  // One step: arrays must have dtype, shape and byte order of the schema; Python and numpy scalars may fill 0-d fields when the field can hold
  // the value's kind (and every integer exactly). Raises SchemaError.
  void one(pybind11::handle step, StepView* view) const { read(step, false, false, view); }
  // The fields that are given; the others stay nullptr.
  void some(pybind11::handle step, StepView* view) const { read(step, false, true, view); }
  // Arrays [n, ...] of every field; n is that of the first.
  void many(pybind11::handle step, StepView* view) const { read(step, true, false, view); }
  // Arrays [n, ...] of the fields that are given, n = view->rows.
  void some_of_many(pybind11::handle step, StepView* view) const { read(step, true, true, view); }

 private:
  struct Expected {
    pybind11::str name;
    pybind11::dtype dtype;
    std::vector<Py_ssize_t> shape;
    size_t bytes;
    char kind;
    uint32_t itemsize;
    int type_num;
  };
  void read(pybind11::handle step, bool batched, bool partial, StepView* view) const;
  const uint8_t* array(const Expected& e, pybind11::handle value, bool batched, StepView* view, size_t* rows) const;
  const uint8_t* scalar(const Expected& e, pybind11::handle value, uint8_t* out) const;
  [[noreturn]] void refuse_names(pybind11::handle step, bool partial) const;
  [[noreturn]] void refuse(const Expected& e, bool batched, pybind11::handle value) const;

  std::vector<Expected> fields_;
};

}  // namespace memsvc
