// SPDX-License-Identifier: Apache-2.0
// Gated delta networks against float64, in one piece and in two, by both forms of the rule.
#include "kernels/cuda/rowwise.h"
#include "runtime/check.h"
#include "tests/cuda/gated_delta_problem.h"

namespace shiftrt::gpu {
namespace {

class GatedDeltaOnGpu : public CudaTest {
 protected:
  // Sums over key_dim, and those of a chunk.
  static double Tolerance(const GatedDeltaShape& shape) {
    return (64 + static_cast<double>(shape.key_dim)) * test::kUnit;
  }
};

TEST_F(GatedDeltaOnGpu, AgreesWithFloat64) {
  for (test::DeltaCase c : test::DeltaCases()) {
    // A sequence of few tokens is computed in another form beside a long one.
    for (const bool few : {false, true}) {
      if (few)
        for (int64_t& length : c.lengths) length = std::min(length, kFewDeltaTokens);
      SCOPED_TRACE(c.Name());
      ForEveryType([&](auto type) {
        using T = decltype(type);
        const DeltaProblem p = Rounded<T>(DeltaProblem(c, 1));
        const DeltaOnDevice<T> there(stream_, p);
        there.Run();
        EXPECT_LE(Distance(there.out.Values(), p.Out(p.Mixed())), Tolerance(c.shape));
      });
    }
  }
}

// Parts of a sequence in turn read one of two states and write the other.
TEST_F(GatedDeltaOnGpu, GoesOnFromWhereItStopped) {
  for (const test::DeltaCase& c : test::DeltaCases()) {
    SCOPED_TRACE(c.Name());
    const DeltaProblem p = Rounded<float>(DeltaProblem(c, 2));
    DeltaOnDevice<float> there(stream_, p);
    const std::vector<DeltaRange> whole = there.sequences;
    std::vector<int32_t> held(whole.size(), -1);
    for (const auto& [begin, end] : {std::pair(0, 1), {1, 2}, {2, 4}}) {  // quarters
      there.sequences.clear();
      for (size_t s = 0; s < whole.size(); ++s) {
        const int32_t from = whole[s].count * begin / 4, to = whole[s].count * end / 4;
        if (to == from) continue;
        const auto first = static_cast<int32_t>(2 * s), after = held[s] == first ? first + 1 : first;
        there.sequences.push_back({whole[s].begin + from, to - from, held[s], after});
        held[s] = after;
      }
      if (!there.sequences.empty()) there.Run();
    }
    EXPECT_LE(Distance(there.out.Values(), p.Out(p.Mixed())), Tolerance(c.shape));
  }
}

TEST_F(GatedDeltaOnGpu, NormsAndGatesTheHeads) {
  for (const test::DeltaCase& c : test::DeltaCases()) {
    SCOPED_TRACE(c.Name());
    ForEveryType([&](auto type) {
      using T = decltype(type);
      const DeltaProblem p(c, 3);
      const DeltaOnDevice<T> there(stream_, p);
      const int64_t dim = c.shape.value_dim;
      const Input<float> heads = Input<float>::Normal(stream_, c.tokens() * c.shape.values(), 5),
                         weight = Input<float>::Normal(stream_, dim, 6);
      const Output<T> to(stream_, c.tokens() * c.shape.values());
      DeltaCall call = there.Call({});
      call.out = heads.data();
      NormDelta(stream_, call, c.tokens(), weight.data(), 1e-3f, to.array());
      std::vector<double> expected;
      for (int64_t i = 0; i < std::ssize(there.z); ++i) {
        double squares = 0;
        for (int64_t j = i - i % dim; j < i - i % dim + dim; ++j) squares += heads[j] * heads[j];
        const double z = Exact(T(static_cast<float>(there.z[i])));
        expected.push_back(z / (1 + std::exp(-z)) * heads[i] / std::sqrt(squares / static_cast<double>(dim) + 1e-3f) *
                           weight[i % dim]);
      }
      EXPECT_LE(Distance(to.Values(), expected), kUnit<T> + 16 * test::kUnit);
    });
  }
}

TEST_F(GatedDeltaOnGpu, GatesOfHeadsAgreeWithFloat64) {
  constexpr int64_t kTokens = 3, kHeads = 2, kDim = 24, kMore = 40;
  ForEveryType([&](auto type) {
    using T = decltype(type);
    const int64_t width = 2 * kHeads * kDim + kMore;
    const auto both = Input<T>::Normal(stream_, kTokens * width, 1);
    const auto check = [&](auto x) {
      const ConstDeviceRows gates(both.array(), kTokens, width);
      GateHeads(stream_, gates, kDim, {DeviceArray{x.data(), x.array().dtype}, kTokens, kHeads * kDim});
      using X = std::remove_pointer_t<decltype(x.data())>;
      const std::vector<X> now = Output<X>::Fetch(stream_, x.buffer);
      std::vector<double> found, expected;
      for (int64_t i = 0; i < kTokens * kHeads * kDim; ++i) {
        const int64_t token = i / (kHeads * kDim), head = i / kDim % kHeads;
        const double gate = both[token * width + (2 * head + 1) * kDim + i % kDim];
        found.push_back(Exact(now[i]));
        expected.push_back(x[i] / (1 + std::exp(-gate)));
      }
      EXPECT_LE(Distance(found, expected), kUnit<X> + 8 * test::kUnit);
    };
    check(Input<T>::Normal(stream_, kTokens * kHeads * kDim, 2));
    check(Input<float>::Normal(stream_, kTokens * kHeads * kDim, 2));
  });
}

TEST_F(GatedDeltaOnGpu, RefusesHeadsThatAreTooLong) {
  const DeltaProblem p({{1, 1, 257, 4, 2}, {2}}, 1);
  EXPECT_THROW(DeltaOnDevice<float>(stream_, p).Run(), Error);
}

}  // namespace
}  // namespace shiftrt::gpu
