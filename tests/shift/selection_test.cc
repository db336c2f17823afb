// SPDX-License-Identifier: Apache-2.0
// Criteria that look at text, against plain float64 loops over tapped streams and over logits, and against PyTorch's
// gradients (tests/goldens/make_taylor.py).
#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <numbers>
#include <numeric>
#include <set>

#include "engine/gradients.h"
#include "runtime/check.h"
#include "shift/criteria/correctable.h"
#include "shift/criteria/influence.h"
#include "shift/fit/factorize.h"
#include "shift/fit/ridge.h"
#include "shift/measure/loss.h"
#include "tests/shift/small_model.h"
#include "tests/shift/tokens.h"
#include "tests/test_directory.h"

namespace shiftrt {
namespace {

using Layers = std::vector<int64_t>;
using Parts = std::vector<BlockPart>;
using Row = std::vector<double>;

double Dot(const Row& a, const Row& b) { return std::inner_product(a.begin(), a.end(), b.begin(), 0.0); }
double Cosine(const Row& a, const Row& b) { return Dot(a, b) / std::sqrt(Dot(a, a) * Dot(b, b)); }

// The blocks with the `count` lowest scores.
Parts Lowest(const Row& scores, int64_t count) {
  Layers layers = Ranking(scores, 0, std::ssize(scores));
  layers.resize(count);
  std::sort(layers.begin(), layers.end());
  return WholeBlocks(layers);
}

// Counts the passes over the text.
class CountingProgress : public NoProgress {
 public:
  void Begin(std::string_view phase, int64_t) override { passes += phase == "selecting layers" ? 1 : 0; }
  int passes = 0;
};

class SelectionFromText : public test::SmallModel {
 protected:
  SelectionFromText() {
    Random random(9);
    for (const std::vector<int64_t>& lengths : {Layers{20, 1, 9}, Layers{30}, Layers{7, 25}}) {
      Batch batch;
      for (int64_t length : lengths) {
        std::vector<int32_t> tokens(length);
        for (int32_t& token : tokens) token = static_cast<int32_t>(random.Below(kVocab));
        batch.Add(tokens);
      }
      text_.push_back(std::move(batch));
    }
    // stream_[l][t]: before block l, all batches' tokens one after another; updates_ likewise.
    stream_.resize(kLayers + 1);
    updates_.resize(kLayers);
    std::vector<Tap> taps;
    const auto sink = [](std::vector<Row>& rows) {
      return [&rows](const Rows& seen, const Batch&) {
        const MatrixView<const float> h = seen.host();
        for (int64_t t = 0; t < h.rows; ++t) rows.emplace_back(h.row(t), h.row(t) + h.cols);
      };
    };
    for (int64_t l = 0; l <= kLayers; ++l) taps.push_back({l, TapPoint::kInput, sink(stream_[l])});
    for (int64_t l = 0; l < kLayers; ++l) taps.push_back({l, TapPoint::kUpdate, sink(updates_[l])});
    Decoder decoder(context_, model_.weights, model_.plan, std::move(taps));
    for (const Batch& batch : text_) decoder.Forward(batch);
  }

  std::vector<Selection> SelectAll(const std::string& list, Progress& progress) {
    return SelectLayers(ParsePruneList(list, "2"), {context_, model_.weights, &text_, 0}, progress);
  }
  Selection Select(const std::string& prune) {
    NoProgress progress;
    return std::move(SelectAll(prune, progress)[0]);
  }

  double MeanCosine(int64_t first, int64_t window) const {
    double sum = 0;
    for (size_t t = 0; t < stream_[0].size(); ++t) sum += Cosine(stream_[first][t], stream_[first + window][t]);
    return sum / static_cast<double>(stream_[0].size());
  }

  // Mean of -log softmax over every predicted token, from whole logits.
  double Loss(const DepthPlan& plan) {
    Decoder decoder(context_, model_.weights, plan);
    double sum = 0;
    int64_t count = 0;
    for (const Batch& batch : text_) {
      const Matrix<float> logits = decoder.Logits(decoder.Forward(batch));
      for (int64_t s = 0; s < batch.sequences(); ++s) {
        for (int64_t t = batch.offsets[s]; t + 1 < batch.offsets[s + 1]; ++t, ++count) {
          double total = 0;
          for (int64_t v = 0; v < kVocab; ++v) total += std::exp(static_cast<double>(logits(t, v)));
          sum += std::log(total) - logits(t, batch.tokens[t + 1]);
        }
      }
    }
    return sum / static_cast<double>(count);
  }

