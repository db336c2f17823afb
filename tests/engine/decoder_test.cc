// SPDX-License-Identifier: Apache-2.0
// The decoder against transformers' numbers (tests/goldens/make_models.py), and against itself.
#include "engine/decoder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

#include "engine/generate.h"
#include "eval/perplexity.h"
#include "runtime/check.h"
#include "runtime/random.h"
#include "tests/engine/golden.h"
#include "tests/test_directory.h"

namespace shiftrt {
namespace {

using test::Copied;
using test::CorrectedPlan;
using test::Golden;
using test::LargestDifference;
using test::OneSequence;

const Context kContext = Context::Default();

std::vector<std::string> GoldenNames() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(TestDirectory() / "goldens/models"))
    names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

TEST(Goldens, CoverEveryFamily) { EXPECT_GE(GoldenNames().size(), 12u); }

double Largest(MatrixView<const float> x) {
  double largest = 0;
  for (int64_t i = 0; i < x.rows * x.cols; ++i) largest = std::max(largest, std::abs(static_cast<double>(x.data[i])));
  return largest;
}

class AgainstTransformers : public testing::TestWithParam<std::string> {};

TEST_P(AgainstTransformers, LogitsAndHiddenStatesAgreeInFloat32) {
  const Golden golden(GetParam());
  const auto weights = GoldenWeights(GetParam());
  const int64_t layers = weights->config.layers;
  std::vector<Matrix<float>> hidden(layers + 1);
  std::vector<Tap> taps;
  for (int64_t l = 0; l <= layers; ++l)
    taps.push_back({l, TapPoint::kInput, [&hidden, l](const Rows& h, const Batch&) { hidden[l] = Copied(h); }});
  Decoder decoder(kContext, weights, DepthPlan::Original(layers), taps);
  const auto h = decoder.Forward(OneSequence(golden.tokens()));
  const auto expected = golden["logits"];
  const Matrix<float> logits = decoder.Logits(h.Slice(h.count() - expected.rows, expected.rows));
  const double largest = Largest(expected);
  // The figures of docs/support.md.
  const double of_logits = LargestDifference(logits.view(), expected) / largest;
  RecordProperty("logits", fmt::format("{:.1e}", of_logits));
  EXPECT_LE(of_logits, 1e-5);
  double of_hidden = 0;
  for (int64_t l = 0; l <= layers; ++l) {
    const auto want = golden["hidden." + std::to_string(l)];
    const double error = LargestDifference(hidden[l].view().Rows(h.count() - want.rows, want.rows), want) /
                         std::max(largest, Largest(want));
    EXPECT_LE(error, 1e-5) << "hidden." << l;
    of_hidden = std::max(of_hidden, error);
  }
  RecordProperty("hidden", fmt::format("{:.1e}", of_hidden));
}
INSTANTIATE_TEST_SUITE_P(Models, AgainstTransformers, testing::ValuesIn(GoldenNames()), [](const auto& info) {
  std::string name = info.param;
  std::replace(name.begin(), name.end(), '.', '_');
  return name;
});

// The rule's values are exact in bfloat16, so the float32 golden is the reference of the bfloat16 run too.
TEST(Decoder, Bfloat16IsNoFurtherOffThanTwiceTheReferencesOwnBfloat16) {
  for (const char* name : {"llama2", "qwen2_tied", "qwen3", "phi3", "gemma2", "gemma3", "olmo2", "granite", "glm4",
                           "starcoder2", "nemotron", "cohere2"}) {
    const Golden golden(name);
    const auto weights = GoldenWeights(name, DType::kBFloat16);
    EXPECT_EQ(weights->blocks[0].q.dtype, DType::kBFloat16);
    Decoder decoder(kContext, weights, DepthPlan::Original(weights->config.layers));
    const Matrix<float> logits = decoder.Logits(decoder.Forward(OneSequence(golden.tokens())));
    const double theirs = LargestDifference(golden["logits_bf16"], golden["logits"]);
    EXPECT_GT(theirs, 0);
    EXPECT_LE(LargestDifference(logits.view(), golden["logits"]), 2 * theirs) << name;
  }
}

TEST(Decoder, PrefillTokenByTokenAndPackedScoringAgree) {
  for (const char* name : {"llama3_tied", "qwen3",       "llama_odd",       "phi3",    "gemma2",  "gemma3",
                           "ministral3",  "olmo3",       "smollm3",         "granite", "glm4",    "exaone4",
                           "qwen3_moe",   "mixtral",     "qwen3_moe_mixed", "olmoe",   "qwen3_5", "qwen2_moe_windows",
                           "qwen3_next",  "qwen3_5_moe", "gpt_oss",         "hunyuan", "apertus", "lfm2"}) {
    const auto weights = GoldenWeights(name);
    const auto tokens = Golden(name).tokens();
    // A stream that begins with scaled embeddings is larger by that factor, and so is its rounding. That of the random
    // models with gated delta networks is five times as large as that of the others.
    const double factor = weights->config.block.gated_delta ? 5 : weights->EmbeddingScale();
    const double tolerance = 2e-5 * std::max(1.0, factor);
    for (const DepthPlan& plan : {DepthPlan::Original(weights->config.layers), CorrectedPlan(*weights)}) {
      Decoder decoder(kContext, weights, plan);
      const Matrix<float> whole = Copied(decoder.Forward(OneSequence(tokens)));

      KvCache cache(weights->config, plan, static_cast<int64_t>(tokens.size()));
      decoder.Forward(std::span(tokens).first(5), cache);
      for (size_t t = 5; t < tokens.size(); ++t) {
        const auto h = decoder.Forward(std::span(tokens).subspan(t, 1), cache);
        EXPECT_LE(LargestDifference(h.host(), whole.view().Rows(static_cast<int64_t>(t), 1)), tolerance)
            << name << " " << t;
      }
      // Forgetting and feeding again gives the same.
      const int64_t kept = cache.Truncate(7);
      EXPECT_EQ(kept, cache.recurrent() ? 0 : 7) << name;
      const auto again = decoder.Forward(std::span(tokens).subspan(kept), cache);
      EXPECT_LE(LargestDifference(again.host(), whole.view().Rows(kept, again.count())), tolerance);

      Batch packed;
      packed.Add(std::span(tokens).first(1));
      packed.Add(tokens);
      packed.Add(std::span(tokens).first(9));
      const auto h = decoder.Forward(packed);
      const auto length = static_cast<int64_t>(tokens.size());
      EXPECT_LE(LargestDifference(h.host().Rows(1, length), whole.view()), tolerance);
      EXPECT_LE(LargestDifference(h.host().Rows(1 + length, 9), whole.view().Rows(0, 9)), tolerance);
    }
  }
}

class Branches : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Models, Branches, testing::Values("llama3_tied", "qwen3_5", "qwen3_next", "gpt_oss", "lfm2"));

