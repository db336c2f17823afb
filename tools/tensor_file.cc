// SPDX-License-Identifier: Apache-2.0
#include "tools/tensor_file.h"

#include "runtime/safetensors.h"

namespace shiftrt {

void WriteTensors(const std::string& file, const std::vector<FileMatrix>& tensors) {
  std::vector<NamedTensor> named;
  named.reserve(tensors.size());
  for (const auto& [name, rows, values] : tensors)
    named.push_back({name, {values.data(), DType::kFloat32, {rows, std::ssize(values) / rows}}});
  WriteSafetensors(file, named);
}

}  // namespace shiftrt
