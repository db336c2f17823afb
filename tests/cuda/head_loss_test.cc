// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/head_loss.h"

#include "tests/cuda/fixture.h"
#include "tests/kernels/loss_cases.h"

namespace shiftrt::gpu {
namespace {

class HeadLossOnGpu : public CudaTest {
 protected:
  // Passes the logits to the kernels in chunks of `chunk` columns.
  template <typename T>
  void Check(const test::LossCase& c, int64_t chunk) {
    SCOPED_TRACE(chunk);
    constexpr int64_t kTokens = test::LossCase::kTokens;
    const int64_t vocab = c.vocab;
    const test::LossTerms& of = c.terms;
    const DeviceBuffer<int32_t> wanted(stream_, std::span<const int32_t>(c.targets), "a test");
    const DeviceBuffer<LossState> states(stream_, kTokens, "a test");
    FillBytes(stream_, states.data(), 0xff, kTokens * static_cast<int64_t>(sizeof(LossState)));
    const Output<float> losses(stream_, kTokens);
    const Input<float> scales(stream_, c.scales);
    const LossTerms terms{wanted.data(), of.cross_entropy, of.divergence, scales.data()};
    const auto columns = [&](const std::vector<double>& all, int64_t first, int64_t cols) {
      std::vector<double> part;
      for (int64_t t = 0; t < kTokens; ++t)
        for (int64_t j = 0; j < cols; ++j) part.push_back(all[t * vocab + first + j]);
      return Input<float>(stream_, part);
    };
    std::vector<double> gradients(kTokens * vocab);
    for (const bool gradient : {false, true}) {
      for (int64_t first = 0; first < vocab; first += chunk) {
        const int64_t cols = std::min(chunk, vocab - first);
        const Input<float> part = columns(c.logits, first, cols);
        const Input<float> taught = c.taught() ? columns(c.teacher, first, cols) : Input<float>(stream_, {0});
        const LossChunk piece{.logits = part.data(),
                              .teacher = c.taught() ? taught.data() : nullptr,
                              .tokens = kTokens,
                              .cols = cols,
                              .first = first,
                              .vocab = vocab,
                              .soft_cap = of.soft_cap};
        if (!gradient) {
          UpdateLoss(stream_, piece, terms, states.data(), losses.data());
          continue;
        }
        const int64_t stride = cols + 3;
        const Output<T> out(stream_, kTokens * stride);
        LossGradient(stream_, piece, terms, states.data(), out.array(), stride);
        const std::vector<double> values = out.Values();
        for (int64_t t = 0; t < kTokens; ++t)
          for (int64_t j = 0; j < cols; ++j) gradients[t * vocab + first + j] = values[t * stride + j];
      }
    }
    c.Expect(losses.Values(), gradients, DTypeOf<T>::value);
  }
};

TEST_F(HeadLossOnGpu, LossesAndGradientsAgreeWithFloat64) {
  for (const test::LossCase& c : test::LossCases()) {
    if (c.taught() && c.terms.teacher_cap != c.terms.soft_cap) continue;
    for (const int64_t chunk : {c.vocab, int64_t{1024}, int64_t{333}}) {
      Check<float>(c, chunk);
      Check<BFloat16>(c, chunk);
      if (HasFailure()) return;
    }
    if (c.nan_at >= 0)
      for (const int64_t chunk : {200, 41}) Check<float>(c, chunk);
  }
}

}  // namespace
}  // namespace shiftrt::gpu
