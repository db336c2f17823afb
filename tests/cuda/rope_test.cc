// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/rope.h"

#include "tests/cuda/fixture.h"
#include "tests/kernels/rope_cases.h"

namespace shiftrt::gpu {
namespace {

using test::RopeCase;
using test::RopeProblem;

class RopeOnGpu : public CudaTest {
 protected:
  // Float16 numbers below the smallest normal one are rounded to multiples of 2^-24.
  static test::Allowed AllowedFor(DType result) { return {16, result, result == DType::kFloat16 ? 0x1p-25 : 1e-30}; }

  // Rows of the cache are in the order of the tokens, backwards, and every other one is not written. Queries alone are
  // rotated in place and also written in bfloat16.
  template <typename In, typename Cache>
  void Check(const RopeCase& c, bool back) {
    SCOPED_TRACE(c.Name() + (back ? ", back" : ""));
    const int64_t limit = TooLarge(131'072, 16) ? 16 : 131'072, half = c.head_dim / 2;
    const RopeProblem p(c, limit, DTypeOf<In>::value);
    const int64_t tokens = p.tokens(), rows = 2 * tokens, q_dim = c.heads * c.head_dim,
                  kv_dim = c.kv_heads * c.head_dim;
    const Input<In> qkv(stream_, p.qkv);
    const Input<float> bias(stream_, p.bias), q_norm(stream_, p.q_norm), k_norm(stream_, p.k_norm),
        frequency(stream_, {p.frequencies.begin(), p.frequencies.end()});
    std::vector<int32_t> positions(p.positions.begin(), p.positions.end()), cache_rows;
    for (int64_t t = 0; t < tokens; ++t) cache_rows.push_back(static_cast<int32_t>(rows - 2 - 2 * t));
    std::vector<double> scales;
    for (int64_t position = 0; position < limit; ++position) scales.push_back(p.QueryScale(position));
    const Input<float> query_scales(stream_, scales);
    const DeviceBuffer<int32_t> at(stream_, std::span<const int32_t>(positions), "a test"),
        to(stream_, std::span<const int32_t>(cache_rows), "a test");
    const Output<float> cosine(stream_, limit * half), sine(stream_, limit * half);
    MakeRopeTable(stream_, limit, frequency.data(), half, c.scale, cosine.data(), sine.data());
    const bool alone = c.kv_heads == 0;
    const Output<In> q(stream_, tokens * q_dim);
    const Output<Cache> keys(stream_, rows * kv_dim), values(stream_, rows * kv_dim);
    const Output<BFloat16> rounded(stream_, tokens * q_dim);
    RopeAndStore(stream_, {.qkv = qkv.array(),
                           .bias = c.biased ? bias.data() : nullptr,
                           .q_norm = c.normed ? q_norm.data() : nullptr,
                           .k_norm = c.normed ? k_norm.data() : nullptr,
                           .eps = 1e-6f,
                           .table = {cosine.data(), sine.data(), c.scaled ? query_scales.data() : nullptr,
                                     static_cast<int>(c.rotary_dim), c.interleaved},
                           .back = back,
                           .positions = at.data(),
                           .cache_rows = to.data(),
                           .tokens = tokens,
                           .heads = static_cast<int>(c.heads),
                           .kv_heads = static_cast<int>(c.kv_heads),
                           .head_dim = static_cast<int>(c.head_dim),
                           .q = alone ? DeviceArray{qkv.data(), DTypeOf<In>::value} : q.array(),
                           .rounded = alone ? rounded.data() : nullptr,
                           .keys = keys.array(),
                           .values = values.array()});
    const std::vector<test::Exact> exact = p.Exactly(back);
    std::vector<double> found;
    if (alone) {
      for (const In x : Output<In>::Fetch(stream_, qkv.buffer)) found.push_back(Exact(x));
      ExpectRoundings(found, rounded);
    } else {
      found = q.Values();
    }
    test::ExpectClose("queries", found, test::Columns(exact, p.width(), 0, q_dim), AllowedFor(DTypeOf<In>::value));
    for (const bool value : {false, true}) {
      const std::vector<double> cache = (value ? values : keys).Values();
      std::vector<double> dense;
      for (int64_t t = 0; t < tokens; ++t)
        dense.insert(dense.end(), cache.begin() + cache_rows[t] * kv_dim, cache.begin() + (cache_rows[t] + 1) * kv_dim);
      test::ExpectClose(value ? "values" : "keys", dense,
                        test::Columns(exact, p.width(), q_dim + (value ? kv_dim : 0), kv_dim),
                        AllowedFor(DTypeOf<Cache>::value));
      for (int64_t i = 0; i < rows * kv_dim; ++i) ASSERT_EQ(std::isnan(cache[i]), i / kv_dim % 2 == 1) << i;
    }
  }
};

TEST_F(RopeOnGpu, AgreesWithFloat64ForwardsAndBack) {
  for (const RopeCase& c : test::RopeCases()) {
    Check<float, float>(c, false);
    if (c.kv_heads == 0) {
      Check<float, float>(c, true);
    } else {
      Check<BFloat16, BFloat16>(c, false);
      Check<float, BFloat16>(c, false);
      Check<float, Float16>(c, false);
      Check<Float16, Float16>(c, false);
    }
    if (HasFailure()) return;
  }
}

TEST_F(RopeOnGpu, TableIsExactFarOut) {
  const Input<float> frequency(stream_, {1.0, 0.1});
  const int64_t positions = 40000;
  const Output<float> cosine(stream_, positions * 2), sine(stream_, positions * 2);
  MakeRopeTable(stream_, positions, frequency.data(), 2, 1.0f, cosine.data(), sine.data());
  const std::vector<double> cosines = cosine.Values(), sines = sine.Values();
  for (const int64_t p : {int64_t{0}, int64_t{1}, positions - 1})
    for (int i = 0; i < 2; ++i) {
      EXPECT_NEAR(cosines[2 * p + i], std::cos(static_cast<double>(p) * frequency[i]), kUnit<float>);
      EXPECT_NEAR(sines[2 * p + i], std::sin(static_cast<double>(p) * frequency[i]), kUnit<float>);
    }
}

}  // namespace
}  // namespace shiftrt::gpu
