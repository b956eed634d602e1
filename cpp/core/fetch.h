// For functions that do nothing but fetch memory ahead of its use: the compiler takes such ones for functions without effect, and drops calls of them
// that it does not inline early.
#pragma once

#define MEMSVC_FETCHES __attribute__((always_inline)) inline
