// SPDX-License-Identifier: Apache-2.0
// Fuzzes the settings and the tensors of a quantised matrix in a Hugging Face checkpoint. The first line of the input
// is quantization_config; each further line is a tensor of the matrix: name, type and sides. The result must be an
// error or weights of the right shape.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <deque>
#include <nlohmann/json.hpp>
#include <sstream>

#include "models/weights.h"
#include "runtime/json.h"
#include "tests/fuzz/fuzz.h"
#include "tests/temporary_directory.h"
#include "tests/write_text.h"

namespace shiftrt {
namespace {

constexpr int64_t kRows = 16, kColumns = 64, kMaxElements = 1 << 14;
const char* const kModule = "model.layers.0.mlp.up_proj";

// A Llama of one layer. Targets add the tensors of one matrix to its file.
class Unquantised {
 public:
  Unquantised() {
    config_ = {{"architectures", {"LlamaForCausalLM"}},
               {"hidden_size", kColumns},
               {"intermediate_size", kRows},
               {"num_hidden_layers", 1},
               {"num_attention_heads", 2},
               {"head_dim", 2},
               {"num_key_value_heads", 1},
               {"vocab_size", 4},
               {"max_position_embeddings", 16}};
    WriteText(path() / "shape", config_.dump());
    WriteRandomCheckpoint(path() / "shape", DType::kBFloat16, 1, path());
    const SafetensorsFile file(path() / "model.safetensors");
    for (const auto& [name, view] : file.tensors())
      if (name != std::string(kModule) + ".weight") Add(name, RawOf(view), header_, data_);
  }
  const std::filesystem::path& path() const { return directory_.path(); }

  void Write(const nlohmann::json& settings, const std::vector<std::pair<std::string, RawTensor>>& tensors) const {
    nlohmann::json config = config_, header = header_;
    config["quantization_config"] = settings;
    std::string data = data_;
    for (const auto& [name, tensor] : tensors) Add(name, tensor, header, data);
    const std::string text = header.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    const auto size = static_cast<uint64_t>(text.size());
    WriteText(path() / "config.json", config.dump());
    WriteText(path() / "model.safetensors",
              std::string(reinterpret_cast<const char*>(&size), sizeof(size)) + text + data);
  }

 private:
  static void Add(const std::string& name, const RawTensor& tensor, nlohmann::json& header, std::string& data) {
    const size_t begin = data.size();
    data.append(reinterpret_cast<const char*>(tensor.bytes.data()), tensor.bytes.size());
    header[name] = {{"dtype", tensor.type}, {"shape", tensor.shape}, {"data_offsets", {begin, data.size()}}};
  }

  TemporaryDirectory directory_;
  nlohmann::json config_, header_ = nlohmann::json::object();
  std::string data_;
};

int64_t BytesOf(const std::string& type) {
  return type == "I64" ? 8 : type == "I32" || type == "F32" ? 4 : type == "F16" || type == "BF16" ? 2 : 1;
}

// The tensor of a line. Its bytes are finite numbers of every type; groups are 0, and a shape is that of the matrix.
std::pair<std::string, RawTensor> TensorOf(const std::string& line, std::vector<std::byte>& bytes) {
  std::istringstream words(line);
  std::string name;
  RawTensor tensor;
  words >> name >> tensor.type;
  int64_t elements = 1;
  for (int64_t side = 0; tensor.shape.size() < 4 && words >> side;) {
    tensor.shape.push_back(std::clamp<int64_t>(side, 0, kMaxElements / std::max<int64_t>(elements, 1)));
    elements *= tensor.shape.back();
  }
  bytes.resize(elements * BytesOf(tensor.type));
  for (size_t i = 0; i < bytes.size(); ++i)
    bytes[i] = static_cast<std::byte>(name.ends_with("g_idx") ? 0 : i * 37 % 100);
  const int64_t sides[] = {kRows, kColumns};
  if (name == ".weight_shape" && bytes.size() == sizeof(sides)) std::memcpy(bytes.data(), sides, sizeof(sides));
  tensor.bytes = bytes;
  return {kModule + name, tensor};
}

void ReadAll(const Unquantised& model, std::string_view input) {
  std::istringstream lines{std::string(input)};
  std::string settings, line;
  std::getline(lines, settings);
  std::vector<std::pair<std::string, RawTensor>> tensors;
  std::deque<std::vector<std::byte>> bytes;
  while (tensors.size() < 8 && std::getline(lines, line)) tensors.push_back(TensorOf(line, bytes.emplace_back()));
  model.Write(ParseJson(settings, "input"), tensors);
  const auto weights = LoadWeights(model.path(), {.dtype = WeightType::kFloat32, .check_finite = true});
  if (weights->blocks[0].up.shape != std::vector<int64_t>{kRows, kColumns}) __builtin_trap();
  weights->Fingerprint();
}

}  // namespace
}  // namespace shiftrt

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const shiftrt::Unquantised model;
  shiftrt::Try([&] { shiftrt::ReadAll(model, {reinterpret_cast<const char*>(data), size}); });
  return 0;
}
