// SPDX-License-Identifier: Apache-2.0
// The shared libraries of the CUDA toolkit.
#pragma once

#include <string>

#include "runtime/shared_library.h"

namespace shiftrt::gpu {

class SharedLibrary : public shiftrt::SharedLibrary {
 public:
  // Throws Error naming the library and its purpose if it is not installed.
  SharedLibrary(const char* what_for, const std::string& name)
      : shiftrt::SharedLibrary(fmt::format("the GPU's {} need", what_for), {name}) {}
};

}  // namespace shiftrt::gpu
