#include "step.h"

#include <cstring>

#include "bind.h"
#include "bind_schema.h"

namespace py = pybind11;

namespace memsvc {
namespace {

bool native(const py::detail::PyArrayDescr_Proxy* d) { return d->byteorder != '>'; }

std::string shape_text(const std::vector<Py_ssize_t>& shape, const char* first = "") {
  std::string text = first;
  for (Py_ssize_t d : shape) text += (text.empty() ? "" : ", ") + std::to_string(d);
  return "[" + text + "]";
}

template <class T>
bool put_integer(py::handle value, uint8_t* out) {
  T number{};
  if constexpr (std::is_signed_v<T>) {
    const long long v = PyLong_AsLongLong(value.ptr());
    if (PyErr_Occurred()) return PyErr_Clear(), false;
    number = static_cast<T>(v);
    if (static_cast<long long>(number) != v) return false;
  } else {
    const unsigned long long v = PyLong_AsUnsignedLongLong(value.ptr());
    if (PyErr_Occurred()) return PyErr_Clear(), false;
    number = static_cast<T>(v);
    if (static_cast<unsigned long long>(number) != v) return false;
  }
  std::memcpy(out, &number, sizeof(T));
  return true;
}

bool put_integer(char kind, uint32_t itemsize, py::handle value, uint8_t* out) {
  const bool is_signed = kind == 'i';
  switch (itemsize) {
    case 1:
      return is_signed ? put_integer<int8_t>(value, out) : put_integer<uint8_t>(value, out);
    case 2:
      return is_signed ? put_integer<int16_t>(value, out) : put_integer<uint16_t>(value, out);
    case 4:
      return is_signed ? put_integer<int32_t>(value, out) : put_integer<uint32_t>(value, out);
    default:
      return is_signed ? put_integer<int64_t>(value, out) : put_integer<uint64_t>(value, out);
  }
}

}  // namespace

StepReader::StepReader(const Schema& schema) {
  for (const Field& f : schema.fields()) {
    py::str name = py::reinterpret_steal<py::str>(PyUnicode_InternFromString(f.name.c_str()));
    py::dtype dtype(dtype_name(f.kind, f.itemsize));
    fields_.push_back({name, dtype, std::vector<Py_ssize_t>(f.shape.begin(), f.shape.end()), f.bytes, f.kind, f.itemsize, dtype.num()});
  }
}

void StepReader::read(py::handle step, bool batched, bool partial, StepView* view) const {
  if (!PyDict_Check(step.ptr()))
    raise("SchemaError", "a step must be a dict of field name to value, got " + std::string(Py_TYPE(step.ptr())->tp_name));
  view->data.resize(fields_.size());
  view->strides.resize(fields_.size());
  view->scalars.resize(16 * fields_.size());
  view->keep.clear();
  size_t found = 0;
  bool first = batched && !partial;
  for (size_t i = 0; i < fields_.size(); ++i) {
    const Expected& e = fields_[i];
    view->data[i] = nullptr;
    view->strides[i] = e.bytes;
    PyObject* value = PyDict_GetItemWithError(step.ptr(), e.name.ptr());
    if (value == nullptr || (partial && value == Py_None)) {
      if (PyErr_Occurred()) throw py::error_already_set();
      if (value != nullptr) ++found;
      if (!partial) refuse_names(step, partial);
      continue;
    }
    ++found;
    if (py::detail::npy_api::get().PyArray_Check_(value)) {
      size_t n = 0;
      view->data[i] = array(e, value, batched, view, &n);
      // The caller's own dictionary: another thread may replace what is in it while this one copies without the GIL. Keywords are the call's own.
      if (partial) view->keep.push_back(py::reinterpret_borrow<py::array>(value));
      if (first) {
        view->rows = n;
        first = false;
      }
      if (batched && n != view->rows) {
        raise("SchemaError", "field \"" + e.name.cast<std::string>() + "\" has " + std::to_string(n) + " rows, expected " +
                                 std::to_string(view->rows) + ": every field of a batch has one row an environment");
      }
    } else if (!batched && e.shape.empty()) {
      view->data[i] = scalar(e, value, &view->scalars[16 * i]);
    } else {
      refuse(e, batched, value);
    }
  }
  if (found != static_cast<size_t>(PyDict_GET_SIZE(step.ptr()))) refuse_names(step, partial);
}

const uint8_t* StepReader::array(const Expected& e, py::handle value, bool batched, StepView* view, size_t* rows) const {
  const auto* a = py::detail::array_proxy(value.ptr());
  const auto* d = py::detail::array_descriptor_proxy(a->descr);
  const int lead = batched ? 1 : 0;
  bool same = a->nd == static_cast<int>(e.shape.size()) + lead && native(d);
  if (same && d->type_num != e.type_num) {
    same = d->kind == e.kind && py::cast<py::array>(value).itemsize() == static_cast<Py_ssize_t>(e.itemsize);
  }
  for (size_t i = 0; same && i < e.shape.size(); ++i) same = a->dimensions[i + lead] == e.shape[i];
  if (!same) refuse(e, batched, value);
  if (batched) *rows = static_cast<size_t>(a->dimensions[0]);
  if (a->flags & py::detail::npy_api::NPY_ARRAY_C_CONTIGUOUS_) return reinterpret_cast<const uint8_t*>(a->data);
  py::array copy = py::array::ensure(value, py::array::c_style);
  view->keep.push_back(copy);
  return static_cast<const uint8_t*>(copy.data());
}

const uint8_t* StepReader::scalar(const Expected& e, py::handle value, uint8_t* out) const {
  if (e.kind == 'f' && e.itemsize != 2 && PyFloat_Check(value.ptr())) {
    const double v = PyFloat_AS_DOUBLE(value.ptr());
    const float narrow = static_cast<float>(v);
    std::memcpy(out, e.itemsize == 4 ? static_cast<const void*>(&narrow) : &v, e.itemsize);
    return out;
  }
  if ((e.kind == 'i' || e.kind == 'u') && PyLong_Check(value.ptr()) && !PyBool_Check(value.ptr())) {
    if (!put_integer(e.kind, e.itemsize, value, out)) refuse(e, false, value);
    return out;
  }
  if (e.kind == 'b' && PyBool_Check(value.ptr())) {
    *out = value.ptr() == Py_True;
    return out;
  }
  // What is left: numpy scalars, float16 and complex fields, integers into floats, floats where they do not belong.
  py::array given = py::array::ensure(value);
  if (!given || given.ndim() != 0) {
    PyErr_Clear();
    refuse(e, false, value);
  }
  const char from = given.dtype().kind();
  if ((e.kind == 'i' || e.kind == 'u') && (from == 'i' || from == 'u')) {
    if (!put_integer(e.kind, e.itemsize, given.attr("item")(), out)) refuse(e, false, value);
    return out;
  }
  const bool fits =
      from == e.kind || (e.kind == 'f' && (from == 'i' || from == 'u')) || (e.kind == 'c' && (from == 'f' || from == 'i' || from == 'u'));
  if (!fits) refuse(e, false, value);
  py::array cast = given.attr("astype")(e.dtype);
  std::memcpy(out, cast.data(), e.itemsize <= 16 ? e.itemsize : 16);
  return out;
}

void StepReader::refuse(const Expected& e, bool batched, py::handle value) const {
  const std::string name = e.name.cast<std::string>();
  const std::string dtype = py::str(e.dtype).cast<std::string>();
  std::string got = std::string(Py_TYPE(value.ptr())->tp_name) + " " + py::repr(value).cast<std::string>().substr(0, 60);
  std::string way = "pass an array of that dtype and shape";
  if (py::isinstance<py::array>(value)) {
    py::array a = py::cast<py::array>(value);
    got = py::str(a.dtype()).cast<std::string>() + shape_text(std::vector<Py_ssize_t>(a.shape(), a.shape() + a.ndim()));
    if (py::str(a.dtype()).cast<std::string>() != dtype) way = "convert it with .astype(\"" + dtype + "\"), or declare the other dtype in [step]";
  }
  py::dict details;
  details["field"] = name;
  raise("SchemaError", "field \"" + name + "\": expected " + dtype + shape_text(e.shape, batched ? "n" : "") + ", got " + got + ": " + way, details);
}

void StepReader::refuse_names(py::handle step, bool partial) const {
  std::string known, missing, unknown;
  for (const Expected& e : fields_) {
    const std::string name = e.name.cast<std::string>();
    known += (known.empty() ? "" : ", ") + name;
    if (!PyDict_Contains(step.ptr(), e.name.ptr())) missing += (missing.empty() ? "" : ", ") + name;
  }
  for (auto item : py::reinterpret_borrow<py::dict>(step)) {
    bool is_field = false;
    for (const Expected& e : fields_) is_field = is_field || e.name.equal(item.first);
    if (!is_field) unknown += (unknown.empty() ? "" : ", ") + py::str(item.first).cast<std::string>();
  }
  std::string text = "the step's fields are " + known;
  if (!unknown.empty()) text += "; unknown: " + unknown;
  if (!missing.empty() && !partial) text += "; missing: " + missing;
  raise("SchemaError", text);
}

}  // namespace memsvc
