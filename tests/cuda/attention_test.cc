// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/attention.h"

#include "tests/cuda/fixture.h"
#include "tests/kernels/attention_cases.h"

#ifdef SHIFTRT_EMULATED
#include "kernels/emulated/device.h"
#endif

namespace shiftrt::gpu {
namespace {

using test::AttentionCase;
using test::AttentionProblem;

AttentionShape Shape(int heads, int kv_heads, int head_dim, int window = 0, float soft_cap = 0) {
  return {heads, kv_heads, head_dim, 1 / std::sqrt(static_cast<float>(head_dim)), window, soft_cap};
}
AttentionShape ShapeOf(const AttentionCase& c) {
  return Shape(static_cast<int>(c.heads), static_cast<int>(c.kv_heads), static_cast<int>(c.head_dim),
               static_cast<int>(c.window), c.soft_cap);
}
AttentionShape ShapeOf(const AttentionCase& c, const DeviceBuffer<float>& sinks) {
  AttentionShape shape = ShapeOf(c);
  shape.sinks = sinks.data();
  return shape;
}
// Those of tests/kernels/attention_cases.h with and without sinks.
std::vector<AttentionCase> AllCases() {
  std::vector<AttentionCase> cases = test::AttentionCases();
  for (AttentionCase& c : test::AttentionSinkCases()) cases.push_back(c);
  cases.push_back({8, 1, 64, {{130, 1}, {0, 1}, {500, 1}}, 2, 0, 0, true});
  cases.push_back({8, 1, 64, {{0, 1}, {0, 70}, {100, 40}}, 2, 0, 0, true});
  cases.push_back({2, 1, 64, {{0, 1}, {0, 70}, {31, 1}}, 2, 9, 0, true});
  return cases;
}
bool Takes(const AttentionCase& c) {
  return c.head_dim == 64 || c.head_dim == 80 || c.head_dim == 96 || c.head_dim == 128 || c.head_dim == 256;
}

class AttentionOnGpu : public CudaTest {
 protected:
  DeviceBuffer<float> OnDevice(const std::vector<float>& sinks) const {
    return sinks.empty() ? DeviceBuffer<float>()
                         : DeviceBuffer<float>(stream_, std::span<const float>(sinks), "a test");
  }

  SplitScratch scratch_;  // one launch after another

  // The relative error of a weight is the absolute error of its score, and sums run over the keys. `rounding`: that of
  // the weights and the results in their type.
  void Expect(const AttentionProblem& problem, const std::vector<double>& found, const std::vector<double>& log_sums,
              double rounding) {
    const int64_t d = problem.c.head_dim;
    problem.ForEachHead([&](int64_t t, int64_t head, int64_t at, const AttentionProblem::Seen& seen) {
      const std::vector<test::Exact> expected = problem.Attended(seen, head);
      const double unit = kUnit<float> * (2 * static_cast<double>(std::ssize(seen.scores)) + 32 + 24 * seen.score_size);
      for (int64_t j = 0; j < d; ++j)
        EXPECT_CLOSE(found[at + j], expected[j].value,
                     1.01 * ((rounding + unit) * expected[j].size + rounding * std::abs(expected[j].value)) +
                         (rounding > 0 ? 0x1p-24 : 1e-30),
                     at + j);
      EXPECT_CLOSE(log_sums[t * problem.c.heads + head], seen.log_sum, unit + 4 * kUnit<float> * std::abs(seen.log_sum),
                   t);
    });
  }

