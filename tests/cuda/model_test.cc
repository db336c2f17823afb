// SPDX-License-Identifier: Apache-2.0
// Compares the decoder on the device with the one on the CPU, on whole models: on the emulator and, if there is one, on
// a GPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>

#include "engine/decoder.h"
#include "engine/generate.h"
#include "kernels/cuda/gated_product.h"
#include "models/own_tensors.h"
#include "runtime/check.h"
#include "runtime/cuda/cuda.h"
#include "runtime/random.h"
#include "tests/cuda/gated_product_setting.h"
#include "tests/cuda/parity.h"
#include "tests/cuda/quantised_models.h"
#include "tests/models/fixtures.h"
#include "tests/models/mlp_units.h"

#ifdef SHIFTRT_EMULATED
#include "kernels/emulated/device.h"
#endif

namespace shiftrt {
namespace {

Matrix<float> RandomValues(int64_t rows, int64_t cols) {
  Random random(9);
  Matrix<float> m(rows, cols);
  for (float& x : m.span()) x = static_cast<float>(0.5 * (random.Uniform() - 0.5));
  return m;
}

constexpr const char* kPointNames[] = {"input", "heads",  "attention", "activation",
                                       "mlp",   "update", "output"};  // in TapPoint's order

struct Case {
  Shape shape;
  DType dtype;
};
// Each of the shapes in float32 and in bfloat16.
std::vector<Case> InBothTypes(const std::vector<Shape>& shapes) {
  std::vector<Case> cases;
  for (const Shape& shape : shapes)
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) cases.push_back({shape, dtype});
  return cases;
}

class ModelOnGpu : public testing::Test {
 protected:
  void SetUp() override {
    if (!gpu::WhyUnavailable().empty()) GTEST_SKIP() << gpu::WhyUnavailable();
  }

  // Prefills in one call, then decodes a few tokens one by one, on both devices.
  static void ExpectParity(const std::shared_ptr<const Weights>& weights, const DepthPlan& plan, int64_t first = 20) {
    const std::vector<int32_t> tokens = Tokens(*weights, first + 3);
    const DType dtype = weights->embedding.dtype;
    Decoder here(On(Device::kCpu), weights, plan), there(On(Device::kCuda), weights, plan);
    KvCache here_cache(weights->config, plan, 80),
        there_cache(weights->config, plan, 80);  // enough for two splits of the keys
    const std::span<const int32_t> all(tokens);
    const auto a = Copied(there.Forward(all.first(first), there_cache)),
               b = Copied(here.Forward(all.first(first), here_cache));
    EXPECT_LE(RelativeError(a, b), ManyTolerance(dtype));
    for (int64_t t = first; t < first + 3; ++t) {  // the third is the first that replays a recorded graph
      const Rows stream = there.Forward(all.subspan(t, 1), there_cache);
      const std::vector<float> logits = Copied(there.Logits(stream).view());
      const Matrix<float> expected = here.Logits(here.Forward(all.subspan(t, 1), here_cache));
      EXPECT_LE(RelativeError(logits, Copied(expected.view())), ManyTolerance(dtype)) << "token " << t;
    }
  }
};

TEST_F(ModelOnGpu, PrefillAndDecodeAgreeWithTheCpu) {
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    for (const Shape& shape : {kQwen2, kQwen3, kLlama, kPhi3, kGemma2, kStarcoder2, kNemotron, kCohere2, kQwen35}) {
      SCOPED_TRACE(std::string(shape.type) + " " + Name(dtype));
      const auto weights = MakeWeights(shape, dtype);
      ExpectParity(weights, DepthPlan::Original(2));
    }
  }
}

// 35 tokens are grouped by their experts, 20 are not.
TEST_F(ModelOnGpu, MixturesOfExpertsAgreeWithTheCpu) {
  std::vector<Case> cases = InBothTypes({kQwen2Moe, kGptOss});
  for (const Shape& shape : {kMixtral, kQwen3Moe, kQwen3Next, kGptOssChoice}) cases.push_back({shape, DType::kFloat32});
  for (const auto& [shape, dtype] : cases) {
    SCOPED_TRACE(std::string(shape.type) + " " + Name(dtype));
    const auto weights = MakeWeights(shape, dtype);
    for (const int64_t tokens : {20, 35}) ExpectParity(weights, DepthPlan::Original(2), tokens);
    ExpectParity(weights, Corrected(*weights, 8));
    ExpectParity(weights, {{BlockStage{0, Halves::kMlp}, BlockStage{1, Halves::kAttention}}});
  }
}

