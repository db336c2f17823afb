// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace shiftrt {

// A float32 matrix of a safetensors file.
struct FileMatrix {
  std::string name;
  int64_t rows = 0;           // divides the number of values
  std::vector<float> values;  // row by row
};
// Throws Error if the file cannot be written.
void WriteTensors(const std::string& file, const std::vector<FileMatrix>& tensors);

}  // namespace shiftrt
