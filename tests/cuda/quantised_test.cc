// SPDX-License-Identifier: Apache-2.0
// Products with quantised weights, their conversion, and products of a few tokens: the kernels of quantised.cu,
// matvec_blocks.cu and few.cu.
#include "tests/cuda/fused_matvec.h"
#include "tests/kernels/quantised_cases.h"

namespace shiftrt::gpu {
namespace {

using test::Epilogue;
using test::Quantised;

constexpr DType kBlockTypes[] = {DType::kQ4_0, DType::kQ8_0, DType::kQ4_K, DType::kQ6_K};

// A matrix on the device, in planes.
struct OnDevice {
  OnDevice(Stream stream, const Quantised& w) : type(w.view.dtype), rows(w.view.rows()) {
    const int64_t blocks = w.view.bytes() / LayoutOf(type).bytes;
    std::vector<std::byte> planes;
    for (const BlockPlane& plane : PlanesOf(type)) {
      std::vector<std::byte> one(blocks * plane.bytes);
      if (plane.bytes > 0) GatherPlane(type, plane, static_cast<const std::byte*>(w.view.data), blocks, one.data());
      planes.insert(planes.end(), one.begin(), one.end());
    }
    EXPECT_EQ(std::ssize(planes), w.view.bytes());
    buffer = DeviceBuffer<std::byte>(stream, std::span<const std::byte>(planes), "a test");
  }
  WeightPart part() const { return {{buffer.data(), type}, rows, 0, rows}; }

