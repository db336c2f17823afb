// SPDX-License-Identifier: Apache-2.0
#include "tests/test_directory.h"

namespace shiftrt {

std::filesystem::path TestDirectory() { return SHIFTRT_TEST_DIR; }

}  // namespace shiftrt
