// SPDX-License-Identifier: Apache-2.0
#include "train/own_answers.h"

#include <algorithm>
#include <fstream>
#include <set>

#include "engine/generate.h"
#include "runtime/check.h"
#include "runtime/files.h"
#include "runtime/progress.h"
#include "tests/runtime/refusal.h"
#include "tests/shift/small_model.h"

namespace shiftrt::test {
namespace {

namespace fs = std::filesystem;

// Stops the work once so many units are done.
class Stopping : public NoProgress {
 public:
  explicit Stopping(int64_t after) : left_(after) {}
  void Advance(int64_t count) override {
    left_ -= count;
    if (left_ <= 0) throw Interrupted();
  }

 private:
  int64_t left_;
};

class OwnAnswersTest : public SmallModel {
 protected:
  static constexpr int64_t kPrompts = 90;

  // Prompt i has 3 to 5 tokens.
  static std::vector<int32_t> Prompt(int64_t number) {
    std::vector<int32_t> prompt(3 + number % 3, static_cast<int32_t>(number % kVocab));
    prompt.back() = static_cast<int32_t>((7 * number + 1) % kVocab);
    return prompt;
  }
  OwnAnswers Answer(const AnswersWanted& wanted, uint64_t seed = 1, Progress* progress = nullptr,
                    const std::string& directory = "answers") {
    encoded_ = 0;
    warned_.clear();
    NoProgress none;
    return AnswerPrompts({.context = context_,
                          .model = model_,
                          .prompts = kPrompts,
                          .encode =
                              [&](int64_t number) {
                                ++encoded_;
                                return Prompt(number);
                              },
                          .description = "prompts",
                          .length = 24,
                          .seed = seed,
                          .wanted = wanted,
                          .directory = directory.empty() ? fs::path() : directory_ / directory,
                          .progress = progress != nullptr ? *progress : none,
                          .warn = [&](const std::string& words) { warned_.push_back(words); }});
  }
  static std::vector<std::vector<int32_t>> Tokens(const OwnAnswers& own) {
    std::vector<std::vector<int32_t>> tokens;
    for (const OwnAnswer& answer : own.answers) tokens.push_back(answer.tokens);
    return tokens;
  }
  std::vector<std::string> Files() const {
    std::vector<std::string> files;
    for (const auto& entry : fs::directory_iterator(directory_ / "answers")) files.push_back(entry.path().string());
    std::sort(files.begin(), files.end());
    return files;
  }

