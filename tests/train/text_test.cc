// SPDX-License-Identifier: Apache-2.0
#include "train/text.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "runtime/check.h"
#include "tests/runtime/refusal.h"
#include "tests/write_text.h"

namespace shiftrt {
namespace {

namespace fs = std::filesystem;

// A token per byte, and 256 as EOS.
class ByteTokenizer : public Tokenizer {
 public:
  ByteTokenizer() { eos_ = 256; }
  std::vector<int32_t> Encode(std::string_view text) const override {
    std::vector<int32_t> ids;
    for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
    return ids;
  }
  std::string Decode(std::span<const int32_t> ids, bool) const override {
    std::string text;
    for (const int32_t id : ids) text += id == 256 ? '$' : static_cast<char>(id);
    return text;
  }
  std::string Piece(int32_t id) const override { return std::string(1, static_cast<char>(id)); }
  int32_t vocab_size() const override { return 257; }
};

class TrainingTextTest : public testing::Test {
 protected:
  TrainingTextTest() {
    directory_ = fs::temp_directory_path() / ("shiftrt_train_text" + std::to_string(getpid()));
    fs::create_directories(directory_);
  }
  ~TrainingTextTest() override { fs::remove_all(directory_); }

  FinetuneSettings Write(const std::string& name, const std::string& text) {
    WriteText(directory_ / name, text);
    FinetuneSettings settings;
    settings.text = (directory_ / name).string();
    return settings;
  }
  std::string Sequence(const TrainingText& text, int64_t s, bool targets_alone = false) const {
    const int64_t begin = text.offsets[s] + (targets_alone ? text.first_targets[s] : 0);
    return tokenizer_.Decode(std::span(text.tokens).subspan(begin, text.offsets[s + 1] - begin), false);
  }

