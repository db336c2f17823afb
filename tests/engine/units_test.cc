// SPDX-License-Identifier: Apache-2.0
// Blocks whose MLP has another number of units than the model's, compared with blocks of the model's shapes that have
// the same function.
#include "engine/gradients.h"
#include "engine/ops.h"
#include "models/block_tensors.h"
#include "runtime/check.h"
#include "tests/engine/golden.h"
#include "tests/models/mlp_units.h"

namespace shiftrt {
namespace {

using B = BlockWeights;
using test::Copied;
using test::Golden;
using test::LargestDifference;
using test::OneSequence;

constexpr int64_t kUnits = 10;

// The model with `changed` in the place of block 1.
DepthPlan With(const Weights& weights, BlockStage changed) {
  DepthPlan plan = DepthPlan::Original(weights.config.layers);
  plan.stages[1] = std::move(changed);
  return plan;
}

TEST(MlpUnits, ABlockWithFewerIsTheBlockWithTheOthersSilent) {
  for (const char* name : {"llama_bias", "gemma2", "starcoder2", "nemotron", "cohere", "granite"}) {
    const auto weights = GoldenWeights(name);
    const auto tokens = Golden(name).tokens();
    for (const Halves halves : {Halves::kBoth, Halves::kMlp}) {
      SCOPED_TRACE(fmt::format("{} {}", name, Name(halves)));
      const BlockStage stage{1, halves};
      const DepthPlan few = With(*weights, WithUnits(*weights, stage, kUnits)),
                      silent = With(*weights, WithSilentUnits(*weights, stage, kUnits));
      KeptRows activations[2];
      Matrix<float> streams[2];
      for (const bool is_few : {false, true}) {
        Decoder decoder(
            Context::Default(), weights, is_few ? few : silent,
            {{1, TapPoint::kActivation, [&](const Rows& rows, const Batch&) { activations[is_few].Set(rows); }}});
        streams[is_few] = Copied(decoder.Forward(OneSequence(tokens)));
      }
      EXPECT_LT(LargestDifference(streams[1].view(), streams[0].view()), 2e-5);
      ASSERT_EQ(activations[1].rows().hidden(), kUnits);
      ASSERT_EQ(activations[0].rows().hidden(), weights->config.intermediate);
      MatrixView<const float> first = activations[0].rows().host();
      first.cols = kUnits;
      EXPECT_LT(LargestDifference(activations[1].rows().host(), first), 2e-5);
      // A token at a time, from a cache.
      Decoder decoder(Context::Default(), weights, few);
      KvCache cache(weights->config, few, std::ssize(tokens));
      Matrix<float> last;
      for (const int32_t& token : tokens) last = Copied(decoder.Forward({&token, 1}, cache));
      EXPECT_LT(LargestDifference(last.view(), streams[1].view().Rows(streams[1].rows() - 1, 1)), 1e-4);
    }
  }
}

TEST(MlpUnits, AreCountedAndTellPlansApart) {
  const auto weights = GoldenWeights("llama_bias");
  const ModelConfig& config = weights->config;
  const DepthPlan whole = DepthPlan::Original(config.layers),
                  few = With(*weights, WithUnits(*weights, BlockStage{1}, kUnits)),
                  more = With(*weights, WithUnits(*weights, BlockStage{1}, config.intermediate + 3));
  const int64_t of_unit = 3 * config.hidden + 2;  // with the biases of gate and up
  EXPECT_EQ(whole.Parameters(*weights) - few.Parameters(*weights), (config.intermediate - kUnits) * of_unit);
  EXPECT_EQ(more.Parameters(*weights) - whole.Parameters(*weights), 3 * of_unit);
  EXPECT_EQ(whole.BytesPerToken(*weights) - few.BytesPerToken(*weights), 4 * (config.intermediate - kUnits) * of_unit);
  EXPECT_EQ(whole.Bytes(*weights) - few.Bytes(*weights), 4 * (config.intermediate - kUnits) * of_unit);
  EXPECT_TRUE(HasOtherUnits(*weights, few.stages[1].block()));
  EXPECT_FALSE(HasOtherUnits(*weights, whole.stages[1].block()));
  EXPECT_FALSE(HasOtherUnits(*weights, {1, Halves::kAttention, few.stages[1].block().own}));
  EXPECT_NE(few, whole);
  EXPECT_NE(few.Fingerprint(), With(*weights, WithUnits(*weights, BlockStage{1}, kUnits + 1)).Fingerprint());
  // The same bytes, read as other units of another type.
  const auto own = std::make_shared<B>(*few.stages[1].block().own);
  for (TensorView B::*member : {&B::gate, &B::up, &B::down, &B::gate_bias, &B::up_bias}) {
    (own.get()->*member).dtype = DType::kBFloat16;
    (own.get()->*member).shape[member == &B::down ? 1 : 0] = 2 * kUnits;
  }
  EXPECT_NE(few.Fingerprint(), With(*weights, {.layer = 1, .own = own}).Fingerprint());
}

TEST(MlpUnits, TensorsThatDisagreeAreRefused) {
  const auto weights = GoldenWeights("llama_bias");
  const BlockStage few = WithUnits(*weights, BlockStage{1}, kUnits);
  const auto own = std::make_shared<B>(*few.own);
  own->gate = weights->blocks[1].gate;
  try {
    const Decoder decoder(Context::Default(), weights, With(*weights, {.layer = 1, .own = own}));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()),
              fmt::format("depth plan: mlp.gate_proj.weight of block 1 has shape [{0}, {1}], expected [{2}, {1}]",
                          weights->config.intermediate, weights->config.hidden, kUnits));
  }
}