// Joined matrices of one type and of several, one of which the kernels do not read and one of which is not quantised;
// few tokens, whose products read the blocks, and more, for which they are expanded; norms of heads, which need the
// product before the rotation; LayerNorm with biases and no gate.
TEST_F(ModelOnGpu, QuantisedWeightsAgreeWithTheCpu) {
  for (const Shape& shape :
       {kQuantisedQwen2, kQuantisedQwen3, kQuantisedStarcoder2, kQuantisedQwen35, kQuantisedQwen2Moe}) {
    for (const QuantisedTypes& types : {kOneType, kMixedTypes}) {
      SCOPED_TRACE(std::string(shape.type) + " " + Name(types.down));
      const auto weights = MakeQuantised(shape, types);
      for (const int64_t tokens : {9, 35}) ExpectParity(weights, DepthPlan::Original(2), tokens);
    }
  }
}

// The experts of gpt-oss, random blocks here, expand to bfloat16, in which their numbers are exact.
TEST_F(ModelOnGpu, ExpertsInMxfp4AgreeWithTheCpu) {
  Shape shape = kGptOss;
  shape.intermediate = 64;
  auto weights = std::make_shared<Weights>(*MakeWeights(shape, DType::kBFloat16));
  Random random(3);
  for (BlockWeights& block : weights->blocks)
    for (ExpertWeights& expert : block.experts)
      for (TensorView* const matrix : {&expert.gate, &expert.up, &expert.down}) {
        constexpr int64_t kBlock = 17;  // a scale, and 32 numbers of four bits
        auto bytes = std::make_shared<std::vector<std::byte>>(matrix->elements() / 32 * kBlock);
        for (int64_t i = 0; i < std::ssize(*bytes); ++i)
          (*bytes)[i] = static_cast<std::byte>(i % kBlock == 0 ? 121 + random.Below(3) : random.Below(256));
        *matrix = {bytes->data(), DType::kMXFP4, matrix->shape};
        weights->storage.push_back(std::move(bytes));
      }
  for (const int64_t tokens : {9, 35}) ExpectParity(weights, DepthPlan::Original(2), tokens);
}

// A checkpoint of bfloat16 with quantised tensors of the plan's own, as --quantize makes them, and the other way round.
TEST_F(ModelOnGpu, TakesQuantisedTensorsOfThePlan) {
  const auto plain = MakeWeights(kQuantisedQwen2, DType::kBFloat16),
             mixed = MakeQuantised(kQuantisedQwen2, kMixedTypes);
  for (const auto& [weights, others] : {std::pair{plain, mixed}, {mixed, plain}}) {
    DepthPlan plan = DepthPlan::Original(2);
    plan.stages[1] = BlockStage{.layer = 1, .own = std::make_shared<const BlockWeights>(others->blocks[1])};
    ExpectParity(weights, plan);
  }
  const auto wide = MakeWeights(kQuantisedQwen2, DType::kFloat32);
  DepthPlan plan = DepthPlan::Original(2);
  plan.stages[0] = BlockStage{.layer = 0, .own = std::make_shared<const BlockWeights>(mixed->blocks[0])};
  EXPECT_THROW(Decoder(On(Device::kCuda), wide, plan), Error);
}

TEST_F(ModelOnGpu, RefusesQuantisedWeightsBesideFloat16) {
  const auto half = MakeWeights(kQuantisedQwen2, DType::kFloat16);
  auto mixed = std::make_shared<Weights>(*MakeQuantised(kQuantisedQwen2, kMixedTypes));
  mixed->blocks[0].q = half->blocks[0].q;
  mixed->storage.insert(mixed->storage.end(), half->storage.begin(), half->storage.end());
  try {
    Decoder(On(Device::kCuda), mixed, DepthPlan::Original(2));
    FAIL() << "not refused";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("--dtype bfloat16 converts all"), std::string::npos) << error.what();
  }
}

// Each has a property of blocks that the shapes above lack.
TEST_F(ModelOnGpu, PropertiesOfBlocksAgreeWithTheCpu) {
  for (const auto& [shape, dtype] :
       InBothTypes({kGemma3, kMinistral3, kOlmo2, kSmolLm3, kGranite, kGlm4, kPhi3Long, kQwen35})) {
    SCOPED_TRACE(std::string(shape.type) + " " + Name(dtype));
    const auto weights = MakeWeights(shape, dtype);
    ExpectParity(weights, DepthPlan::Original(2));
    ExpectParity(weights, {{BlockStage{0, Halves::kMlp}, BlockStage{1, Halves::kAttention}}});
  }
}