TEST_P(Branches, AreTheWholeSequencesEnd) {
  const auto weights = GoldenWeights(GetParam());
  std::vector<int32_t> tokens(40);
  for (size_t t = 0; t < tokens.size(); ++t) tokens[t] = static_cast<int32_t>(t * 31 % 89);
  const std::span<const int32_t> all(tokens);
  // A trunk of 20, two branches of it, and a branch of the first of them.
  Batch tree;
  tree.Add(all.first(20));
  tree.Add(all.subspan(20, 6), 0);
  tree.Add(all.subspan(26, 1), 0);
  tree.Add(all.subspan(27, 13), 1);
  const std::vector<std::vector<int64_t>> paths = {{0}, {0, 1}, {0, 2}, {0, 1, 3}};
  Decoder decoder(kContext, weights, DepthPlan::Original(weights->config.layers));
  const Matrix<float> branched = Copied(decoder.Forward(tree));
  for (const std::vector<int64_t>& path : paths) {
    Batch whole;
    std::vector<int32_t> sequence;
    for (const int64_t s : path)
      sequence.insert(sequence.end(), tokens.begin() + tree.offsets[s], tokens.begin() + tree.offsets[s + 1]);
    whole.Add(sequence);
    const int64_t begin = tree.offsets[path.back()], count = tree.offsets[path.back() + 1] - begin;
    const auto end = decoder.Forward(whole).Slice(whole.size() - count, count);
    EXPECT_LT(LargestDifference(end.host(), branched.view().Rows(begin, count)), 2e-5) << "branch " << path.back();
  }
  EXPECT_THROW(tree.Add(all.first(1), 4), Error);
  Batch too_long;
  too_long.Add(std::vector<int32_t>(weights->config.max_positions, 1));
  too_long.Add(all.first(1), 0);
  EXPECT_THROW(decoder.Forward(too_long), Error);
}

