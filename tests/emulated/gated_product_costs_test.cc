// SPDX-License-Identifier: Apache-2.0
// Tests what the gate and up projections in one kernel copy, and what the MLP of a decoder does without, which the
// emulator counts.
#include <gtest/gtest.h>

#include "kernels/cuda/gated_product.h"
#include "kernels/emulated/device.h"
#include "kernels/emulated/machine.h"
#include "kernels/emulated/tile_memory.h"
#include "tests/cuda/gated_product_setting.h"
#include "tests/cuda/models.h"
#include "tests/engine/rows.h"

namespace shiftrt {
namespace {

constexpr int64_t kHidden = 320, kIntermediate = 136, kTokens = 130;
// Two tiles of tokens and two of columns. For every 64 hidden columns, each copies a tile of x and one of each weight.
constexpr int64_t kBoxBytes = 2 * 2 * (kHidden / 64) * 3 * (128 * 64 * 2);

class GatedProductCosts : public testing::Test {
 protected:
  GatedProductCosts() {
    Shape shape = kQwen2;
    shape.hidden = kHidden;
    shape.intermediate = kIntermediate;
    weights_ = MakeWeights(shape, DType::kBFloat16);
    for (int sequence = 0; sequence < 2; ++sequence) batch_.Add(std::vector<int32_t>(kTokens / 2, 3));
  }
  struct Cost {
    int64_t launches, box_bytes, memory;
    std::vector<float> stream;
  };
  // The cost of a call that runs one MLP.
  Cost OfMlp(const char* setting) {
    const gpu::GatedProductSetting set(setting);
    const DepthPlan plan{{BlockStage{0, Halves::kMlp}}};
    Decoder decoder(On(Device::kCuda), weights_, plan);
    const Cost before{emu::Launches(), emu::BoxBytes(), emu::AllocatedBytes(), {}};
    const Matrix<float> stream = test::Copied(decoder.Forward(batch_));
    return {emu::Launches() - before.launches,
            emu::BoxBytes() - before.box_bytes,
            emu::AllocatedBytes() - before.memory,
            {stream.span().begin(), stream.span().end()}};
  }

  const emu::ComputeCapability capability_{9};
  std::shared_ptr<const Weights> weights_;
  Batch batch_;
};

TEST_F(GatedProductCosts, TheProductIsNotWrittenAndTilesAreCopiedOncePerTileOfTheOutput) {
  const Cost at_once = OfMlp("1"), apart = OfMlp("0");
  EXPECT_EQ(at_once.box_bytes, kBoxBytes);
  EXPECT_EQ(apart.box_bytes, 0);
  // Embedding, norm and one more each: the kernel, or the activation. The product before the activation is a launch of
  // cuBLASLt, which the emulator does not count.
  EXPECT_EQ(at_once.launches, 3 + 1);
  EXPECT_EQ(apart.launches, at_once.launches);
  // There is no array of the product, which would be written and read: 4 intermediate elements per token.
  EXPECT_EQ(apart.memory - at_once.memory, kTokens * 2 * kIntermediate * static_cast<int64_t>(sizeof(BFloat16)));
  EXPECT_NE(at_once.stream, apart.stream);
}

TEST_F(GatedProductCosts, ItIsOffUnlessAskedFor) {
  EXPECT_EQ(OfMlp(nullptr).box_bytes, 0);
  EXPECT_EQ(OfMlp("1").box_bytes, kBoxBytes);
  const emu::ComputeCapability older(8);
  EXPECT_EQ(OfMlp("1").box_bytes, 0);
}

}  // namespace
}  // namespace shiftrt
