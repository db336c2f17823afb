// SPDX-License-Identifier: Apache-2.0
// Compares losses and gradients on the device with those on the CPU, on whole models: on the emulator and, if there is
// one, on a GPU.
#include "engine/gradients.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "engine/ops.h"
#include "kernels/widen.h"
#include "runtime/check.h"
#include "runtime/random.h"
#include "tests/cuda/models.h"
#include "tests/cuda/quantised_models.h"
#include "tests/models/mlp_units.h"

namespace shiftrt {
namespace {

// On the GPU, products and attention of a bfloat16 model round their operands, some twenty times one after another. A
// single gradient may be small because its terms cancel, and then its relative error is larger.
struct Tolerance {
  double all, each;
};
// In a gated delta network, the products of random queries with keys cancel, and the norm of the heads enlarges what is
// left.
Tolerance GradientTolerance(const Weights& weights, DType dtype) {
  if (dtype != DType::kFloat32) return {16 * 0x1p-8, 50 * 0x1p-8};
  const double factor = weights.config.block.gated_delta ? 4 : 1;
  return {factor * 1e-5, factor * 2e-5};
}

double RelativeDistance(const std::vector<float>& found, const std::vector<float>& expected) {
  EXPECT_EQ(found.size(), expected.size());
  double difference = 0, size = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    difference += std::pow(static_cast<double>(found[i]) - expected[i], 2);
    size += std::pow(static_cast<double>(expected[i]), 2);
  }
  const double distance = std::sqrt(difference / size);
  return std::isnan(distance) ? HUGE_VAL : distance;
}

Matrix<float> RandomMatrix(int64_t rows, int64_t cols, uint64_t seed, double scale) {
  Random random(seed);
  Matrix<float> matrix(rows, cols);
  for (float& x : matrix.span()) x = static_cast<float>(scale * random.Normal());
  return matrix;
}

// Two blocks, of which the second, unless it has a mixture, has tensors of its own and an MLP of fewer units, with an
// adapter of each form after them.
DepthPlan PlanOf(const Weights& weights) {
  const int64_t hidden = weights.config.hidden;
  auto low = std::make_shared<Lra>(), full = std::make_shared<Lra>();
  *low = {{}, RandomMatrix(hidden, 3, 1, 0.1), RandomMatrix(3, hidden, 2, 0.1), RandomMatrix(1, hidden, 3, 0.1)};
  *full = {RandomMatrix(hidden, hidden, 4, 0.03), {}, {}, RandomMatrix(1, hidden, 5, 0.1)};
  const BlockStage second = weights.blocks[1].IsMixture() ? BlockStage{.layer = 1} : WithUnits(weights, {1}, 56);
  return {{BlockStage{.layer = 0}, AdapterStage{{0}, low}, second, AdapterStage{{1}, full}}};
}

struct Trained {
  bool tensors = false;  // trains blocks, the last norm and the head; otherwise LoRA and adapters alone
  float dropout = 0;
};

// An engine on one device, and what it trains there.
class Side {
 public:
  Side(Device device, const std::shared_ptr<const Weights>& weights, const Trained& of)
      : weights_(weights), engine_(On(device), weights, PlanOf(*weights)) {
    TrainedParameters trained;
    trained.lora = {.scale = 2, .dropout = of.dropout, .seed = 7, .step = 3};
    for (const Stage& stage : engine_.plan().stages) {
      StageParameters& parameters = trained.stages.emplace_back();
      const std::string prefix = fmt::format("{}.", trained.stages.size() - 1);
      stage.Visit([&](const BlockStage& block) { AddBlock(prefix, block, of.tensors, parameters); },
                  [&](const AdapterStage& adapter) { AddAdapter(prefix, *adapter.lra, parameters); });
    }
    if (of.tensors) {
      trained.final_norm = Add("final norm", weights->final_norm);
      trained.head = Add("head", weights->head);
    }
    engine_.Set(trained);
  }

  GradientEngine& engine() { return engine_; }
  const std::map<std::string, Parameter>& all() const { return by_name_; }
  std::vector<float> Gradient(const std::string& name) {
    const DeviceMatrix<float>& gradient = by_name_.at(name).gradient;
    std::vector<float> host(gradient.rows * gradient.cols);
    engine_.ops().ToHost(gradient, host);
    return host;
  }

