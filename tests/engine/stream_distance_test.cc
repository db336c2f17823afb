// SPDX-License-Identifier: Apache-2.0
// The distance of a plan's streams from those of the original model, as a part of the loss: its value against a
// computation in float64 from tapped streams, and its gradients against central differences.
#include <gtest/gtest.h>

#include <cmath>

#include "engine/gradients.h"
#include "engine/ops.h"
#include "kernels/widen.h"
#include "runtime/random.h"
#include "tests/models/fixtures.h"

namespace shiftrt {
namespace {

using Floats = std::vector<float>;

class StreamDistance : public ::testing::TestWithParam<const char*> {
 protected:
  StreamDistance() {
    const std::filesystem::path config = TestDirectory() / "goldens/gradients" / GetParam() / "config.json";
    const TemporaryDirectory directory;
    WriteRandomCheckpoint(config, DType::kFloat32, 3, directory.path());
    weights_ = LoadWeights(directory.path());
    context_.threads = 2;
    Random random(5);
    for (const int64_t length : {9, 5}) {
      std::vector<int32_t> sequence(length);
      for (int32_t& token : sequence) token = static_cast<int32_t>(random.Below(weights_->config.vocab));
      batch_.Add(sequence);
    }
    // The first block has lost a half, so that every stream differs from the original's.
    plan_.stages = {BlockStage{.layer = 0, .halves = Halves::kMlp}};
    for (int64_t layer = 1; layer < weights_->config.layers; ++layer) plan_.stages.emplace_back(BlockStage{layer});
  }

  // The stream behind every layer.
  std::vector<Floats> Streams(const DepthPlan& plan) const {
    std::vector<Floats> streams;
    std::vector<Tap> taps;
    for (int64_t layer = 0; layer < weights_->config.layers; ++layer)
      taps.push_back({layer, TapPoint::kOutput, [&](const Rows& rows, const Batch&) {
                        const MatrixView<const float> view = rows.host();
                        streams.emplace_back(view.data, view.data + view.rows * view.cols);
                      }});
    Decoder(context_, weights_, plan, std::move(taps)).Forward(batch_);
    return streams;
  }
  Rows RowsOf(const Floats& stream) const {
    return MatrixView<const float>(stream.data(), batch_.size(), weights_->config.hidden);
  }

  // A row as the norm behind `layer` makes it; without that norm, as it is.
  std::vector<double> Normed(int64_t layer, const float* row) const {
    const ModelConfig& config = weights_->config;
    const BlockWeights& next = weights_->blocks[std::min(layer + 1, config.layers - 1)];
    const TensorView& norm = layer + 1 == config.layers ? weights_->final_norm
                             : config.block.shared_norm ? next.shared_norm
                                                        : next.input_norm;
    std::vector<double> values(row, row + config.hidden);
    if (norm.empty()) return values;
    const Floats weight = Widened(norm);
    const auto n = static_cast<double>(config.hidden);
    double mean = 0, squares = 0;
    if (config.block.layer_norm)
      for (const double x : values) mean += x / n;
    for (const double x : values) squares += (x - mean) * (x - mean) / n;
    for (int64_t i = 0; i < config.hidden; ++i)
      values[i] = (values[i] - mean) / std::sqrt(squares + config.rms_eps) * (weight[i] + config.block.norm_offset);
    return values;
  }
  double Distance(int64_t layer, const Floats& of, const Floats& from) const {
    double difference = 0, squares = 0;
    for (int64_t t = 0; t < batch_.size(); ++t) {
      const int64_t hidden = weights_->config.hidden;
      const std::vector<double> h = Normed(layer, of.data() + t * hidden), g = Normed(layer, from.data() + t * hidden);
      for (int64_t i = 0; i < hidden; ++i) {
        difference += (h[i] - g[i]) * (h[i] - g[i]);
        squares += g[i] * g[i];
      }
    }
    return difference / squares;
  }

