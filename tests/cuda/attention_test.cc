// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/attention.h"

#include "tests/cuda/fixture.h"

#ifdef SHIFTRT_EMULATED
#include "kernels/emulated/device.h"
#endif

namespace shiftrt::gpu {
namespace {

constexpr int kHeadDims[] = {64, 80, 96, 128, 256};

// Attention of one head in float64, and the terms of its tolerance.
struct Attended {
  std::vector<double> out, size;  // sum of weight * |value|
  double largest_score = 0;       // sum over a score's terms of absolute values, scaled
  double log_sum = 0;             // the logarithm of the softmax's denominator
};

Attended Attend(const double* q, const std::vector<double>& keys, const std::vector<double>& values, int64_t first_row,
                int64_t visible, int64_t kv_head, const AttentionShape& shape) {
  const int64_t d = shape.head_dim, stride = shape.kv_heads * d;
  if (shape.window > 0 && visible > shape.window) {
    first_row += visible - shape.window;
    visible = shape.window;
  }
  std::vector<double> scores(visible);
  Attended result{std::vector<double>(d), std::vector<double>(d)};
  for (int64_t i = 0; i < visible; ++i) {
    double size = 0;
    for (int64_t j = 0; j < d; ++j) {
      const double term = q[j] * keys[(first_row + i) * stride + kv_head * d + j] * static_cast<double>(shape.scale);
      scores[i] += term;
      size += std::abs(term);
    }
    result.largest_score = std::max(result.largest_score, size);
    if (shape.soft_cap > 0) {
      const auto cap = static_cast<double>(shape.soft_cap);
      scores[i] = cap * std::tanh(scores[i] / cap);
    }
  }
  const double maximum = *std::max_element(scores.begin(), scores.end());
  double sum = 0;
  for (double& score : scores) sum += score = std::exp(score - maximum);
  result.log_sum = maximum + std::log(sum);
  for (int64_t i = 0; i < visible; ++i) {
    for (int64_t j = 0; j < d; ++j) {
      const double value = values[(first_row + i) * stride + kv_head * d + j];
      result.out[j] += scores[i] / sum * value;
      result.size[j] += scores[i] / sum * std::abs(value);
    }
  }
  return result;
}

class AttentionOnGpu : public CudaTest {
 protected:
  SplitScratch scratch_;  // one launch after another

  template <typename T>
  void CheckSplit(const AttentionShape& shape, const std::vector<int32_t>& visible, int splits) {
    const auto tokens = static_cast<int64_t>(visible.size());
    const int64_t d = shape.head_dim, q_dim = shape.heads * d, kv_dim = shape.kv_heads * d;
    std::vector<int32_t> first_row;
    int32_t rows = 1;
    for (const int32_t count : visible) {
      first_row.push_back(rows);
      rows += count;
    }
    const auto q = Input<float>::Normal(stream_, tokens * q_dim, 1, 2.0);
    const auto keys = Input<T>::Normal(stream_, rows * kv_dim, 2), values = Input<T>::Normal(stream_, rows * kv_dim, 3);
    const DeviceBuffer<int32_t> first(stream_, std::span<const int32_t>(first_row), "a test"),
        seen(stream_, std::span<const int32_t>(visible), "a test");
    const Output<float> out(stream_, tokens * q_dim), log_sums(stream_, tokens * shape.heads);
    AttendSplit(stream_, {.shape = shape,
                          .q = q.data(),
                          .keys = keys.array(),
                          .values = values.array(),
                          .first_row = first.data(),
                          .visible = seen.data(),
                          .tokens = tokens,
                          .splits = splits,
                          .scratch = &scratch_,
                          .out = out.data(),
                          .log_sums = log_sums.data()});
    const std::vector<double> found = out.Values(), found_sums = log_sums.Values();
    for (int64_t t = 0; t < tokens; ++t) {
      for (int64_t h = 0; h < shape.heads; ++h) {
        const int64_t at = t * q_dim + h * d;
        const Attended expected = Attend(q.values.data() + at, keys.values, values.values, first_row[t], visible[t],
                                         h / (shape.heads / shape.kv_heads), shape);
        // The relative error of a weight is the absolute error of its score. Sums run over the keys.
        const double unit = kUnit<float> * (2 * visible[t] + 32 + 24 * expected.largest_score);
        for (int64_t j = 0; j < d; ++j)
          EXPECT_CLOSE(found[at + j], expected.out[j], unit * expected.size[j] + 1e-30, at + j);
        EXPECT_CLOSE(found_sums[t * shape.heads + h], expected.log_sum,
                     unit + 4 * kUnit<float> * std::abs(expected.log_sum), t);
      }
    }
  }

