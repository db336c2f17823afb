// SPDX-License-Identifier: Apache-2.0
#include "kernels/rope.h"

#include "tests/kernels/oracle.h"
#include "tests/kernels/rope_cases.h"

namespace shiftrt {
namespace {

using test::Padded;

class RopeTest : public test::OnEveryIsa {};
SHIFTRT_ON_EVERY_ISA(RopeTest);

std::vector<float> Frequencies(int64_t head_dim) {
  std::vector<float> frequencies;
  for (int64_t i = 0; i < head_dim; i += 2)
    frequencies.push_back(static_cast<float>(std::pow(500000.0, -static_cast<double>(i) / head_dim)));
  return frequencies;
}

TEST_P(RopeTest, AgreesWithFloat64ForwardsAndBack) {
  for (const test::RopeCase& c : test::RopeCases()) {
    if (c.biased || c.normed) continue;  // these are operations of their own
    for (const bool back : {false, true}) {
      SCOPED_TRACE(c.Name() + (back ? ", back" : ""));
      const test::RopeProblem p(c, std::numeric_limits<int64_t>::max());
      const std::vector<test::Exact> exact = p.Exactly(back);
      std::vector<float> scales;
      for (const int64_t position : p.positions) scales.push_back(p.QueryScale(position));
      const auto rotated = [&](const Context& context, int64_t head, int64_t heads) {
        const int64_t first = head * c.head_dim, cols = heads * c.head_dim;
        Padded x = Padded::Of(p.tokens(), cols, test::Columns(p.qkv, p.width(), first, cols));
        (back ? RopeGradient : Rope)(context, x.view(), {c.head_dim, c.rotary(), c.interleaved},
                                     MakeRopeAngles(context, p.positions, p.frequencies, c.scale),
                                     c.scaled && head == 0 ? scales : std::vector<float>());
        return x;
      };
      for (const auto& [head, heads] : {std::pair{int64_t{0}, c.heads}, {c.heads, c.kv_heads}}) {
        if (heads == 0) continue;
        const Padded found = rotated(On(1), head, heads);
        // Cosine or sine, its scale, the product, the sum and the scale of the row are rounded.
        test::ExpectClose("heads", found.Values(),
                          test::Columns(exact, p.width(), head * c.head_dim, heads * c.head_dim), {6});
        EXPECT_TRUE(test::Identical(found, rotated(On(3), head, heads)));
      }
      if (HasFailure()) return;
    }
  }
}

TEST_P(RopeTest, ScoresDependOnTheDistanceAlone) {
  const int64_t head_dim = 64;
  const auto score = [&](int64_t query, int64_t key) {
    const Padded q = Padded::Normal(1, head_dim, 1), k = Padded::Normal(1, head_dim, 2);
    const std::vector<float> frequencies = Frequencies(head_dim);
    Rope(context_, q.view(), head_dim, MakeRopeAngles(context_, std::vector<int64_t>{query}, frequencies, 1));
    Rope(context_, k.view(), head_dim, MakeRopeAngles(context_, std::vector<int64_t>{key}, frequencies, 1));
    double sum = 0;
    for (int64_t i = 0; i < head_dim; ++i) sum += static_cast<double>(q(0, i)) * k(0, i);
    return sum;
  };
  EXPECT_NEAR(score(12, 5), score(100012, 100005), 1e-4);
  EXPECT_GT(std::abs(score(12, 5) - score(12, 6)), 1e-2);
}

TEST_P(RopeTest, RefusesWhatDoesNotFit) {
  const Padded x = Padded::Normal(2, 12, 1);
  const auto angles = [&](int64_t tokens, int64_t head_dim) {
    return MakeRopeAngles(context_, std::vector<int64_t>(tokens), Frequencies(head_dim), 1);
  };
  EXPECT_NO_THROW(Rope(context_, x.view(), 4, angles(2, 4)));
  EXPECT_THROW(Rope(context_, x.view(), 4, angles(1, 4)), Error);
  EXPECT_THROW(Rope(context_, x.view(), 6, angles(2, 4)), Error);
  EXPECT_THROW(Rope(context_, x.view(), 8, angles(2, 8)), Error);
  EXPECT_THROW(Rope(context_, x.view(), {4, 6, false}, angles(2, 4)), Error);
  EXPECT_THROW(Rope(context_, x.view(), 4, angles(2, 4), std::vector<float>{1}), Error);
  EXPECT_THROW(RopeGradient(context_, x.view(), 4, angles(3, 4)), Error);
}

// A rotation is its own inverse's transpose: <R x, y> = <x, R' y>, here for unit vectors, so that every element counts.
TEST_P(RopeTest, GradientIsTheTransposedRotation) {
  const std::vector<int64_t> positions = {0, 1, 7, 4097};
  const int64_t head_dim = 6, heads = 2, width = heads * head_dim;
  const RopeAngles angles = MakeRopeAngles(context_, positions, Frequencies(head_dim), 1.3f);
  const auto tokens = static_cast<int64_t>(positions.size());
  const auto units = [&](int64_t at) {
    Padded unit(tokens, width);
    for (int64_t t = 0; t < tokens; ++t)
      for (int64_t j = 0; j < width; ++j) unit(t, j) = j == at ? 1.0f : 0.0f;
    return unit;
  };
  std::vector<Padded> rotated;
  for (int64_t at = 0; at < width; ++at) {
    rotated.push_back(units(at));
    Rope(context_, rotated.back().view(), head_dim, angles);
  }
  for (int64_t at = 0; at < width; ++at) {
    const Padded gradient = units(at), threaded = units(at);
    RopeGradient(context_, gradient.view(), head_dim, angles);
    RopeGradient(On(3), threaded.view(), head_dim, angles);
    for (int64_t t = 0; t < tokens; ++t)
      for (int64_t j = 0; j < width; ++j) ASSERT_EQ(gradient(t, j), rotated[j](t, at)) << at << " " << t << " " << j;
    EXPECT_TRUE(gradient.PaddingIsUntouched());
    EXPECT_TRUE(test::Identical(gradient, threaded));
  }
}

// Every layout is the plain rotation of the elements that it pairs; the others are only scaled.
TEST_P(RopeTest, LayoutsRotateTheirPairs) {
  const std::vector<int64_t> positions = {0, 3, 4097};
  const std::vector<float> scales = {1.0f, 0.5f, 3.0f};
  const auto tokens = static_cast<int64_t>(positions.size());
  constexpr int64_t kHeadDim = 8;
  for (const int64_t rotary : {2, 4, 8}) {
    for (const bool interleaved : {false, true}) {
      std::vector<float> frequencies = Frequencies(rotary);
      const RopeAngles plain = MakeRopeAngles(context_, positions, frequencies, 1.3f);
      frequencies.resize(kHeadDim / 2, 0.0f);
      const RopeAngles angles = MakeRopeAngles(context_, positions, frequencies, 1.3f);
      const Padded x = Padded::Normal(tokens, 2 * kHeadDim, 1), out = x.Copy();
      Rope(context_, out.view(), {kHeadDim, rotary, interleaved}, angles, scales);
      for (const int64_t head : {0, 1}) {
        const Padded pairs(tokens, rotary);
        const auto place = [&](int64_t i) {  // the place of element i of the plain layout
          return head * kHeadDim + (interleaved ? i % (rotary / 2) * 2 + i / (rotary / 2) : i);
        };
        for (int64_t t = 0; t < tokens; ++t)
          for (int64_t i = 0; i < rotary; ++i) pairs(t, i) = x(t, place(i));
        Rope(context_, pairs.view(), rotary, plain);
        for (int64_t t = 0; t < tokens; ++t) {
          for (int64_t i = 0; i < rotary; ++i)
            ASSERT_EQ(out(t, place(i)), pairs(t, i) * scales[t]) << rotary << " " << i;
          for (int64_t at = head * kHeadDim + rotary; at < (head + 1) * kHeadDim; ++at)
            ASSERT_EQ(out(t, at), x(t, at) * scales[t]) << rotary << " " << at;
        }
      }
      EXPECT_TRUE(out.PaddingIsUntouched());
    }
  }
}

}  // namespace
}  // namespace shiftrt