TEST(Decoder, EveryInstructionSetAndThreadCountAgrees) {
  for (const char* name : {"qwen2.5", "qwen3_5", "apertus", "lfm2"}) {
    const auto weights = GoldenWeights(name, DType::kBFloat16);
    const Golden golden(name);
    const DepthPlan plan = DepthPlan::Original(weights->config.layers);
    for (const Isa isa : kIsas) {
      if (isa > BestIsa()) continue;
      Decoder one({1, isa}, weights, plan), two({2, isa}, weights, plan);
      const Matrix<float> a = Copied(one.Forward(OneSequence(golden.tokens())));
      const Matrix<float> b = Copied(two.Forward(OneSequence(golden.tokens())));
      EXPECT_EQ(LargestDifference(a.view(), b.view()), 0);
      EXPECT_LE(LargestDifference(a.view(), golden[fmt::format("hidden.{}", weights->config.layers)]), 1e-4);
    }
  }
}

// A sequence goes on from the state of its own cache, also among others, and a call that failed in the middle is not
// taken for one that went on.
TEST(Decoder, RefusesAStateOfOtherPositions) {
  const auto weights = GoldenWeights("qwen3_5");
  const DepthPlan plan = DepthPlan::Original(weights->config.layers);
  const std::vector<int32_t> tokens = {3, 1, 4, 1, 5};
  bool fails = false;
  Decoder decoder(kContext, weights, plan, {{3, TapPoint::kInput, [&](const Rows&, const Batch&) {
                                               if (fails) Fail("on purpose");
                                             }}});
  KvCache cache(weights->config, plan, 20);
  decoder.Forward(tokens, cache);
  fails = true;
  EXPECT_THROW(decoder.Forward(tokens, cache), Error);
  fails = false;
  try {
    decoder.Forward(tokens, cache);
    FAIL() << "the first block's state is that of 10 positions";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("that of 10 positions, and the call goes on from 5"), std::string::npos)
        << error.what();
  }
  EXPECT_EQ(cache.Truncate(4), 0);
  const Matrix<float> again = Copied(decoder.Forward(tokens, cache));
  EXPECT_EQ(LargestDifference(again.view(), decoder.Forward(OneSequence(tokens)).host()), 0);
}

TEST(Decoder, AGpuRefusesWhatItHasNoKernelsFor) {
  for (const auto& [name, what] :
       {std::pair("hunyuan", "the family hunyuan_v1_dense has norms of rotated queries and keys"),
        {"apertus", "the family apertus has the activation xIELU"},
        {"lfm2", "the family lfm2 has short convolutions"}}) {
    const auto weights = GoldenWeights(name);
    Context context = kContext;
    context.device = Device::kCuda;
    try {
      Decoder(context, weights, DepthPlan::Original(weights->config.layers));
      FAIL() << name << " is not refused";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(fmt::format("{}, which no kernel computes on a GPU", what)),
                std::string::npos)
          << error.what();
    }
  }
}

TEST(Decoder, TapsSeeTheExactUpdateAndChangeNothing) {
  const auto weights = GoldenWeights("llama_bias");
  const auto tokens = Golden("llama_bias").tokens();
  Matrix<float> input, update, output;
  Decoder plain(kContext, weights, DepthPlan::Original(3));
  Decoder tapped(kContext, weights, DepthPlan::Original(3),
                 {{1, TapPoint::kInput, [&](const Rows& h, const Batch&) { input = Copied(h); }},
                  {1, TapPoint::kUpdate, [&](const Rows& h, const Batch&) { update = Copied(h); }},
                  {1, TapPoint::kOutput, [&](const Rows& h, const Batch&) { output = Copied(h); }}});
  const Matrix<float> expected = Copied(plain.Forward(OneSequence(tokens)));
  EXPECT_EQ(LargestDifference(tapped.Forward(OneSequence(tokens)).host(), expected.view()), 0);
  for (int64_t i = 0; i < input.size(); ++i) EXPECT_NEAR(input.data()[i] + update.data()[i], output.data()[i], 1e-6f);
  input = {};
  tapped.Forward(OneSequence(tokens), /*taps_only=*/true);
  EXPECT_FALSE(input.empty());
  // The stream after the last block is that of the whole model, also where the taps are all that is asked for.
  Matrix<float> end;
  Decoder to_the_end(kContext, weights, DepthPlan::Original(3),
                     {{2, TapPoint::kInput, [&](const Rows& h, const Batch&) { input = Copied(h); }},
                      {3, TapPoint::kInput, [&](const Rows& h, const Batch&) { end = Copied(h); }}});
  to_the_end.Forward(OneSequence(tokens), /*taps_only=*/true);
  EXPECT_EQ(LargestDifference(end.view(), expected.view()), 0);
}