  // Each sequence is (past, count). All of them form one batch.
  template <typename T>
  void CheckPacked(const AttentionShape& shape, const std::vector<std::pair<int, int>>& lengths, double q_scale = 1,
                   PackedKernel kernel = PackedKernel::kWarps) {
    const int64_t d = shape.head_dim, q_dim = shape.heads * d, kv_dim = shape.kv_heads * d;
    std::vector<PackedSequence> sequences;
    int32_t tokens = 0, rows = 3, longest = 0;
    for (const auto& [past, count] : lengths) {
      sequences.push_back({tokens, count, past, rows});
      tokens += count;
      rows += past + count + 2;
      longest = std::max(longest, count);
    }
    // Two rows behind each sequence are NaN, like a cache that was never written.
    const auto with_gaps = [&](uint64_t seed) {
      Random random(seed);
      std::vector<double> drawn(rows * kv_dim, std::nan(""));
      for (const PackedSequence& sequence : sequences)
        for (int64_t i = 0; i < (sequence.past + sequence.count) * kv_dim; ++i)
          drawn[sequence.kv_begin * kv_dim + i] = random.Normal();
      return Input<T>(stream_, drawn);
    };
    const auto q = Input<T>::Normal(stream_, tokens * q_dim, 1, q_scale), keys = with_gaps(2), values = with_gaps(3);
    const DeviceBuffer<PackedSequence> device(stream_, std::span<const PackedSequence>(sequences), "a test");
    const Output<T> out(stream_, tokens * q_dim);
    const Output<float> log_sums(stream_, tokens * shape.heads);
    AttendPacked(stream_, {.shape = shape,
                           .q = q.array(),
                           .keys = keys.array(),
                           .values = values.array(),
                           .sequences = device.data(),
                           .sequence_count = static_cast<int64_t>(sequences.size()),
                           .longest = longest,
                           .tokens = tokens,
                           .rows = rows,
                           .out = out.array(),
                           .log_sums = log_sums.data(),
                           .kernel = kernel});
    const std::vector<double> found = out.Values(), found_sums = log_sums.Values();
    for (const PackedSequence& sequence : sequences) {
      for (int64_t i = 0; i < sequence.count; ++i) {
        for (int64_t h = 0; h < shape.heads; ++h) {
          const int64_t at = (sequence.begin + i) * q_dim + h * d, visible = sequence.past + i + 1;
          const Attended expected = Attend(q.values.data() + at, keys.values, values.values, sequence.kv_begin, visible,
                                           h / (shape.heads / shape.kv_heads), shape);
          // Each weight is rounded to T before it is multiplied by its value, and the result is rounded to T. The rest
          // is float32.
          const double sum_unit = kUnit<float> * (2 * static_cast<double>(visible) + 32 + 24 * expected.largest_score);
          const double unit = kUnit<T> + sum_unit;
          for (int64_t j = 0; j < d; ++j)
            EXPECT_CLOSE(found[at + j], expected.out[j],
                         1.01 * (unit * expected.size[j] + kUnit<T> * std::abs(expected.out[j])) + 0x1p-24, at + j);
          EXPECT_CLOSE(found_sums[(sequence.begin + i) * shape.heads + h], expected.log_sum,
                       sum_unit + 4 * kUnit<float> * std::abs(expected.log_sum), at);
        }
      }
    }
  }
};

AttentionShape Shape(int heads, int kv_heads, int head_dim, int window = 0, float soft_cap = 0) {
  return {heads, kv_heads, head_dim, 1 / std::sqrt(static_cast<float>(head_dim)), window, soft_cap};
}

TEST_F(AttentionOnGpu, SplitAgreesWithFloat64) {
  for (const int d : kHeadDims) {
    SCOPED_TRACE(d);
    ForEveryType([&](auto type) {
      using T = decltype(type);
      CheckSplit<T>(Shape(2, 2, d), {1, 7}, 1);
      CheckSplit<T>(Shape(6, 2, d), {70}, 1);
      CheckSplit<T>(Shape(7, 1, d), {131, 2}, 3);
    });
  }
  CheckSplit<BFloat16>(Shape(12, 1, 64), {33}, 2);  // more query heads than one block processes
  CheckSplit<BFloat16>(Shape(2, 1, 128), {3}, 7);   // more splits than keys
  // Each query uses as many of the splits as its keys are worth.
  CheckSplit<Float16>(Shape(6, 2, 64), {1, 64, 65, 200, 500}, 5);
  CheckSplit<BFloat16>(Shape(12, 1, 64), {150}, 3);
}

TEST_F(AttentionOnGpu, PackedAgreesWithFloat64) {
  for (const int d : kHeadDims) {
    SCOPED_TRACE(d);
    CheckPacked<BFloat16>(Shape(2, 1, d), {{0, 1}, {0, 65}, {0, 17}});
    CheckPacked<Float16>(Shape(2, 2, d), {{0, 70}});
    CheckPacked<BFloat16>(Shape(1, 1, d), {{100, 40}, {31, 1}});
  }
  CheckPacked<BFloat16>(Shape(6, 2, 64), {{0, 64}, {64, 64}, {0, 128}});
  for (const int d : {64, 128, 256}) CheckPacked<BFloat16>(Shape(1, 1, d), {{5, 150}, {0, 129}});  // several blocks
  CheckPacked<Float16>(Shape(1, 1, 128), {{0, 80}}, 100);  // all weights but one vanish
}

class AttentionOfWarpgroupsOnGpu : public AttentionOnGpu {
 protected:
#ifdef SHIFTRT_EMULATED
  const emu::ComputeCapability capability_{9};
#endif
  void SetUp() override {
    AttentionOnGpu::SetUp();
    if (!IsSkipped()) RequireHopper(TakesWarpgroups(0, Shape(1, 1, 64)), SwitchedOn("SHIFTRT_CUDA_WGMMA", true));
  }
  template <typename T>
  void Check(const AttentionShape& shape, const std::vector<std::pair<int, int>>& lengths, double q_scale = 1) {
    CheckPacked<T>(shape, lengths, q_scale, PackedKernel::kWarpgroups);
  }
};

TEST_F(AttentionOfWarpgroupsOnGpu, AgreesWithFloat64) {
  for (const int d : {64, 128}) {
    SCOPED_TRACE(d);
    Check<BFloat16>(Shape(2, 1, d), {{0, 1}, {0, 65}, {0, 17}});
    Check<Float16>(Shape(2, 2, d), {{0, 70}});
    Check<BFloat16>(Shape(1, 1, d), {{100, 40}, {31, 1}});
    Check<BFloat16>(Shape(1, 1, d), {{5, 150}, {0, 129}, {300, 3}});  // several blocks, and several tiles of keys
  }
  Check<BFloat16>(Shape(6, 2, 64), {{0, 64}, {64, 64}, {0, 128}});
  Check<BFloat16>(Shape(1, 1, 64), {{127, 128}, {128, 256}, {0, 385}});  // tiles that end where sequences do
  Check<Float16>(Shape(1, 1, 128), {{0, 80}}, 100);                      // all weights but one vanish
}

TEST_F(AttentionOfWarpgroupsOnGpu, IsWhatTheDeviceTakesByItself) {
  const AttentionShape shape = Shape(1, 1, 64);
  EXPECT_TRUE(TakesWarpgroups(0, shape));
  for (const AttentionShape& other :
       {Shape(1, 1, 80), Shape(1, 1, 256), Shape(1, 1, 64, 5), Shape(1, 1, 64, 0, 2.0f)}) {
    EXPECT_FALSE(TakesWarpgroups(0, other));
    CheckPacked<BFloat16>(other, {{0, 20}}, 1, PackedKernel::kFastest);
    EXPECT_THROW(CheckPacked<BFloat16>(other, {{0, 20}}, 1, PackedKernel::kWarpgroups), std::runtime_error);
  }
  CheckPacked<BFloat16>(shape, {{3, 20}}, 1, PackedKernel::kFastest);
}

// Tests windows of one key, within a tile of keys, across tiles and wider than the sequence, with and without a soft
// cap.
TEST_F(AttentionOnGpu, SplitTakesAWindowAndASoftCap) {
  for (const float soft_cap : {0.0f, 2.0f}) {
    for (const int window : {1, 5, 64, 500}) {
      SCOPED_TRACE(window);
      CheckSplit<float>(Shape(2, 2, 64, window, soft_cap), {1, 4, 7, 70}, 1);
      CheckSplit<BFloat16>(Shape(4, 1, 96, window, soft_cap), {131, 2}, 3);
      CheckSplit<Float16>(Shape(7, 1, 256, window, soft_cap), {40}, 2);
    }
    if (soft_cap > 0) CheckSplit<BFloat16>(Shape(6, 2, 128, 0, soft_cap), {70}, 1);
  }
}

TEST_F(AttentionOnGpu, PackedTakesAWindowAndASoftCap) {
  for (const float soft_cap : {0.0f, 2.0f}) {
    for (const int window : {1, 5, 64, 70, 500}) {
      SCOPED_TRACE(window);
      CheckPacked<BFloat16>(Shape(2, 1, 64, window, soft_cap), {{0, 1}, {0, 70}, {100, 40}, {31, 1}}, 2);
      CheckPacked<Float16>(Shape(1, 1, 256, window, soft_cap), {{90, 30}});
      CheckPacked<BFloat16>(Shape(1, 1, 128, window, soft_cap), {{5, 150}});  // several blocks
    }
    if (soft_cap > 0) CheckPacked<BFloat16>(Shape(2, 2, 96, 0, soft_cap), {{0, 70}}, 3);
  }
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
