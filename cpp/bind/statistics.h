// What Replay counts, as Python dictionaries (memsvc_core.pyi, Replay.stats and why_not). Called with the GIL.
#pragma once

#include <pybind11/pybind11.h>

#include "replay.h"

namespace memsvc {

const char* name_of(Why why);
pybind11::dict as_dict(const TableStats& table);
pybind11::dict as_dict(const PushCounts& pushes);

}  // namespace memsvc
