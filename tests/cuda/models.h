// SPDX-License-Identifier: Apache-2.0
// Small random models that the GPU kernels support.
#pragma once

#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <memory>

#include "engine/decoder.h"
#include "models/model.h"
#include "runtime/context.h"
#include "runtime/cuda/cuda.h"
#include "tests/models/fixtures.h"

namespace shiftrt {

// Contexts that share what is in the memory of GPUs, as those of one program do.
inline Context On(Device device, const std::vector<int>& gpus = {0}) {
  static const std::shared_ptr<DeviceCopies> copies = MakeDeviceCopies();
  const bool gpu = device == Device::kCuda;
  return {.isa = BestIsa(),
          .device = device,
          .gpus = gpus,
          .solver = gpu ? gpu::MakeSolver(gpus.front()) : nullptr,
          .device_copies = copies};
}

// All sizes are small except the head dimension, of which the kernels support only full sizes.
struct Shape {
  const char* type = "qwen2";
  const char* architecture = "Qwen2ForCausalLM";
  int hidden = 72, intermediate = 104, heads = 3, kv_heads = 1, head_dim = 64, vocab = 61;
  bool tied = true;
  int layers = 2;
  const char* more = "";  // settings of the family's own
};
inline constexpr Shape kQwen2{};
inline constexpr Shape kQwen3{"qwen3", "Qwen3ForCausalLM", 64, 88, 4, 2, 80, 67, false};
inline constexpr Shape kLlama{"llama", "LlamaForCausalLM", 136, 96, 2, 2, 128, 53, false};
inline constexpr Shape kPhi3{
    "phi3", "Phi3ForCausalLM", 64, 88, 2, 1, 96, 67, false, 2, R"("sliding_window": 9, "rope_scaling": null,)"};
// Its first layer has a window, its second has none.
inline constexpr Shape kGemma2{"gemma2", "Gemma2ForCausalLM", 72, 104, 4, 2, 64, 61, true, 2, R"("sliding_window": 7,
        "query_pre_attn_scalar": 40, "attn_logit_softcapping": 3.0, "final_logit_softcapping": 6.0,)"};

inline std::shared_ptr<const Weights> MakeWeights(const Shape& shape, DType dtype) {
  const TemporaryDirectory directory;
  const auto config = directory.path() / "wanted.json";
  std::ofstream(config) << fmt::format(
      R"({{{} "architectures": ["{}"], "model_type": "{}", "hidden_act": "silu", "hidden_size": {}, "intermediate_size": {},
           "num_hidden_layers": {}, "num_attention_heads": {}, "num_key_value_heads": {}, "head_dim": {},
           "vocab_size": {}, "max_position_embeddings": 128, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
           "tie_word_embeddings": {}, "bos_token_id": 0, "eos_token_id": 1}})",
      shape.more, shape.architecture, shape.type, shape.hidden, shape.intermediate, shape.layers, shape.heads,
      shape.kv_heads, shape.head_dim, shape.vocab, shape.tied);
  const auto model = directory.path() / "model";
  std::filesystem::create_directory(model);
  WriteRandomCheckpoint(config, dtype, 1, model);
  return LoadWeights(model);
}

// A copy of rows of the host on the device of `context`.
inline KeptRows Uploaded(const Context& context, std::shared_ptr<const Weights> weights, MatrixView<const float> rows) {
  Batch batch;
  batch.Add(std::vector<int32_t>(rows.rows, 0));
  Decoder decoder(context, std::move(weights), DepthPlan::Original(0));
  KeptRows kept;
  kept.Set(decoder.Resume(batch, rows, {}));
  return kept;
}

}  // namespace shiftrt