// A short sequence keeps its factors with a long one, and in a cache without room for a long one.
TEST_F(ModelOnGpu, LongRopeGoesByTheLengthOfEachSequence) {
  const auto weights = MakeWeights(kPhi3Long, DType::kFloat32);
  const DepthPlan plan = DepthPlan::Original(2);
  const std::vector<int32_t> tokens = Tokens(*weights, 40);
  const std::span<const int32_t> all(tokens);
  const auto forward = [&](Device device, std::initializer_list<std::pair<int, int>> ranges) {
    Batch batch;
    for (const auto& [begin, count] : ranges) batch.Add(all.subspan(begin, count));
    return Copied(Decoder(On(device), weights, plan).Forward(batch));
  };
  const auto hidden = static_cast<int64_t>(weights->config.hidden);
  for (const Device device : {Device::kCpu, Device::kCuda}) {
    const std::vector<float> both = forward(device, {{0, 12}, {12, 28}}), alone = forward(device, {{0, 12}});
    EXPECT_LE(RelativeError({both.begin(), both.begin() + 12 * hidden}, alone), 1e-6);
    KvCache cache(weights->config, plan, 16), roomy(weights->config, plan, 17);
    Decoder decoder(On(device), weights, plan);
    EXPECT_LE(RelativeError(Copied(decoder.Forward(all.first(12), cache)), alone), 1e-6);
    EXPECT_GT(RelativeError(Copied(decoder.Forward(all.first(12), roomy)), alone), 1e-3);
  }
  EXPECT_LE(RelativeError(forward(Device::kCuda, {{0, 12}, {12, 28}}), forward(Device::kCpu, {{0, 12}, {12, 28}})),
            ManyTolerance(DType::kFloat32));
}

// Both activations, with hidden sizes of one and of several steps of the kernel.
TEST_F(ModelOnGpu, TheGatedProductAgreesWithTheCpu) {
#ifdef SHIFTRT_EMULATED
  const emu::ComputeCapability capability(9);
#endif
  if (!gpu::TakesGatedProduct(0, DType::kBFloat16, 64, 8))
    GTEST_SKIP() << "the GPU has another compute capability than 9.0, or an environment variable turns the kernel off";
  Shape silu = kQwen3, gelu = kGemma2;
  gelu.hidden = 320;
  for (const Shape& shape : {silu, gelu}) {
    for (const DType dtype : {DType::kFloat16, DType::kBFloat16}) {
      SCOPED_TRACE(std::string(shape.type) + " " + Name(dtype));
      const auto weights = MakeWeights(shape, dtype);
      const DepthPlan plan = DepthPlan::Original(2);
      Batch batch;
      for (int sequence = 0; sequence < 2; ++sequence) batch.Add(Tokens(*weights, 70));
      const auto stream = [&](const char* setting) {
        const gpu::GatedProductSetting set(setting);
        Decoder decoder(On(Device::kCuda), weights, plan);
        return Copied(decoder.Forward(batch));
      };
      const std::vector<float> at_once = stream("1"), apart = stream("0");
      EXPECT_NE(at_once, apart) << "the product is not rounded in one of them, so the bits differ";
      Decoder here(On(Device::kCpu), weights, plan);
      const std::vector<float> expected = Copied(here.Forward(batch));
      for (const std::vector<float>& found : {at_once, apart})
        EXPECT_LE(RelativeError(found, expected), ManyTolerance(dtype));
    }
  }
}

TEST_F(ModelOnGpu, AdaptersOfEveryFormAgreeWithTheCpu) {
  const auto weights = MakeWeights(kLlama, DType::kBFloat16);
  for (const int64_t rank : {0, 1, 64})
    for (const bool normed : {false, true}) ExpectParity(weights, Corrected(*weights, rank, normed));
  const auto recurrent = MakeWeights(kQwen35, DType::kBFloat16);
  ExpectParity(recurrent, Corrected(*recurrent, 8));
  const auto full = Corrected(*weights, 0).stages[0].adapter();
  for (const int count : {2, 3}) {  // full-rank adapters, one after the other
    DepthPlan plan = Corrected(*weights, 0);
    plan.stages.insert(plan.stages.begin(), count - 1, full);
    ExpectParity(weights, plan);
  }
  DepthPlan shifted = Corrected(*weights, 1);
  auto bias = std::make_shared<Lra>();
  const int64_t hidden = weights->config.hidden;
  *bias = {{}, Matrix<float>(hidden, 0), Matrix<float>(0, hidden), full.lra->b.Clone()};
  shifted.stages[0] = AdapterStage{shifted.stages[0].adapter().parts, bias};
  ExpectParity(weights, shifted);
  const auto wide = MakeWeights({.hidden = 264}, DType::kFloat32);
  ExpectParity(wide, Corrected(*wide, 260));  // the rank is too high for one launch
}

