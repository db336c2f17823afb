// SPDX-License-Identifier: Apache-2.0
// Checkpoints with mixtures of experts: which tensors a layer has, what is refused, and what a token reads.
#include <gtest/gtest.h>

#include "models/block_tensors.h"
#include "models/plan.h"
#include "models/saved_config.h"
#include "tests/models/checkpoint_files.h"

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
