// The pure functions of DEFINITIONS 2 and 5.
#include "returns.h"

#include "bind.h"

namespace py = pybind11;

namespace memsvc {
namespace {

using Doubles = py::array_t<double, py::array::c_style | py::array::forcecast>;

// [T, k] with k columns, or raises.
size_t dims(const Doubles& a, size_t T, const char* name) {
  if (a.ndim() != 2 || static_cast<size_t>(a.shape(0)) != T) raise("SchemaError", std::string(name) + " must have shape [T, k]");
  return static_cast<size_t>(a.shape(1));
}

py::tuple py_n_step(const Doubles& reward, bool terminated, size_t n, const Doubles& gamma) {
  if (n < 1) raise("ConfigError", "n: expected a positive integer, got 0");
  const size_t T = static_cast<size_t>(reward.ndim() == 2 ? reward.shape(0) : 0);
  const size_t k = dims(reward, T, "reward"), kg = dims(gamma, T, "gamma");
  py::array_t<double> out({T, k}), discount({T, kg});
  py::array_t<int64_t> next(static_cast<Py_ssize_t>(T));
  n_step(reward.data(), T, k, terminated, n, gamma.data(), kg, out.mutable_data(), discount.mutable_data(), next.mutable_data());
  return py::make_tuple(out, discount, next);
}

py::array_t<double> py_lambda_return(const Doubles& reward, const Doubles& value, const Doubles& last, bool terminated, const Doubles& gamma,
                                     double lam) {
  const size_t T = static_cast<size_t>(reward.ndim() == 2 ? reward.shape(0) : 0);
  const size_t k = dims(reward, T, "reward"), kg = dims(gamma, T, "gamma");
  if (dims(value, T, "value") != k || static_cast<size_t>(last.size()) != k)
    raise("SchemaError", "value and last_value must have the reward's dimensions");
  py::array_t<double> q({T, k});
  lambda_return(reward.data(), value.data(), T, k, last.data(), terminated, gamma.data(), kg, lam, q.mutable_data());
  return q;
}

}  // namespace

void bind_returns(py::module_& m) {
  m.def("n_step", &py_n_step, py::arg("reward"), py::arg("terminated"), py::arg("n"), py::arg("gamma"));
  m.def("lambda_return", &py_lambda_return, py::arg("reward"), py::arg("value"), py::arg("last_value"), py::arg("terminated"), py::arg("gamma"),
        py::arg("lam"));
}

}  // namespace memsvc