TEST_F(ModelOnGpu, HalvesOfBlocksAgreeWithTheCpu) {
  const auto biased = [](const std::shared_ptr<const Weights>& weights) {
    // Biases on the outputs of both halves, which no family of the fixtures has.
    auto block = std::make_shared<BlockWeights>(weights->blocks[1]);
    static std::vector<float> bias;
    bias.assign(weights->config.hidden, 0.5f);
    block->o_bias = block->down_bias = {bias.data(), DType::kFloat32, {weights->config.hidden}};
    return block;
  };
  for (const auto& [shape, dtype] : InBothTypes({kQwen2, kGemma2, kStarcoder2, kNemotron, kCohere2, kQwen35})) {
    SCOPED_TRACE(std::string(shape.type) + " " + Name(dtype));
    const auto weights = MakeWeights(shape, dtype);
    const auto own = biased(weights);
    const BlockStage attention{1, Halves::kAttention, own}, mlp{1, Halves::kMlp, own};
    const std::vector<DepthPlan> plans = {{{BlockStage{0}, attention}},
                                          {{BlockStage{0, Halves::kMlp}, attention}},
                                          {{BlockStage{0, Halves::kAttention}, mlp}},
                                          {{BlockStage{0, Halves::kMlp}, mlp}},
                                          {{BlockStage{0}, attention, mlp}}};
    for (const DepthPlan& plan : plans) {
      ExpectParity(weights, plan);
      const bool runs_mlp = plan.stages.back().block().halves == Halves::kMlp;
      std::vector<float> seen[2][2];
      for (const Device device : {Device::kCpu, Device::kCuda}) {
        const auto keep = [&](int which) {
          return [&, which](const Rows& rows, const Batch&) { seen[device == Device::kCuda][which] = Copied(rows); };
        };
        Decoder decoder(
            On(device), weights, plan,
            {{1, runs_mlp ? TapPoint::kMlp : TapPoint::kAttention, keep(0)}, {1, TapPoint::kUpdate, keep(1)}});
        Batch batch;
        batch.Add(Tokens(*weights, 9));
        decoder.Forward(batch, /*taps_only=*/true);
      }
      for (int which = 0; which < 2; ++which)
        EXPECT_LE(RelativeError(seen[1][which], seen[0][which]), HalfTolerance(*weights));
      EXPECT_EQ(seen[1][0], seen[1][1]);
    }
  }
}

// The second MLP has more units than the first, so that its arrays grow in the middle of a call.
TEST_F(ModelOnGpu, MlpsOfOtherUnitsAgreeWithTheCpu) {
  for (const auto& [shape, dtype] : InBothTypes({kQwen2, kLlama, kGemma2, kStarcoder2, kCohere2, kGranite})) {
    SCOPED_TRACE(std::string(shape.type) + " " + Name(dtype));
    const auto weights = MakeWeights(shape, dtype);
    ExpectParity(weights, {{WithUnits(*weights, {0}, 40), WithUnits(*weights, {1}, 160)}});
    const DepthPlan half = {{BlockStage{0}, WithUnits(*weights, {1, Halves::kMlp}, 32)}};
    ExpectParity(weights, half);
    std::vector<float> seen[2];
    for (const Device device : {Device::kCpu, Device::kCuda}) {
      Decoder decoder(On(device), weights, half, {{1, TapPoint::kActivation, [&](const Rows& rows, const Batch&) {
                                                     EXPECT_EQ(rows.hidden(), 32);
                                                     seen[device == Device::kCuda] = Copied(rows);
                                                   }}});
      Batch batch;
      batch.Add(Tokens(*weights, 9));
      decoder.Forward(batch);
    }
    EXPECT_LE(RelativeError(seen[1], seen[0]), ManyTolerance(dtype));
  }
  const auto weights = MakeWeights(kQwen2, DType::kFloat32);
  try {
    const Decoder decoder(On(Device::kCuda), weights, {{BlockStage{0}, WithUnits(*weights, {1}, 12)}});
    ADD_FAILURE() << "taken";
  } catch (const Error& error) {
    EXPECT_NE(
        std::string(error.what()).find("layer 1: the GPU kernels take MLPs whose units are a multiple of 8, not 12"),
        std::string::npos)
        << error.what();
  }
}

TEST_F(ModelOnGpu, OneTokenIsExactButForTheCache) {
  const auto weights = MakeWeights(kQwen3, DType::kBFloat16);
  const DepthPlan plan = DepthPlan::Original(2);
  Decoder here(On(Device::kCpu), weights, plan), there(On(Device::kCuda), weights, plan);
  KvCache here_cache(weights->config, plan, 8), there_cache(weights->config, plan, 8);
  const std::vector<int32_t> tokens = Tokens(*weights, 1);
  EXPECT_LE(RelativeError(Copied(there.Forward(tokens, there_cache)), Copied(here.Forward(tokens, here_cache))), 3e-3);
}