  template <typename T>
  void CheckSplit(const AttentionCase& c, int splits) {
    const AttentionProblem p(c, DTypeOf<T>::value);
    std::vector<int32_t> first_row, visible;
    for (const AttentionProblem::Sequence& s : p.sequences) {
      first_row.push_back(static_cast<int32_t>(s.first_row));
      visible.push_back(static_cast<int32_t>(s.past + 1));
    }
    const Input<float> q(stream_, p.q);
    const Input<T> keys(stream_, p.keys), values(stream_, p.values);
    const DeviceBuffer<int32_t> first(stream_, std::span<const int32_t>(first_row), "a test"),
        seen(stream_, std::span<const int32_t>(visible), "a test");
    const Output<float> out(stream_, p.tokens * p.q_dim()), log_sums(stream_, p.tokens * c.heads);
    const DeviceBuffer<float> sinks = OnDevice(p.Sinks());
    SplitAttention call = {.shape = ShapeOf(c, sinks),
                           .q = q.data(),
                           .keys = keys.array(),
                           .values = values.array(),
                           .first_row = first.data(),
                           .visible = seen.data(),
                           .tokens = p.tokens,
                           .splits = splits,
                           .scratch = &scratch_,
                           .out = out.array(),
                           .log_sums = log_sums.data()};
    AttendSplit(stream_, call);
    Expect(p, out.Values(), log_sums.Values(), 0);
    const Output<T> narrow(stream_, p.tokens * p.q_dim());
    call.out = narrow.array();
    AttendSplit(stream_, call);
    const std::vector<double> wide = out.Values(), found = narrow.Values();
    for (size_t i = 0; i < wide.size(); ++i) ASSERT_EQ(found[i], Exact(T(static_cast<float>(wide[i])))) << i;
  }

