// SPDX-License-Identifier: Apache-2.0
// Counts what a step of gradients launches and copies, which the emulator can.
#include <gtest/gtest.h>

#include "engine/gradients.h"
#include "engine/ops.h"
#include "kernels/emulated/device.h"
#include "kernels/emulated/machine.h"
#include "models/block_tensors.h"
#include "tests/cuda/models.h"

namespace shiftrt {
namespace {

constexpr int64_t kLaunchesPerBlock = 46;  // as docs/dev/gpu.md says

// Trains a LoRA of the query projection of every block.
class GradientCosts : public testing::Test {
 protected:
  void Make(int layers) {
    Shape shape = kLlama;
    shape.layers = layers;
    weights_ = MakeWeights(shape, DType::kBFloat16);
    engine_ = std::make_unique<GradientEngine>(On(Device::kCuda), weights_, DepthPlan::Original(layers));
    TrainedParameters trained;
    const auto parameter = [&](int64_t rows, int64_t cols) {
      memory_.insert(memory_.end(), {engine_->Allocate(rows * cols), engine_->Allocate(rows * cols)});
      return Parameter{memory_[memory_.size() - 2].matrix(rows, cols), memory_.back().matrix(rows, cols)};
    };
    for (int layer = 0; layer < layers; ++layer) {
      StageParameters& stage = trained.stages.emplace_back();
      stage.loras.resize(BlockTensors().size());
      size_t q = 0;
      while (BlockTensors()[q].member != &BlockWeights::q) ++q;
      stage.loras[q] = {parameter(8, weights_->config.hidden), parameter(weights_->config.query_dim(), 8)};
    }
    engine_->Set(trained);
    batch_.Add(std::vector<int32_t>(9, 3));
    batch_.Add(std::vector<int32_t>(5, 4));
    engine_->Step(batch_, {}, 1);  // uploads the weights
  }
  int64_t LaunchesOfStep() {
    const int64_t before = emu::Launches();
    engine_->Step(batch_, {}, 1);
    return emu::Launches() - before;
  }

  std::shared_ptr<const Weights> weights_;
  std::unique_ptr<GradientEngine> engine_;
  std::vector<DeviceMemory> memory_;
  Batch batch_;
};

// Token ids and indices go in, and a loss per row comes out. Activations and gradients stay on the device.
TEST_F(GradientCosts, AStepTakesTokenIdsInAndLossesOut) {
  Make(2);
  const int64_t in = emu::BytesToDevice(), out = emu::BytesToHost();
  engine_->Step(batch_, {}, 1);
  const int64_t tokens = batch_.size(), predicted = tokens - batch_.sequences();
  EXPECT_EQ(emu::BytesToHost() - out, 4 * predicted);
  // Four numbers per token and sequence for the batch; a target and a scale per predicted row, and its index whenever
  // rows are gathered or scattered.
  EXPECT_EQ((emu::BytesToDevice() - in) % 4, 0);
  EXPECT_LE(emu::BytesToDevice() - in, 4 * (4 * (tokens + batch_.sequences()) + 5 * predicted));
}

// Kernel launches, without cuBLASLt's, per block and for the rest of a step.
TEST_F(GradientCosts, LaunchesPerBlockAreTheDocumentedNumber) {
  Make(2);
  const int64_t two = LaunchesOfStep();
  Make(3);
  const int64_t three = LaunchesOfStep();
  EXPECT_EQ(three - two, kLaunchesPerBlock);
}

}  // namespace
}  // namespace shiftrt