TEST(Decoder, ZeroAdaptersArePruning) {
  const auto weights = GoldenWeights("mistral");
  const auto tokens = Golden("mistral").tokens();
  const int64_t d = weights->config.hidden;
  const std::vector<int64_t> removed = {1};
  const std::vector<std::shared_ptr<const Lra>> zero = {
      std::make_shared<const Lra>(Lra{Matrix<float>::Zeros(d, d), {}, {}, Matrix<float>::Zeros(1, d)})};
  Decoder pruned(kContext, weights, DepthPlan::Pruned(3, removed));
  Decoder corrected(kContext, weights, DepthPlan::Corrected(3, removed, zero));
  const Matrix<float> a = Copied(pruned.Forward(OneSequence(tokens)));
  EXPECT_EQ(LargestDifference(corrected.Forward(OneSequence(tokens)).host(), a.view()), 0);
  EXPECT_LT(pruned.Parameters(), Decoder(kContext, weights, DepthPlan::Original(3)).Parameters());
}

// A block adds the sum of the updates of attention and MLP; with its down projection folded to zeros, that of attention
// alone.
TEST(Decoder, TapsTheMlpsOutputAndRunsABlocksOwnTensors) {
  const auto weights = GoldenWeights("llama3_tied");
  const auto tokens = Golden("llama3_tied").tokens();
  const TensorView& down = weights->blocks[1].down;
  const std::vector<float> zeros(down.elements(), 0.0f);
  auto block = std::make_shared<BlockWeights>(weights->blocks[1]);
  block->down = {zeros.data(), DType::kFloat32, down.shape};
  DepthPlan silenced = DepthPlan::Original(weights->config.layers);
  silenced.stages[1] = BlockStage{.layer = 1, .own = block};
  Matrix<float> update, mlp, attention;
  Decoder original(kContext, weights, DepthPlan::Original(weights->config.layers),
                   {{1, TapPoint::kMlp, [&](const Rows& h, const Batch&) { mlp = Copied(h); }},
                    {1, TapPoint::kUpdate, [&](const Rows& h, const Batch&) { update = Copied(h); }}});
  Decoder folded(kContext, weights, silenced,
                 {{1, TapPoint::kUpdate, [&](const Rows& h, const Batch&) { attention = Copied(h); }}});
  original.Forward(OneSequence(tokens), /*taps_only=*/true);
  folded.Forward(OneSequence(tokens), /*taps_only=*/true);
  for (int64_t i = 0; i < update.size(); ++i) EXPECT_NEAR(attention.data()[i] + mlp.data()[i], update.data()[i], 1e-6f);
  EXPECT_EQ(folded.Parameters(), original.Parameters());
}

