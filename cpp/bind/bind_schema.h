// numpy's name of a dtype that the core stores.
#pragma once

#include <cstdint>
#include <string>

namespace memsvc {

std::string dtype_name(char kind, uint32_t itemsize);  // "<f4", "|u1", "|b1"

}  // namespace memsvc