  template <typename T>
  void CheckPacked(const AttentionCase& c, PackedKernel kernel) {
    const AttentionProblem p(c, DTypeOf<T>::value);
    std::vector<PackedSequence> sequences;
    int64_t longest = 0;
    for (const auto& [begin, count, past, first_row] : p.sequences) {
      sequences.push_back({static_cast<int32_t>(begin), static_cast<int32_t>(count), static_cast<int32_t>(past),
                           static_cast<int32_t>(first_row)});
      longest = std::max(longest, count);
    }
    const Input<T> q(stream_, p.q), keys(stream_, p.keys), values(stream_, p.values);
    const DeviceBuffer<PackedSequence> device(stream_, std::span<const PackedSequence>(sequences), "a test");
    const Output<T> out(stream_, p.tokens * p.q_dim());
    const Output<float> log_sums(stream_, p.tokens * c.heads);
    const DeviceBuffer<float> sinks = OnDevice(p.Sinks());
    AttendPacked(stream_, {.shape = ShapeOf(c, sinks),
                           .q = q.array(),
                           .keys = keys.array(),
                           .values = values.array(),
                           .sequences = device.data(),
                           .sequence_count = static_cast<int64_t>(sequences.size()),
                           .longest = longest,
                           .tokens = p.tokens,
                           .rows = p.rows,
                           .out = out.array(),
                           .log_sums = log_sums.data(),
                           .kernel = kernel});
    Expect(p, out.Values(), log_sums.Values(), kUnit<T>);
  }
  // Both types that the kernels take, in turn.
  void CheckAllPacked(PackedKernel kernel) {
    bool half = false;
    for (const AttentionCase& c : AllCases()) {
      if (!Takes(c) || c.single() || TooLarge(c.heads * c.head_dim, 512)) continue;
      if (kernel == PackedKernel::kWarpgroups && (c.sinks || !TakesWarpgroups(0, ShapeOf(c)))) continue;
      SCOPED_TRACE(c.Name());
      half = !half;
      half ? CheckPacked<Float16>(c, kernel) : CheckPacked<BFloat16>(c, kernel);
      if (HasFailure()) return;
    }
  }
};

TEST_F(AttentionOnGpu, SplitAgreesWithFloat64) {
  int turn = 0;
  for (const AttentionCase& c : AllCases()) {
    if (!Takes(c) || !c.single()) continue;
    // Each query uses as many of the splits as its keys are worth, and there may be more splits than keys.
    const int splits = std::array{1, 2, 3, 5, 7}[turn++ % 5];
    SCOPED_TRACE(c.Name());
    ForEveryType([&](auto type) { CheckSplit<decltype(type)>(c, splits); });
    if (HasFailure()) return;
  }
}

TEST_F(AttentionOnGpu, PackedAgreesWithFloat64) { CheckAllPacked(PackedKernel::kWarps); }

class AttentionOfWarpgroupsOnGpu : public AttentionOnGpu {
 protected:
#ifdef SHIFTRT_EMULATED
  const emu::ComputeCapability capability_{9};
#endif
  void SetUp() override {
    AttentionOnGpu::SetUp();
    if (!IsSkipped()) RequireHopper(TakesWarpgroups(0, Shape(1, 1, 64)), SwitchedOn("SHIFTRT_CUDA_WGMMA", true));
  }
};

TEST_F(AttentionOfWarpgroupsOnGpu, AgreesWithFloat64) { CheckAllPacked(PackedKernel::kWarpgroups); }

TEST_F(AttentionOfWarpgroupsOnGpu, IsWhatTheDeviceTakesByItself) {
  const AttentionCase taken{1, 1, 64, {{3, 20}}};
  EXPECT_TRUE(TakesWarpgroups(0, ShapeOf(taken)));
  for (const AttentionCase& other : std::initializer_list<AttentionCase>{{1, 1, 80, {{0, 20}}},
                                                                         {1, 1, 256, {{0, 20}}},
                                                                         {1, 1, 64, {{0, 20}}, 1, 5},
                                                                         {1, 1, 64, {{0, 20}}, 1, 0, 2.0f}}) {
    EXPECT_FALSE(TakesWarpgroups(0, ShapeOf(other)));
    CheckPacked<BFloat16>(other, PackedKernel::kFastest);
    EXPECT_THROW(CheckPacked<BFloat16>(other, PackedKernel::kWarpgroups), std::runtime_error);
  }
  CheckPacked<BFloat16>(taken, PackedKernel::kFastest);
}

TEST_F(AttentionOnGpu, RefusesWhatItCannotTake) {
  const Input<BFloat16> x(stream_, std::vector<double>(256, 1.0));
  const Input<float> wide(stream_, std::vector<double>(256, 1.0));
  const DeviceBuffer<PackedSequence> one(stream_, 1, "a test");
  const auto call = [&](const AttentionShape& shape, ConstDeviceArray q, DeviceArray out) {
    AttendPacked(stream_, {.shape = shape,
                           .q = q,
                           .keys = x.array(),
                           .values = x.array(),
                           .sequences = one.data(),
                           .sequence_count = 1,
                           .longest = 1,
                           .tokens = 1,
                           .rows = 1,
                           .out = out});
  };
  const DeviceArray out{x.data(), DType::kBFloat16};
  EXPECT_THROW(call(Shape(1, 1, 72), x.array(), out), std::runtime_error);
  EXPECT_THROW(call(Shape(3, 2, 64), x.array(), out), std::runtime_error);
  EXPECT_THROW(call(Shape(1, 1, 64, -1), x.array(), out), std::runtime_error);
  EXPECT_THROW(call(Shape(1, 1, 64, 0, -1.0f), x.array(), out), std::runtime_error);
  EXPECT_THROW(call(Shape(1, 1, 64), wide.array(), out), std::runtime_error);
}

TEST(AttentionTile, SplitsFillTheDeviceWithWorthwhileBlocks) {
  const AttentionShape shape = Shape(32, 8, 128);
  EXPECT_EQ(AttentionSplits(shape, 1, 1, 132), 1);
  EXPECT_EQ(AttentionSplits(shape, 1, 128, 132), 2);
  EXPECT_EQ(AttentionSplits(shape, 1, 8192, 132), 33);
  EXPECT_EQ(AttentionSplits(Shape(32, 8, 128, 512), 1, 8192, 132), 8);  // only the visible keys count
  EXPECT_EQ(AttentionSplits(shape, 64, 8192, 132), 1);
  EXPECT_EQ(AttentionSplits(Shape(1, 1, 128), 1, 100000, 132), 64);
}

}  // namespace
}  // namespace shiftrt::gpu