// A projection of what is tapped before it is what is tapped after it.
TEST(Decoder, TapsWhatTheProjectionsRead) {
  for (const char* name : {"llama3_tied", "qwen3", "qwen3_5", "lfm2"}) {
    const auto weights = GoldenWeights(name);
    const BlockWeights& block = weights->blocks[1];
    std::map<TapPoint, Matrix<float>> seen;
    std::vector<TapPoint> order;
    std::vector<Tap> taps;
    for (const TapPoint point : {TapPoint::kMlp, TapPoint::kHeads, TapPoint::kActivation, TapPoint::kAttention})
      taps.push_back({1, point, [&, point](const Rows& rows, const Batch&) {
                        seen[point] = Copied(rows);
                        order.push_back(point);
                      }});
    Decoder decoder(kContext, weights, DepthPlan::Original(weights->config.layers), taps);
    decoder.Forward(OneSequence(Golden(name).tokens()), /*taps_only=*/true);
    EXPECT_EQ(order, (std::vector{TapPoint::kHeads, TapPoint::kAttention, TapPoint::kActivation, TapPoint::kMlp}));
    for (const auto& [before, after, matrix] : {std::tuple(TapPoint::kHeads, TapPoint::kAttention, &block.o),
                                                std::tuple(TapPoint::kActivation, TapPoint::kMlp, &block.down)}) {
      const Matrix<float>&x = seen[before], &y = seen[after];
      const auto* const w = static_cast<const float*>(matrix->data);
      ASSERT_EQ(x.cols(), matrix->cols());
      ASSERT_EQ(y.cols(), matrix->rows());
      for (int64_t t = 0; t < y.rows(); ++t)
        for (int64_t i = 0; i < y.cols(); ++i) {
          double sum = 0, size = 0;
          for (int64_t j = 0; j < x.cols(); ++j) {
            sum += static_cast<double>(x(t, j)) * w[i * x.cols() + j];
            size += std::abs(static_cast<double>(x(t, j)) * w[i * x.cols() + j]);
          }
          EXPECT_NEAR(y(t, i), sum, 1e-6 * size + 1e-12);
        }
    }
  }
}

TEST(Decoder, ResumesFromAKeptStreamBitForBit) {
  const auto weights = GoldenWeights("qwen3");
  const auto tokens = Golden("qwen3").tokens();
  const DepthPlan plan = CorrectedPlan(*weights);
  Batch batch = OneSequence(tokens);
  batch.Add(std::span(tokens).first(5));
  Matrix<float> kept;
  Decoder decoder(kContext, weights, plan,
                  {{1, TapPoint::kInput, [&](const Rows& h, const Batch&) { kept = Copied(h); }}});
  const Matrix<float> whole = Copied(decoder.Forward(batch));
  Decoder rest(kContext, weights, DepthPlan::Original(weights->config.layers));
  const auto after = std::span(plan.stages).subspan(1);  // what follows the adapter in block 0's place
  EXPECT_EQ(LargestDifference(rest.Resume(batch, kept.view(), after).host(), whole.view()), 0);
  EXPECT_THROW(rest.Resume(OneSequence(tokens), kept.view(), after), Error);
}

TEST(Decoder, LogProbsAreTheLogSoftmaxOfTheLogits) {
  const auto weights = GoldenWeights("qwen1.5");
  const auto tokens = Golden("qwen1.5").tokens();
  Decoder decoder(kContext, weights, DepthPlan::Original(3));
  const auto h = decoder.Forward(OneSequence(tokens));
  const Matrix<float> residual = Copied(h), logits = decoder.Logits(residual.view());
  std::vector<int32_t> argmax(tokens.size());
  const auto log_probs = decoder.LogProbs(residual.view(), tokens, argmax);
  for (int64_t t = 0; t < logits.rows(); ++t) {
    double sum = 0;
    for (int64_t v = 0; v < logits.cols(); ++v) sum += std::exp(static_cast<double>(logits(t, v)));
    EXPECT_NEAR(log_probs[t], logits(t, tokens[t]) - std::log(sum), 2e-6);
    EXPECT_EQ(argmax[t], std::max_element(logits.row(t), logits.row(t) + logits.cols()) - logits.row(t));
  }
  // Rows are gathered in any order, some of them twice, in pieces of 512.
  std::vector<int64_t> which;
  std::vector<int32_t> targets;
  for (int64_t i = 0; i < 1200; ++i) {
    which.push_back(i * 5 % residual.rows());
    targets.push_back(tokens[which.back()]);
  }
  std::vector<int32_t> likeliest(which.size());
  const auto gathered = decoder.LogProbs(residual.view(), which, targets, likeliest);
  for (size_t i = 0; i < which.size(); ++i) {
    EXPECT_NEAR(gathered[i], log_probs[which[i]], 2e-6);
    EXPECT_EQ(likeliest[i], argmax[which[i]]);
  }
  which[7] = residual.rows();
  EXPECT_THROW(decoder.LogProbs(residual.view(), which, targets), Error);
  which.pop_back();
  EXPECT_THROW(decoder.LogProbs(residual.view(), which, targets), Error);
}

