// SumTree with a random stream of its own, for tests and benchmarks.
#include "tree.h"

#include <algorithm>
#include <limits>

#include "bind.h"

namespace py = pybind11;

namespace memsvc {
namespace {

using Indices = py::array_t<int64_t, py::array::c_style>;
using Doubles = py::array_t<double, py::array::c_style>;

constexpr double kLargest = std::numeric_limits<double>::max();

struct PyTree {
  PyTree(size_t capacity, uint64_t seed, bool simd) : tree(capacity, simd), random(seed) {}

  std::vector<uint32_t> checked(const Indices& indices) const {
    const size_t n = static_cast<size_t>(indices.size()), capacity = tree.capacity();
    const int64_t* given = indices.data();
    std::vector<uint32_t> result(n);
    bool fine = true;
    for (size_t i = 0; i < n; ++i) {
      fine &= static_cast<uint64_t>(given[i]) < capacity;
      result[i] = static_cast<uint32_t>(given[i]);
    }
    if (fine) return result;
    const int64_t wrong = *std::find_if(given, given + n, [capacity](int64_t index) { return static_cast<uint64_t>(index) >= capacity; });
    throw py::index_error("index " + std::to_string(wrong) + " is not in a tree of " + std::to_string(capacity) + " leaves");
  }

  void update(const Indices& indices, const Doubles& weights) {
    if (indices.size() != weights.size()) {
      throw py::value_error(std::to_string(indices.size()) + " indices with " + std::to_string(weights.size()) + " weights");
    }
    const std::vector<uint32_t> at = checked(indices);
    const double* given = weights.data();
    const double* wrong = std::find_if(given, given + at.size(), [](double weight) { return !(weight >= 0 && weight <= kLargest); });
    if (wrong != given + at.size()) throw py::value_error("weights[" + std::to_string(wrong - given) + "] is not a finite number >= 0");
    tree.set(at.data(), given, at.size());
  }

  Indices draw(size_t n, bool stratified) {
    std::vector<uint32_t> drawn(n);
    if (n > 0 && !tree.draw(n, stratified, random, drawn.data())) throw py::value_error("all weights are 0: there is nothing to draw");
    Indices result(static_cast<py::ssize_t>(n));
    std::copy(drawn.begin(), drawn.end(), result.mutable_data());
    return result;
  }

  Doubles weights(const Indices& indices) const {
    const std::vector<uint32_t> at = checked(indices);
    Doubles result(indices.size());
    for (size_t i = 0; i < at.size(); ++i) result.mutable_data()[i] = tree.weight(at[i]);
    return result;
  }

  SumTree tree;
  Random random;
};

std::unique_ptr<PyTree> make_tree(size_t capacity, uint64_t seed, bool simd) {
  if (capacity < 1 || capacity > 0xFFFFFFFF) throw py::value_error("capacity: expected 1 to 2^32 - 1, got " + std::to_string(capacity));
  return std::make_unique<PyTree>(capacity, seed, simd);
}

}  // namespace

void bind_tree(py::module_& m) {
  m.def("use_simd", &use_simd, py::arg("on"));
  py::class_<PyTree>(m, "SumTree")
      .def(py::init(&make_tree), py::arg("capacity"), py::arg("seed"), py::arg("simd") = true)
      .def("update", &PyTree::update, py::arg("indices"), py::arg("weights"))
      .def("draw", &PyTree::draw, py::arg("n"), py::arg("stratified") = true)
      .def("weights", &PyTree::weights, py::arg("indices"))
      .def_property_readonly("vectorised", [](const PyTree& self) { return self.tree.vectorised(); })
      .def_property_readonly("total", [](const PyTree& self) { return self.tree.total(); })
      .def_property_readonly("min_positive", [](const PyTree& self) { return self.tree.min_positive(); });
}

}  // namespace memsvc