  Context context_ = Context::Default();
  std::shared_ptr<const Weights> weights_;
  Batch batch_;
  DepthPlan plan_;
};

TEST_P(StreamDistance, HasTheValueOfAComputationInFloat64AndItsGradientsAreCentralDifferences) {
  const std::vector<Floats> original = Streams(DepthPlan::Original(weights_->config.layers)), pruned = Streams(plan_);
  std::vector<Rows> rows;
  for (const Floats& stream : original) rows.push_back(RowsOf(stream));
  std::vector<TeacherStream> teacher;
  double expected = 0;
  for (size_t layer = 0; layer < rows.size(); ++layer) {
    teacher.push_back({layer, &rows[layer]});
    expected +=
        Distance(static_cast<int64_t>(layer), pruned[layer], original[layer]) / static_cast<double>(rows.size());
  }
  ASSERT_GT(expected, 1e-3);

  GradientEngine engine(context_, weights_, plan_);
  TrainedParameters trained;
  std::vector<Parameter> all;
  std::vector<DeviceMemory> memory;
  for (const Stage& stage : plan_.stages) {
    StageParameters& of = trained.stages.emplace_back();
    of.tensors.resize(BlockTensors().size());
    const BlockStage& block = stage.block();
    ForEachTensor(TensorsOf(*weights_, block), block.halves, [&](const BlockTensor& row, const TensorView& tensor) {
      const bool vector = tensor.shape.size() < 2;
      const int64_t height = vector ? 1 : tensor.rows(), width = vector ? tensor.elements() : tensor.cols();
      memory.push_back(engine.Allocate(height * width));
      memory.push_back(engine.Allocate(height * width));
      engine.ops().FromHost(Widened(tensor), memory[memory.size() - 2].all());
      all.push_back({memory[memory.size() - 2].matrix(height, width), memory.back().matrix(height, width)});
      of.tensors[&row - BlockTensors().data()] = all.back();
    });
  }
  engine.Set(trained);
  const LossKind distance{.cross_entropy = 0, .distance = 0.5f, .streams = teacher};
  const LossSum loss = engine.Step(batch_, {}, 1, distance);
  EXPECT_EQ(loss.weight, 12);  // targets of both sequences
  EXPECT_NEAR(loss.loss, 0.5 * 12 * expected, 1e-4 * 6 * expected);

  for (const Parameter& parameter : all) {
    const MatrixView<const float> of = DeviceMatrix<const float>(parameter.gradient).host();
    const Floats gradient(of.data, of.data + of.rows * of.cols);
    double squares = 0;
    for (const float g : gradient) squares += static_cast<double>(g) * g;
    if (squares == 0) continue;  // a bias of keys cancels in the softmax
    auto* const value = const_cast<float*>(parameter.value.host().data);
    const Floats before(value, value + gradient.size());
    const double step = 0.01 / std::sqrt(squares);
    double side[2];
    for (const int s : {0, 1}) {
      for (size_t i = 0; i < gradient.size(); ++i)
        value[i] = static_cast<float>(before[i] + (s == 0 ? -step : step) * gradient[i]);
      side[s] = engine.Step(batch_, {}, 0, distance).loss;
    }
    std::ranges::copy(before, value);
    EXPECT_NEAR((side[1] - side[0]) / (2 * step), squares, 0.03 * squares) << &parameter - all.data();
  }
}

TEST_P(StreamDistance, OfTheOriginalModelIsZero) {
  const DepthPlan whole = DepthPlan::Original(weights_->config.layers);
  const std::vector<Floats> original = Streams(whole);
  const Rows rows = RowsOf(original[0]);
  const std::vector<TeacherStream> teacher = {{0, &rows}};
  GradientEngine engine(context_, weights_, whole);
  EXPECT_EQ(engine.Step(batch_, {}, 1, {.cross_entropy = 0, .distance = 1, .streams = teacher}).loss, 0);
}

// RMSNorm, RMSNorm with an offset, LayerNorm shared by the halves of a parallel block, and no norm in front of a half.
INSTANTIATE_TEST_SUITE_P(Families, StreamDistance, ::testing::Values("llama", "gemma2", "cohere2", "olmo2"));

}  // namespace
}  // namespace shiftrt