TEST_F(ModelOnGpu, PackedSequencesScoresAndTaps) {
  std::vector<Case> cases =
      InBothTypes({kQwen2, kGemma2, kGranite, kStarcoder2, kNemotron, kCohere2, kQwen35, kQwen2Moe, kGptOss});
  cases.push_back({kQwen3Next, DType::kFloat32});
  for (const auto& [shape, dtype] : cases) {
    SCOPED_TRACE(std::string(shape.type) + " " + Name(dtype));
    const auto weights = MakeWeights(shape, dtype);
    const std::vector<int32_t> tokens = Tokens(*weights, 90);
    Batch batch;
    for (const auto& [begin, count] : {std::pair{0, 70}, {70, 1}, {71, 19}})
      batch.Add(std::span<const int32_t>(tokens).subspan(begin, count));
    const DepthPlan plan = DepthPlan::Original(2);
    std::vector<TapPoint> points = {TapPoint::kInput, TapPoint::kHeads,  TapPoint::kAttention,
                                    TapPoint::kMlp,   TapPoint::kUpdate, TapPoint::kOutput};
    if (!weights->config.block.mixed) points.push_back(TapPoint::kActivation);
    std::map<std::string, std::vector<float>> seen[2];
    std::vector<float> log_probs[2];
    std::vector<int32_t> best[2];
    std::vector<float> streams[2];
    for (const Device device : {Device::kCpu, Device::kCuda}) {
      const int at = device == Device::kCuda;
      std::vector<Tap> taps;
      for (const int64_t layer : {0, 1})
        for (const TapPoint point : points)
          taps.push_back({layer, point, [&seen, at, layer, point](const Rows& rows, const Batch&) {
                            seen[at][fmt::format("{} {}", layer, kPointNames[static_cast<int>(point)])] = Copied(rows);
                          }});
      Decoder decoder(On(device), weights, plan, taps), untapped(On(device), weights, plan);
      const Rows h = decoder.Forward(batch);
      streams[at] = Copied(h);
      best[at].resize(90);
      log_probs[at] = decoder.LogProbs(h, tokens, best[at]);
      EXPECT_EQ(streams[at], Copied(untapped.Forward(batch))) << "taps change the run";
      EXPECT_EQ(decoder.LogProbs(MatrixView<const float>(streams[at].data(), 90, weights->config.hidden), tokens),
                log_probs[at])
          << "rows of another place score differently";
      const std::vector<int64_t> which = {88, 3, 3, 40};
      const std::vector<int32_t> targets = {tokens[88], tokens[3], tokens[3], tokens[40]};
      const std::vector<float> gathered = decoder.LogProbs(decoder.Forward(batch), which, targets);
      for (size_t i = 0; i < which.size(); ++i)
        EXPECT_NEAR(gathered[i], log_probs[at][which[i]], 1e-5) << "rows gathered on the device score differently";
    }
    EXPECT_EQ(seen[0].size(), 2 * points.size());
    for (const auto& [name, rows] : seen[0])
      EXPECT_LE(RelativeError(seen[1][name], rows), HalfTolerance(*weights)) << "tap " << name;
    EXPECT_LE(RelativeError(streams[1], streams[0]), ManyTolerance(dtype));
    EXPECT_LE(RelativeError(log_probs[1], log_probs[0]), ManyTolerance(dtype));
    int agree = 0;
    for (int t = 0; t < 90; ++t) agree += best[0][t] == best[1][t];
    EXPECT_GE(agree, dtype == DType::kFloat32 ? 90 : 80);
    // The input of the second block is the output of the first, and input plus update is the output.
    EXPECT_EQ(seen[1]["1 input"], seen[1]["0 output"]);
    std::vector<float> sum = seen[1]["1 input"];
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += seen[1]["1 update"][i];
    EXPECT_LE(RelativeError(sum, seen[1]["1 output"]), 1e-6);
  }
}

// A tree of sequences: a trunk, two branches of it and a branch of a branch; and one separate sequence.
TEST_F(ModelOnGpu, BranchesAgreeWithTheCpu) {
  for (const auto& [shape, dtype] : InBothTypes({kQwen3, kGemma2, kLlama, kStarcoder2, kNemotron, kCohere2, kQwen35})) {
    SCOPED_TRACE(std::string(shape.type) + " " + Name(dtype));
    const auto weights = MakeWeights(shape, dtype);
    const std::vector<int32_t> tokens = Tokens(*weights, 70);
    const std::span<const int32_t> all(tokens);
    Batch batch;
    batch.Add(all.first(33));
    batch.Add(all.subspan(33, 5), 0);
    batch.Add(all.subspan(38, 1), 0);
    batch.Add(all.subspan(39, 20), 1);
    batch.Add(all.subspan(59, 11));
    const DepthPlan plan = DepthPlan::Original(2);
    Decoder here(On(Device::kCpu), weights, plan), there(On(Device::kCuda), weights, plan);
    EXPECT_LE(RelativeError(Copied(there.Forward(batch)), Copied(here.Forward(batch))), ManyTolerance(dtype));
  }
}

