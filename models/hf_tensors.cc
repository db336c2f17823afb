// SPDX-License-Identifier: Apache-2.0
#include "models/hf_tensors.h"

#include <algorithm>
#include <cmath>

#include "runtime/check.h"
#include "runtime/elements.h"
#include "runtime/files.h"
#include "runtime/json.h"

namespace shiftrt {

NamedTensors HfTensors(const std::filesystem::path& directory, std::vector<std::unique_ptr<SafetensorsFile>>& files) {
  const std::filesystem::path index = directory / "model.safetensors.index.json";
  std::vector<std::string> names;
  if (Exists(directory / "model.safetensors")) {
    names.emplace_back("model.safetensors");
  } else {
    const nlohmann::json json = ParseJson(ReadFile(index), index.string());
    for (const auto& [tensor, shard] : json.at("weight_map").items())  // LoadWeights has checked it
      if (std::find(names.begin(), names.end(), shard) == names.end()) names.push_back(shard);
  }
  NamedTensors tensors;
  for (const std::string& name : names) {
    files.push_back(std::make_unique<SafetensorsFile>(directory / name));
    for (const auto& [tensor, view] : files.back()->tensors()) tensors[tensor] = view;
  }
  return tensors;
}

Matrix<float> FloatsOf(const std::string& file, const NamedTensors& tensors, const std::string& name,
                       const std::vector<int64_t>& shape) {
  const auto found = tensors.find(name);
  Check(found != tensors.end(), "{}: tensor {} is missing", file, name);
  const TensorView& tensor = found->second;
  Check(tensor.shape == shape && !IsQuantised(tensor.dtype) && tensor.dtype != DType::kFloat64,
        "{}: tensor {} is {} [{}], expected float32, float16 or bfloat16 [{}]", file, name, Name(tensor.dtype),
        fmt::join(tensor.shape, ", "), fmt::join(shape, ", "));
  // Files of other programs may hold tensors that are not aligned, which WidenRow() reads.
  Matrix<float> values(shape.size() == 1 ? 1 : shape[0], shape.back());
  for (int64_t i = 0; i < values.rows(); ++i) WidenRow(tensor, i, values.row(i));
  for (const float value : values.span()) Check(std::isfinite(value), "{}: tensor {} holds {}", file, name, value);
  return values;
}

}  // namespace shiftrt