  int64_t encoded_ = 0;
  std::vector<std::string> warned_;
};

// The answers are those of the original model, whatever the plan of the model that learns from them.
TEST_F(OwnAnswersTest, TheyAreSampledFromTheOriginalModel) {
  model_.plan = DepthPlan::Corrected(kLayers, std::vector<AdapterStage>{{{1, 2}, nullptr}});
  const OwnAnswers own = Answer({});
  ASSERT_EQ(std::ssize(own.answers), kPrompts);
  Decoder original(context_, model_.weights, DepthPlan::Original(kLayers));
  for (const int64_t i : {int64_t{0}, int64_t{41}, kPrompts - 1}) {
    std::vector<int32_t> expected = Prompt(i);
    EXPECT_EQ(own.answers[i].prompt, std::ssize(expected));
    const GenerationResult alone = Generate(original, expected, 12, {.temperature = kAnswerTemperature},
                                            1 + static_cast<uint64_t>(i), StopTokens(model_));
    expected.insert(expected.end(), alone.tokens.begin(), alone.tokens.end());
    EXPECT_EQ(own.answers[i].tokens, expected) << i;
  }
}

TEST_F(OwnAnswersTest, TheSeedDecides) {
  const auto first = Tokens(Answer({}, 1, nullptr, ""));
  EXPECT_EQ(Tokens(Answer({}, 1, nullptr, "")), first);
  EXPECT_NE(Tokens(Answer({}, 2, nullptr, "")), first);
}

// Answers that are kept in a file are those of the same ends: generation_config.json may be edited.
TEST_F(OwnAnswersTest, OtherEndsHaveAFileOfTheirOwn) {
  Answer({.sequences = 2});
  auto weights = std::make_shared<Weights>(*model_.weights);
  weights->config.eos_tokens.push_back(1);
  model_.weights = weights;
  Answer({.sequences = 2});
  EXPECT_EQ(Files().size(), 2u);
}

// The token that ends an answer is learnt with it.
TEST_F(OwnAnswersTest, AnAnswerHasItsEnd) {
  auto weights = std::make_shared<Weights>(*model_.weights);
  for (int32_t token = 0; token < kVocab; token += 4) weights->config.eos_tokens.push_back(token);
  model_.weights = weights;
  int ended = 0;
  for (const OwnAnswer& answer : Answer({}).answers) {
    EXPECT_GT(std::ssize(answer.tokens), answer.prompt + 1) << "an answer of its end alone is left out";
    for (int64_t i = answer.prompt; i + 1 < std::ssize(answer.tokens); ++i) EXPECT_NE(answer.tokens[i] % 4, 0);
    ended += answer.tokens.back() % 4 == 0 ? 1 : 0;
  }
  EXPECT_GT(ended, 0);
}

TEST_F(OwnAnswersTest, KnownAnswersAreTakenFromTheFile) {
  const auto all = Tokens(Answer({.sequences = 10}));
  EXPECT_EQ(all.size(), size_t{10});
  ASSERT_EQ(Files().size(), size_t{1});
  EXPECT_TRUE(Files()[0].ends_with(".answers")) << Files()[0];
  EXPECT_EQ(Tokens(Answer({.sequences = 10})), all);
  EXPECT_EQ(encoded_, 0);
  // Fewer are the first of them, and more begin with them.
  EXPECT_EQ(Tokens(Answer({.sequences = 4})), std::vector(all.begin(), all.begin() + 4));
  EXPECT_EQ(encoded_, 0);
  auto more = Tokens(Answer({.sequences = 60}));
  EXPECT_EQ(more.size(), size_t{60});
  more.resize(10);
  EXPECT_EQ(more, all);
  EXPECT_EQ(Files().size(), size_t{1});
  Answer({.sequences = 10}, 2);
  EXPECT_EQ(Files().size(), size_t{2}) << "another seed has another file";
}

TEST_F(OwnAnswersTest, AnInterruptedWorkContinues) {
  const auto expected = Tokens(Answer({.sequences = 80}, 1, nullptr, ""));
  Stopping stopping(20);
  EXPECT_THROW(Answer({.sequences = 80}, 1, &stopping), Interrupted);
  ASSERT_EQ(Files().size(), size_t{1});
  EXPECT_TRUE(Files()[0].ends_with(".answers.partial")) << Files()[0];
  // A kill in the middle of a line, and a line that was changed.
  std::string partial = ReadFile(Files()[0]);
  partial[partial.find("tokens") + 10] ^= 1;
  std::ofstream(Files()[0], std::ios::binary) << partial << "0123456789abcdef {\"num";
  EXPECT_EQ(Tokens(Answer({.sequences = 80})), expected);
  EXPECT_LT(encoded_, kPrompts - 15) << "the finished answers are not generated again";
  ASSERT_EQ(warned_.size(), size_t{1});
  EXPECT_NE(warned_[0].find("checksum"), std::string::npos) << warned_[0];
  ASSERT_EQ(Files().size(), size_t{1});
  EXPECT_TRUE(Files()[0].ends_with(".answers")) << Files()[0];
}

// As many tokens are learnt once as are wanted, besides those that are held out.
TEST_F(OwnAnswersTest, TokensBeyondTheHeldOutOnesAreCounted) {
  const auto tokens = [](const OwnAnswers& own) {
    int64_t sum = 0;
    for (const OwnAnswer& answer : own.answers) sum += std::ssize(answer.tokens);
    return sum;
  };
  const OwnAnswers all = Answer({.tokens = 400});
  EXPECT_GE(tokens(all), 400);
  EXPECT_LT(tokens(all), 400 + 24);
  EXPECT_GE(tokens(Answer({.tokens = 400, .heldout = 1000})), 500 - 24);  // a fifth of them at most
  EXPECT_EQ(Answer({.sequences = 20, .heldout = 3}).answers.size(), size_t{23});
}

// The answers of so many seconds are the same later, and their time counts again.
TEST_F(OwnAnswersTest, ATimeIsOneOfGenerating) {
  const OwnAnswers all = Answer({});
  std::vector<double> seconds;
  for (const OwnAnswer& answer : all.answers) seconds.push_back(answer.seconds);
  std::sort(seconds.begin(), seconds.end());
  const double limit = (seconds[39] + seconds[40]) / 2;
  const auto within = std::count_if(seconds.begin(), seconds.end(), [&](double at) { return at <= limit; });
  const OwnAnswers some = Answer({.seconds = limit});
  EXPECT_EQ(encoded_, 0);
  EXPECT_EQ(std::ssize(some.answers), within);
  EXPECT_LE(some.seconds, limit);
  EXPECT_NE(Refusal([&] { Answer({.seconds = 1e-9}, 5); }).find("finished no answer"), std::string::npos);
}

TEST_F(OwnAnswersTest, PromptsWithoutRoomForAnAnswerAreLeftOut) {
  NoProgress none;
  const auto answer = [&](int64_t length) {
    return AnswerPrompts({.context = context_,
                          .model = model_,
                          .prompts = 2,
                          .encode = [&](int64_t i) { return std::vector<int32_t>(i == 0 ? 20 : 3, 5); },
                          .description = "",
                          .length = length,
                          .seed = 0,
                          .wanted = {},
                          .directory = "",
                          .progress = none,
                          .warn = {}});
  };
  const OwnAnswers own = answer(24);
  ASSERT_EQ(own.answers.size(), size_t{1});
  EXPECT_EQ(own.answers[0].prompt, 3);
  EXPECT_LE(own.answers[0].tokens.size(), size_t{24});
  EXPECT_EQ(own.without, 1);
  EXPECT_NE(Refusal([&] { answer(4); }).find("none of the 2 prompts"), std::string::npos);
}

}  // namespace
}  // namespace shiftrt::test
