// SPDX-License-Identifier: Apache-2.0
// What must not change a score: how requests are packed, what they share, where work was interrupted.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <random>
#include <utility>

#include "eval/scorer.h"
#include "runtime/checked_lines.h"
#include "tests/eval/fixtures.h"
#include "tests/runtime/refusal.h"

namespace shiftrt {
namespace {

const Model& TestModel() {
  static const Model model = GoldenEvalModel("llama2-json");
  return model;
}

// Requests that share whole inputs, prefixes of several depths, or nothing, and one that is another's prefix.
std::vector<ScoringRequest> Requests() {
  std::mt19937 random(5);
  const auto some = [&](int64_t count) {
    std::vector<int32_t> tokens(count);
    for (int32_t& token : tokens) token = static_cast<int32_t>(random() % 1024);
    return tokens;
  };
  const auto joined = [](std::vector<int32_t> a, const std::vector<int32_t>& b) {
    a.insert(a.end(), b.begin(), b.end());
    return a;
  };
  std::vector<ScoringRequest> requests;
  const std::vector<int32_t> shots = some(31);
  for (int item = 0; item < 6; ++item) {
    const std::vector<int32_t> context = joined(shots, some(1 + 7 * item));
    for (int choice = 0; choice < 4; ++choice) {
      const int64_t scored = 1 + (choice * item) % 5;
      requests.push_back({joined(context, some(scored)), scored});
    }
    requests.push_back(requests.back());
    requests.push_back({joined(requests.back().tokens, some(3)), 3});
  }
  for (int64_t length : {2, 3, 90, 128}) requests.push_back({some(length), length - 1});
  return requests;
}

std::vector<Score> ScoreAll(const std::vector<ScoringRequest>& requests, int64_t batch_tokens) {
  Decoder decoder(Context::Default(), TestModel().weights, TestModel().plan);
  std::vector<Score> scores(requests.size());
  for (const PackedBatch& packed : Pack(requests, batch_tokens)) {
    const auto some = ScoreBatch(decoder, packed, decoder.Forward(packed.batch));
    for (size_t m = 0; m < some.size(); ++m) scores[packed.members[m].request] = some[m];
  }
  return scores;
}

// One sequence at a time, every row through the head, log-softmax in float64.
Score Naive(Decoder& decoder, const ScoringRequest& request) {
  Batch batch;
  batch.Add(std::span(request.tokens).first(request.tokens.size() - 1));
  const Matrix<float> logits = decoder.Logits(decoder.Forward(batch));
  Score score;
  for (int64_t t = logits.rows() - request.scored; t < logits.rows(); ++t) {
    const float* row = logits.row(t);
    double sum = 0;
    for (int64_t v = 0; v < logits.cols(); ++v) sum += std::exp(static_cast<double>(row[v]));
    score.log_likelihood += row[request.tokens[t + 1]] - std::log(sum);
    score.greedy &= std::max_element(row, row + logits.cols()) - row == request.tokens[t + 1];
  }
  return score;
}

TEST(Scoring, PackedAndSharedEqualsOneByOne) {
  const auto requests = Requests();
  Decoder decoder(Context::Default(), TestModel().weights, TestModel().plan);
  std::vector<Score> expected;
  for (const ScoringRequest& request : requests) expected.push_back(Naive(decoder, request));
  for (const int64_t batch_tokens : {1, 50, 300, 100000}) {
    const auto scores = ScoreAll(requests, batch_tokens);
    for (size_t i = 0; i < requests.size(); ++i) {
      EXPECT_NEAR(scores[i].log_likelihood, expected[i].log_likelihood,
                  1e-5 * std::max(1.0, std::abs(expected[i].log_likelihood)))
          << "request " << i << ", batches of " << batch_tokens;
      EXPECT_EQ(scores[i].greedy, expected[i].greedy) << "request " << i << ", batches of " << batch_tokens;
    }
  }
}

TEST(Scoring, OrderChangesNoBit) {
  auto requests = Requests();
  const auto before = ScoreAll(requests, 300);
  std::vector<size_t> order(requests.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::shuffle(order.begin(), order.end(), std::mt19937(3));
  std::vector<ScoringRequest> shuffled;
  for (const size_t i : order) shuffled.push_back(requests[i]);
  const auto after = ScoreAll(shuffled, 300);
  for (size_t i = 0; i < order.size(); ++i)
    EXPECT_EQ(after[i].log_likelihood, before[order[i]].log_likelihood) << "request " << order[i];
}

// One wrong token in an answer and it is not what the model would write, wherever it stands.
TEST(Scoring, GreedyIsEveryTokenOfTheAnswer) {
  Decoder decoder(Context::Default(), TestModel().weights, TestModel().plan);
  const std::vector<int32_t> context = {5, 6, 7};
  const auto likeliest = [&](const std::vector<int32_t>& tokens) {
    Batch batch;
    batch.Add(tokens);
    const Matrix<float> logits = decoder.Logits(decoder.Forward(batch));
    const float* row = logits.row(logits.rows() - 1);
    return static_cast<int32_t>(std::max_element(row, row + logits.cols()) - row);
  };
  std::vector<ScoringRequest> requests;
  for (int wrong = 0; wrong <= 3; ++wrong) {  // 3: none is
    std::vector<int32_t> tokens = context;
    for (int i = 0; i < 3; ++i) tokens.push_back((likeliest(tokens) + (i == wrong ? 1 : 0)) % 1024);
    requests.push_back({tokens, 3});
  }
  const auto scores = ScoreAll(requests, 1000);
  for (int wrong = 0; wrong <= 3; ++wrong) EXPECT_EQ(scores[wrong].greedy, wrong == 3) << wrong;
}

TEST(Packing, EverySharedPrefixStandsOnce) {
  const auto requests = Requests();
  const auto batches = Pack(requests, 100000);
  ASSERT_EQ(batches.size(), 1u);
  // Distinct non-empty prefixes of the inputs, which is what a tree of them has as nodes.
  std::set<std::vector<int32_t>> prefixes;
  std::set<std::pair<std::vector<int32_t>, int32_t>> pairs;
  for (const ScoringRequest& request : requests) {
    for (size_t n = 1; n < request.tokens.size(); ++n) {
      const std::vector<int32_t> prefix(request.tokens.begin(), request.tokens.begin() + n);
      prefixes.insert(prefix);
      if (static_cast<int64_t>(n) >= std::ssize(request.tokens) - request.scored)
        pairs.insert({prefix, request.tokens[n]});
    }
  }
  EXPECT_EQ(batches[0].batch.size(), std::ssize(prefixes));
  EXPECT_EQ(batches[0].rows.size(), pairs.size());
  EXPECT_EQ(batches[0].members.size(), requests.size());
}

TEST(Packing, BatchesKeepToTheirSize) {
  const auto requests = Requests();
  for (const int64_t limit : {1, 60, 200}) {
    size_t members = 0;
    for (const PackedBatch& packed : Pack(requests, limit)) {
      // A batch may only be larger if all its requests have the same input.
      const auto input = [&](size_t m) {
        const std::vector<int32_t>& tokens = requests[packed.members[m].request].tokens;
        return std::vector<int32_t>(tokens.begin(), tokens.end() - 1);
      };
      for (size_t m = 1; packed.batch.size() > limit && m < packed.members.size(); ++m)
        EXPECT_EQ(input(m), input(0)) << packed.batch.size();
      members += packed.members.size();
    }
    EXPECT_EQ(members, requests.size());
  }
  EXPECT_TRUE(Pack({}, 10).empty());
}

// The input alone is larger than a batch. A second request with the same input adds no token to it.
TEST(Packing, TheSameInputIsComputedOnce) {
  const std::vector<ScoringRequest> requests = {{{1, 2, 3, 4}, 1}, {{1, 2, 3, 5}, 1}, {{1, 2, 6, 7}, 1}};
  const auto batches = Pack(requests, 2);
  ASSERT_EQ(batches.size(), 2u);
  EXPECT_EQ(batches[0].batch.size(), 3);
  EXPECT_EQ(batches[0].members.size(), 2u);
}

// However it is told where the answer begins: the context's last spaces are the answer's.
TEST(Encoder, SpacesBeforeTheAnswerBelongToIt) {
  for (const char* tokenizer : {"llama2-json", "qwen2"}) {
    const auto loaded = LoadTokenizer(Goldens() / "tokenizers" / tokenizer);
    const auto encoded = [&](const Prompt& prompt) {
      return PromptEncoder(*loaded, Bos::kNever, 128).Encode(prompt, "");
    };
    const ScoringRequest expected = encoded({"the sea", " was calm"});
    EXPECT_EQ(expected.scored, std::ssize(loaded->Encode("the sea was calm")) - std::ssize(loaded->Encode("the sea")));
    const ScoringRequest moved = encoded({"the sea ", "was calm"});
    EXPECT_EQ(moved.tokens, expected.tokens) << tokenizer;
    EXPECT_EQ(moved.scored, expected.scored) << tokenizer;
  }
}

// A token is a byte; two tokens stand before a text, as GLM-4's [gMASK]<sop> does.
class TwoBefore : public Tokenizer {
 public:
  TwoBefore() { prefix_ = {7, 8}; }
  std::vector<int32_t> Encode(std::string_view text) const override { return {text.begin(), text.end()}; }
  std::string Decode(std::span<const int32_t>, bool) const override { return {}; }
  std::string Piece(int32_t) const override { return {}; }
  int32_t vocab_size() const override { return 256; }
};

TEST(Encoder, AllTokensThatTheTokenizerPutsBeforeATextAreAdded) {
  const TwoBefore tokenizer;
  const auto tokens = [&](Bos bos) { return PromptEncoder(tokenizer, bos, 128).Encode({"a", "b"}, "").tokens; };
  EXPECT_EQ(tokens(Bos::kAuto), (std::vector<int32_t>{7, 8, 'a', 'b'}));
  EXPECT_EQ(tokens(Bos::kAlways), tokens(Bos::kAuto));
  EXPECT_EQ(tokens(Bos::kNever), (std::vector<int32_t>{'a', 'b'}));
}

TEST(Encoder, BosIsAsAskedAndNeverTwice) {
  const Tokenizer& tokenizer = TestModel().RequireTokenizer();
  const Prompt prompt{"the sea ", "was calm"};
  const auto tokens = [&](Bos bos, const Prompt& p) { return PromptEncoder(tokenizer, bos, 128).Encode(p, "").tokens; };
  auto never = tokens(Bos::kNever, prompt);
  const auto with_bos = tokens(Bos::kAuto, prompt);
  EXPECT_EQ(with_bos, tokens(Bos::kAlways, prompt));
  never.insert(never.begin(), tokenizer.bos_token());
  EXPECT_EQ(never, with_bos);
  EXPECT_EQ(tokens(Bos::kAuto, {"<s>the sea", " was"}), tokens(Bos::kNever, {"<s>the sea", " was"}));
  const auto bare = LoadTokenizer(Goldens() / "tokenizers/qwen2");
  EXPECT_THROW(PromptEncoder(*bare, Bos::kAlways, 128), UsageError);
  EXPECT_FALSE(PromptEncoder(*bare, Bos::kAuto, 128).adds_bos());
  EXPECT_NE(Refusal([&] { tokens(Bos::kNever, {"the sea", ""}); }), "");
  EXPECT_NE(Refusal([&] {
              PromptEncoder(tokenizer, Bos::kAuto, 4).Encode({"a", " the sea was calm and wide"}, "here");
            }).find("here"),
            std::string::npos);
}

// Stops, as Ctrl-C does, once `left` reports have been made.
class Impatient : public NoProgress {
 public:
  explicit Impatient(int left) : left_(left) {}
  void Advance(int64_t) override {
    if (left_-- == 0) throw Interrupted();
  }

 private:
  int left_;
};

class Resuming : public ::testing::Test {
 protected:
  Resuming() : dataset_(GoldenDataset("hellaswag", 2)) {
    const int64_t layers = model_->weights->config.layers;
    variants_ = {Plain("original", DepthPlan::Original(layers)),
                 Plain("pruned", DepthPlan::Pruned(layers, std::vector<int64_t>{1})), Plain("lra", Corrected(0.5f)),
                 Plain("none", DepthPlan::Pruned(layers, std::vector<int64_t>{0, 1}))};
  }

  // Without the last layer, and with `bias` added to every value of the stream instead.
  DepthPlan Corrected(float bias) const {
    const int64_t hidden = model_->weights->config.hidden;
    auto lra = std::make_shared<Lra>();
    lra->a = Matrix<float>::Zeros(hidden, hidden);
    lra->b = Matrix<float>::Zeros(1, hidden);
    for (int64_t i = 0; i < hidden; i += 2) lra->b.row(0)[i] = bias;
    return DepthPlan::Corrected(model_->weights->config.layers, std::vector<int64_t>{1},
                                std::vector<std::shared_ptr<const Lra>>{lra});
  }
  EvalScores Run(Journal& journal, Progress& progress) {
    return Evaluate({context_, *model_, variants_, options_, journal, progress}, dataset_);
  }
  std::vector<double> Flat(const EvalScores& scores) {
    std::vector<double> flat;
    for (const auto& variant : scores.scores)
      for (const auto& item : variant)
        for (const Score& score : item) flat.push_back(score.log_likelihood);
    return flat;
  }

  const Model* model_ = &TestModel();
  // One thread: batches this small wait longer for a second one than it works.
  Context context_{.threads = 1, .isa = BestIsa()};
  EvalOptions options_{Bos::kAuto, /*batch_tokens=*/60};
  Dataset dataset_;
  std::vector<Variant> variants_;
  TemporaryDirectory directory_;
  NoProgress quiet_;
};

TEST_F(Resuming, AnInterruptedEvaluationEndsInTheSameBits) {
  Journal none("");
  const auto whole = Flat(Run(none, quiet_));
  const auto file = directory_.path() / "journal";
  for (int stop : {0, 1, 3}) {
    {
      Journal journal(file);
      Impatient impatient(stop);
      EXPECT_THROW(Run(journal, impatient), Interrupted);
    }
    // Killed while it wrote: half of the last line.
    const std::string text = ReadFile(file);
    std::ofstream(file, std::ios::binary) << text.substr(0, text.size() - 20);
    Journal journal(file);
    EXPECT_GT(journal.batches(), 0);
    EXPECT_EQ(Flat(Run(journal, quiet_)), whole);
    Journal::Remove(file);
    EXPECT_FALSE(std::filesystem::exists(file));
  }
}

TEST_F(Resuming, AJournalOfSomethingElseCountsForNothing) {
  const auto file = directory_.path() / "journal";
  {
    Journal journal(file);
    Run(journal, quiet_);
  }
  // Every line is made to lie; a run that believes one shows it.
  const std::vector<std::string> lines = ReadCheckedLines(file).texts;
  std::filesystem::remove(file);
  LineAppender lies(file);
  for (std::string text : lines) {
    for (size_t at = 0; (at = text.find("[-", at)) != std::string::npos; at += 2) text.replace(at, 2, "[-9");
    lies.Add(text);
  }
  lies.Add("{\"key\": 5}");
  std::ofstream(file, std::ios::binary | std::ios::app) << "not JSON\n";
  const auto believes = [&] {
    Journal journal(file), none("");
    return Flat(Run(journal, quiet_)) != Flat(Run(none, quiet_));
  };
  EXPECT_TRUE(believes());

  options_.batch_tokens = 70;
  EXPECT_FALSE(believes()) << "other batches";
  options_ = {Bos::kNever, 60};
  EXPECT_FALSE(believes()) << "other tokens";
  options_ = {Bos::kAuto, 60};
  const Isa best = std::exchange(context_.isa, Isa::kPortable);
  EXPECT_EQ(believes(), best == Isa::kPortable) << "other arithmetic";
  context_.isa = best;
  const auto variants = variants_;
  variants_ = {Plain("original", DepthPlan::Pruned(model_->weights->config.layers, std::vector<int64_t>{0}))};
  EXPECT_FALSE(believes()) << "another plan";
  variants_ = {Plain("lra", Corrected(0.25f))};
  EXPECT_FALSE(believes()) << "another adapter";
  variants_ = variants;
  const Model other = GoldenEvalModel("llama2-json", /*seed=*/2);
  model_ = &other;
  EXPECT_FALSE(believes()) << "another model";
  model_ = &TestModel();
  dataset_.items.pop_back();
  EXPECT_FALSE(believes()) << "fewer items";
}

TEST_F(Resuming, SharingTheTrunkChangesNoBit) {
  Journal none("");
  const EvalScores together = Run(none, quiet_);
  const auto variants = variants_;
  for (size_t v = 0; v < variants.size(); ++v) {
    variants_ = {variants[v]};
    const EvalScores alone = Run(none, quiet_);
    EXPECT_EQ(alone.cost.shared_stages, std::ssize(variants[v].plan.stages));
    for (size_t i = 0; i < alone.scores[0].size(); ++i)
      for (size_t p = 0; p < alone.scores[0][i].size(); ++p)
        EXPECT_EQ(alone.scores[0][i][p].log_likelihood, together.scores[v][i][p].log_likelihood);
  }
  variants_ = {variants[0], variants[1]};
  EXPECT_EQ(Run(none, quiet_).cost.shared_stages, 1);
  variants_[1].plan = DepthPlan::Pruned(model_->weights->config.layers, std::vector<int64_t>{0});
  EXPECT_EQ(Run(none, quiet_).cost.shared_stages, 0);
}

TEST_F(Resuming, ProgressCountsEveryItemOnce) {
  struct Counter : NoProgress {
    void Begin(std::string_view, int64_t total) override { expected += total; }
    void Advance(int64_t count) override { done += count; }
    int64_t expected = 0, done = 0;
  } counter;
  Journal none("");
  Run(none, counter);
  EXPECT_EQ(counter.expected, std::ssize(dataset_.items));
  EXPECT_EQ(counter.done, counter.expected);
}

TEST(Choices, PermutedGivePermutedScores) {
  Dataset dataset = GoldenDataset("arc_easy"), reversed = dataset;
  for (Item& item : reversed.items) std::reverse(item.prompts.begin(), item.prompts.end());
  Journal none("");
  NoProgress quiet;
  const std::vector<Variant> variants = {Plain("original", TestModel().plan)};
  const Context context = Context::Default();
  const EvalJob job = {context, TestModel(), variants, {}, none, quiet};
  const auto scores = Evaluate(job, dataset).scores[0];
  auto other = Evaluate(job, reversed).scores[0];
  for (size_t i = 0; i < scores.size(); ++i) {
    std::reverse(other[i].begin(), other[i].end());
    for (size_t p = 0; p < scores[i].size(); ++p) EXPECT_EQ(other[i][p].log_likelihood, scores[i][p].log_likelihood);
  }
}

}  // namespace
}  // namespace shiftrt