  // The adapters of this rank in place of each block.
  std::vector<std::shared_ptr<const Lra>> Adapters(int64_t rank) {
    NoProgress progress;
    const CriterionInput input = {context_, model_.weights, &text_, 0};
    CorrectableProbe probe(input, progress);
    probe.Want(Unit::kBlock, rank);
    Pass pass(context_, model_.weights);
    pass.Add(probe);
    pass.Run("", text_, progress);
    std::vector<std::shared_ptr<const Lra>> adapters;
    for (const Correctable& correctable : probe.Found(Unit::kBlock, rank)) adapters.push_back(correctable.lra);
    return adapters;
  }

  // The probabilities of the tokens after each token but the last of a sequence, from whole logits, as logarithms.
  std::vector<Row> LogProbabilities(const DepthPlan& plan) {
    Decoder decoder(context_, model_.weights, plan);
    std::vector<Row> all;
    for (const Batch& batch : text_) {
      const Matrix<float> logits = decoder.Logits(decoder.Forward(batch));
      for (int64_t s = 0; s < batch.sequences(); ++s) {
        for (int64_t t = batch.offsets[s]; t + 1 < batch.offsets[s + 1]; ++t) {
          Row& row = all.emplace_back(logits.row(t), logits.row(t) + kVocab);
          double total = 0;
          for (const double logit : row) total += std::exp(logit);
          for (double& logit : row) logit -= std::log(total);
        }
      }
    }
    return all;
  }
  // KL(original || plan), summed over the first `tokens` predicted tokens.
  double Divergence(const DepthPlan& plan, size_t tokens) {
    const std::vector<Row> p = LogProbabilities(model_.plan), q = LogProbabilities(plan);
    double sum = 0;
    for (size_t t = 0; t < std::min(tokens, p.size()); ++t)
      for (int64_t v = 0; v < kVocab; ++v) sum += std::exp(p[t][v]) * (p[t][v] - q[t][v]);
    return sum;
  }

