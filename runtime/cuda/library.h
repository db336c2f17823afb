// SPDX-License-Identifier: Apache-2.0
// The shared libraries of the CUDA toolkit.
#pragma once

#include <cstdio>
#include <string>
#include <vector>

#include "runtime/shared_library.h"

namespace shiftrt::gpu {

// The file names under which a library may be installed: of the major version that this build was compiled with, of the
// next one, and of the one before. The functions that this program calls are the same in neighbouring versions.
inline std::vector<std::string> LibraryNames(const std::string& stem, int major) {
  return {fmt::format("{}.so.{}", stem, major), fmt::format("{}.so.{}", stem, major + 1),
          fmt::format("{}.so.{}", stem, major - 1)};
}

class SharedLibrary : public shiftrt::SharedLibrary {
 public:
  // Throws Error naming the library and its purpose if it is not installed. Says on stderr which other major version it
  // uses in its place.
  SharedLibrary(const char* what_for, const std::string& stem, int major)
      : shiftrt::SharedLibrary(
            fmt::format("the GPU's {} need a library that LD_LIBRARY_PATH or the system's search finds:", what_for),
            LibraryNames(stem, major)) {
    const std::string wanted = LibraryNames(stem, major)[0];
    if (name() != wanted)
      fmt::print(stderr,
                 "shiftrt: the GPU's {} need {}, which is not installed; {} is used, of another major version\n",
                 what_for, wanted, name());
  }
};

}  // namespace shiftrt::gpu