// A final norm and a head of the plan's own give the logits of a model that has them as its own.
TEST(Decoder, RunsAPlansOwnOutput) {
  for (const char* name : {"llama3_tied", "qwen1.5", "gemma2"}) {
    SCOPED_TRACE(name);
    const auto weights = GoldenWeights(name);
    const auto tokens = Golden(name).tokens();
    const ModelConfig& config = weights->config;
    std::vector<float> norm(config.hidden), head(config.vocab * config.hidden);
    for (size_t i = 0; i < norm.size(); ++i) norm[i] = 0.5f + 0.01f * static_cast<float>(i);
    for (size_t i = 0; i < head.size(); ++i) head[i] = 0.1f * std::sin(static_cast<float>(i));
    auto tuned = std::make_shared<Weights>(*weights);
    tuned->config.tied_head = false;
    tuned->final_norm = {norm.data(), DType::kFloat32, {config.hidden}};
    tuned->head = {head.data(), DType::kFloat32, {config.vocab, config.hidden}};
    const DepthPlan original = DepthPlan::Original(config.layers);
    DepthPlan plan = original;
    plan.output = std::make_shared<const OutputWeights>(OutputWeights{tuned->final_norm, tuned->head});
    Decoder own(kContext, weights, plan), expected(kContext, tuned, original), model(kContext, weights, original);
    const Matrix<float> h = Copied(own.Forward(OneSequence(tokens)));
    const Matrix<float> found = own.Logits(h.view()), wanted = expected.Logits(h.view());
    EXPECT_TRUE(std::equal(found.span().begin(), found.span().end(), wanted.span().begin()));
    EXPECT_EQ(own.LogProbs(h.view(), tokens), expected.LogProbs(h.view(), tokens));
    EXPECT_NE(own.LogProbs(h.view(), tokens), model.LogProbs(h.view(), tokens)) << "next to it, the model's own";
    KvCache one(config, plan, 40), other(config, original, 40);
    EXPECT_EQ(own.NextToken(tokens, one, {}, 0), expected.NextToken(tokens, other, {}, 0));
    EXPECT_EQ(own.Parameters(), expected.Parameters());
    EXPECT_EQ(own.BytesPerToken(), expected.BytesPerToken());
  }
}

TEST(KeptRows, AreACopyThatAddsAndSubtracts) {
  Matrix<float> rows(3, 4);
  for (int64_t i = 0; i < rows.size(); ++i) rows.data()[i] = static_cast<float>(i);
  KeptRows kept, more;
  kept.Set({rows.view().Cols(1, 2)});
  more.Set(kept.rows());
  for (float& x : rows.span()) x = 0;
  more.Add(kept.rows());
  more.Add(kept.rows());
  kept.Subtract(more.rows());
  for (int64_t i = 0; i < 3; ++i) {
    for (int64_t j = 0; j < 2; ++j) {
      EXPECT_EQ(kept.rows().host()(i, j), -2.0f * static_cast<float>(4 * i + j + 1));
      EXPECT_EQ(more.rows().Slice(i, 1).host()(0, j), 3.0f * static_cast<float>(4 * i + j + 1));
    }
  }
  EXPECT_THROW(kept.Add(rows.view()), Error);
}

TEST(Decoder, WindowedPerplexityIsTheDirectSum) {
  const auto weights = GoldenWeights("llama2");
  const auto tokens = Golden("llama2").tokens();
  Decoder decoder(kContext, weights, DepthPlan::Original(3));
  double nll = 0;
  for (size_t begin : {0, 6, 12}) {
    const auto window = std::span(tokens).subspan(begin, 6);
    const Matrix<float> h = Copied(decoder.Forward(OneSequence(window)));
    for (float p : decoder.LogProbs(h.view().Rows(0, 5), window.subspan(1))) nll -= p;
  }
  NoProgress quiet;
  PlanTree plan(kContext, weights, {DepthPlan::Original(3)});
  const auto measured = [&](int64_t count, int64_t window) {
    return WindowedPerplexities(plan, std::span(tokens).first(count), window, quiet).front();
  };
  const auto result = measured(std::ssize(tokens), 6);
  EXPECT_EQ(result.predicted, 15);
  EXPECT_NEAR(result.mean_nll, nll / 15, 1e-6);
  EXPECT_NEAR(result.perplexity, std::exp(nll / 15), 1e-3);
  const auto shorter = measured(5, 6);
  EXPECT_EQ(shorter.window, 5);
  EXPECT_EQ(shorter.predicted, 4);
  EXPECT_EQ(shorter.mean_nll, measured(9, 5).mean_nll);
  EXPECT_THROW(measured(1, 6), Error);
}

