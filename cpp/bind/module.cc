// The extension module memsvc_core: one bind_* function a file.
#include <pybind11/pybind11.h>

#include "bind.h"

PYBIND11_MODULE(memsvc_core, m) {
  m.doc() = "The C++ core of memsvc; memsvc_core.pyi holds the contracts.";
  memsvc::bind_schema(m);
  memsvc::bind_memory(m);
  memsvc::bind_returns(m);
  memsvc::bind_replay(m);
  memsvc::bind_tree(m);
  memsvc::bind_views(m);
  memsvc::bind_ring(m);
}