TEST_F(ModelOnGpu, TapsOnlyStopsEarlyAndStillReceives) {
  const auto weights = MakeWeights(kQwen2, DType::kFloat32);
  Batch batch;
  batch.Add(Tokens(*weights, 9));
  int received = 0;
  Decoder decoder(On(Device::kCuda), weights, DepthPlan::Original(2),
                  {{0, TapPoint::kUpdate, [&](const Rows& rows, const Batch& of) {
                      received += rows.count() == 9 && of.tokens == batch.tokens;
                    }}});
  EXPECT_EQ(decoder.Forward(batch, /*taps_only=*/true).count(), 0);
  EXPECT_EQ(received, 1);
}

TEST_F(ModelOnGpu, ResumesAStreamWithOtherStages) {
  const auto weights = MakeWeights(kQwen2, DType::kFloat32);
  const DepthPlan plan = DepthPlan::Original(2), corrected = Corrected(*weights, 8);
  Batch batch;
  batch.Add(Tokens(*weights, 9));
  // The second block has its own tensors and no MLP.
  auto silent = std::make_shared<BlockWeights>(weights->blocks[1]);
  const std::vector<float> zeros(silent->down.elements(), 0.0f);
  silent->down.data = zeros.data();
  const std::vector<Stage> after = {corrected.stages[0], BlockStage{.layer = 1, .own = silent}};
  std::vector<float> streams[2];
  for (const Device device : {Device::kCpu, Device::kCuda}) {
    Decoder decoder(On(device), weights, plan);
    const std::vector<float> kept = Copied(decoder.Forward(batch));
    streams[device == Device::kCuda] =
        Copied(decoder.Resume(batch, MatrixView<const float>(kept.data(), 9, weights->config.hidden), after));
  }
  EXPECT_LE(RelativeError(streams[1], streams[0]), ManyTolerance(DType::kFloat32));
}

TEST_F(ModelOnGpu, TextIsTheCpusInFloat32) {
  for (const Shape& shape : {kLlama, kGemma2, kStarcoder2, kNemotron, kCohere2, kQwen35, kMixtral}) {
    const auto weights = MakeWeights(shape, DType::kFloat32);
    for (const SamplingOptions& sampling : {SamplingOptions{}, {1, 1, 0}, {0.7, 0.9, 20}}) {
      std::vector<int32_t> text[2];
      for (const Device device : {Device::kCpu, Device::kCuda}) {
        Decoder decoder(On(device), weights, DepthPlan::Original(2));
        text[device == Device::kCuda] = Generate(decoder, Tokens(*weights, 5), 6, sampling, 3, {}).tokens;
      }
      EXPECT_EQ(text[0], text[1]) << shape.type << ", temperature " << sampling.temperature;
    }
  }
}

// Without its gated delta network, a model starts steps before their tokens are known.
TEST_F(ModelOnGpu, TextOfAModelWithoutItsRecurrentBlockIsTheCpus) {
  const auto weights = MakeWeights(kQwen35, DType::kFloat32);
  const DepthPlan plan = {{BlockStage{0}, BlockStage{1, Halves::kMlp}}};
  std::vector<int32_t> text[2];
  for (const Device device : {Device::kCpu, Device::kCuda}) {
    Decoder decoder(On(device), weights, plan);
    KvCache cache(weights->config, plan, 24);
    for (const int seed : {3, 4}) {
      const std::vector<int32_t> more =
          Continue(decoder, cache, Tokens(*weights, 5), {4, {0.7, 0.9, 20}, static_cast<uint64_t>(seed), {}, {}})
              .tokens;
      text[device == Device::kCuda].insert(text[device == Device::kCuda].end(), more.begin(), more.end());
    }
  }
  EXPECT_EQ(text[0], text[1]);
}

TEST_F(ModelOnGpu, ManyRepliesAreThoseOfEachPromptAlone) {
  const auto weights = MakeWeights(kLlama, DType::kFloat32);
  Decoder decoder(On(Device::kCuda), weights, DepthPlan::Original(2));
  const std::vector<std::vector<int32_t>> prompts = {Tokens(*weights, 5), {3, 1}, Tokens(*weights, 9)};
  int replies = 0;
  GenerateMany(decoder, prompts, {6, {0.7, 0.9, 20}, 3, {}, 2}, [&](size_t i, const std::vector<int32_t>& reply) {
    EXPECT_EQ(reply, Generate(decoder, prompts[i], 6, {0.7, 0.9, 20}, 3 + i, {}).tokens) << i;
    ++replies;
  });
  EXPECT_EQ(replies, 3);
}