 private:
  Parameter Add(const std::string& name, int64_t rows, int64_t cols, std::span<const float> values) {
    const auto value = engine_.Allocate(rows * cols), gradient = engine_.Allocate(rows * cols);
    engine_.ops().FromHost(values, value.all());
    memory_.insert(memory_.end(), {value, gradient});
    return by_name_[name] = {value.matrix(rows, cols), gradient.matrix(rows, cols)};
  }
  Parameter Add(const std::string& name, const TensorView& tensor) {
    const bool vector = tensor.shape.size() != 2;
    return Add(name, vector ? 1 : tensor.rows(), vector ? tensor.elements() : tensor.cols(), Widened(tensor));
  }
  Parameter Add(const std::string& name, const Matrix<float>& matrix) {
    return matrix.empty() ? Parameter() : Add(name, matrix.rows(), matrix.cols(), matrix.span());
  }

  void AddBlock(const std::string& prefix, const BlockStage& block, bool tensors, StageParameters& parameters) {
    parameters.tensors.resize(BlockTensors().size());
    parameters.loras.resize(BlockTensors().size());
    ForEachTensor(TensorsOf(*weights_, block), block.halves, [&](const BlockTensor& row, const TensorView& tensor) {
      if (row.expert >= 0) {
        if (!tensors) return;
        parameters.experts.resize(weights_->blocks[block.layer].experts.size());
        parameters.experts[row.expert].*ExpertGradients::Of(row) = Add(prefix + row.name, tensor).gradient;
        return;
      }
      const auto r = static_cast<size_t>(&row - BlockTensors().data());
      const std::string name = prefix + row.name;
      if (tensors) parameters.tensors[r] = Add(name, tensor);
      if (row.kind != BlockTensor::Kind::kMatrix || row.member == &BlockWeights::router) return;
      const int64_t rank = r % 2 == 0 ? 8 : 3;  // 16-bit rows of the second are not aligned
      parameters.loras[r] = {Add(name + ".a", RandomMatrix(rank, tensor.cols(), r, 0.1)),
                             Add(name + ".b", RandomMatrix(tensor.rows(), rank, 50 + r, 0.1))};
    });
  }
  void AddAdapter(const std::string& prefix, const Lra& lra, StageParameters& parameters) {
    parameters.a = Add(prefix + "A", lra.a);
    parameters.p = Add(prefix + "P", lra.p);
    parameters.q = Add(prefix + "Q", lra.q);
    parameters.b = Add(prefix + "bias", lra.b);
  }

  std::shared_ptr<const Weights> weights_;
  GradientEngine engine_;
  std::map<std::string, Parameter> by_name_;
  std::vector<DeviceMemory> memory_;
};

Batch PackedText(const Weights& weights, std::initializer_list<int64_t> lengths) {
  Random random(5);
  Batch batch;
  for (const int64_t length : lengths) {
    std::vector<int32_t> tokens(length);
    for (int32_t& token : tokens) token = static_cast<int32_t>(random.Below(weights.config.vocab));
    batch.Add(tokens);
  }
  return batch;
}

class GradientsOnGpu : public testing::Test {
 protected:
  void SetUp() override {
    if (!gpu::WhyUnavailable().empty()) GTEST_SKIP() << gpu::WhyUnavailable();
  }

