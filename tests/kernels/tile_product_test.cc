// SPDX-License-Identifier: Apache-2.0
// The emulated tiles against the hardware, and the split of a float32.
#include "kernels/cpu/tile_product.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "kernels/cpu/emulated_tiles.h"
#include "tests/kernels/oracle.h"

namespace shiftrt {
namespace {

using test::Padded;
using test::Stored;

// The packed form of a part: its upper half.
float Packed(Bits part, int lane) { return std::bit_cast<float>(part[lane] & 0xffff0000u); }

TEST(TileProduct, TheThreePartsOfAFloat32AreExact) {
  std::vector<uint32_t> patterns = {0,          1,          0x8000,     0xffff,     0x007fffff, 0x00800000,
                                    0x3f800000, 0x3f7fffff, 0x3f808000, 0x3f807fff, 0x3f80ffff, 0x3fff8000,
                                    0x3fffffff, 0x7f7f7fff, 0x7f7f8000, 0x7f7fffff};
  Random random(5);
  while (patterns.size() < 100'000) {
    const auto bits = static_cast<uint32_t>(random.Below(uint64_t{1} << 32));
    if (std::isfinite(std::bit_cast<float>(bits))) patterns.push_back(bits);
  }
  for (const uint32_t bits : patterns) {
    const float x = std::bit_cast<float>(bits);
    Bits parts[kParts];
    Split(SixteenFloats{x, -x}, parts);
    for (int lane = 0; lane < 2; ++lane) {
      const float first = Packed(parts[0], lane), second = Packed(parts[1], lane), third = Packed(parts[2], lane);
      // bfloat16 has no bits below 2^-133.
      const double lost = std::abs(static_cast<double>(first) + second + third - (lane == 0 ? x : -x));
      ASSERT_LE(lost, std::abs(x) >= 0x1p-110 ? 0 : 0x1p-133) << std::hex << bits;
      // Large values are truncated, the others rounded to nearest. Subnormal parts have fewer bits.
      const double bound = std::abs(x) < 0x1.fep127f ? 0x1p-8 : 0x1p-7;
      ASSERT_LE(std::abs(second), bound * std::abs(first) + 0x1p-133) << std::hex << bits;
      ASSERT_LE(std::abs(third), 0x1p-8 * std::abs(second) + 0x1p-133) << std::hex << bits;
    }
  }
}

// The same packed bytes and the same sums, bit for bit. On a CPU without AMX both sides are the emulation.
template <typename T>
void ExpectTheEmulationsBits(const BlockProduct& product, DType dtype) {
  const BlockProduct emulated = MakeTileProduct<EmulatedTiles, T>();
  const int64_t rows = 37, cols = 29, depth = 100, padded_depth = 128;
  Padded x = Padded::Normal(rows, depth, 1);
  for (int64_t i = 0; i < rows; ++i)  // sums whose terms differ much in size, and some that are subnormal
    for (int64_t j = 0; j < depth; ++j) x(i, j) = std::ldexp(x(i, j), static_cast<int>((i * 31 + j * 17) % 60) - 30);
  for (int64_t j = 0; j < depth; ++j) x(7, j) = std::ldexp(x(7, j), -110);
  x(9, 3) = std::numeric_limits<float>::infinity();
  x(10, 4) = test::kNan;
  x(11, 5) = std::numeric_limits<float>::max();
  const Stored w = Stored::Normal(dtype, {cols, depth}, 2);
  const Padded before = Padded::Normal(rows, cols, 3);
  std::vector<Padded> results;
  std::vector<std::vector<std::byte>> packed;
  for (const BlockProduct* side : {&product, &emulated}) {
    const int64_t panels = (rows + side->tile_rows - 1) / side->tile_rows;
    const int64_t panel_bytes = side->tile_rows * padded_depth * side->x_bytes;
    Buffer<std::byte> packed_x(panels * panel_bytes), packed_w(kMostPanelBytes);
    std::memset(packed_w.data(), 0, kMostPanelBytes);
    for (int64_t p = 0; p < panels; ++p)
      side->pack_rows(x.view().row(p * side->tile_rows), x.view().stride,
                      std::min(side->tile_rows, rows - p * side->tile_rows), depth, packed_x.data() + p * panel_bytes);
    side->pack_panel(w.view.data, dtype, depth, cols, depth, packed_w.data());
    packed.emplace_back(packed_x.span().begin(), packed_x.span().end());
    packed.back().insert(packed.back().end(), packed_w.span().begin(), packed_w.span().end());
    for (const bool accumulate : {false, true}) {
      results.push_back(before.Copy());
      side->multiply({packed_x.data(), rows, packed_w.data(), cols, depth}, accumulate, results.back().view().data,
                     results.back().view().stride);
    }
  }
  EXPECT_EQ(packed[0], packed[1]);
  for (const size_t i : {0, 1}) {
    ASSERT_TRUE(results[i].PaddingIsUntouched());
    for (int64_t row = 0; row < rows; ++row)
      for (int64_t col = 0; col < cols; ++col) {
        const float a = results[i](row, col), b = results[i + 2](row, col);
        ASSERT_TRUE(std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b) || (std::isnan(a) && std::isnan(b)))
            << Name(dtype) << " at " << row << ", " << col << ": " << a << " " << b;
      }
  }
}

TEST(TileProduct, TheEmulationHasTheHardwaresBits) {
  if (BestIsa() < Isa::kAmx && !SHIFTRT_EMULATED_AMX) GTEST_SKIP() << "the operating system does not let AMX be used";
  ExpectTheEmulationsBits<BFloat16>(kAmxBFloat16Product, DType::kBFloat16);
  ExpectTheEmulationsBits<Float16>(kAmxFloat16Product, DType::kFloat16);
  ExpectTheEmulationsBits<float>(kAmxFloat32Product, DType::kFloat32);
}

// A matrix and its transpose are packed to the same bytes, whichever of the two a product reads.
class PackingTest : public test::OnEveryIsa {};
SHIFTRT_ON_EVERY_ISA(PackingTest);

TEST_P(PackingTest, OfATransposeGivesTheSameBytes) {
  struct Case {
    const BlockProduct& product;
    DType dtype;
  };
  std::vector<Case> cases;
  for (const DType dtype : test::kStoredTypes) {
    cases.push_back({ProductFor({1, GetParam()}, dtype), dtype});
    if (GetParam() == Isa::kAmx) cases.push_back({kAmxRoundedProduct, dtype});
    if (GetParam() == Isa::kAvx512 && (BestIsa() >= Isa::kAvx512BFloat16 || SHIFTRT_EMULATED_AVX512BF16))
      cases.push_back({kAvx512RoundedProduct, dtype});
  }
  if (GetParam() == Isa::kAmx) cases.push_back({kAmxFloat32Product, DType::kFloat32});
  for (const auto& [product, dtype] : cases) {
    for (const int64_t depth : {1, 15, 17, 33, 96}) {
      const auto packed = [&](auto&& pack) {
        std::vector<std::byte> bytes(kMostPanelBytes, std::byte{0x5a});
        pack(bytes.data());
        return bytes;
      };
      for (int64_t rows = 1; rows <= product.tile_rows; ++rows) {
        const Padded x = Padded::Normal(rows, depth, 1);
        Padded turned(depth, rows);
        for (int64_t i = 0; i < rows; ++i)
          for (int64_t k = 0; k < depth; ++k) turned(k, i) = x(i, k);
        const auto straight = packed(
            [&, &product = product](void* to) { product.pack_rows(x.view().data, x.view().stride, rows, depth, to); });
        EXPECT_EQ(straight, packed([&, &product = product](void* to) {
                    product.pack_columns(turned.view().data, turned.view().stride, rows, depth, to);
                  }))
            << rows << " " << depth;
      }
      for (int64_t cols = 1; cols <= product.tile_cols; cols += 3) {
        const Stored w = Stored::Normal(dtype, {cols, depth}, 2);
        std::vector<double> values(w.values.size());
        for (int64_t j = 0; j < cols; ++j)
          for (int64_t k = 0; k < depth; ++k) values[k * cols + j] = w.values[j * depth + k];
        const Stored turned(dtype, {depth, cols}, values);
        const auto straight = packed([&, &product = product, dtype = dtype](void* to) {
          product.pack_panel(w.view.data, dtype, depth, cols, depth, to);
        });
        EXPECT_EQ(straight, packed([&, &product = product, dtype = dtype](void* to) {
                    product.pack_right(turned.view.data, dtype, cols, cols, depth, to);
                  }))
            << Name(dtype) << " " << cols << " " << depth;
      }
    }
  }
}

}  // namespace
}  // namespace shiftrt
