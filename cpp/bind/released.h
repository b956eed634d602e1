// Released: the time in which a call of the core needs no interpreter.
#pragma once

#include <pybind11/pybind11.h>
#include <unistd.h>

namespace memsvc {

// Gives up the GIL in its constructor and takes it again in its destructor, as pybind11's gil_scoped_release does. At the end of the program the
// interpreter ends threads that ask for the GIL, by unwinding them, which a destructor answers with std::terminate: here such a thread sleeps until
// its process is gone, as Python itself does it from 3.14 on.
class Released {
 public:
  Released() : state_(PyEval_SaveThread()) {}
  Released(const Released&) = delete;
  Released& operator=(const Released&) = delete;
  ~Released() {
    try {
      PyEval_RestoreThread(state_);
    } catch (...) {
      for (;;) pause();
    }
  }

 private:
  PyThreadState* const state_;
};

}  // namespace memsvc
