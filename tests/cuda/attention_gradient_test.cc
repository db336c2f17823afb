// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/attention.h"
#include "tests/cuda/fixture.h"
#include "tests/kernels/attention_cases.h"

namespace shiftrt::gpu {
namespace {

using test::AttentionCase;
using test::AttentionProblem;

AttentionShape Shape(int64_t heads, int64_t kv_heads, int64_t head_dim, int64_t window = 0, float soft_cap = 0) {
  return {static_cast<int>(heads),    static_cast<int>(kv_heads),
          static_cast<int>(head_dim), 1 / std::sqrt(static_cast<float>(head_dim)),
          static_cast<int>(window),   soft_cap};
}

class AttentionGradientOnGpu : public CudaTest {
 protected:
  // The kernel is given the exact results of the forward pass in their types, and the reference goes on from these.
  template <typename T>
  void Check(const AttentionCase& c) {
    const AttentionProblem p(c, DTypeOf<T>::value, 0);
    std::vector<PackedSequence> sequences;
    int64_t longest = 0;
    for (const AttentionProblem::Sequence& s : p.sequences) {
      sequences.push_back(
          {static_cast<int32_t>(s.begin), static_cast<int32_t>(s.count), 0, static_cast<int32_t>(s.begin)});
      longest = std::max(longest, s.count);
    }
    std::vector<double> attended(p.q.size()), sums(p.tokens * c.heads);
    p.ForEachHead([&](int64_t t, int64_t head, int64_t at, const AttentionProblem::Seen& seen) {
      const std::vector<test::Exact> out = p.Attended(seen, head);
      for (int64_t j = 0; j < c.head_dim; ++j) attended[at + j] = out[j].value;
      sums[t * c.heads + head] = seen.log_sum;
    });
    const Input<T> q(stream_, p.q), keys(stream_, p.keys), values(stream_, p.values), dout(stream_, p.dout),
        out(stream_, attended);
    const Input<float> log_sums(stream_, sums);
    const DeviceBuffer<PackedSequence> device(stream_, std::span<const PackedSequence>(sequences), "a test");
    const Output<float> deltas(stream_, p.tokens * c.heads), found_q(stream_, p.tokens * p.q_dim()),
        found_keys(stream_, p.rows * p.kv_dim()), found_values(stream_, p.rows * p.kv_dim());
    AttendGradient(stream_, {.shape = Shape(c.heads, c.kv_heads, c.head_dim, c.window, c.soft_cap),
                             .q = q.array(),
                             .out = out.array(),
                             .dout = dout.array(),
                             .keys = keys.array(),
                             .values = values.array(),
                             .log_sums = log_sums.data(),
                             .sequences = device.data(),
                             .sequence_count = static_cast<int64_t>(sequences.size()),
                             .longest = longest,
                             .tokens = p.tokens,
                             .deltas = deltas.data(),
                             .dq = found_q.data(),
                             .dkeys = found_keys.data(),
                             .dvalues = found_values.data()});
    // The relative error of a weight is the absolute error of its score. Sums run over the keys or the queries. In T
    // only the weights and the gradients of scores are rounded.
    const AttentionProblem::Gradients exact = p.GradientsExactly(
        [&](const AttentionProblem::Seen& seen) {
          const double weight =
              (sizeof(T) == 2 ? kUnit<T> : 0) + kUnit<float> * (32 + 24 * seen.score_size + 4 * std::abs(seen.log_sum) +
                                                                2 * static_cast<double>(p.tokens));
          return AttentionProblem::Errors{weight, weight, 2 * static_cast<double>(c.head_dim) * kUnit<float>};
        },
        &out.values);
    test::ExpectClose("dq", found_q.Values(), exact.dq, 1);
    test::ExpectClose("dkeys", found_keys.Values(), exact.dkeys, 1);
    test::ExpectClose("dvalues", found_values.Values(), exact.dvalues, 1);
  }
};

// Both types in turn.
TEST_F(AttentionGradientOnGpu, AgreesWithFloat64) {
  bool wide = false;
  for (const AttentionCase& c : test::AttentionGradientCases()) {
    if (c.head_dim < 64 || TooLarge(c.heads * c.head_dim, 512)) continue;
    SCOPED_TRACE(c.Name());
    wide = !wide;
    wide ? Check<float>(c) : Check<BFloat16>(c);
    if (HasFailure()) return;
  }
}

TEST_F(AttentionGradientOnGpu, OfSinksAgreesWithFloat64) {
  for (const auto& [tokens, heads] : {std::pair<int64_t, int64_t>{1, 1}, {9, 40}, {70, 8}}) {
    const auto sinks = Input<float>::Normal(stream_, heads, 1),
               log_sums = Input<float>::Normal(stream_, tokens * heads, 2, 2),
               deltas = Input<float>::Normal(stream_, tokens * heads, 3),
               before = Input<float>::Normal(stream_, heads, 4);
    AddSinkGradient(stream_, sinks.data(), {log_sums.data(), tokens, heads}, deltas.data(), before.data());
    const std::vector<double> found = Now(stream_, before);
    for (int64_t head = 0; head < heads; ++head) {
      double sum = before[head], size = std::abs(sum);
      for (int64_t t = 0; t < tokens; ++t) {
        const double term = std::exp(sinks[head] - log_sums[t * heads + head]) * deltas[t * heads + head];
        sum -= term;
        size += std::abs(term);
      }
      EXPECT_NEAR(found[head], sum, 32 * kUnit<float> * size) << head;
    }
  }
}

TEST_F(AttentionGradientOnGpu, RefusesWhatItCannotTake) {
  const Input<BFloat16> x(stream_, std::vector<double>(256, 1.0));
  const Input<Float16> half(stream_, std::vector<double>(256, 1.0));
  const DeviceBuffer<PackedSequence> one(stream_, 1, "a test");
  const auto call = [&](const AttentionShape& shape, ConstDeviceArray q, ConstDeviceArray others) {
    AttendGradient(stream_, {.shape = shape,
                             .q = q,
                             .out = others,
                             .dout = others,
                             .keys = others,
                             .values = others,
                             .sequences = one.data(),
                             .sequence_count = 1,
                             .longest = 1,
                             .tokens = 1});
  };
  EXPECT_THROW(call(Shape(1, 1, 64), half.array(), x.array()), std::runtime_error);
  EXPECT_THROW(call(Shape(1, 1, 64), half.array(), half.array()), std::runtime_error);
  EXPECT_THROW(call(Shape(3, 2, 64), x.array(), x.array()), std::runtime_error);
}

}  // namespace
}  // namespace shiftrt::gpu