  DType type;
  int64_t rows;
  DeviceBuffer<std::byte> buffer;
};

WeightRows Joined(std::initializer_list<WeightPart> parts) {
  WeightRows joined;
  for (const WeightPart& part : parts) joined.parts[joined.count++] = part;
  return joined;
}

// Q4_K has its minimums beside its scaled integers, so that the terms that are added up are larger than the weights: by
// at most 15 units each.
std::vector<double> ExcessOf(const Quantised& w) {
  std::vector<double> excess(w.values.size());
  if (w.view.dtype != DType::kQ4_K) return excess;
  const std::vector<float> units = w.Units({{16, 128}}, 15);
  std::transform(units.begin(), units.end(), excess.begin(), [](float unit) { return 2 * 15 * std::abs(unit); });
  return excess;
}

// The largest absolute value among the 32 elements with which an element is rounded.
double LargestOfGroup(const std::vector<double>& x, int64_t at) {
  double largest = 0;
  for (int64_t i = at / 32 * 32; i < at / 32 * 32 + 32; ++i) largest = std::max(largest, std::abs(x[i]));
  return largest;
}

class BlockMatVecOnGpu : public CudaTest {
 protected:
  // An element of x is off by at most 1 / 65534 of the largest of its group.
  void Check(const std::vector<DType>& types, const test::FusedProductCase& c) {
    SCOPED_TRACE(c.Name());
    std::vector<Quantised> matrices;
    std::vector<std::unique_ptr<OnDevice>> there;
    WeightRows w;
    test::FusedProductProblem p(c, DType::kFloat32);
    std::vector<double> excess;
    p.w.clear();
    const auto count = std::ssize(types);
    for (int64_t i = 0, first = 0; i < count; ++i) {
      const int64_t rows = i + 1 < count ? c.rows / count : c.rows - first;
      matrices.emplace_back(types[i], rows, c.cols, 7 + i);
      there.push_back(std::make_unique<OnDevice>(stream_, matrices.back()));
      w.parts[w.count++] = there.back()->part();
      p.w.insert(p.w.end(), matrices.back().values.begin(), matrices.back().values.end());
      const std::vector<double> more = ExcessOf(matrices.back());
      excess.insert(excess.end(), more.begin(), more.end());
      first += rows;
    }
    p.Multiply();
    const double roundings = static_cast<double>(c.cols) / 512 + 24;
    for (int64_t k = 0; k < c.cols; ++k) {
      const double off = LargestOfGroup(p.normed, k) / 65534;
      for (int64_t row = 0; row < c.rows; ++row)
        p.products[row].size += excess[row * c.cols + k] * std::abs(p.normed[k]) +
                                off * std::abs(p.w[row * c.cols + k]) / (roundings * test::kUnit);
    }
    const FusedMatVec product(stream_, c, p, w);
    product.Run(c.epilogue);
    p.Expect(product.y.Values(), roundings);
  }
};

// Rows that are no multiple of what a block takes; one piece per row, pieces that a warp does not fill, and more than a
// warp has under way.
TEST_F(BlockMatVecOnGpu, AgreesWithFloat64) {
  for (const DType type : kBlockTypes) {
    SCOPED_TRACE(Name(type));
    const bool small = LayoutOf(type).elements == 32;
    for (const int64_t cols :
         {small ? int64_t{32} : int64_t{256}, small ? int64_t{288} : int64_t{1280}, int64_t{4352}}) {
      for (const int64_t rows : {int64_t{3}, int64_t{74}}) {
        if (TooLarge(rows * cols, 100000)) continue;
        for (const bool normed : {false, true}) {
          for (const Epilogue epilogue :
               {Epilogue::kNothing, Epilogue::kAddition, Epilogue::kSilu, Epilogue::kGeluTanh}) {
            const bool gated = epilogue == Epilogue::kSilu || epilogue == Epilogue::kGeluTanh;
            if (normed && epilogue == Epilogue::kAddition) continue;  // refused
            Check({type}, {1, gated ? rows / 2 * 2 : rows, cols, epilogue, normed, normed});
            if (HasFailure()) return;
          }
        }
      }
    }
  }
}

// Joined matrices of several formats, neighbouring rows of which a warp takes two together, and gates of another
// format.
TEST_F(BlockMatVecOnGpu, TakesPartsOfSeveralFormats) {
  Check({DType::kQ4_K, DType::kQ4_K, DType::kQ6_K}, {1, 75, 256, Epilogue::kNothing, true, true});
  Check({DType::kQ6_K, DType::kQ4_0, DType::kQ8_0}, {1, 77, 512, Epilogue::kAddition, false, true});
  for (const Epilogue epilogue : {Epilogue::kSilu, Epilogue::kGeluTanh})
    Check({DType::kQ4_K, DType::kQ6_K}, {1, 74, 256, epilogue, true, true});
}

// A vector that shared memory has no room for is multiplied in parts, with a product or with an addition.
TEST_F(BlockMatVecOnGpu, MultipliesALongVectorInParts) {
  for (const Epilogue epilogue : {Epilogue::kNothing, Epilogue::kAddition})
    Check({DType::kQ6_K, DType::kQ4_0}, {1, 2, 41472, epilogue, false, true});
}

// A dense part beside quantised ones, and the rotation, against the plain products that other tests hold against
// float64. Rounding x to 16 bits changes a result by 2e-5 of the largest.
TEST_F(BlockMatVecOnGpu, RotatesPartsWithADenseOne) {
  const int head_dim = 64, heads = 2, kv_heads = 1, cols = 256, half = head_dim / 2;
  const int64_t rows = (heads + 2 * kv_heads) * head_dim, q_dim = heads * head_dim, kv_dim = kv_heads * head_dim;
  const Quantised q_matrix(DType::kQ4_K, q_dim, cols, 1), v_matrix(DType::kQ6_K, kv_dim, cols, 2);
  const OnDevice q_there(stream_, q_matrix), v_there(stream_, v_matrix);
  const auto k_there = Input<BFloat16>::Normal(stream_, kv_dim * cols, 3);
  std::vector<double> all(q_matrix.values.begin(), q_matrix.values.end());
  all.insert(all.end(), k_there.values.begin(), k_there.values.end());
  all.insert(all.end(), v_matrix.values.begin(), v_matrix.values.end());
  const Input<float> wide(stream_, all);
  const auto x = Input<float>::Normal(stream_, cols, 4), weight = Input<float>::Normal(stream_, cols, 5),
             bias = Input<float>::Normal(stream_, rows, 6), table = Input<float>::Normal(stream_, 14 * half, 7);
  const std::vector<int32_t> facts = {6, 1};  // position, row of the cache
  const DeviceBuffer<int32_t> there(stream_, std::span<const int32_t>(facts), "a test");
  const Output<float> q(stream_, q_dim), expected_q(stream_, q_dim), expected_keys(stream_, 2 * kv_dim),
      expected_values(stream_, 2 * kv_dim);
  const Output<BFloat16> keys(stream_, 2 * kv_dim), values(stream_, 2 * kv_dim);
  MatVecProblem product{.w = Joined({q_there.part(), {k_there.array(), kv_dim, 0, kv_dim}, v_there.part()}),
                        .rows = rows,
                        .cols = cols,
                        .x = x.data(),
                        .norm_weight = weight.data(),
                        .eps = 1e-5f,
                        .bias = bias.data()};
  RotatedHeads to{.table = {table.data(), table.data() + 7 * half},
                  .position = there.data(),
                  .cache_row = there.data() + 1,
                  .heads = heads,
                  .kv_heads = kv_heads,
                  .head_dim = head_dim,
                  .q = q.data(),
                  .keys = keys.array(),
                  .values = values.array()};
  MatVecRotate(stream_, product, to, 2);
  product.w = wide.array();
  to.q = expected_q.data();
  to.keys = expected_keys.array();
  to.values = expected_values.array();
  MatVecRotate(stream_, product, to, 2);
  const auto expect = [](const std::vector<double>& found, const std::vector<double>& expected, double unit) {
    double size = 0;
    for (const double value : expected) size = std::isnan(value) ? size : std::max(size, std::abs(value));
    for (size_t i = 0; i < expected.size(); ++i) {
      ASSERT_EQ(std::isnan(found[i]), std::isnan(expected[i])) << i;
      if (std::isnan(expected[i])) continue;
      EXPECT_CLOSE(found[i], expected[i], unit * std::abs(expected[i]) + 6e-5 * size, i);
    }
  };
  expect(q.Values(), expected_q.Values(), 0);
  expect(keys.Values(), expected_keys.Values(), kUnit<BFloat16>);
  expect(values.Values(), expected_values.Values(), kUnit<BFloat16>);
}

TEST_F(BlockMatVecOnGpu, RefusesWhatItCannotTake) {
  const Quantised w(DType::kQ4_0, 4, 32, 1);
  const OnDevice there(stream_, w);
  const Output<float> y(stream_, 4);
  MatVecProblem problem{.w = Joined({there.part()}), .rows = 5, .cols = 32, .x = y.data(), .y = y.data()};
  EXPECT_THROW(MatVec(stream_, problem, 1), std::runtime_error);
  problem.rows = 4;
  for (const DType type : {DType::kQ5_K, DType::kQ4_K}) {  // no kernel; 32 columns are no block
    problem.w.parts[0].array.dtype = type;
    EXPECT_THROW(MatVec(stream_, problem, 1), std::runtime_error);
  }
}

class QuantisedOnGpu : public CudaTest {};

// Bit for bit what the format says, rounded once; some rows of a matrix, and rows by their numbers.
TEST_F(QuantisedOnGpu, ExpandsToTheFormatsNumbers) {
  for (const DType type : kBlockTypes) {
    for (const int64_t cols : {LayoutOf(type).elements, 3 * LayoutOf(type).elements}) {
      SCOPED_TRACE(fmt::format("{}, {} columns", Name(type), cols));
      const int64_t rows = 7, first = 2, count = 4;
      const Quantised w(type, rows, cols, 3);
      const OnDevice there(stream_, w);
      const Output<float> wide(stream_, count * cols);
      const Output<BFloat16> narrow(stream_, count * cols);
      const WeightPart part = there.part().Rows(first, count);
      ExpandRows(stream_, part, cols, wide.array());
      ExpandRows(stream_, part, cols, narrow.array());
      const std::vector<double> found = wide.Values();
      const std::vector<BFloat16> rounded = narrow.Raw();
      for (int64_t i = 0; i < count * cols; ++i) {
        ASSERT_EQ(found[i], w.values[first * cols + i]) << i;
        ASSERT_EQ(rounded[i].bits, BFloat16(w.values[first * cols + i]).bits) << i;
      }
      const std::vector<int32_t> ids = {6, 0, 6};
      const DeviceBuffer<int32_t> wanted(stream_, std::span<const int32_t>(ids), "a test");
      const Output<float> gathered(stream_, 3 * cols);
      ExpandRows(stream_, there.part(), cols, gathered.array(), wanted.data(), 3, 2.5f);
      const std::vector<double> rows_found = gathered.Values();
      for (int64_t i = 0; i < 3 * cols; ++i)
        ASSERT_EQ(rows_found[i], 2.5f * w.values[ids[i / cols] * cols + i % cols]) << i;
    }
  }
}

class FewTokensOnGpu : public CudaTest {};

// Both operands are rounded to bfloat16; a sum has as many roundings as it has terms.
TEST_F(FewTokensOnGpu, QuantisedWeightsAgreeWithFloat64) {
  for (const DType type : kBlockTypes) {
    const bool small = LayoutOf(type).elements == 32;
    for (const int64_t cols : {small ? int64_t{32} : int64_t{256}, small ? int64_t{1184} : int64_t{1280}}) {
      for (const int64_t rows : {1, 16, 35}) {
        for (const int64_t m : {1, 2, 8, 9, 16, 17, 32}) {
          for (const int multiprocessors : {1, 100}) {  // two tiles of rows per block, and one
            if (TooLarge(rows * cols * m, 200000)) continue;
            SCOPED_TRACE(fmt::format("{}, {} tokens, weights ({}, {})", Name(type), m, rows, cols));
            const Quantised w(type, rows, cols, 5);
            const OnDevice there(stream_, w);
            const auto x = Input<BFloat16>::Normal(stream_, m * cols, 6);
            const std::vector<double> weights = test::Nearest({w.values.begin(), w.values.end()}, DType::kBFloat16);
            const std::vector<test::Exact> expected =
                test::Product({m, rows, cols}, x.values, test::Transposed(weights, rows, cols));
            const Output<float> wide(stream_, m * rows);
            const Output<BFloat16> narrow(stream_, m * rows);
            FewProblem problem{.x = x.array(), .w = there.part(), .y = wide.array(), .m = m, .k = cols};
            MultiplyFew(stream_, problem, multiprocessors);
            test::ExpectClose("float32", wide.Values(), expected, test::AllowedForSum(cols));
            problem.y = narrow.array();
            MultiplyFew(stream_, problem, multiprocessors);
            test::ExpectClose("bfloat16", narrow.Values(), expected,
                              {test::AllowedForSum(cols).roundings, DType::kBFloat16});
            if (HasFailure()) return;
          }
        }
      }
    }
  }
}

// Some rows of a matrix, added to some columns of a wider result.
TEST_F(FewTokensOnGpu, AddToAPartOfTheResult) {
  const int64_t cols = 256, rows = 9, m = 3, stride = 14, first = 4, at = 5;
  const Quantised w(DType::kQ6_K, 20, cols, 8);
  const OnDevice there(stream_, w);
  const auto x = Input<BFloat16>::Normal(stream_, m * cols, 9);
  const auto y = Input<float>::Normal(stream_, m * stride, 10);
  MultiplyFew(stream_,
              {.x = x.array(),
               .w = there.part().Rows(first, rows),
               .y = {y.data() + at, DType::kFloat32},
               .m = m,
               .k = cols,
               .accumulate = true,
               .y_stride = stride},
              1);
  const std::vector<double> found = Now(stream_, y);
  for (int64_t t = 0; t < m; ++t) {
    for (int64_t j = 0; j < stride; ++j) {
      const int64_t i = t * stride + j;
      if (j < at || j >= at + rows) {
        EXPECT_EQ(found[i], y[i]);
        continue;
      }
      test::Exact sum{y[i], std::abs(y[i])};
      for (int64_t k = 0; k < cols; ++k)
        sum.Add(x[t * cols + k] * Exact(BFloat16(w.values[(first + j - at) * cols + k])));
      EXPECT_CLOSE(found[i], sum.value, test::SumTolerance(cols + 1, sum.size), i);
    }
  }
}

// Columns that the warps of a block do not share evenly, and rows that are no multiple of a tile. A token's bits are
// those that it has alone.
TEST_F(FewTokensOnGpu, DenseWeightsAgreeWithFloat64) {
  const auto check = [&](auto type, int64_t m, int64_t rows, int64_t cols, int multiprocessors) {
    using T = decltype(type);
    SCOPED_TRACE(fmt::format("{}, {} tokens, weights ({}, {})", Name(DTypeOf<T>::value), m, rows, cols));
    const auto x = Input<T>::Normal(stream_, m * cols, 6), w = Input<T>::Normal(stream_, rows * cols, 5, 0.1);
    const std::vector<test::Exact> expected =
        test::Product({m, rows, cols}, x.values, test::Transposed(w.values, rows, cols));
    const Output<float> wide(stream_, m * rows), last(stream_, rows);
    const Output<T> narrow(stream_, m * rows);
    FewProblem problem{
        .x = x.array(), .w = {w.array(), rows, 0, rows}, .y = wide.array(), .m = m, .k = cols, .accumulate = false};
    MultiplyFew(stream_, problem, multiprocessors);
    test::ExpectClose("float32", wide.Values(), expected, test::AllowedForSum(cols));
    problem.y = narrow.array();
    MultiplyFew(stream_, problem, multiprocessors);
    test::ExpectClose("16 bits", narrow.Values(), expected, {test::AllowedForSum(cols).roundings, DTypeOf<T>::value});
    problem.x.data = x.data() + (m - 1) * cols;
    problem.y = last.array();
    problem.m = 1;
    MultiplyFew(stream_, problem, multiprocessors);
    const std::vector<double> all = wide.Values(), alone = last.Values();
    EXPECT_TRUE(std::equal(alone.begin(), alone.end(), all.end() - rows)) << "the bits depend on the other tokens";
  };
  for (const int64_t cols : {8, 72, 128, 264, 1032}) {
    for (const int64_t rows : {1, 16, 35}) {
      for (const int64_t m : {1, 2, 8, 9, 16, 17, 32}) {
        for (const int multiprocessors : {1, 100}) {  // two tiles of rows per block, and one
          if (TooLarge(rows * cols * m, 300000)) continue;
          check(BFloat16(), m, rows, cols, multiprocessors);
          check(Float16(), m, rows, cols, multiprocessors);
          if (HasFailure()) return;
        }
      }
    }
  }
}

// A result that is not finite stays so, and rows of zeros give zeros.
TEST_F(QuantisedOnGpu, KeepsWhatIsNotFinite) {
  const int64_t cols = 256, rows = 3;
  for (const DType type : kBlockTypes) {
    const Quantised w(type, rows, cols, 3);
    const OnDevice there(stream_, w);
    for (const double bad : {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
      SCOPED_TRACE(fmt::format("{}, {}", Name(type), bad));
      std::vector<double> values = test::Drawn(cols, 4);
      values[100] = bad;
      const Input<float> x(stream_, values);
      const Input<BFloat16> narrow(stream_, values);
      const Output<float> y(stream_, rows), few(stream_, rows);
      MatVec(stream_, {.w = Joined({there.part()}), .rows = rows, .cols = cols, .x = x.data(), .y = y.data()}, 1);
      MultiplyFew(stream_, {.x = narrow.array(), .w = there.part(), .y = few.array(), .m = 1, .k = cols}, 1);
      for (int64_t i = 0; i < rows; ++i) {
        EXPECT_FALSE(std::isfinite(y.Values()[i]));
        EXPECT_FALSE(std::isfinite(few.Values()[i]));
      }
    }
  }
}

TEST_F(QuantisedOnGpu, ProductsOfExpertsAreThoseOfEachAlone) {
  constexpr int64_t kRows = 34, kCols = 512;
  const std::vector<int32_t> experts = {2, 0, 2};
  const auto slots = std::ssize(experts);
  const DeviceBuffer<int32_t> chosen(stream_, std::span<const int32_t>(experts), "a test");
  const auto x = Input<float>::Normal(stream_, slots * kCols, 2);
  for (const DType type : kBlockTypes) {
    SCOPED_TRACE(Name(type));
    const Quantised w(type, 3 * kRows, kCols, 3);
    const OnDevice there(stream_, w);
    const Output<float> together(stream_, slots * kRows), alone(stream_, slots * kRows);
    const Output<float> gated(stream_, slots * kRows / 2), gated_alone(stream_, slots * kRows / 2);
    MatVecProblem problem{
        .w = Joined({there.part()}), .rows = kRows, .cols = kCols, .x = x.data(), .y = together.data()};
    MatVecOfExperts(stream_, problem, {chosen.data(), slots, 1}, 2);
    problem.y = gated.data();
    MatVecGatedOfExperts(stream_, Activation::kSilu, problem, {chosen.data(), slots, 1}, 2);
    for (int64_t s = 0; s < slots; ++s) {
      problem.w = Joined({there.part().Rows(experts[s] * kRows, kRows)});
      problem.x = x.data() + s * kCols;
      problem.y = alone.data() + s * kRows;
      MatVec(stream_, problem, 2);
      problem.y = gated_alone.data() + s * kRows / 2;
      MatVecGated(stream_, Activation::kSilu, problem, 2);
    }
    EXPECT_EQ(together.Values(), alone.Values());
    EXPECT_EQ(gated.Values(), gated_alone.Values());
  }
}

TEST_F(QuantisedOnGpu, RefusesWhatItCannotTake) {
  const Quantised w(DType::kQ4_K, 2, 256, 1);
  const OnDevice there(stream_, w);
  const Output<BFloat16> x(stream_, 33 * 256);
  const Output<float> y(stream_, 66);
  FewProblem problem{.x = x.array(), .w = there.part(), .y = y.array(), .m = 33, .k = 256};
  EXPECT_THROW(MultiplyFew(stream_, problem, 1), std::runtime_error);
  problem.m = 1;
  problem.k = 128;
  EXPECT_THROW(MultiplyFew(stream_, problem, 1), std::runtime_error);
  problem = {.x = x.array(), .w = {x.array(), 2, 0, 2}, .y = y.array(), .m = 1, .k = 12};
  EXPECT_THROW(MultiplyFew(stream_, problem, 1), std::runtime_error) << "12 columns";
  problem.k = 16;
  problem.x.dtype = DType::kFloat16;
  EXPECT_THROW(MultiplyFew(stream_, problem, 1), std::runtime_error) << "two types";
  EXPECT_THROW(ExpandRows(stream_, {x.array(), 2, 0, 2}, 256, y.array()), std::runtime_error);
  EXPECT_THROW(ExpandRows(stream_, there.part(), 256, {y.data(), DType::kFloat16}), std::runtime_error);
}

TEST(FewTiles, FollowShapeAndDevice) {
  EXPECT_EQ(ChooseFewTiles(1024, 132), 1);
  EXPECT_EQ(ChooseFewTiles(4096, 132), 1);
  EXPECT_EQ(ChooseFewTiles(4224, 132), 2);
  EXPECT_EQ(ChooseFewTiles(28672, 132), 2);
  EXPECT_EQ(ChooseFewTiles(1, 1), 2);
}

TEST(Planes, HoldTheBlocksBytes) {
  for (const DType type : kBlockTypes) {
    int64_t bytes = 0;
    for (const BlockPlane& plane : PlanesOf(type)) bytes += plane.bytes;
    EXPECT_EQ(bytes, LayoutOf(type).bytes) << Name(type);
    EXPECT_TRUE(TakesBlocks(type));
  }
  for (const DType type : {DType::kBFloat16, DType::kQ5_0, DType::kQ5_K, DType::kMXFP4})
    EXPECT_FALSE(TakesBlocks(type));
}

}  // namespace
}  // namespace shiftrt::gpu
