// SPDX-License-Identifier: Apache-2.0
// Shapes without weights, and the work that follows from them, against figures computed by hand.
#include "estimate/flops.h"

#include <gtest/gtest.h>

#include <cmath>

#include "models/split.h"
#include "tests/estimate/shapes.h"
#include "tests/models/gguf_files.h"

namespace shiftrt {
namespace {

using test::kLlama405B;
using test::kLlama70B;
using test::ShapesOf;

TEST(Shapes, CountWhatNobodyHasLoaded) {
  const ModelShapes large = ShapesOf(kLlama405B);
  const DepthPlan plan = DepthPlan::Original(126);
  // 126 (2 * 16384^2 + 2 * 1024 * 16384 + 3 * 53248 * 16384 + 2 * 16384) + 2 * 128256 * 16384 + 16384
  EXPECT_EQ(plan.Parameters(*large.weights), 405'853'388'800);
  EXPECT_EQ(large.stored, (std::map<std::string, int64_t>{{"bfloat16", 811'706'777'600}}));
  EXPECT_EQ(WeightBytes(large.weights->config, plan, {0, 126}, DType::kBFloat16), 811'706'777'600);
  // All but the embeddings, of which a token reads one row.
  EXPECT_EQ(plan.BytesPerToken(*large.weights), 2 * (405'853'388'800 - 128255 * int64_t{16384}));
  EXPECT_EQ(DepthPlan::Original(80).Parameters(*ShapesOf(kLlama70B).weights), 70'553'706'496);
}

TEST(Shapes, HaveTheTypeThatTheConfigurationNames) {
  EXPECT_EQ(ShapesOf(kLlama70B, "float32").weights->blocks[3].down.dtype, DType::kFloat32);
  EXPECT_EQ(ShapesOf(kLlama70B, "float32").stored.at("float32"), 4 * 70'553'706'496);
  EXPECT_THROW(ShapesOf(kLlama70B, "float8_e4m3fn"), Error);
  const TemporaryDirectory directory;
  WriteText(directory.path() / "config.json", test::ConfigText(kLlama70B));
  EXPECT_EQ(ShapesOfModel(directory.path(), WeightType::kFloat16).weights->head.dtype, DType::kFloat16);
}

TEST(Shapes, AreThoseOfTheFiles) {
  const TemporaryDirectory directory;
  WriteText(directory.path() / "shape.json", test::ConfigText({3, 32, 48, 4, 2, 64}));
  WriteRandomCheckpoint(directory.path() / "shape.json", DType::kFloat32, 1, directory.path() / "model");
  const ModelShapes shapes = ShapesOfModel(directory.path() / "model");  // its config.json says bfloat16
  const auto loaded = LoadWeights(directory.path() / "model");
  const DepthPlan plan = DepthPlan::Original(3);
  EXPECT_EQ(plan.Parameters(*shapes.weights), plan.Parameters(*loaded));
  EXPECT_EQ(plan.BytesPerToken(*shapes.weights), plan.BytesPerToken(*loaded));
  const std::map<std::string, int64_t> stored = {{"float32", 4 * plan.Parameters(*loaded)}};
  EXPECT_EQ(shapes.stored, stored);
  const auto gguf = directory.path() / "model.gguf";
  WriteText(gguf, GgufModel(*loaded));
  const ModelShapes header = ShapesOfModel(gguf, WeightType::kFloat16);
  EXPECT_EQ(header.stored, stored);
  EXPECT_EQ(plan.BytesPerToken(*header.weights), plan.BytesPerToken(*loaded) / 2);
}

using ShapesDeathTest = testing::Test;
TEST(ShapesDeathTest, CannotBeRead) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const ModelShapes shapes = ShapesOf(kLlama70B);
  EXPECT_DEATH(shapes.weights->Fingerprint(), "");
}

TEST(Flops, OfABlockAreThoseOfItsProductsAndItsAttention) {
  const ModelShapes shapes = ShapesOf(kLlama405B);
  // 2 (2 * 16384^2 + 2 * 1024 * 16384 + 3 * 53248 * 16384) per token
  EXPECT_DOUBLE_EQ(BlockFlopsPerToken(*shapes.weights), 126 * 6'375'342'080.0);
  const Sequences text = {4, 512};
  // 4 * 16384 FLOP for each of 512 * 513 / 2 pairs
  EXPECT_DOUBLE_EQ(BlockFlops(*shapes.weights, 7, text), 2048 * 6'375'342'080.0 + 4 * 65536.0 * 131'328);
  EXPECT_DOUBLE_EQ(BlockFlops(*shapes.weights, BlockPart{7, Halves::kMlp}, text), 2048 * 2.0 * 3 * 53248 * 16384);
  EXPECT_DOUBLE_EQ(HeadFlops(shapes.weights->config, 2047), 2.0 * 2047 * 128256 * 16384);
  EXPECT_DOUBLE_EQ(RidgeSumsFlops(16384, 16384, 2048), 2048 * 3.0 * 16384 * 16384);
}

TEST(Flops, OfAWindowCountThePairsThatSeeEachOther) {
  ModelShapes shapes = ShapesOf(kLlama70B);
  auto windowed = std::make_shared<Weights>(*shapes.weights);
  windowed->config.block.windows.assign(80, 3);
  const auto attention = [](const Weights& weights, int64_t length) {
    return BlockFlops(weights, 0, {1, length}) - static_cast<double>(length) * BlockFlopsPerToken(weights) / 80;
  };
  EXPECT_DOUBLE_EQ(attention(*windowed, 2), 4.0 * 8192 * 3);   // 1 + 2
  EXPECT_DOUBLE_EQ(attention(*windowed, 6), 4.0 * 8192 * 15);  // 1 + 2 + 4 * 3
}

// A fit of many inputs and few outputs takes no eigenvectors on the host.
TEST(Flops, OfASolveAreThoseOfATridiagonalFormWhereTheSolverTakesOne) {
  const double cube = std::pow(10496.0, 3), product = 2.0 * 10496 * 10496 * 1536;
  EXPECT_DOUBLE_EQ(SolveFlops(ParseLambda("gcv"), 10496, 1536), (4.0 / 3 + 1.0 / 3) * cube + 2 * product);
  EXPECT_DOUBLE_EQ(SolveFlops(ParseLambda("gcv"), 1536, 1536), EigenFlops(1536) + 2 * (2.0 * 1536 * 1536 * 1536));
}

}  // namespace
}  // namespace shiftrt
