// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/gated_product.h"

#include <set>

#include "tests/cuda/fixture.h"
#include "tests/cuda/gated_product_setting.h"
#include "tests/kernels/fused_product_cases.h"

#ifdef SHIFTRT_EMULATED
#include "kernels/emulated/device.h"
#endif

namespace shiftrt::gpu {
namespace {

using test::Epilogue;

class GatedProductOnGpu : public CudaTest {
 protected:
#ifdef SHIFTRT_EMULATED
  const emu::ComputeCapability capability_{9};
#endif
  void SetUp() override {
    CudaTest::SetUp();
    if (!IsSkipped())
      RequireHopper(TakesGatedProduct(0, DType::kBFloat16, 64, 8),
                    SwitchedOn("SHIFTRT_CUDA_WGMMA", true) && SwitchedOn("SHIFTRT_CUDA_GATED_PRODUCT", true));
  }

  // An addition to a float32 sum may cut off what is below its last place, which is two of our units, and there are as
  // many as terms.
  template <typename T>
  void Check(const test::FusedProductCase& c) {
    constexpr int64_t kTail = kGatedTile;  // rows of the output that belong to no token
    const test::FusedProductProblem p(c, DTypeOf<T>::value, DTypeOf<T>::value);
    const Input<T> x(stream_, p.x), w(stream_, p.w);
    const Input<float> bias(stream_, p.bias);
    const Output<T> out(stream_, (c.tokens + kTail) * c.outputs());
    MultiplyGated(stream_, c.epilogue == Epilogue::kSilu ? Activation::kSilu : Activation::kGeluTanh,
                  {.x = x.array(),
                   .gate_up = w.array(),
                   .bias = c.biased ? bias.data() : nullptr,
                   .tokens = c.tokens,
                   .hidden = c.cols,
                   .intermediate = c.outputs(),
                   .out = out.array(),
                   .multiprocessors = 2});
    std::vector<double> found = out.Values();
    found.resize(c.tokens * c.outputs());
    p.Expect(found, 2 * static_cast<double>(c.cols + 1), DTypeOf<T>::value);
    const std::vector<T> raw = out.Raw();
    for (int64_t i = std::ssize(found); i < std::ssize(raw); ++i) ASSERT_EQ(raw[i].bits, 0xffff) << "written at " << i;
  }

  std::vector<uint16_t> BitsWith(int multiprocessors) {
    constexpr int64_t kTokens = 260, kHidden = 128, kIntermediate = 264;
    const auto x = Input<BFloat16>::Normal(stream_, kTokens * kHidden, 1),
               w = Input<BFloat16>::Normal(stream_, 2 * kIntermediate * kHidden, 2, 0.1);
    const Output<BFloat16> out(stream_, kTokens * kIntermediate);
    MultiplyGated(stream_, Activation::kSilu,
                  {.x = x.array(),
                   .gate_up = w.array(),
                   .tokens = kTokens,
                   .hidden = kHidden,
                   .intermediate = kIntermediate,
                   .out = out.array(),
                   .multiprocessors = multiprocessors});
    std::vector<uint16_t> bits;
    for (const BFloat16 value : out.Raw()) bits.push_back(value.bits);
    return bits;
  }
};

// Intermediate sizes that end within a tile of columns make the last box of the gate's weights have rows of the up
// projection. Numbers of steps are from one to more than there are stages, on one tile per block and on several.
TEST_F(GatedProductOnGpu, AgreesWithFloat64) {
  for (const test::FusedProductCase& c : test::FusedProductCases()) {
    if (!c.gated() || c.normed || c.cols % 64 != 0 || c.outputs() % 8 != 0) continue;
    Check<BFloat16>(c);
    Check<Float16>(c);
    if (HasFailure()) return;
  }
}

// Blocks only divide the tiles. Each element is the sum of the same terms in the same order.
TEST_F(GatedProductOnGpu, TheNumberOfBlocksDoesNotChangeABit) {
  const std::vector<uint16_t> one = BitsWith(1);
  for (const int blocks : {4, 132}) EXPECT_EQ(BitsWith(blocks), one) << blocks;
}

TEST_F(GatedProductOnGpu, IsUsedOnlyIfAskedFor) {
  const auto with = [](const char* setting, const auto& body) {
    const GatedProductSetting set(setting);
    return body();
  };
  const auto takes = [] { return TakesGatedProduct(0, DType::kBFloat16, 64, 8); };
  EXPECT_FALSE(with(nullptr, WantsGatedProduct));
  EXPECT_TRUE(with(nullptr, takes));
  EXPECT_TRUE(with("1", WantsGatedProduct));
  EXPECT_TRUE(with("1", takes));
  EXPECT_FALSE(with("0", WantsGatedProduct));
  EXPECT_FALSE(with("0", takes));
  EXPECT_TRUE(TakesGatedProduct(0, DType::kFloat16, 4096, 14336));
  EXPECT_FALSE(TakesGatedProduct(0, DType::kFloat32, 64, 8));
  EXPECT_FALSE(TakesGatedProduct(0, DType::kBFloat16, 72, 8));
  EXPECT_FALSE(TakesGatedProduct(0, DType::kBFloat16, 64, 12));
}

TEST_F(GatedProductOnGpu, RefusesWhatItCannotTake) {
  const Input<BFloat16> x(stream_, std::vector<double>(1024, 1.0));
  const Input<float> wide(stream_, std::vector<double>(1024, 1.0));
  const auto call = [&](ConstDeviceArray w, DeviceArray out, int64_t hidden, int64_t intermediate) {
    MultiplyGated(
        stream_, Activation::kSilu,
        {.x = x.array(), .gate_up = w, .tokens = 1, .hidden = hidden, .intermediate = intermediate, .out = out});
  };
  const DeviceArray out{x.data(), DType::kBFloat16};
  EXPECT_THROW(call(x.array(), out, 72, 8), std::runtime_error);
  EXPECT_THROW(call(x.array(), out, 64, 4), std::runtime_error);
  EXPECT_THROW(call(wide.array(), out, 64, 8), std::runtime_error);
  EXPECT_THROW(call(x.array(), {wide.data(), DType::kFloat32}, 64, 8), std::runtime_error);
}

TEST(GatedTiles, EachIsTakenOnceAndThoseOfAGroupMeetOneColumn) {
  for (const int token_tiles : {1, 3, 16, 17, 40}) {
    for (const int column_tiles : {1, 2, 7}) {
      std::set<std::pair<int, int>> taken;
      for (int i = 0; i < token_tiles * column_tiles; ++i) {
        const GatedTile tile = GatedTileAt(i, token_tiles, column_tiles);
        EXPECT_TRUE(taken.insert({tile.tokens, tile.columns}).second);
        EXPECT_LT(tile.tokens, token_tiles * kGatedTile);
        EXPECT_LT(tile.columns, column_tiles * kGatedTile);
      }
    }
  }
  for (int i = 0; i < 16; ++i) EXPECT_EQ(GatedTileAt(i, 40, 7).tokens, i * kGatedTile);
  EXPECT_EQ(GatedTileAt(16, 40, 7).tokens, 0);
  EXPECT_EQ(GatedTileAt(16, 40, 7).columns, kGatedTile);
  EXPECT_EQ(GatedTileAt(16 * 7, 40, 7).tokens, 16 * kGatedTile);
  EXPECT_EQ(GatedTileAt(2 * 16 * 7 + 8, 40, 7).columns, kGatedTile);  // the last group has eight tiles of tokens
}

}  // namespace
}  // namespace shiftrt::gpu