  std::vector<Batch> text_;
  std::vector<std::vector<Row>> stream_, updates_;
};

TEST_F(SelectionFromText, BlockInfluenceIsOneMinusTheMeanCosine) {
  const Selection selection = Select("bi:2");
  ASSERT_EQ(selection.scores.size(), static_cast<size_t>(kLayers));
  for (int64_t l = 0; l < kLayers; ++l) EXPECT_NEAR(selection.scores[l], 1 - MeanCosine(l, 1), 1e-12);
  EXPECT_EQ(selection.removed, Lowest(selection.scores, 2));
}

TEST_F(SelectionFromText, FrobeniusIsOneCosineOverAllTokens) {
  const Selection selection = Select("bi:frobenius:2");
  for (int64_t l = 0; l < kLayers; ++l) {
    Row in, out;
    for (size_t t = 0; t < stream_[l].size(); ++t) {
      in.insert(in.end(), stream_[l][t].begin(), stream_[l][t].end());
      out.insert(out.end(), stream_[l + 1][t].begin(), stream_[l + 1][t].end());
    }
    EXPECT_NEAR(selection.scores[l], 1 - Cosine(in, out), 1e-12);
  }
}

TEST_F(SelectionFromText, AngularLooksAtTheLastTokenOfEverySequence) {
  const std::vector<size_t> last = {19, 20, 29, 59, 66, 91};
  for (int64_t window = 1; window <= 4; ++window) {
    const Selection selection = Select("angular:" + std::to_string(window));
    ASSERT_EQ(static_cast<int64_t>(selection.scores.size()), kLayers - window + 1);
    EXPECT_EQ(selection.window, window);
    for (int64_t l = 0; l + window <= kLayers; ++l) {
      double sum = 0;
      for (size_t t : last) sum += std::acos(Cosine(stream_[l][t], stream_[l + window][t])) / std::numbers::pi;
      EXPECT_NEAR(selection.scores[l], sum / static_cast<double>(last.size()), 1e-12);
    }
    const int64_t first = Ranking(selection.scores, 0, std::ssize(selection.scores)).front();
    EXPECT_EQ(selection.removed, PartsBetween(2 * first, 2 * (first + window)));
  }
}

TEST_F(SelectionFromText, StreamlineTakesTheWindowOfTheHighestMeanCosine) {
  const Selection selection = Select("streamline:3");
  int64_t best = 0;
  for (int64_t l = 0; l + 3 <= kLayers; ++l) {
    EXPECT_NEAR(selection.scores[l], 1 - MeanCosine(l, 3), 1e-12);
    if (MeanCosine(l, 3) > MeanCosine(best, 3)) best = l;
  }
  EXPECT_EQ(selection.removed, (Parts{best, best + 1, best + 2}));
  EXPECT_EQ(Select("streamline:3,keep=first:1,last:2").removed, (Parts{1, 2, 3}));
}

TEST_F(SelectionFromText, PerplexityIsThatOfTheModelWithoutTheBlock) {
  const Selection selection = Select("ppl:2");
  for (int64_t l = 0; l < kLayers; ++l)
    EXPECT_NEAR(selection.scores[l], std::exp(Loss(DepthPlan::Pruned(kLayers, Layers{l}))), 1e-5 * selection.scores[l]);
  EXPECT_EQ(selection.removed, Lowest(selection.scores, 2));
}

TEST_F(SelectionFromText, GreedyPerplexityIsTheSearchByHand) {
  Layers gone;
  Row scores(kLayers, 0.0);
  for (int round = 0; round < 3; ++round) {
    int64_t best = -1;
    double lowest = 1e300;
    for (int64_t l = kLayers - 2; l >= 1; --l) {
      if (std::find(gone.begin(), gone.end(), l) != gone.end()) continue;
      Layers without = gone;
      without.push_back(l);
      scores[l] = std::exp(Loss(DepthPlan::Pruned(kLayers, without)));
      if (scores[l] < lowest) {
        lowest = scores[l];
        best = l;
      }
    }
    gone.push_back(best);
  }
  const Selection selection = Select("ppl-greedy:3,keep=first:1,last:1");
  std::sort(gone.begin(), gone.end());
  EXPECT_EQ(selection.removed, WholeBlocks(gone));
  for (int64_t l = 1; l < kLayers - 1; ++l) EXPECT_NEAR(selection.scores[l], scores[l], 1e-5 * scores[l]);
  EXPECT_TRUE(std::isnan(selection.scores[0]) && std::isnan(selection.scores[kLayers - 1]));
}

TEST_F(SelectionFromText, TokensBoundTheTextThatLossesAreMeasuredOn) {
  const Selection bounded = Select("ppl:2,tokens=21"), all = Select("ppl:2");
  Batch start;
  start.Add(std::span(text_[0].tokens).first(20));
  start.Add(std::span(text_[0].tokens).subspan(20, 1));
  text_ = {start};
  EXPECT_EQ(Select("ppl:2").scores, bounded.scores);
  EXPECT_NE(all.scores, bounded.scores);
}

// The residual of the adapter found, by hand; that no map of the rank does better is Factorize's own test.
TEST_F(SelectionFromText, CorrectableIsWhatTheBestAdapterLeaves) {
  for (const int64_t rank : {1, 5}) {
    const Selection selection = Select(fmt::format("correctable:2,rank={}", rank));
    for (int64_t l = 0; l < kLayers; ++l) {
      test::Tokens tokens{Matrix<float>(92, kWidth), Matrix<float>(92, kWidth)};
      for (int64_t t = 0; t < 92; ++t) {
        std::copy(stream_[l][t].begin(), stream_[l][t].end(), tokens.h.row(t));
        std::copy(updates_[l][t].begin(), updates_[l][t].end(), tokens.delta.row(t));
      }
      // The weights of the sums are those of TokenWeights::norm; lambda depends on their scale.
      const std::vector<double> relative = test::RelativeWeights(tokens);
      std::vector<double> weights = relative;
      for (double& weight : weights) weight *= kWidth;
      const RidgeSums sums = test::Accumulated(tokens, weights);
      const LowRank best = Factorize(context_, sums, SolveRidge(context_, sums, {}), rank, Factorization::kReducedRank);
      const double residual = test::Residual(tokens, test::Product(best.p, best.q), best.b, relative) / 92;
      EXPECT_NEAR(selection.scores[l], residual, 1e-9 * residual);
    }
    EXPECT_EQ(selection.removed, Lowest(selection.scores, 2));
  }
  EXPECT_EQ(Select("correctable:2").scores, Select("correctable:2,rank=16").scores) << "64 is more than the width";
}

TEST_F(SelectionFromText, CorrectableGreedyMeasuresTheLossWithAdaptersInPlace) {
  const std::vector<std::shared_ptr<const Lra>> adapters = Adapters(4);
  Layers gone;
  Row scores(kLayers);
  for (int round = 0; round < 2; ++round) {
    int64_t best = -1;
    for (int64_t l = kLayers - 1; l >= 0; --l) {
      if (std::find(gone.begin(), gone.end(), l) != gone.end()) continue;
      Layers without = gone;
      without.push_back(l);
      std::vector<std::shared_ptr<const Lra>> in_place;
      for (int64_t layer : without) in_place.push_back(adapters[layer]);
      scores[l] = Loss(DepthPlan::Corrected(kLayers, without, in_place));
      if (best < 0 || scores[l] < scores[best]) best = l;
    }
    gone.push_back(best);
  }
  const Selection selection = Select("correctable-greedy:2,rank=4");
  std::sort(gone.begin(), gone.end());
  EXPECT_EQ(selection.removed, WholeBlocks(gone));
  for (int64_t l = 0; l < kLayers; ++l) EXPECT_NEAR(selection.scores[l], scores[l], 1e-5 * scores[l]);
}

TEST_F(SelectionFromText, SearchComparesWholeChoicesWithAdaptersInPlace) {
  const std::vector<std::shared_ptr<const Lra>> adapters = Adapters(4);
  const auto divergence = [&](const Layers& without, size_t tokens) {
    std::vector<std::shared_ptr<const Lra>> in_place;
    for (const int64_t layer : without) in_place.push_back(adapters[layer]);
    return Divergence(DepthPlan::Corrected(kLayers, without, in_place), tokens);
  };
  std::map<double, Layers> all;
  for (int64_t a = 0; a < kLayers; ++a)
    for (int64_t b = a + 1; b < kLayers; ++b)
      for (int64_t c = b + 1; c < kLayers; ++c) all[divergence({a, b, c}, 1000)] = {a, b, c};
  const Selection selection = Select("search:3,rank=4,rounds=9");
  EXPECT_EQ(selection.removed, WholeBlocks(all.begin()->second)) << all.begin()->first;
  // The first sequence has 19 predicted tokens.
  for (int64_t l = 0; l < kLayers; ++l) EXPECT_NEAR(selection.scores[l], divergence({l}, 19) / 19, 1e-5) << l;
  // With a budget in minutes it ends when no choice is left.
  EXPECT_EQ(Select("search:3,rank=4").removed, selection.removed);
  const auto of = [&](const Selection& found) { return divergence(LayersOf(found.removed), 1000); };
  EXPECT_LE(of(selection), of(Select("bi:3")));
  const Layers kept = LayersOf(Select("search:2,rank=4,rounds=5,keep=first:2,last:1").removed);
  EXPECT_TRUE(kept.size() == 2 && kept.front() >= 2 && kept.back() < kLayers - 1);
  int64_t places = 0;
  for (const BlockPart& part : Select("search:3,unit=half,rank=4,rounds=5").removed)
    places += part.end() - part.begin();
  EXPECT_EQ(places, 3);
  // A choice by size removes as much as fits.
  for (const char* share :
       {"search:0.4,unit=half,rank=4,rounds=9", "search:0.6,unit=half,rank=4,rounds=9,keep=first:1"}) {
    Quota quota(ParsePrune(share), *model_.weights);
    for (const BlockPart& part : Select(share).removed)
      for (int64_t place = part.begin(); place < part.end(); ++place) quota.Take(place);
    for (int64_t place = quota.first(); place < quota.end(); ++place) EXPECT_FALSE(quota.Admits(place)) << share;
  }
}

// From the gradients of all blocks at once, over the text as one batch.
TEST_F(SelectionFromText, TaylorIsTheSumOfWeightsTimesTheirGradients) {
  for (const int64_t tokens : {92, 29}) {  // all, and the sequences of the first batch
    Batch text;
    for (const Batch& batch : FirstSequences(text_, tokens))
      for (int64_t s = 0; s < batch.sequences(); ++s)
        text.Add(std::span(batch.tokens).subspan(batch.offsets[s], batch.offsets[s + 1] - batch.offsets[s]));
    GradientEngine engine(context_, model_.weights, model_.plan);
    TrainedParameters trained;
    std::vector<DeviceMemory> memory;
    for (const BlockWeights& block : model_.weights->blocks) {
      StageParameters& of = trained.stages.emplace_back();
      of.tensors.resize(BlockTensors().size());
      ForEachTensor(block, [&](const BlockTensor& row, const TensorView& tensor) {
        const bool vector = tensor.shape.size() == 1;
        const auto gradient = memory.emplace_back(engine.Allocate(tensor.elements()));
        of.tensors[&row - BlockTensors().data()].gradient =
            gradient.matrix(vector ? 1 : tensor.rows(), vector ? tensor.elements() : tensor.cols());
      });
    }
    engine.Set(trained);
    const int64_t predicted = PredictedTokens(text);
    engine.Step(text, {}, 1.0 / static_cast<double>(predicted));
    const std::vector<double> scores = Select(fmt::format("taylor:2,tokens={}", tokens)).scores;
    ASSERT_EQ(std::ssize(scores), kLayers);
    for (int64_t layer = 0; layer < kLayers; ++layer) {
      double expected = 0;
      ForEachTensor(model_.weights->blocks[layer], [&](const BlockTensor& row, const TensorView& tensor) {
        const float* gradient = trained.stages[layer].tensors[&row - BlockTensors().data()].gradient.host().data;
        const auto* w = static_cast<const float*>(tensor.data);
        for (int64_t i = 0; i < tensor.elements(); ++i) expected += std::abs(static_cast<double>(w[i]) * gradient[i]);
      });
      EXPECT_NEAR(scores[layer], expected, 1e-5 * expected) << layer;
    }
  }
}

TEST_F(SelectionFromText, TaylorRefusesMoreTextThanThereIsMemoryFor) {
  NoProgress progress;
  Context small = context_;
  small.memory = 4 * kWidth * (kLayers + 2) * 40;
  const CriterionInput input = {small, model_.weights, &text_, 0};
  EXPECT_EQ(std::ssize(SelectLayers(ParsePrune("taylor:2,tokens=30"), input, progress).scores), kLayers);
  try {
    SelectLayers(ParsePrune("taylor:2"), input, progress);
    FAIL() << "92 tokens took the memory of 40";
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("tokens=40"), std::string::npos) << error.what();
  }
}

// The golden is of the samples that the fit would read of all of the demo model's calibration text.
TEST(Taylor, ScoresAndLayersOfTheDemoModelAreThoseOfPyTorch) {
  const auto demo = TestDirectory().parent_path() / "models/demo";
  std::ifstream file(TestDirectory() / "goldens/taylor.json");
  const nlohmann::json golden = nlohmann::json::parse(file);
  const auto weights = LoadWeights(demo);
  const CalibrationSet text = LoadCalibration({(demo / "calibration.txt").string(), 1'000'000, golden["length"]},
                                              *OpenTokenizer(demo.string()), 0, kCalibrationBatchTokens);
  NoProgress progress;
  const Selection selection =
      SelectLayers(ParsePrune(fmt::format("taylor:0.25,tokens={}", golden["tokens"].get<int64_t>())),
                   {Context::Default(), weights, &text.fit, 0}, progress);
  EXPECT_EQ(LayersOf(selection.removed), golden["removed"].get<std::vector<int64_t>>());
  const std::vector<double> expected = golden["scores"];
  ASSERT_EQ(selection.scores.size(), expected.size());
  for (size_t layer = 0; layer < expected.size(); ++layer)
    EXPECT_NEAR(selection.scores[layer], expected[layer], 1e-4 * expected[layer]) << layer;
}

TEST_F(SelectionFromText, OnePassServesEveryCriterionOfTheStream) {
  CountingProgress progress;
  const std::vector<Selection> together =
      SelectAll("bi,bi:frobenius,angular:3,streamline,correctable,rank=3,reverse,taylor,taylor,tokens=30", progress);
  EXPECT_EQ(progress.passes, 1);
  ASSERT_EQ(together.size(), 8u);
  const char* alone[] = {"bi",      "bi:frobenius", "angular:3",         "streamline", "correctable:2,rank=3",
                         "reverse", "taylor",       "taylor:2,tokens=30"};
  for (size_t i = 0; i < together.size(); ++i) {
    EXPECT_EQ(together[i].scores, Select(alone[i]).scores) << alone[i];
    EXPECT_EQ(together[i].removed, Select(alone[i]).removed) << alone[i];
  }
}

TEST_F(SelectionFromText, LayersInGroupsGiveTheSameAdapters) {
  NoProgress progress;
  Context small = context_;
  small.memory = 2 * RidgeSums::Bytes(kWidth);
  std::vector<double> scores[2], residuals[2];
  for (const bool in_groups : {false, true}) {
    const CriterionInput input = {in_groups ? small : context_, model_.weights, &text_, 0};
    InfluenceProbe influence(input, progress);
    CorrectableProbe correctable(input, progress);
    influence.Want(Unit::kBlock, 1);
    influence.Want(Unit::kBlock, 4);
    correctable.Want(Unit::kBlock, 2);
    Pass pass(context_, model_.weights);
    pass.Add(influence);
    pass.Add(correctable);
    pass.Run("", text_, progress);
    scores[in_groups] = influence.Found(Unit::kBlock, 4).Scores();
    for (const Correctable& layer : correctable.Found(Unit::kBlock, 2)) residuals[in_groups].push_back(layer.residual);
  }
  EXPECT_EQ(scores[0], scores[1]);
  EXPECT_EQ(std::ssize(residuals[1]), kLayers);
  EXPECT_EQ(residuals[0], residuals[1]);
}

TEST_F(SelectionFromText, TargetsAreWhatStays) {
  const Decoder original(context_, model_.weights, model_.plan);
  const int64_t block =
      (original.Parameters() - Decoder(context_, model_.weights, DepthPlan::Pruned(kLayers, Layers{0})).Parameters());
  const int64_t left = original.Parameters() - 2 * block;
  EXPECT_EQ(Select(fmt::format("reverse:params={}", left)).removed, (Parts{4, 5}));
  EXPECT_EQ(Select(fmt::format("reverse:params={}", left - 1)).removed, (Parts{3, 4, 5}));
  EXPECT_EQ(Select(fmt::format("reverse:bytes={}", 4 * left)).removed, (Parts{4, 5}));
  EXPECT_EQ(Select(fmt::format("reverse:bytes={}KiB,keep=last:1", 4 * left / 1024)).removed, (Parts{2, 3, 4}));
  EXPECT_THROW(Select("reverse:params=10"), UsageError);
  EXPECT_THROW(Select("reverse:bytes=1TB"), UsageError);
  EXPECT_THROW(Select("reverse:bytes=1GB"), UsageError) << "the model is smaller already";
}

TEST_F(SelectionFromText, NeedsText) {
  NoProgress progress;
  const CriterionInput none{context_, model_.weights, nullptr, 0};
  for (const Criterion& criterion : Criteria()) {
    const PruneSpec spec = ParsePrune(criterion.name, "1");
    EXPECT_EQ(NeedCalibration({spec}), criterion.needs_calibration());
    if (!criterion.needs_calibration()) continue;
    EXPECT_THROW(SelectLayers(spec, none, progress), Error) << criterion.name;
  }
}

TEST(ParsePruneList, KeepsOptionsWithTheirCriterion) {
  const std::vector<PruneSpec> specs =
      ParsePruneList("bi,angular:4,keep=first:2,last:1,layers=3,5,8-10,ppl:0.5,tokens=100,bi:frobenius", "0.25");
  ASSERT_EQ(specs.size(), 5u);
  EXPECT_EQ(specs[0].criterion, "bi");
  EXPECT_EQ(specs[0].ratio, 0.25);
  EXPECT_EQ(specs[1].count, 4);
  EXPECT_EQ(specs[1].keep_first, 2);
  EXPECT_EQ(specs[1].keep_last, 1);
  EXPECT_EQ(specs[2].layers, (Parts{3, 5, 8, 9, 10}));
  EXPECT_EQ(specs[3].Option("tokens"), 100);
  EXPECT_EQ(specs[4].criterion, "bi:frobenius");
  EXPECT_THROW(ParsePruneList("bi,tailor", "0.25"), UsageError);
  EXPECT_THROW(ParsePruneList("", "0.25"), UsageError);
}

}  // namespace
}  // namespace shiftrt