  fs::path directory_;
  ByteTokenizer tokenizer_;
};

TEST_F(TrainingTextTest, DocumentsAreSequencesCutAtTheLength) {
  std::string lines;
  for (int i = 0; i < 30; ++i) lines += "{\"text\": \"" + std::string(1 + i, static_cast<char>('a' + i % 26)) + "\"}\n";
  FinetuneSettings settings = Write("documents.jsonl", lines);
  settings.length = 12;
  settings.validation = 4;
  const TrainingTexts texts = LoadTrainingTexts(settings, tokenizer_);
  EXPECT_EQ(texts.validation.sequences(), 4);
  EXPECT_EQ(texts.training.sequences(), 25);  // one has a single token, and nothing to predict
  std::set<std::string> seen;
  for (const TrainingText* text : {&texts.training, &texts.validation}) {
    for (int64_t s = 0; s < text->sequences(); ++s) {
      EXPECT_LE(Sequence(*text, s).size(), size_t{12});
      EXPECT_EQ(text->first_targets[s], 1);
      seen.insert(Sequence(*text, s) + std::to_string(s) + (text == &texts.training ? "t" : "v"));
    }
  }
  EXPECT_EQ(seen.size(), size_t{29});
  EXPECT_NE(texts.accounting.find("18 cut"), std::string::npos) << texts.accounting;
  EXPECT_NE(texts.accounting.find("1 left out"), std::string::npos) << texts.accounting;

  // The same seed takes the same sequences, another seed others.
  EXPECT_EQ(LoadTrainingTexts(settings, tokenizer_).hash, texts.hash);
  settings.seed = 1;
  EXPECT_NE(LoadTrainingTexts(settings, tokenizer_).hash, texts.hash);
  settings.samples = 26;
  EXPECT_NE(Refusal([&] { LoadTrainingTexts(settings, tokenizer_); }).find("samples: "), std::string::npos);
}

TEST_F(TrainingTextTest, OfOneDocumentWindowsAreSequences) {
  std::string text;
  for (int i = 0; i < 105; ++i) text += static_cast<char>('!' + i % 90);
  FinetuneSettings settings = Write("plain.txt", text);
  settings.length = 10;
  settings.validation = 100;  // but at most a fifth
  const TrainingTexts texts = LoadTrainingTexts(settings, tokenizer_);
  EXPECT_EQ(texts.validation.sequences(), 2);
  EXPECT_EQ(texts.training.sequences(), 9);
  EXPECT_EQ(texts.training.tokens.size() + texts.validation.tokens.size(), size_t{105});
  EXPECT_EQ(texts.training.targets(), std::ssize(texts.training.tokens) - 9);
}

// A fifth of the sequences may be held out, also where they are of few documents.
TEST_F(TrainingTextTest, OfFewLongDocumentsAFifthIsHeldOut) {
  std::string lines;
  for (int i = 0; i < 4; ++i) lines += "{\"text\": \"" + std::string(2000, static_cast<char>('a' + i)) + "\"}\n";
  FinetuneSettings settings = Write("few.jsonl", lines);
  settings.length = 10;
  settings.divide = true;
  settings.validation = 30;
  const TrainingTexts texts = LoadTrainingTexts(settings, tokenizer_);
  EXPECT_EQ(texts.validation.sequences(), 30);
  EXPECT_EQ(texts.training.tokens.size(), size_t{6000});
  EXPECT_NE(texts.accounting.find("1700 tokens of partly taken documents left out"), std::string::npos)
      << texts.accounting;
  settings.validation = 1000;
  EXPECT_EQ(LoadTrainingTexts(settings, tokenizer_).validation.sequences(), 40);  // 8,000 bytes, 200 sequences about
}

TEST_F(TrainingTextTest, ALongDocumentIsDivided) {
  std::string lines, all;
  for (int i = 0; i < 20; ++i) {
    const std::string text(3 + 2 * i, static_cast<char>('a' + i));
    lines += "{\"text\": \"" + text + "\"}\n";
    all += text;
  }
  FinetuneSettings settings = Write("long.jsonl", lines);
  settings.length = 10;
  settings.divide = true;
  settings.validation = 0;
  const TrainingTexts texts = LoadTrainingTexts(settings, tokenizer_);
  std::string read;
  for (int64_t s = 0; s < texts.training.sequences(); ++s) {
    const std::string sequence = Sequence(texts.training, s);
    EXPECT_LE(sequence.size(), size_t{10});
    EXPECT_EQ(sequence.find_first_not_of(sequence[0]), sequence.npos) << sequence;  // its document has one letter
    read += sequence;
  }
  std::sort(read.begin(), read.end());
  // The documents of 11, 21, 31 and 41 tokens have a last token that makes no sequence.
  EXPECT_EQ(read.size(), all.size() - 4);
  EXPECT_EQ(texts.accounting.find("cut"), std::string::npos) << texts.accounting;

  // A document that is partly held out is not learnt from.
  settings.validation = 3;
  const TrainingTexts both = LoadTrainingTexts(settings, tokenizer_);
  EXPECT_EQ(both.validation.sequences(), 3);
  for (int64_t v = 0; v < 3; ++v)
    for (int64_t s = 0; s < both.training.sequences(); ++s)
      EXPECT_NE(Sequence(both.training, s)[0], Sequence(both.validation, v)[0]);
}

TEST_F(TrainingTextTest, SeveralTextsAreMixed) {
  std::string first, second;
  for (int i = 0; i < 40; ++i) first += "{\"text\": \"first " + std::to_string(i) + "\"}\n";
  for (int i = 0; i < 20; ++i) second += "{\"text\": \"second " + std::to_string(i) + "\"}\n";
  FinetuneSettings settings = Write("first.jsonl", first);
  settings.text += "," + Write("second.jsonl", second).text;
  settings.validation = 12;
  const TrainingTexts texts = LoadTrainingTexts(settings, tokenizer_);
  std::set<std::string> seen;
  int64_t held_out = 0;
  for (int64_t s = 0; s < texts.training.sequences(); ++s) seen.insert(Sequence(texts.training, s));
  for (int64_t s = 0; s < texts.validation.sequences(); ++s) {
    held_out += Sequence(texts.validation, s).starts_with("second") ? 1 : 0;
    seen.insert(Sequence(texts.validation, s));
  }
  EXPECT_EQ(seen.size(), size_t{60});
  EXPECT_GT(held_out, 0);
  EXPECT_LT(held_out, 12);
  EXPECT_TRUE(texts.source.starts_with("first.jsonl, second.jsonl, 48 sequences")) << texts.source;

  // A comma in the name of a file is part of it.
  const FinetuneSettings one = Write("a,b.jsonl", first);
  EXPECT_EQ(LoadTrainingTexts(one, tokenizer_).training.sequences(), 32);
  settings.text = (directory_ / "first.jsonl").string() + "," + (directory_ / "missing.jsonl").string();
  EXPECT_NE(Refusal([&] { LoadTrainingTexts(settings, tokenizer_); }).find("missing.jsonl"), std::string::npos);
}

TEST_F(TrainingTextTest, OfAlpacaTheAnswersAreLearnt) {
  std::string rows = "[";
  for (int i = 0; i < 6; ++i)
    rows += std::string(i > 0 ? "," : "") + R"({"instruction": "Add.", "input": "1", "output": "answer )" +
            std::to_string(i) + "\"}";
  FinetuneSettings settings = Write("rows.json", rows + "]");
  settings.validation = 1;
  const TrainingTexts texts = LoadTrainingTexts(settings, tokenizer_);
  for (int64_t s = 0; s < texts.training.sequences(); ++s) {
    const std::string answer = Sequence(texts.training, s, /*targets_alone=*/true);
    EXPECT_TRUE(answer.starts_with("answer ") && answer.ends_with("$") && answer.size() == 9) << answer;
  }
  settings.train_on_inputs = true;
  const TrainingTexts whole = LoadTrainingTexts(settings, tokenizer_);
  EXPECT_TRUE(Sequence(whole.training, 0, true).starts_with("elow is an instruction"));
  // Where the prompt alone is as long as a sequence may be, there is nothing to learn.
  settings.train_on_inputs = false;
  settings.length = 40;
  ExpectRefusal([&] { LoadTrainingTexts(settings, tokenizer_); }, settings.text, "held out for validation");
}

TEST_F(TrainingTextTest, ShortAndEmptyTextsAreRefused) {
  ExpectRefusal([&] { LoadTrainingTexts(Write("empty.txt", ""), tokenizer_); }, (directory_ / "empty.txt").string(),
                "empty");
  FinetuneSettings settings = Write("short.txt", "abc");
  ExpectRefusal([&] { LoadTrainingTexts(settings, tokenizer_); }, settings.text, "longer text");
  settings.validation = 0;
  EXPECT_EQ(LoadTrainingTexts(settings, tokenizer_).training.sequences(), 1);
  settings.validation = 5;
  settings.validation_text = Write("other.txt", "defgh").text;
  const TrainingTexts texts = LoadTrainingTexts(settings, tokenizer_);
  EXPECT_EQ(Sequence(texts.validation, 0), "defgh");
}

TEST(PackBatches, MarksTargetsAndKeepsSequencesApart) {
  TrainingText text;
  for (const int64_t size : {5, 3, 4, 9}) text.Add(std::vector<int32_t>(size, static_cast<int32_t>(size)), size - 2);
  const std::vector<int64_t> which = {2, 1, 3, 0};
  const std::vector<TrainingBatch> batches = PackBatches(text, which, 8);
  ASSERT_EQ(batches.size(), size_t{3});
  EXPECT_EQ(batches[0].batch.offsets, (std::vector<int64_t>{0, 4, 7}));
  EXPECT_EQ(batches[0].weights, (TargetWeights{0, 0, 1, 1, 0, 1, 1}));
  EXPECT_EQ(batches[0].targets, 4);
  EXPECT_EQ(batches[1].batch.size(), 9);  // longer than a pass, and still whole
  EXPECT_EQ(batches[2].batch.tokens, std::vector<int32_t>(5, 5));
}

TEST(ReadingOrder, ReadsEverySequenceOncePerEpoch) {
  ReadingOrder order(10, 4, 7);
  EXPECT_EQ(order.steps_per_epoch(), 3);
  std::vector<std::vector<int64_t>> epochs(2);
  for (int64_t step = 0; step < 6; ++step) {
    const std::span<const int64_t> batch = order.Step(step);
    EXPECT_EQ(batch.size(), step % 3 == 2 ? size_t{2} : size_t{4});
    epochs[step / 3].insert(epochs[step / 3].end(), batch.begin(), batch.end());
  }
  EXPECT_NE(epochs[0], epochs[1]);
  // Another that begins in the middle reads the same.
  ReadingOrder other(10, 4, 7);
  const std::span<const int64_t> fifth = other.Step(4);
  EXPECT_TRUE(std::equal(fifth.begin(), fifth.end(), epochs[1].begin() + 4)) << "step 4";
  for (std::vector<int64_t>& epoch : epochs) {
    std::sort(epoch.begin(), epoch.end());
    for (int64_t i = 0; i < 10; ++i) EXPECT_EQ(epoch[i], i);
  }
}

// The prompt "ask N" with the answer "reply N" and the end.
OwnAnswers AnswersTo(int count, const Tokenizer& tokenizer) {
  OwnAnswers own;
  for (int i = 0; i < count; ++i) {
    OwnAnswer& answer = own.answers.emplace_back();
    answer.tokens = tokenizer.Encode(fmt::format("ask {} reply {}", i, i));
    answer.prompt = std::ssize(fmt::format("ask {} ", i));
    answer.tokens.push_back(tokenizer.eos_token());
  }
  return own;
}

TEST_F(TrainingTextTest, OfOwnAnswersTheAnswerIsPredicted) {
  FinetuneSettings settings = Write("prompts.txt", "any\n");
  settings.text = "own:" + settings.text;
  settings.validation = 3;
  const OwnAnswers own = AnswersTo(20, tokenizer_);
  const TrainingTexts texts = LoadTrainingTexts(settings, tokenizer_, std::span(&own, 1));
  EXPECT_EQ(texts.validation.sequences(), 3);
  ASSERT_EQ(texts.training.sequences(), 17);
  std::set<std::string> seen;
  for (const TrainingText* text : {&texts.training, &texts.validation})
    for (int64_t s = 0; s < text->sequences(); ++s) {
      const std::string all = Sequence(*text, s), predicted = Sequence(*text, s, true);
      EXPECT_TRUE(all.starts_with("ask ")) << all;
      EXPECT_TRUE(predicted.starts_with("reply ") && predicted.ends_with("$")) << predicted;
      EXPECT_EQ(all.find(predicted), all.size() - predicted.size());
      seen.insert(all);
    }
  EXPECT_EQ(seen.size(), size_t{20});
  EXPECT_NE(texts.source.find("own answers to prompts.txt"), std::string::npos) << texts.source;

  // The weights of the loss follow: none for the prompt, one for each token of the answer.
  const int64_t first[] = {0};
  const TrainingBatch batch = PackBatches(texts.training, first, 100).front();
  for (int64_t i = 0; i < std::ssize(batch.weights); ++i)
    EXPECT_EQ(batch.weights[i], i >= texts.training.first_targets[0] ? 1.0f : 0.0f) << i;

  settings.train_on_inputs = true;
  const TrainingTexts whole = LoadTrainingTexts(settings, tokenizer_, std::span(&own, 1));
  for (const int64_t target : whole.training.first_targets) EXPECT_EQ(target, 1);
  EXPECT_NE(Refusal([&] { LoadTrainingTexts(settings, tokenizer_); }).find("are missing"), std::string::npos);
  settings.validation_text = settings.text;
  EXPECT_NE(Refusal([&] { LoadTrainingTexts(settings, tokenizer_, std::span(&own, 1)); }).find("validation_text"),
            std::string::npos);
}

// Texts with shares have them in tokens until one of them is used up; the others lose what is left.
TEST_F(TrainingTextTest, SharesAreOfTokens) {
  std::string documents;
  for (int i = 0; i < 300; ++i) documents += fmt::format("{{\"text\": \"document {} of the corpus\"}}\n", i);
  const std::string corpus = Write("corpus.jsonl", documents).text, prompts = Write("prompts.txt", "any\n").text;
  const OwnAnswers own = AnswersTo(100, tokenizer_);
  const auto share = [&](const std::string& list) {
    FinetuneSettings settings;
    settings.text = list;
    settings.validation = 10;
    const TrainingTexts texts = LoadTrainingTexts(settings, tokenizer_, std::span(&own, 1));
    EXPECT_EQ(texts.validation.sequences(), 10);
    double answers = 0;
    for (int64_t s = 0; s < texts.training.sequences(); ++s)
      if (const std::string sequence = Sequence(texts.training, s); sequence.starts_with("ask"))
        answers += static_cast<double>(sequence.size());
    return answers / static_cast<double>(texts.training.tokens.size());
  };
  EXPECT_NEAR(share("own:" + prompts + "," + corpus), 0.5, 0.02);
  EXPECT_NEAR(share("own:" + prompts + ":80%," + corpus + ":20%"), 0.8, 0.02);
  EXPECT_NEAR(share("own:" + prompts + "," + corpus + ":70%"), 0.3, 0.02);

  const auto refused = [&](const std::string& list) {
    FinetuneSettings settings;
    settings.text = list;
    return Refusal([&] { LoadTrainingTexts(settings, tokenizer_, std::span(&own, 1)); });
  };
  EXPECT_NE(refused(corpus + ":70%," + prompts + ":20%").find("are 90% together, expected 100%"), std::string::npos);
  EXPECT_NE(refused(corpus + ":100%," + prompts).find("expected less than 100%"), std::string::npos);
  EXPECT_NE(refused(corpus + ":0%").find("expected a share above 0%"), std::string::npos);
  EXPECT_NE(refused(corpus + ":x%").find("expected a share above 0%"), std::string::npos);
  EXPECT_NE(refused("own:").find("expected a file of prompts"), std::string::npos);
}

}  // namespace
}  // namespace shiftrt
