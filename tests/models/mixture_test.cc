// SPDX-License-Identifier: Apache-2.0
// Checkpoints with mixtures of experts: which tensors a layer has, what is refused, and what a token reads.
#include <gtest/gtest.h>

#include <cstring>

#include "models/block_tensors.h"
#include "models/plan.h"
#include "models/saved_config.h"
#include "tests/models/mx_experts.h"

namespace shiftrt {
namespace {

class MixtureTest : public testing::Test {
 protected:
  MixtureTest() {
    WriteRandomCheckpoint(GoldenModel("qwen3_moe_mixed") / "config.json", DType::kFloat32, 1, directory_.path());
    tensors_ = ReadTensors(directory_.path() / "model.safetensors");
  }
  StoredTensor& Find(const std::string& name) {
    return *std::ranges::find_if(tensors_, [&](const StoredTensor& tensor) { return tensor.name == name; });
  }
  void ExpectRefused(const std::string& words) {
    WriteText(directory_.path() / "model.safetensors", SafetensorsBytes(tensors_));
    const std::string what = Refusal([&] { LoadWeights(directory_.path()); });
    EXPECT_NE(what.find(words), std::string::npos) << what;
  }

  TemporaryDirectory directory_;
  std::vector<StoredTensor> tensors_;
};

// Layer 1 has a mixture, and the others an MLP.
TEST_F(MixtureTest, ALayerHasAnMlpOrExperts) {
  const auto weights = LoadWeights(directory_.path());
  for (int64_t layer = 0; layer < 4; ++layer) {
    const BlockWeights& block = weights->blocks[layer];
    EXPECT_EQ(block.IsMixture(), layer == 1);
    EXPECT_EQ(block.up.empty(), layer == 1);
    EXPECT_EQ(MlpUnits(block), layer == 1 ? 0 : 80);
  }
  const BlockWeights& block = weights->blocks[1];
  EXPECT_EQ(block.router.shape, (std::vector<int64_t>{8, 48}));
  ASSERT_EQ(block.experts.size(), 8u);
  EXPECT_EQ(block.experts[7].down.shape, (std::vector<int64_t>{48, 24}));
  int64_t tensors = 0;
  ForEachTensor(block, [&](const BlockTensor&, const TensorView&) { ++tensors; });
  EXPECT_EQ(tensors, 4 + 4 + 4 + 1 + 8 * 3);  // projections and biases of the attention, norms of heads and stream
}

TEST_F(MixtureTest, AMissingOrMisshapenExpertIsNamed) {
  const std::string name = "model.layers.1.mlp.experts.5.up_proj.weight";
  const std::vector<StoredTensor> good = tensors_;
  std::erase_if(tensors_, [&](const StoredTensor& tensor) { return tensor.name == name; });
  ExpectRefused("tensor " + name + " is missing");
  tensors_ = good;
  Find(name).shape = {48, 24};
  ExpectRefused("tensor " + name + " has shape [48, 24], expected [24, 48]");
  tensors_ = good;
  tensors_.push_back({"model.layers.1.mlp.experts.8.up_proj.weight", "F32", {2}, std::string(8, '\0')});
  ExpectRefused("tensor model.layers.1.mlp.experts.8.up_proj.weight is not one this configuration has");
  tensors_ = good;
  Find("model.layers.1.mlp.gate.weight").shape = {48, 8};
  ExpectRefused("tensor model.layers.1.mlp.gate.weight has shape [48, 8], expected [8, 48]");
}

TEST_F(MixtureTest, ATokenReadsTheActiveExperts) {
  const auto weights = LoadWeights(directory_.path());
  const DepthPlan plan = DepthPlan::Original(4);
  const int64_t of_expert = 3 * 24 * 48;
  EXPECT_EQ(plan.Parameters(*weights) - plan.ActiveParameters(*weights), (8 - 3) * of_expert);
  EXPECT_EQ(plan.Bytes(*weights) - 97 * 48 * 4 - (plan.BytesPerToken(*weights) - 48 * 4), (8 - 3) * of_expert * 4);
}

// Converters of transformers leave the experts of a layer together, as its classes hold them.
TEST_F(MixtureTest, ExpertsMayBeTogether) {
  const auto expected = LoadWeights(directory_.path());
  const auto joined = [&](const std::string& name, std::vector<const char*> matrices, std::vector<int64_t> shape) {
    std::string bytes;
    for (int64_t expert = 0; expert < 8; ++expert)
      for (const char* const matrix : matrices) {
        const std::string of = fmt::format("model.layers.1.mlp.experts.{}.{}.weight", expert, matrix);
        bytes += Find(of).bytes;
        std::erase_if(tensors_, [&](const StoredTensor& tensor) { return tensor.name == of; });
      }
    tensors_.push_back({"model.layers.1.mlp.experts." + name, "F32", std::move(shape), bytes});
  };
  joined("gate_up_proj", {"gate_proj", "up_proj"}, {8, 48, 48});
  joined("down_proj", {"down_proj"}, {8, 48, 24});
  WriteText(directory_.path() / "model.safetensors", SafetensorsBytes(tensors_));
  EXPECT_EQ(LoadWeights(directory_.path())->Fingerprint(), expected->Fingerprint());
  Find("model.layers.1.mlp.experts.gate_up_proj").shape = {8, 24, 96};
  ExpectRefused("gate_up_proj has shape [8, 24, 96], expected [8, 48, 48]");
}

// The matrices of experts in MXFP4 are those of transformers, in their blocks and expanded.
TEST(MxFp4Experts, AreThoseOfTransformers) {
  const TemporaryDirectory directory;
  const MxExperts files(directory.path() / "model");
  for (const WeightType type : {WeightType::kAsStored, WeightType::kBFloat16, WeightType::kFloat32}) {
    const auto weights = LoadWeights(files.path, {.dtype = type, .check_finite = true});
    const DType expected = type == WeightType::kAsStored   ? DType::kMXFP4
                           : type == WeightType::kBFloat16 ? DType::kBFloat16
                                                           : DType::kFloat32;
    for (const BlockWeights& block : weights->blocks) {
      ASSERT_EQ(block.experts.size(), 2u);
      for (int64_t expert = 0; expert < 2; ++expert)
        for (const auto& [name, tensor] : {std::pair("gate", &block.experts[expert].gate),
                                           {"up", &block.experts[expert].up},
                                           {"down", &block.experts[expert].down}}) {
          EXPECT_EQ(tensor->dtype, expected);
          ASSERT_EQ(tensor->shape, *name == 'd' ? (std::vector<int64_t>{64, 32}) : (std::vector<int64_t>{32, 64}));
          const std::vector<float> values = Widened(*tensor);
          for (int64_t i = 0; i < tensor->rows(); ++i)
            for (int64_t j = 0; j < tensor->cols(); ++j)
              ASSERT_EQ(values[i * tensor->cols() + j], files.Expected(name, expert, i, j)) << name << i << " " << j;
        }
      EXPECT_EQ(block.experts[1].up_bias.shape, (std::vector<int64_t>{32}));
      EXPECT_EQ(block.sinks.shape, (std::vector<int64_t>{4}));
    }
  }
}

TEST(MxFp4Experts, WhatIsMissingOrMisshapenIsNamed) {
  const TemporaryDirectory directory;
  MxExperts files(directory.path() / "model", 1);
  const std::vector<StoredTensor> good = files.tensors;
  const std::string blocks = "model.layers.0.mlp.experts.gate_up_proj_blocks",
                    scales = "model.layers.0.mlp.experts.down_proj_scales";
  const auto find = [&](const std::string& name) {
    return std::ranges::find(files.tensors, name, &StoredTensor::name);
  };
  const auto refused = [&](const std::string& words) {
    files.Write();
    const std::string what = Refusal([&] { LoadWeights(files.path); });
    EXPECT_NE(what.find(words), std::string::npos) << what;
    files.tensors = good;
  };
  files.tensors.erase(find(blocks));
  refused("tensor model.layers.0.mlp.experts.gate_up_proj is missing; the quantised form, " + blocks);
  files.tensors.erase(find(scales));
  refused("tensor " + scales + " is missing, a part of a matrix stored as MXFP4");
  find(blocks)->shape = {2, 128, 1, 16};
  refused("tensor " + blocks + " has shape [2, 128, 1, 16], expected [2, 64, 2, 16]");
  find(scales)->Set(5, uint8_t{255});
  refused("tensor " + scales + ": element 5 is nan");
}

// Qwen 3 Next: the file has the rows of each key head together, q, k, v and z of it, and then b and a of it.
TEST(SharedExperts, HeadsThatAFileHasTogetherAreTakenApart) {
  const TemporaryDirectory directory;
  WriteRandomCheckpoint(GoldenModel("qwen3_next") / "config.json", DType::kFloat32, 1, directory.path());
  const std::vector<StoredTensor> tensors = ReadTensors(directory.path() / "model.safetensors");
  const auto find = [&](const std::string& name) {
    return std::ranges::find(tensors, "model.layers.0." + name, &StoredTensor::name)->bytes;
  };
  const std::string qkvz = find("linear_attn.in_proj_qkvz.weight"), ba = find("linear_attn.in_proj_ba.weight");
  const auto weights = LoadWeights(directory.path());
  const BlockWeights& block = weights->blocks[0];
  const auto is = [](const TensorView& tensor, int64_t row, const std::string& file, int64_t of_file) {
    const size_t bytes = 48 * sizeof(float);
    return std::memcmp(static_cast<const char*>(tensor.data) + row * bytes, file.data() + of_file * bytes, bytes) == 0;
  };
  // Two key heads of 12, and for each three value heads of 12: a group has 12 + 12 + 36 + 36 rows.
  ASSERT_EQ(block.delta_qkv.shape, (std::vector<int64_t>{24 + 24 + 72, 48}));
  EXPECT_TRUE(is(block.delta_qkv, 13, qkvz, 96 + 1));                // q of the second key head
  EXPECT_TRUE(is(block.delta_qkv, 24 + 7, qkvz, 12 + 7));            // k of the first
  EXPECT_TRUE(is(block.delta_qkv, 48 + 36 + 5, qkvz, 96 + 24 + 5));  // v of the fourth value head
  EXPECT_TRUE(is(block.delta_z, 35, qkvz, 24 + 36 + 35));
  EXPECT_TRUE(is(block.delta_b, 4, ba, 6 + 1) && is(block.delta_a, 4, ba, 6 + 3 + 1));
  EXPECT_EQ(block.shared_down.shape, (std::vector<int64_t>{48, 40}));
  EXPECT_EQ(block.shared_weight.shape, (std::vector<int64_t>{1, 48}));
  EXPECT_TRUE(weights->blocks[1].shared_up.empty());  // this layer has an MLP
}

// Other families have the list alone, and refuse keys that they do not know.
TEST(KeptConfig, WritesOnlyTheSettingsOfExpertsThatAreThere) {
  DepthPlan plan;
  for (const int64_t layer : {0, 2, 3}) plan.stages.push_back(BlockStage{.layer = layer});
  const nlohmann::json listed = KeptConfig({{"num_hidden_layers", 4}, {"mlp_only_layers", {1, 3}}}, plan);
  EXPECT_EQ(listed["mlp_only_layers"], (nlohmann::json{2}));
  EXPECT_FALSE(listed.contains("decoder_sparse_step"));
  const nlohmann::json stepped = KeptConfig({{"num_hidden_layers", 4}, {"decoder_sparse_step", 2}}, plan);
  EXPECT_EQ(stepped["mlp_only_layers"], (nlohmann::json{0, 1}));
  EXPECT_EQ(stepped["decoder_sparse_step"], 1);
}

}  // namespace
}  // namespace shiftrt
