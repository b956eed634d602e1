// Views: numpy arrays at fixed places of a buffer, made at a fifth of what numpy.ndarray(...) costs each: a learner makes nine or so for every batch.
#include "bind.h"

namespace py = pybind11;

namespace memsvc {
namespace {

class PyViews {
 public:
  // [(name, dtype, shape, offset)]: what TableSpec.layout gives.
  explicit PyViews(const py::list& columns) {
    for (const py::handle column : columns) {
      const auto [name, dtype, shape, offset] = column.cast<std::tuple<py::object, py::object, std::vector<Py_intptr_t>, size_t>>();
      Place place{py::dtype::from_args(dtype), shape, offset};
      size_t bytes = static_cast<size_t>(place.dtype.itemsize());
      for (const Py_intptr_t extent : shape) bytes *= static_cast<size_t>(extent);
      bytes_ = std::max(bytes_, offset + bytes);
      places_.push_back(std::move(place));
    }
  }

  py::tuple of(const py::buffer& buffer) {
    Py_buffer seen;
    const bool writable = PyObject_GetBuffer(buffer.ptr(), &seen, PyBUF_WRITABLE) == 0;
    if (!writable) {
      PyErr_Clear();
      if (PyObject_GetBuffer(buffer.ptr(), &seen, PyBUF_SIMPLE) != 0) throw py::error_already_set();
    }
    uint8_t* begin = static_cast<uint8_t*>(seen.buf);
    const size_t size = static_cast<size_t>(seen.len);
    PyBuffer_Release(&seen);  // the arrays refer to the object, as numpy's own do
    if (size < bytes_) throw py::value_error("a buffer of " + std::to_string(size) + " bytes does not hold views of " + std::to_string(bytes_));
    const auto& api = py::detail::npy_api::get();
    const int flags = writable ? py::detail::npy_api::NPY_ARRAY_WRITEABLE_ : 0;
    py::tuple views(places_.size());
    for (size_t i = 0; i < places_.size(); ++i) {
      const Place& place = places_[i];
      py::dtype dtype = place.dtype;  // the call below takes a reference
      py::object view =
          py::reinterpret_steal<py::object>(api.PyArray_NewFromDescr_(api.PyArray_Type_, dtype.release().ptr(), static_cast<int>(place.shape.size()),
                                                                      place.shape.data(), nullptr, begin + place.offset, flags, nullptr));
      if (!view) throw py::error_already_set();
      api.PyArray_SetBaseObject_(view.ptr(), buffer.inc_ref().ptr());
      views[i] = std::move(view);
    }
    return views;
  }

 private:
  struct Place {
    py::dtype dtype;
    std::vector<Py_intptr_t> shape;
    size_t offset;
  };
  std::vector<Place> places_;
  size_t bytes_ = 0;
};

}  // namespace

void bind_views(py::module_& m) {
  py::class_<PyViews>(m, "Views").def(py::init<const py::list&>(), py::arg("columns")).def("of", &PyViews::of, py::arg("buffer"));
}

}  // namespace memsvc