  // One step on each device with this kind of loss; with a divergence, of the model's own predictions.
  static void ExpectParity(const Shape& shape, DType dtype, const Trained& of, LossKind kind = {}) {
    SCOPED_TRACE(fmt::format("{} {}", shape.type, Name(dtype)));
    ExpectParity(MakeWeights(shape, dtype), dtype, of, kind);
  }
  // `dtype` is the type of activations in products.
  static void ExpectParity(const std::shared_ptr<const Weights>& weights, DType dtype, const Trained& of,
                           LossKind kind = {}) {
    const Batch batch = PackedText(*weights, {20, 1, 9});
    Side here(Device::kCpu, weights, of), there(Device::kCuda, weights, of);
    LossSum losses[2];
    for (Side* side : {&here, &there}) {
      Decoder teacher(On(side == &here ? Device::kCpu : Device::kCuda), weights, DepthPlan::Original(2));
      const Rows stream = teacher.Forward(batch);
      if (kind.divergence > 0) kind.teacher = &stream;
      losses[side == &there] = side->engine().Step(batch, {}, 1.0 / 27, kind);
    }
    const Tolerance tolerance = GradientTolerance(*weights, dtype);
    EXPECT_NEAR(losses[1].loss, losses[0].loss, tolerance.all / 4 * losses[0].loss);
    EXPECT_EQ(losses[1].weight, losses[0].weight);
    std::vector<float> all[2];
    for (const auto& [name, parameter] : here.all()) {
      const std::vector<float> found = there.Gradient(name), expected = here.Gradient(name);
      // No token of the batch may have chosen an expert.
      const auto zero = [](const std::vector<float>& x) { return std::ranges::count(x, 0.0f) == std::ssize(x); };
      if (name.find("experts.") == name.npos || !zero(expected) || !zero(found)) {
        EXPECT_LE(RelativeDistance(found, expected), tolerance.each) << name;
      }
      all[0].insert(all[0].end(), expected.begin(), expected.end());
      all[1].insert(all[1].end(), found.begin(), found.end());
    }
    EXPECT_LE(RelativeDistance(all[1], all[0]), tolerance.all);
    if (of.dropout == 0) {
      EXPECT_NEAR(there.engine().Loss(batch, {}).loss, here.engine().Loss(batch, {}).loss,
                  tolerance.all / 4 * losses[0].loss);
    }
  }
};

TEST_F(GradientsOnGpu, OfEveryTensorAgreeWithTheCpu) {
  for (const Shape& shape : {kLlama, kQwen2, kQwen3, kGemma2, kStarcoder2, kNemotron, kCohere2})
    ExpectParity(shape, DType::kFloat32, {.tensors = true});
  for (const Shape& shape : {kQwen2, kGemma2, kStarcoder2, kNemotron, kCohere2})
    ExpectParity(shape, DType::kBFloat16, {.tensors = true});
}

TEST_F(GradientsOnGpu, OfBlocksWithOtherPropertiesAgreeWithTheCpu) {
  for (const Shape& shape : {kGemma3, kMinistral3, kOlmo2, kSmolLm3, kGranite, kGlm4, kPhi3Long})
    ExpectParity(shape, DType::kFloat32, {.tensors = true});
}

// In 16 bits, all experts of a mixture are active, so that both devices choose the same ones.
TEST_F(GradientsOnGpu, OfGatedDeltaNetworksAndMixturesAgreeWithTheCpu) {
  for (const Shape& shape : {kQwen35, kQwen3Next, kQwen3Moe, kQwen2Moe, kMixtral, kGptOssChoice})
    ExpectParity(shape, DType::kFloat32, {.tensors = true});
  for (const Shape& shape : {kQwen35, kQwen2Moe, kGptOss}) ExpectParity(shape, DType::kBFloat16, {.tensors = true});
  ExpectParity(kQwen3Next, DType::kFloat32, {.dropout = 0.25f}, {.cross_entropy = 0.5f, .divergence = 1});
}

TEST_F(GradientsOnGpu, OfLoraWithDropoutAgreeWithTheCpu) {
  ExpectParity(kPhi3, DType::kFloat32, {.dropout = 0.25f});
  ExpectParity(kQwen3, DType::kBFloat16, {.dropout = 0.25f});
}

TEST_F(GradientsOnGpu, OfDistillationAgreeWithTheCpu) {
  const LossKind both{.cross_entropy = 0.5f, .divergence = 1};
  ExpectParity(kGemma2, DType::kFloat32, {}, both);
  ExpectParity(kQwen2, DType::kBFloat16, {}, both);
}

// LoRA on frozen quantised weights, and a head whose logits and whose teacher's are expanded in turns.
TEST_F(GradientsOnGpu, OnQuantisedWeightsAgreeWithTheCpu) {
  ExpectParity(MakeQuantised(kQuantisedQwen3, kMixedTypes), DType::kBFloat16, {},
               {.cross_entropy = 0.5f, .divergence = 1});
  ExpectParity(MakeQuantised(kQuantisedQwen2Moe, kMixedTypes), DType::kBFloat16, {});
  const auto weights = MakeQuantised(kQuantisedQwen2, kMixedTypes);
  const Matrix<float> values = RandomMatrix(256, 256, 1, 1);
  double sums[2];
  for (const Device device : {Device::kCpu, Device::kCuda}) {
    const auto ops = MakeOps(On(device), weights);
    const DeviceMemory there = ops->Allocate(256 * 256);
    ops->FromHost(values.span(), there.all());
    sums[device == Device::kCuda] = ops->SumOfAbsoluteProducts(weights->blocks[1].q, there.matrix(256, 256));
  }
  EXPECT_NEAR(sums[1], sums[0], 0x1p-8 * sums[0]);  // the GPU rounds the weights to bfloat16
}

TEST_F(GradientsOnGpu, AreTheSameBitsEveryTime) {
  for (const Shape& shape : {kQwen2, kQwen3Next}) {
    const auto weights = MakeWeights(shape, DType::kBFloat16);
    const Batch batch = PackedText(*weights, {20, 1, 9});
    Side one(Device::kCuda, weights, {}), two(Device::kCuda, weights, {});
    EXPECT_EQ(one.engine().Step(batch, {}, 1).loss, two.engine().Step(batch, {}, 1).loss);
    for (const auto& [name, parameter] : one.all()) EXPECT_EQ(one.Gradient(name), two.Gradient(name)) << name;
  }
}

// A step of AdamW, and the sums that clipping and the Taylor criterion read.
TEST_F(GradientsOnGpu, StepsAndSumsAgreeWithTheCpu) {
  const auto weights = MakeWeights(kGemma2, DType::kBFloat16);
  constexpr int64_t kCount = 10003;
  const int64_t kv_dim = weights->config.kv_dim();
  std::vector<float> stepped[2][3];
  std::vector<double> sums[2];
  for (const Device device : {Device::kCpu, Device::kCuda}) {
    const auto ops = MakeOps(On(device), weights);
    std::vector<DeviceMemory> arrays;
    for (const uint64_t seed : {1, 2, 3, 4}) {
      Matrix<float> values = RandomMatrix(1, kCount, seed, 1);
      if (seed == 4)
        for (float& x : values.span()) x *= x;
      arrays.push_back(ops->Allocate(kCount));
      ops->FromHost(values.span(), arrays.back().all());
    }
    ops->AdamWStep({.rate = 0.01f, .decay = 0.1f, .gradient_scale = 0.5f, .step = 3}, arrays[0].all(), arrays[1].all(),
                   arrays[2].all(), arrays[3].all());
    const int at = device == Device::kCuda;
    for (int i = 0; i < 3; ++i) {
      stepped[at][i].resize(kCount);
      ops->ToHost(arrays[i + 1].all(), stepped[at][i]);
    }
    sums[at] = {ops->SumOfSquares(arrays[0].all()),
                ops->SumOfAbsoluteProducts(weights->blocks[1].k, arrays[0].matrix(kv_dim, 72)),
                ops->SumOfAbsoluteProducts(weights->blocks[1].post_norm, arrays[0].matrix(1, 72)),
                ops->SumOfAbsoluteProducts(arrays[1].matrix(64, 72), arrays[0].matrix(64, 72))};
  }
  for (int i = 0; i < 3; ++i) EXPECT_LE(RelativeDistance(stepped[1][i], stepped[0][i]), 1e-6);
  for (size_t i = 0; i < sums[0].size(); ++i) EXPECT_NEAR(sums[1][i], sums[0][i], 1e-6 * sums[0][i]) << i;
}

TEST_F(GradientsOnGpu, AFloat16ModelIsRefused) {
  const auto weights = MakeWeights(kLlama, DType::kFloat16);
  try {
    GradientEngine engine(On(Device::kCuda), weights, DepthPlan::Original(2));
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("--dtype"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace shiftrt
