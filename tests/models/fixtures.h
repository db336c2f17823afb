// SPDX-License-Identifier: Apache-2.0
// Models for tests: made from the deterministic rule into a directory that goes with the object.
#pragma once

#include <filesystem>
#include <string>

#include "models/weights.h"
#include "tests/temporary_directory.h"
#include "tests/test_directory.h"

namespace shiftrt {

inline std::filesystem::path GoldenModel(const std::string& name) { return TestDirectory() / "goldens/models" / name; }

// The golden's weights (seed 1) in `dtype`; the mapping outlives the files' names.
inline std::shared_ptr<const Weights> GoldenWeights(const std::string& name, DType dtype = DType::kFloat32) {
  const TemporaryDirectory directory;
  WriteRandomCheckpoint(GoldenModel(name) / "config.json", dtype, 1, directory.path());
  return LoadWeights(directory.path());
}

}  // namespace shiftrt