// The gradients of the MLP of block 1, by row of BlockTensors().
std::vector<std::vector<float>> Gradients(const std::shared_ptr<const Weights>& weights, const DepthPlan& plan,
                                          std::span<const int32_t> tokens, bool keep) {
  GradientEngine engine(Context::Default(), weights, plan);
  if (keep) engine.KeepActivations(int64_t{1} << 30);
  TrainedParameters trained;
  trained.stages.resize(plan.stages.size());
  std::vector<Parameter>& tensors = trained.stages[1].tensors;
  tensors.resize(BlockTensors().size());
  std::vector<DeviceMemory> memory;
  ForEachTensor(TensorsOf(*weights, plan.stages[1].block()), Halves::kMlp,
                [&](const BlockTensor& row, const TensorView& tensor) {
                  const bool vector = tensor.shape.size() == 1;
                  const int64_t rows = vector ? 1 : tensor.rows(), cols = vector ? tensor.elements() : tensor.cols();
                  const DeviceMemory value = engine.Allocate(rows * cols), gradient = engine.Allocate(rows * cols);
                  engine.ops().FromHost(Widened(tensor), value.all());
                  memory.insert(memory.end(), {value, gradient});
                  tensors[&row - BlockTensors().data()] = {value.matrix(rows, cols), gradient.matrix(rows, cols)};
                });
  engine.Set(trained);
  engine.Step(OneSequence(tokens), {}, 1);
  std::vector<std::vector<float>> gradients;
  for (const Parameter& parameter : tensors) {
    std::vector<float>& host = gradients.emplace_back(parameter.gradient.rows * parameter.gradient.cols);
    if (!parameter.gradient.empty()) engine.ops().ToHost(parameter.gradient, host);
  }
  return gradients;
}

TEST(MlpUnits, GradientsAreThoseOfTheBlockWithTheOthersSilent) {
  for (const char* name : {"llama_bias", "gemma2", "nemotron"}) {
    const auto weights = GoldenWeights(name);
    const auto tokens = Golden(name).tokens();
    const int64_t width = weights->config.intermediate;
    for (const bool keep : {false, true}) {
      const auto few = Gradients(weights, With(*weights, WithUnits(*weights, BlockStage{1}, kUnits)), tokens, keep),
                 silent =
                     Gradients(weights, With(*weights, WithSilentUnits(*weights, BlockStage{1}, kUnits)), tokens, keep);
      for (const BlockTensor& row : BlockTensors()) {
        const size_t r = &row - BlockTensors().data();
        if (few[r].empty()) continue;
        const bool down = row.member == &B::down;
        double largest = 0;
        for (size_t i = 0; i < few[r].size(); ++i) {
          const size_t same = down ? i / kUnits * width + i % kUnits : i;
          EXPECT_NEAR(few[r][i], silent[r][same], 1e-5 + 1e-4 * std::abs(silent[r][same])) << name << " " << row.name;
          largest = std::max(largest, std::abs(static_cast<double>(few[r][i])));
        }
        EXPECT_GT(largest, 0) << name << " " << row.name;
      }
    }
  }
}

}  // namespace
}  // namespace shiftrt
