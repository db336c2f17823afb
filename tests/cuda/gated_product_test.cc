// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/gated_product.h"

#include <set>

#include "tests/cuda/fixture.h"
#include "tests/cuda/gated_product_setting.h"

#ifdef SHIFTRT_EMULATED
#include "kernels/emulated/device.h"
#endif

namespace shiftrt::gpu {
namespace {

struct Sizes {
  int64_t tokens, hidden, intermediate;
};
struct Form {
  bool gelu, biased;
};

// One element in float64, and the tolerance of it.
struct Gated {
  double value, tolerance;
};
// `gate_size` and `up_size` are sums of absolute values, over the terms of each sum.
template <typename T>
Gated Gate(double gate, double up, double gate_size, double up_size, int64_t hidden, bool gelu) {
  const double u = std::sqrt(2 / M_PI) * (gate + 0.044715 * gate * gate * gate);
  const double activated = gate / (1 + std::exp(gelu ? -2 * u : -gate));
  // An addition to a float32 sum may cut off what is below its last place, which is two of our units, and there are as
  // many as terms. The slopes of both activations are below 1.2. The relative error of the exponential follows from the
  // error of its argument. The result is rounded to T.
  const double sums = 2 * kUnit<float> * static_cast<double>(hidden + 1);
  const double exponent = kUnit<float> * (16 + 12 * std::abs(gelu ? u : gate));
  const double error = 1.2 * sums * gate_size * (std::abs(up) + sums * up_size) + std::abs(activated) * sums * up_size +
                       exponent * std::abs(activated * up);
  return {activated * up, kUnit<T> * std::abs(activated * up) + 1.01 * error + 0x1p-25};
}

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

  template <typename T>
  void Check(const Sizes& sizes, const Form& form) {
    SCOPED_TRACE(testing::Message() << sizes.tokens << " tokens, hidden " << sizes.hidden << ", intermediate "
                                    << sizes.intermediate << (form.gelu ? ", gelu" : ", silu")
                                    << (form.biased ? ", biased" : ""));
    constexpr int64_t kBehind = kGatedTile;  // rows of the output that belong to no token
    const auto [tokens, hidden, n] = sizes;
    const auto x = Input<T>::Normal(stream_, tokens * hidden, 1),
               w = Input<T>::Normal(stream_, 2 * n * hidden, 2, 2 / std::sqrt(static_cast<double>(hidden)));
    const auto bias = Input<float>::Normal(stream_, 2 * n, 3);
    const Output<T> out(stream_, (tokens + kBehind) * n);
    (form.gelu ? MultiplyGeGlu : MultiplySwiGlu)(stream_, {.x = x.array(),
                                                           .gate_up = w.array(),
                                                           .bias = form.biased ? bias.data() : nullptr,
                                                           .tokens = tokens,
                                                           .hidden = hidden,
                                                           .intermediate = n,
                                                           .out = out.array(),
                                                           .multiprocessors = 2});
    const std::vector<T> found = out.Raw();
    for (int64_t t = 0; t < tokens; ++t) {
      for (int64_t j = 0; j < n; ++j) {
        double sums[2] = {}, sizes_of_sums[2] = {};
        for (const int which : {0, 1}) {  // gate, up
          for (int64_t k = 0; k < hidden; ++k) {
            const double term = x[t * hidden + k] * w[(which * n + j) * hidden + k];
            sums[which] += term;
            sizes_of_sums[which] += std::abs(term);
          }
          if (!form.biased) continue;
          sums[which] += bias[which * n + j];
          sizes_of_sums[which] += std::abs(bias[which * n + j]);
        }
        const Gated expected = Gate<T>(sums[0], sums[1], sizes_of_sums[0], sizes_of_sums[1], hidden, form.gelu);
        EXPECT_CLOSE(Exact(found[t * n + j]), expected.value, expected.tolerance, t * n + j);
      }
    }
    for (int64_t i = tokens * n; i < (tokens + kBehind) * n; ++i)
      ASSERT_EQ(found[i].bits, 0xffff) << "written at " << i;
  }

  std::vector<uint16_t> BitsWith(int multiprocessors) {
    const Sizes sizes{260, 128, 264};
    const auto x = Input<BFloat16>::Normal(stream_, sizes.tokens * sizes.hidden, 1),
               w = Input<BFloat16>::Normal(stream_, 2 * sizes.intermediate * sizes.hidden, 2, 0.1);
    const Output<BFloat16> out(stream_, sizes.tokens * sizes.intermediate);
    MultiplySwiGlu(stream_, {.x = x.array(),
                             .gate_up = w.array(),
                             .tokens = sizes.tokens,
                             .hidden = sizes.hidden,
                             .intermediate = sizes.intermediate,
                             .out = out.array(),
                             .multiprocessors = multiprocessors});
    std::vector<uint16_t> bits;
    for (const BFloat16 value : out.Raw()) bits.push_back(value.bits);
    return bits;
  }
};

// Both activations with and without biases, one tile.
TEST_F(GatedProductOnGpu, AgreesWithFloat64) {
  for (const bool gelu : {false, true}) {
    for (const bool biased : {false, true}) {
      Check<BFloat16>({65, 64, 72}, {gelu, biased});
      Check<Float16>({65, 128, 72}, {gelu, biased});
    }
  }
}

// Tokens that fill a warpgroup or a tile, or are one too few or too many.
TEST_F(GatedProductOnGpu, TakesAnyNumberOfTokens) {
  for (const int64_t tokens : {1, 63, 64, 65, 128, 129, 300}) {
    Check<BFloat16>({tokens, 64, 136}, {false, true});
    Check<Float16>({tokens, 64, 8}, {true, false});
  }
}

// Intermediate sizes that end within a tile of columns, so that the last box of the gate's weights has rows of the up
// projection.
TEST_F(GatedProductOnGpu, TakesIntermediateSizesInEights) {
  for (const int64_t intermediate : {8, 120, 128, 136, 264}) {
    Check<BFloat16>({70, 64, intermediate}, {true, true});
    Check<Float16>({130, 64, intermediate}, {false, true});
  }
}

// From one step to more than there are stages, on one tile per block and on several.
TEST_F(GatedProductOnGpu, TakesAnyNumberOfSteps) {
  for (const int64_t hidden : {64, 128, 192, 256, 320, 576}) {
    Check<BFloat16>({33, hidden, 40}, {false, false});
    Check<Float16>({130, hidden, 136}, {false, true});
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
    MultiplySwiGlu(
        stream_,
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
