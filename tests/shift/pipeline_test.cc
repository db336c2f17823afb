#include "shift/pipeline.h"

#include <unistd.h>

#include <fstream>

#include "runtime/check.h"
#include "tests/shift/tokens.h"

namespace shiftrt {
namespace {

constexpr int64_t kLayers = 6, kWidth = 16;

class Pipeline : public testing::Test {
 protected:
  Pipeline() {
    const auto directory = std::filesystem::temp_directory_path() / ("shiftrt_pipeline_" + std::to_string(getpid()));
    std::filesystem::create_directories(directory);
    std::ofstream(directory / "shape.json")
        << R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 16, "vocab_size": 64,
               "intermediate_size": 24, "num_hidden_layers": 6, "num_attention_heads": 2, "num_key_value_heads": 1,
               "max_position_embeddings": 64, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "hidden_act": "silu",
               "tie_word_embeddings": false, "torch_dtype": "float32"})";
    WriteRandomCheckpoint(directory / "shape.json", DType::kFloat32, 3, directory / "model");
    model_.weights = LoadWeights(directory / "model");
    std::filesystem::remove_all(directory);  // the mapping stays
    Random random(4);
    for (int sample = 0; sample < 32; ++sample) {
      std::vector<int32_t> tokens(32);
      for (int32_t& token : tokens) token = static_cast<int32_t>(random.Below(64));
      Batch batch;
      batch.Add(tokens);
      (sample % 8 == 7 ? calibration_.heldout : calibration_.fit).push_back(batch);
    }
  }

  ShiftResult Run(const std::string& prune, int64_t rank, Merge merge = Merge::kOff,
                  const std::string& lambda = "gcv") {
    ShiftOptions options;
    options.prune = ParsePrune(prune);
    options.rank = rank;
    options.merge = merge;
    options.ridge.lambda = ParseLambda(lambda);
    NoProgress progress;
    return Shift(context_, model_, calibration_, options, progress);
  }

  // The final stream of the held-out batches under a plan.
  std::vector<double> Stream(const DepthPlan& plan) {
    Decoder decoder(context_, model_.weights, plan);
    std::vector<double> out;
    for (const Batch& batch : calibration_.heldout) {
      const MatrixView<const float> h = decoder.Forward(batch);
      for (int64_t i = 0; i < h.rows; ++i) out.insert(out.end(), h.row(i), h.row(i) + h.cols);
    }
    return out;
  }

  // From outputs less inputs, not from the block's own update.
  RidgeAccumulator SumsOf(int64_t layer) {
    RidgeAccumulator sums(kWidth);
    Matrix<float> input(32, kWidth), update(32, kWidth);
    std::vector<Tap> taps;
    taps.push_back({layer, TapPoint::kInput, [&](MatrixView<const float> h) {
                      for (int64_t i = 0; i < h.rows; ++i) std::copy_n(h.row(i), h.cols, input.row(i));
                    }});
    taps.push_back({layer, TapPoint::kOutput, [&](MatrixView<const float> h) {
                      for (int64_t i = 0; i < h.rows; ++i)
                        for (int64_t j = 0; j < h.cols; ++j) update(i, j) = h(i, j) - input(i, j);
                      sums.Add(context_, input.view(), update.view());
                    }});
    Decoder decoder(context_, model_.weights, DepthPlan::Original(kLayers), std::move(taps));
    for (const Batch& batch : calibration_.fit) decoder.Forward(batch);
    return sums;
  }

  Context context_;
  Model model_;
  CalibrationSet calibration_;
};

TEST_F(Pipeline, FitsEachSiteFromTheOriginalModel) {
  const ShiftResult result = Run("layers=1,4", 0, Merge::kOff, "1e-3");
  ASSERT_EQ(result.sites.size(), 2u);
  for (const SiteReport& site : result.sites) {
    const RidgeAccumulator sums = SumsOf(site.layer);
    const RidgeSolution solution = SolveRidge(context_, sums, {ParseLambda("1e-3"), false});
    EXPECT_EQ(site.lambda, 1e-3);
    EXPECT_EQ(site.rank, kWidth);
    EXPECT_NEAR(site.r2_fit, RSquared(context_, sums, solution.a.view(), solution.b.view()), 1e-6);
    EXPECT_LE(site.r2_heldout, site.r2_fit);
  }
  EXPECT_EQ(result.pruned.stages.size(), 4u);
  EXPECT_EQ(result.corrected.stages.size(), 6u);
  EXPECT_FALSE(result.merged.has_value());
}

TEST_F(Pipeline, CorrectionBringsTheStreamNearer) {
  const ShiftResult result = Run("bi:0.34", 8);
  EXPECT_EQ(result.selection.scores.size(), 6u);
  EXPECT_EQ(result.selection.removed.size(), 2u);
  const std::vector<double> original = Stream(DepthPlan::Original(kLayers));
  EXPECT_LT(test::RelativeError(Stream(result.corrected), original),
            test::RelativeError(Stream(result.pruned), original));
  for (const SiteReport& site : result.sites) {
    EXPECT_EQ(site.rank, 8);
    EXPECT_EQ(site.singular_values.size(), static_cast<size_t>(kWidth));
    EXPECT_GT(site.r2_fit, 0);
  }
}

TEST_F(Pipeline, LargeLambdaLeavesThePrunedModelUpToTheMean) {
  const ShiftResult result = Run("reverse*:2", 0, Merge::kOff, "1e12");
  const auto& lra = *std::get<AdapterStage>(result.corrected.stages[3]).lra;
  for (float x : lra.a.span()) EXPECT_LT(std::abs(x), 1e-8f);
  EXPECT_NEAR(result.sites[0].r2_fit, 0.0, 1e-6);
}

TEST_F(Pipeline, MergedRunsLikeTheSequenceOfItsSites) {
  for (const Merge merge : {Merge::kFull, Merge::kLowRank}) {
    const ShiftResult result = Run("layers=2-4", 5, merge);
    ASSERT_TRUE(result.merged.has_value());
    EXPECT_EQ(result.merged->stages.size(), 4u);
    EXPECT_LT(test::RelativeError(Stream(*result.merged), Stream(result.corrected)), 1e-5);
  }
}

TEST_F(Pipeline, WithoutHeldoutTextItsFitIsNotANumber) {
  calibration_.heldout.clear();
  EXPECT_TRUE(std::isnan(Run("reverse:1", 2).sites[0].r2_heldout));
}

TEST_F(Pipeline, RefusesARankAboveTheHiddenSize) {
  EXPECT_THROW(Run("reverse:1", kWidth + 1), UsageError);
  EXPECT_THROW(Run("reverse:1", -1), UsageError);
}

}  // namespace
}  // namespace shiftrt
