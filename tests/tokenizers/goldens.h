// SPDX-License-Identifier: Apache-2.0
// Where the committed tokenizers are, with what their reference implementations make of some texts.
#pragma once

#include <filesystem>

#include "tests/test_directory.h"

namespace shiftrt {

inline const std::filesystem::path kTokenizerGoldens = TestDirectory() / "goldens" / "tokenizers";

}  // namespace shiftrt