// When a token is reported, the step that follows has already been started.
TEST_F(ModelOnGpu, ACallWithinAReplyLeavesTheReplyAsItIs) {
  const auto weights = MakeWeights(kStarcoder2, DType::kFloat32);
  Decoder decoder(On(Device::kCuda), weights, DepthPlan::Original(2));
  const std::vector<int32_t> prompt = Tokens(*weights, 5);
  const auto reply = Generate(decoder, prompt, 6, {}, 3, {}).tokens;
  const auto score = [&](int32_t) {
    Batch batch;
    batch.Add(Tokens(*weights, 20));
    const std::vector<int64_t> rows = {7, 18};
    decoder.LogProbs(decoder.Forward(batch), rows, std::vector<int32_t>{1, 2});
    return true;
  };
  EXPECT_EQ(reply, Generate(decoder, prompt, 6, {}, 3, {}, score).tokens);
}

// A reply that ends early leaves a step behind that was started in vain. The cache is then as if it had not been.
TEST_F(ModelOnGpu, ARepliesEndLeavesTheCacheAsItShouldBe) {
  const auto weights = MakeWeights(kQwen2, DType::kBFloat16);
  const DepthPlan plan = DepthPlan::Original(2);
  Decoder decoder(On(Device::kCuda), weights, plan);
  const std::vector<int32_t> prompt = Tokens(*weights, 5), more = {3, 1};
  const SamplingOptions sampling{1.3, 0.95, 30};
  KvCache cache(weights->config, plan, 24);
  const std::vector<int32_t> whole = Continue(decoder, cache, prompt, {8, sampling, 4, {}, {}}).tokens;
  ASSERT_EQ(whole.size(), 8u);
  EXPECT_EQ(cache.size(), 5 + 7);
  const std::vector<int32_t> stop = {whole[3]};
  const auto first = std::find(whole.begin(), whole.end(), whole[3]) - whole.begin();
  KvCache stopped(weights->config, plan, 24), refused(weights->config, plan, 24), thrown(weights->config, plan, 24);
  EXPECT_EQ(std::ssize(Continue(decoder, stopped, prompt, {8, sampling, 4, stop, {}}).tokens), first);
  EXPECT_EQ(stopped.size(), 5 + first);
  int received = 0;
  Continue(decoder, refused, prompt, {8, sampling, 4, {}, [&](int32_t) { return ++received < 3; }});
  EXPECT_EQ(refused.size(), 5 + 2);
  const auto fail = [](int32_t) -> bool { throw Error("a test"); };
  EXPECT_THROW(Continue(decoder, thrown, prompt, {8, sampling, 4, {}, fail}), Error);
  EXPECT_EQ(thrown.size(), 5);
  // The reply continues as after a reply that ended there by itself, with no step discarded.
  KvCache fresh(weights->config, plan, 24);
  Continue(decoder, fresh, prompt, {3, sampling, 4, {}, {}});
  EXPECT_EQ(Continue(decoder, refused, more, {4, sampling, 9, {}, {}}).tokens,
            Continue(decoder, fresh, more, {4, sampling, 9, {}, {}}).tokens);
}

// Alternates two kinds of one-token calls; each change records the launches again.
TEST_F(ModelOnGpu, NextTokenIsTheChoiceAmongTheLogits) {
  const auto weights = MakeWeights(kQwen2, DType::kBFloat16);
  const DepthPlan plan = DepthPlan::Original(2);
  Decoder decoder(On(Device::kCuda), weights, plan);
  KvCache cache(weights->config, plan, 40), same(weights->config, plan, 40);
  const std::vector<int32_t> tokens = Tokens(*weights, 8);
  const std::span<const int32_t> all(tokens);
  decoder.Forward(all.first(5), cache);
  decoder.Forward(all.first(5), same);
  const SamplingOptions sampling{1.3, 0.95, 30};
  Random random(8);
  for (int64_t t = 5; t < 8; ++t) {
    const double uniform = random.Uniform();
    const Matrix<float> logits = decoder.Logits(decoder.Forward(all.subspan(t, 1), cache));
    EXPECT_EQ(decoder.NextToken(all.subspan(t, 1), same, sampling, uniform),
              SampleToken(logits.span(), sampling, uniform));
    for (int again = 0; again < 3; ++again) {  // the third call is a replay, with another random number
      same.Truncate(t);
      EXPECT_EQ(decoder.NextToken(all.subspan(t, 1), same, sampling, 0.3 * again),
                SampleToken(logits.span(), sampling, 0.3 * again));
    }
  }
}