// Plans that share their first stages, one of which has a final norm of its own.
TEST(Decoder, PerplexitiesOfPlansHaveTheBitsOfEachAlone) {
  const auto weights = GoldenWeights("llama2");
  const auto tokens = Golden("llama2").tokens();
  const DepthPlan original = DepthPlan::Original(3), pruned = DepthPlan::Pruned(3, std::vector<int64_t>{1});
  std::vector<float> norm(static_cast<size_t>(weights->config.hidden));
  for (size_t i = 0; i < norm.size(); ++i) norm[i] = 0.5f + static_cast<float>(i) / 16;
  const auto output = std::make_shared<OutputWeights>(original.Output(*weights));
  output->final_norm = {norm.data(), DType::kFloat32, {weights->config.hidden}};
  DepthPlan shorter = pruned;  // its first two stages are those of the original
  shorter.stages = {original.stages[0], original.stages[1]};
  const std::vector<DepthPlan> plans = {original, pruned, {pruned.stages, output}, original, shorter};
  PlanTree tree(kContext, weights, plans);
  EXPECT_EQ(tree.shared_stages(), 1);
  NoProgress quiet;
  const std::vector<TextPerplexity> together = WindowedPerplexities(tree, tokens, 6, quiet);
  ASSERT_EQ(together.size(), plans.size());
  for (size_t p = 0; p < plans.size(); ++p) {
    PlanTree alone(kContext, weights, {plans[p]});
    EXPECT_EQ(together[p].mean_nll, WindowedPerplexities(alone, tokens, 6, quiet).front().mean_nll) << p;
  }
  EXPECT_NE(together[1].mean_nll, together[2].mean_nll);
  std::vector<size_t> scored;
  const auto add = [&](size_t plan, Decoder&, const Rows&) { scored.push_back(plan); };
  tree.Run(OneSequence(std::span(tokens).first(6)), add, [](size_t plan) { return plan == 1 || plan == 4; });
  std::sort(scored.begin(), scored.end());
  EXPECT_EQ(scored, (std::vector<size_t>{1, 4}));
  EXPECT_THROW(PlanTree(kContext, weights, {}), Error);
}

TEST(Decoder, BadRequestsAreErrors) {
  const auto weights = GoldenWeights("llama2");
  Decoder decoder(kContext, weights, DepthPlan::Original(3));
  EXPECT_THROW(decoder.Forward(OneSequence(std::vector<int32_t>{97})), Error);
  EXPECT_THROW(decoder.Forward(OneSequence(std::vector<int32_t>{-1})), Error);
  EXPECT_THROW(decoder.Forward(OneSequence(std::vector<int32_t>(257, 1))), Error);
  KvCache cache(weights->config, decoder.plan(), 4);
  EXPECT_THROW(decoder.Forward(std::vector<int32_t>(5, 1), cache), Error);
  KvCache other(weights->config, decoder.plan(), 4);
  const std::vector<int32_t> token = {1};
  EXPECT_THROW(decoder.NextTokens(std::vector<CachedTokens>{{token, &cache}, {token, &cache}}), Error);
  EXPECT_THROW(decoder.NextTokens(std::vector<CachedTokens>{{token, &cache}, {{}, &other}}), Error);
  EXPECT_EQ(cache.size(), 0);
  EXPECT_THROW(Generate(decoder, std::vector<int32_t>(250, 1), 10, {}, 0, {}), Error);
  EXPECT_THROW(Generate(decoder, {}, 10, {}, 0, {}), Error);
  const std::vector<int64_t> out_of_range = {3}, twice = {1, 1}, one = {1};
  EXPECT_THROW(DepthPlan::Pruned(3, out_of_range), Error);
  EXPECT_THROW(DepthPlan::Pruned(3, twice), Error);
  EXPECT_THROW(Decoder(kContext, weights, DepthPlan::Pruned(3, one), {{1, TapPoint::kInput, {}}}), Error);
}

}  // namespace
}  // namespace shiftrt
