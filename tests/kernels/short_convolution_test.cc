// SPDX-License-Identifier: Apache-2.0
// Short convolutions against float64, in one piece and in several, and their gradients against the exact ones.
#include "kernels/short_convolution.h"

#include "tests/kernels/oracle.h"

namespace shiftrt {
namespace {

using test::Exact;
using test::Padded;

class ShortConvolutionTest : public test::OnEveryIsa {};
SHIFTRT_ON_EVERY_ISA(ShortConvolutionTest);

// Sequences of these lengths side by side, and the exact results.
struct ShortProblem {
  ShortProblem(int64_t channels, int64_t width, std::vector<int64_t> of_lengths)
      : shape{channels, width}, lengths(std::move(of_lengths)) {
    for (const int64_t length : lengths) {
      sequences.push_back({.begin = tokens, .count = length});
      tokens += length;
    }
    in = test::Drawn(tokens * 3 * channels, 1);
    dout = test::Drawn(tokens * channels, 2);
    const std::vector<double> drawn = test::Drawn(channels * width, 3);
    w.assign(drawn.begin(), drawn.end());
    out.resize(tokens * channels);
    din.resize(tokens * 3 * channels);
    dw.resize(channels * width);
    for (const DeltaSequence& s : sequences)
      for (int64_t t = s.begin; t < s.begin + s.count; ++t)
        for (int64_t i = 0; i < channels; ++i) Token(s, t, i);
  }
  // Part 0 is b, 1 is c, and 2 is x.
  int64_t At(int64_t t, int64_t part, int64_t i) const { return (t * 3 + part) * shape.channels + i; }
  void Token(const DeltaSequence& s, int64_t t, int64_t i) {
    double sum = 0, size = 0;
    const double dy = dout[t * shape.channels + i], c = in[At(t, 1, i)];
    for (int64_t j = 0; j < shape.width; ++j) {
      const int64_t from = t - shape.width + 1 + j;
      if (from < s.begin) continue;
      const double b = in[At(from, 0, i)], x = in[At(from, 2, i)], weight = w[i * shape.width + j];
      sum += weight * b * x;
      size += std::abs(weight * b * x);
      const auto add = [&](Exact& to, double term) {
        to.value += term;
        to.size += std::abs(term);
      };
      add(din[At(from, 0, i)], dy * c * weight * x);
      add(din[At(from, 2, i)], dy * c * weight * b);
      add(dw[i * shape.width + j], dy * c * b * x);
    }
    out[t * shape.channels + i] = {c * sum, std::abs(c) * size};
    din[At(t, 1, i)] = {dy * sum, std::abs(dy) * size};
  }
  TensorView Weights() const { return {w.data(), DType::kFloat32, {shape.channels, 1, shape.width}}; }

  ConvolutionShape shape;
  std::vector<int64_t> lengths;
  std::vector<DeltaSequence> sequences;
  int64_t tokens = 0;
  std::vector<double> in, dout;
  std::vector<float> w;
  std::vector<Exact> out, din, dw;
};

std::vector<ShortProblem> Problems() {
  std::vector<ShortProblem> problems;
  problems.emplace_back(3, 1, std::vector<int64_t>{4});
  problems.emplace_back(40, 3, std::vector<int64_t>{1, 2, 37, 5});
  problems.emplace_back(200, 5, std::vector<int64_t>{70, 3});
  return problems;
}

TEST_P(ShortConvolutionTest, AgreesWithFloat64ForwardsAndBack) {
  for (const ShortProblem& p : Problems()) {
    const int64_t n = p.shape.channels;
    SCOPED_TRACE(n);
    const auto run = [&](const Context& context) {
      std::vector<Padded> found;
      for (int i = 0; i < 3; ++i) found.emplace_back(p.tokens, n);
      found.emplace_back(p.tokens, 3 * n);
      found.push_back(Padded::Of(1, n * p.shape.width, std::vector<double>(n * p.shape.width, 0.0)));
      const Padded in = Padded::Of(p.tokens, 3 * n, p.in), dout = Padded::Of(p.tokens, n, p.dout);
      const ShortConvolutionRows rows = {in.view(), found[1].view(), found[2].view()};
      ShortConvolution(context, p.shape, p.sequences, rows, p.Weights(), found[0].view());
      ShortConvolutionGradient(context, p.shape, p.sequences, rows, p.Weights(), dout.view(), found[3].view(),
                               found[4].view());
      return found;
    };
    const std::vector<Padded> found = run(On(1)), threaded = run(On(3));
    const auto terms = static_cast<double>(p.shape.width + 4);
    test::ExpectClose("out", found[0].Values(), p.out, {terms});
    test::ExpectClose("din", found[3].Values(), p.din, {terms});
    test::ExpectClose("dw", found[4].Values(), p.dw, {static_cast<double>(p.tokens) + 4});
    for (size_t i = 0; i < found.size(); ++i) EXPECT_TRUE(test::Identical(found[i], threaded[i])) << i;
  }
}

// A call goes on from the rows that the one before it left in the same memory, and may overwrite the convolution.
TEST_P(ShortConvolutionTest, GoesOnFromWhereItStopped) {
  for (const ShortProblem& p : Problems()) {
    const int64_t n = p.shape.channels;
    const Padded in = Padded::Of(p.tokens, 3 * n, p.in), product(p.tokens, n), out(p.tokens, n);
    for (const DeltaSequence& whole : p.sequences) {
      std::vector<float> rows(p.shape.row_floats(), test::kNan);
      const int64_t pieces[] = {0, std::min<int64_t>(1, whole.count), whole.count / 2, whole.count};
      for (int i = 0; i < 3; ++i) {
        if (pieces[i + 1] <= pieces[i]) continue;
        const DeltaSequence piece = {.begin = whole.begin + pieces[i],
                                     .count = pieces[i + 1] - pieces[i],
                                     .rows_before = pieces[i] == 0 ? nullptr : rows.data(),
                                     .rows_after = rows.data()};
        ShortConvolution(context_, p.shape, std::span(&piece, 1), {in.view(), product.view(), out.view()}, p.Weights(),
                         out.view());
      }
    }
    test::ExpectClose("out", out.Values(), p.out, {static_cast<double>(p.shape.width + 4)});
  }
}

TEST_P(ShortConvolutionTest, ShapesThatDoNotFitAreErrors) {
  const ShortProblem p = Problems().front();
  const int64_t n = p.shape.channels;
  const Padded in = Padded::Of(p.tokens, 3 * n, p.in), narrow(p.tokens, n), out(p.tokens, n);
  const auto run = [&](MatrixView<const float> from, MatrixView<float> product) {
    ShortConvolution(context_, p.shape, p.sequences, {from, product, out.view()}, p.Weights(), out.view());
  };
  EXPECT_THROW(run(narrow.view(), narrow.view()), Error);
  EXPECT_THROW(run(in.view(), Padded(p.tokens, n + 1).view()), Error);
  EXPECT_THROW(run(in.view(), Padded(p.tokens - 1, n).view()), Error);
}

}  // namespace
}  // namespace shiftrt