// A head and a final norm of the plan's own, each alone and both: logits, log-probabilities and the choice of a token.
TEST_F(ModelOnGpu, APlansOwnOutputAgreesWithTheCpu) {
  std::vector<Case> cases = InBothTypes({kQwen2, kGemma2});
  // In bfloat16, the two most likely tokens of these random models may be closer than the error.
  for (const Shape& shape : {kStarcoder2, kNemotron, kCohere2}) cases.push_back({shape, DType::kFloat32});
  for (const auto& [shape, dtype] : cases) {
    SCOPED_TRACE(std::string(shape.type) + " " + Name(dtype));
    const auto weights = MakeWeights(shape, dtype);
    const Matrix<float> values = RandomValues(weights->config.vocab, weights->config.hidden);
    for (const auto& [norm, head] : {std::pair(true, false), std::pair(false, true), std::pair(true, true)}) {
      DepthPlan plan = DepthPlan::Original(2);
      const auto output = std::make_shared<OwnOutput>(*weights, plan);
      if (norm)
        output->Replace(&OutputWeights::final_norm, values.span().subspan(1, static_cast<size_t>(values.cols())));
      if (head) output->Replace(&OutputWeights::head, values.span());
      plan.output = OwnOutput::Share(output);
      ExpectParity(weights, plan);
      const std::vector<int32_t> tokens = Tokens(*weights, 9);
      std::vector<float> scores[2];
      int32_t chosen[2];
      for (const Device device : {Device::kCpu, Device::kCuda}) {
        Decoder decoder(On(device), weights, plan);
        Batch batch;
        batch.Add(tokens);
        scores[device == Device::kCuda] = decoder.LogProbs(decoder.Forward(batch), tokens);
        KvCache cache(weights->config, plan, 16);
        chosen[device == Device::kCuda] = decoder.NextToken(tokens, cache, {}, 0);
      }
      EXPECT_LE(RelativeError(scores[1], scores[0]), ManyTolerance(dtype));
      EXPECT_EQ(chosen[1], chosen[0]);
    }
  }
  const auto weights = MakeWeights(kQwen2, DType::kBFloat16);
  DepthPlan plan = DepthPlan::Original(2);
  const Matrix<float> wide(weights->config.vocab, weights->config.hidden);
  plan.output = std::make_shared<const OutputWeights>(
      OutputWeights{weights->final_norm, {wide.data(), DType::kFloat32, weights->head.shape}});
  try {
    const Decoder decoder(On(Device::kCuda), weights, plan);
    ADD_FAILURE() << "taken";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("head is float32, the model bfloat16"), std::string::npos) << error.what();
  }
}

TEST_F(ModelOnGpu, ANaNAmongTheLogitsIsAnError) {
  const auto weights = std::make_shared<Weights>(*MakeWeights(kQwen2, DType::kFloat32));
  std::vector<float> norm(static_cast<size_t>(weights->config.hidden), 1.0f);
  norm[3] = NAN;
  weights->final_norm.data = norm.data();
  const DepthPlan plan = DepthPlan::Original(2);
  for (const Device device : {Device::kCpu, Device::kCuda}) {
    Decoder decoder(On(device), weights, plan);
    KvCache cache(weights->config, plan, 8);
    EXPECT_THROW(decoder.NextToken(Tokens(*weights, 3), cache, {}, 0), Error);
  }
}

TEST_F(ModelOnGpu, PlansShareOneCopyOfTheWeights) {
  const auto weights = MakeWeights(kQwen2, DType::kBFloat16);
  const auto same = std::make_shared<Weights>(*weights);
  Decoder first(On(Device::kCuda), weights, DepthPlan::Original(2)),
      second(On(Device::kCuda), weights, Corrected(*weights, 8)),
      other(On(Device::kCuda), same, DepthPlan::Original(2));
  Batch batch;
  batch.Add(Tokens(*weights, 3));
  const Rows h = first.Forward(batch);
  EXPECT_EQ(second.Forward(batch).device(), h.device());
  EXPECT_NE(other.Forward(batch).device(), h.device());
}

TEST_F(ModelOnGpu, RefusesModelsTheKernelsDoNotTake) {
  const auto expect = [](const std::shared_ptr<const Weights>& weights, const std::string& says) {
    try {
      const Decoder decoder(On(Device::kCuda), weights, DepthPlan::Original(weights->config.layers));
      ADD_FAILURE() << "taken";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(says), std::string::npos) << error.what();
    }
  };
  expect(GoldenWeights("llama2"), "heads of 64, 80, 96, 128 or 256; this model's have 12");
  expect(MakeWeights({.hidden = 76}, DType::kFloat32), "multiples of 8, not 76 and 104");
}

TEST_F(ModelOnGpu, RefusesTokensOutsideTheVocabulary) {
  const auto weights = MakeWeights(kQwen2, DType::kFloat32);
  Decoder decoder(On(Device::kCuda), weights, DepthPlan::Original(2));
  Batch batch;
  batch.Add(std::vector<int32_t>{3, 61});
  EXPECT_THROW(decoder.Forward(batch), Error);
}

}  // namespace
}  // namespace shiftrt
