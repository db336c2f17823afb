// SPDX-License-Identifier: Apache-2.0
#include "include/shiftrt/version.h"

#include <string_view>

#define SHIFTRT_TEXT_OF(number) #number
#define SHIFTRT_TEXT(number) SHIFTRT_TEXT_OF(number)
#define SHIFTRT_VERSION_TEXT          \
  SHIFTRT_TEXT(SHIFTRT_VERSION_MAJOR) \
  "." SHIFTRT_TEXT(SHIFTRT_VERSION_MINOR) "." SHIFTRT_TEXT(SHIFTRT_VERSION_PATCH)

namespace shiftrt {

static_assert(std::string_view(SHIFTRT_VERSION_TEXT) == SHIFTRT_PROJECT_VERSION,
              "include/shiftrt/version.h and CMakeLists.txt give different versions");

const char* Version() noexcept { return SHIFTRT_VERSION_TEXT; }

}  // namespace shiftrt
