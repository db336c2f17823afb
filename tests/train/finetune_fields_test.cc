// SPDX-License-Identifier: Apache-2.0
// The table of a training's settings: each has words that it reads back, and each takes part in every key and record
// that its row names.
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "tests/runtime/refusal.h"
#include "types/training.h"

namespace shiftrt {
namespace {

// Words of each setting that are not those of its default. A setting without any fails the tests.
const std::map<std::string_view, std::string> kOthers = {{"method", "partial"},
                                                         {"text", "c4:30%,a.txt"},
                                                         {"answers", "answers"},
                                                         {"samples", "7"},
                                                         {"length", "64"},
                                                         {"divide", "true"},
                                                         {"validation", "9"},
                                                         {"validation_text", "held.txt"},
                                                         {"train_on_inputs", "true"},
                                                         {"adapters", "trainable"},
                                                         {"head", "true"},
                                                         {"lora.targets", "q,v"},
                                                         {"lora.rank", "4"},
                                                         {"lora.alpha", "1.5"},
                                                         {"lora.dropout", "0.1"},
                                                         {"layers", "first:2"},
                                                         {"replacement", "mlp:64"},
                                                         {"keep_correction", "yes"},
                                                         {"loss", "both"},
                                                         {"epochs", "3"},
                                                         {"steps", "11"},
                                                         {"budget", "tokens=1000000"},
                                                         {"batch", "2"},
                                                         {"pass_tokens", "100"},
                                                         {"rate", "3e-05"},
                                                         {"decay", "cosine"},
                                                         {"warmup", "0.1"},
                                                         {"weight_decay", "0.25"},
                                                         {"clip", "0.5"},
                                                         {"validate_every", "0.2"},
                                                         {"keep_best", "yes"},
                                                         {"seed", "18446744073709551615"},
                                                         {"checkpoint", "a.checkpoint"},
                                                         {"checkpoint_seconds", "30"}};

std::string SettingText(const FinetuneSettings& settings) {
  std::string text;
  for (const FinetuneField& field : FinetuneFields()) text += fmt::format("{} {}\n", field.name, field.words(settings));
  return text;
}

FinetuneSettings With(const FinetuneField& field, FinetuneSettings settings = {}) {
  Set(field.name, kOthers.at(field.name), settings);
  return settings;
}

TEST(FinetuneFields, EachReadsItsOwnWords) {
  std::set<std::string> texts = {SettingText({})};
  for (const FinetuneField& field : FinetuneFields()) {
    ASSERT_TRUE(kOthers.contains(field.name)) << "words of " << field.name << " that are not its default's";
    const FinetuneSettings changed = With(field);
    EXPECT_EQ(field.words(changed), kOthers.at(field.name));
    EXPECT_NE(field.words(changed), field.words({})) << field.name;
    EXPECT_TRUE(texts.insert(SettingText(changed)).second) << field.name << " is not in the text of the settings";
    FinetuneSettings again;
    field.set(field.words(changed), again);
    EXPECT_EQ(SettingText(again), SettingText(changed)) << field.name;
  }
}

TEST(FinetuneFields, EachIsRecordedWhereItsRowSaysSo) {
  for (const FinetuneField& field : FinetuneFields()) {
    const auto value = [&](const FinetuneSettings& settings) {
      std::string found;
      for (const auto& [name, words] : RecordedSettings(settings))
        if (name == field.recorded_as()) found += words;
      return found;
    };
    for (const Method method : {Method::kLora, Method::kPartial, Method::kAdapters, Method::kReplacement}) {
      const FinetuneSettings settings = {.method = method};
      const bool recorded = field.recorded == Recorded::kAlways || field.recorded == Recorded::kIfOn ||
                            (field.recorded == Recorded::kIfRead && field.has_reader(method));
      EXPECT_EQ(value(With(field, settings)), recorded ? kOthers.at(field.name) : "") << field.name << Name(method);
      EXPECT_EQ(value(settings).empty(), !recorded || field.recorded == Recorded::kIfOn) << field.name << Name(method);
    }
  }
}

TEST(FinetuneFields, AFlagReadsTrueAndFalseWhateverItsWords) {
  for (const char* flag : {"adapters", "keep_correction", "keep_best", "head"}) {
    FinetuneSettings settings;
    Set(flag, "true", settings);
    EXPECT_NE(SettingText(settings), SettingText({})) << flag;
    Set(flag, "false", settings);
    EXPECT_EQ(SettingText(settings), SettingText({})) << flag;
    EXPECT_NE(Refusal([&] { Set(flag, "perhaps", settings); }).find(flag), std::string::npos);
  }
}

TEST(FinetuneFields, AValidationMayNameAText) {
  FinetuneSettings settings;
  Set("validation", "held.txt:12", settings);
  EXPECT_EQ(settings.validation_text, "held.txt");
  EXPECT_EQ(settings.validation, 12);
  Set("validation", "5", settings);
  EXPECT_EQ(FinetuneFieldNamed("validation").words(settings), "held.txt:5");
}

TEST(FinetuneFields, AMethodRefusesWhatItDoesNotRead) {
  for (const FinetuneField& field : FinetuneFields())
    for (const Method method : {Method::kLora, Method::kPartial, Method::kAdapters, Method::kReplacement}) {
      const std::string refusal = Refusal([&] { CheckGiven(method, field.name); });
      EXPECT_EQ(refusal.empty(), field.has_reader(method)) << refusal;
      EXPECT_TRUE(refusal.empty() || refusal.starts_with(std::string(field.name) + ": ")) << refusal;
    }
  EXPECT_EQ(Refusal([] { CheckGiven(Method::kLora, "rank"); }), "");
}

TEST(FinetuneFields, NumbersHaveBounds) {
  for (const FinetuneField& field : FinetuneFields()) {
    if (!field.bounds) continue;
    const bool whole = field.kind == FieldKind::kInteger;
    for (const std::string wrong : {"-1", whole ? "2147483647" : "nan"}) {
      FinetuneSettings settings;
      field.set(wrong, settings);
      EXPECT_EQ(Refusal([&] { CheckBounds(settings); }).find(std::string(field.name) + ": " + wrong), 0U)
          << field.name << " " << wrong;
    }
    EXPECT_NO_THROW(CheckBounds(With(field))) << field.name;
  }
  EXPECT_NO_THROW(CheckBounds({}));
}

TEST(FinetuneFields, AnUnknownNameListsTheOthers) {
  FinetuneSettings settings;
  const std::string refusal = Refusal([&] { Set("colour", "red", settings); });
  for (const FinetuneField& field : FinetuneFields())
    EXPECT_NE(refusal.find(std::string(field.name)), std::string::npos) << field.name;
  EXPECT_NE(Refusal([&] { Set("decay", "step", settings); }).find("decay: "), std::string::npos);
}

TEST(FinetuneFields, ABudgetReadsItsOwnWords) {
  for (const TrainingBudget budget : {TrainingBudget{.seconds = 90.5}, {.seconds = 7200}, {.tokens = 1'000'000'000}}) {
    const TrainingBudget again = ParseTrainingBudget(Format(budget));
    EXPECT_EQ(again.seconds, budget.seconds);
    EXPECT_EQ(again.tokens, budget.tokens);
  }
}

}  // namespace
}  // namespace shiftrt
