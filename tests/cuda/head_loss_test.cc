// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/head_loss.h"

#include "tests/cuda/fixture.h"
#include "tests/kernels/loss_reference.h"

namespace shiftrt::gpu {
namespace {

class HeadLossOnGpu : public CudaTest {
 protected:
  struct Found {
    std::vector<double> losses, gradient;
  };

  // Passes logits and teacher (tokens, vocab) to the kernels in chunks of `chunk` columns.
  template <typename T>
  Found Run(const std::vector<double>& logits, const std::vector<double>& teacher, const std::vector<int32_t>& targets,
            const std::vector<double>& scales, const test::LossTerms& of, int64_t chunk) {
    const auto tokens = static_cast<int64_t>(targets.size()), vocab = static_cast<int64_t>(logits.size()) / tokens;
    const DeviceBuffer<int32_t> wanted(stream_, std::span<const int32_t>(targets), "a test");
    const DeviceBuffer<LossState> states(stream_, tokens, "a test");
    FillBytes(stream_, states.data(), 0xff, tokens * static_cast<int64_t>(sizeof(LossState)));
    const Output<float> losses(stream_, tokens);
    const Input<float> device_scales(stream_, scales);
    const LossTerms terms{wanted.data(), of.cross_entropy, of.divergence, device_scales.data()};
    const auto columns = [&](const std::vector<double>& all, int64_t first, int64_t cols) {
      std::vector<double> part;
      for (int64_t t = 0; t < tokens; ++t)
        for (int64_t j = 0; j < cols; ++j) part.push_back(all[t * vocab + first + j]);
      return Input<float>(stream_, part);
    };
    Found found{{}, std::vector<double>(tokens * vocab)};
    for (const bool gradient : {false, true}) {
      for (int64_t first = 0; first < vocab; first += chunk) {
        const int64_t cols = std::min(chunk, vocab - first);
        const Input<float> part = columns(logits, first, cols);
        const Input<float> taught = teacher.empty() ? Input<float>(stream_, {0}) : columns(teacher, first, cols);
        const LossChunk piece{.logits = part.data(),
                              .teacher = teacher.empty() ? nullptr : taught.data(),
                              .tokens = tokens,
                              .cols = cols,
                              .first = first,
                              .vocab = vocab,
                              .soft_cap = of.soft_cap};
        if (!gradient) {
          UpdateLoss(stream_, piece, terms, states.data(), losses.data());
          continue;
        }
        const int64_t stride = cols + 3;
        const Output<T> out(stream_, tokens * stride);
        LossGradient(stream_, piece, terms, states.data(), out.array(), stride);
        const std::vector<double> values = out.Values();
        for (int64_t t = 0; t < tokens; ++t)
          for (int64_t j = 0; j < cols; ++j) found.gradient[t * vocab + first + j] = values[t * stride + j];
      }
    }
    found.losses = losses.Values();
    return found;
  }

  // `size`: that of the logits. The teacher has the same soft cap.
  template <typename T>
  void Check(double size, test::LossTerms of) {
    of.teacher_cap = of.soft_cap;
    const int64_t tokens = 3, vocab = 1500;
    const std::vector<double> logits = test::Drawn(tokens * vocab, 7, size),
                              teacher =
                                  of.divergence > 0 ? test::Drawn(tokens * vocab, 8, size) : std::vector<double>();
    const std::vector<int32_t> targets = {0, 1499, 700};
    const std::vector<double> scales = {1, 0.25, -2};
    const double reach = 5 * size;  // the largest logit
    for (const int64_t chunk : {1500, 1024, 333}) {
      SCOPED_TRACE(chunk);
      const Found found = Run<T>(logits, teacher, targets, scales, of, chunk);
      for (int64_t t = 0; t < tokens; ++t) {
        const auto row = [&](const std::vector<double>& all) {
          return std::span(all).subspan(all.empty() ? 0 : t * vocab, all.empty() ? 0 : vocab);
        };
        const test::TokenLoss exact = test::LossOf(of, row(logits), row(teacher), targets[t]);
        EXPECT_CLOSE(found.losses[t], exact.loss.value, 4e-6 + kUnit<float> * 32 * (exact.loss.size + reach), t);
        for (int64_t j = 0; j < vocab; ++j) {
          const double gradient = exact.gradient[j].value * scales[t];
          EXPECT_CLOSE(found.gradient[t * vocab + j], gradient,
                       1.01 * kUnit<T> * std::abs(gradient) +
                           kUnit<float> * (32 + 8 * reach) * std::abs(scales[t]) * exact.gradient[j].size + 0x1p-126,
                       t * vocab + j);
        }
      }
    }
  }
};

TEST_F(HeadLossOnGpu, LossesAndGradientsAgreeWithFloat64) {
  for (const double size : {1.0, 30.0}) {
    Check<float>(size, {});
    Check<BFloat16>(size, {});
    Check<float>(size, {.soft_cap = 20});
  }
}

TEST_F(HeadLossOnGpu, LearnsFromATeacher) {
  for (const double size : {1.0, 20.0}) {
    Check<float>(size, {.cross_entropy = 0, .divergence = 1});
    Check<BFloat16>(size, {.cross_entropy = 0.5f, .divergence = 2, .soft_cap = 30});
  }
}

TEST_F(HeadLossOnGpu, ANaNMakesANaN) {
  for (const int at : {0, 250, 599}) {
    std::vector<double> logits(600, 1.0);
    logits[at] = NAN;
    for (const int64_t chunk : {600, 200, 41})
      EXPECT_TRUE(std::isnan(Run<float>(logits, {}, {3}, {1}, {}, chunk).losses[0])) << at << " " << chunk;
  }
}

}  // namespace
}  // namespace shiftrt::gpu
