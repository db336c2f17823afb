// SPDX-License-Identifier: Apache-2.0
// The table of a recipe's settings: each has words that it reads back, and each takes part in every key and record.
#include "shift/recipe_fields.h"

#include <gtest/gtest.h>

#include <map>

#include "runtime/check.h"

namespace shiftrt {
namespace {

// Words of each setting that are not those of its default. A setting without any fails the tests.
const std::map<std::string_view, std::string> kOthers = {{"prune", "angular:3,keep=first:1"},
                                                         {"correction", "lra"},
                                                         {"rank", "energy:0.9"},
                                                         {"lambda", "0.01rel"},
                                                         {"penalize_bias", "true"},
                                                         {"factorization", "svd"},
                                                         {"mode", "drift"},
                                                         {"weighting", "norm,first:0.5"},
                                                         {"span", "true"},
                                                         {"gate", "true"},
                                                         {"heal", "down"},
                                                         {"merge", "lowrank"},
                                                         {"quantize", "q4_0,nearest,after"},
                                                         {"seed", "7"},
                                                         {"text", "a.txt:8x32"}};

// The recipe of adapters reads every setting.
Recipe Adapters() { return {.correction = "lra"}; }

Recipe With(std::string_view field, Recipe recipe) {
  FieldNamed(field).set(kOthers.at(field), recipe);
  return recipe;
}

TEST(RecipeFields, EachReadsItsOwnWords) {
  for (const RecipeField& field : RecipeFields()) {
    ASSERT_TRUE(kOthers.contains(field.name)) << "words of " << field.name << " that are not its default's";
    const std::string before = field.words(Recipe());
    const Recipe changed = With(field.name, Recipe());
    EXPECT_EQ(field.words(changed), kOthers.at(field.name));
    EXPECT_NE(field.words(changed), before) << field.name;
    Recipe again;
    field.set(field.words(changed), again);
    EXPECT_EQ(SettingText(again, true), SettingText(changed, true)) << field.name;
  }
}

TEST(RecipeFields, TheWordsFollowAFieldThatAProgramChanges) {
  Recipe recipe = Adapters();
  FieldNamed("prune").set("bi:0.25", recipe);
  const std::string before = SettingText(recipe);
  recipe.prune.ratio = 0.5;
  EXPECT_NE(SettingText(recipe), before);
  EXPECT_EQ(RecipeTextOf(recipe).prune, "bi:0.5");
}

TEST(RecipeFields, EachTakesPartInTheKeyOfAFit) {
  for (const RecipeField& field : RecipeFields()) {
    if (field.name == "text") continue;  // the key has the hash of the text
    const Recipe before = field.name == "correction" ? Recipe{.correction = "joint"} : Adapters();
    const Recipe after = With(field.name, before);
    EXPECT_NE(SettingText(after, true), SettingText(before, true)) << field.name;
    EXPECT_EQ(SettingText(after) == SettingText(before), field.name == "seed") << field.name;
  }
}

// A setting as the record of a model has it, in the words that the setting reads; "" where it has none.
std::string Recorded(const RecipeField& field, const RecipeText& text) {
  if (const auto* member = std::get_if<std::string RecipeText::*>(&field.recorded)) return text.**member;
  if (const auto* member = std::get_if<std::optional<bool> RecipeText::*>(&field.recorded))
    return text.**member ? (*(text.**member) ? "true" : "false") : "";
  const auto* member = std::get_if<std::optional<uint64_t> RecipeText::*>(&field.recorded);
  return member != nullptr && text.**member ? fmt::format("{}", *(text.**member)) : "";
}

TEST(RecipeFields, ASavedModelSaysHowToMakeItAgain) {
  for (const RecipeField& field : RecipeFields()) {
    if (field.name == "text") continue;  // CalibrationReport has it
    const Recipe recipe = With(field.name, Adapters());
    EXPECT_EQ(Recorded(field, RecipeTextOf(recipe)), kOthers.at(field.name)) << field.name;
  }
}

TEST(RecipeFields, ASettingThatNothingReadsIsNotRecorded) {
  const RecipeText text = RecipeTextOf({.correction = "none"});
  EXPECT_EQ(text.rank, "");
  EXPECT_EQ(text.lambda, "");
  EXPECT_FALSE(text.penalize_bias.has_value());
  EXPECT_EQ(text.correction, "none");
  EXPECT_EQ(text.span, false);
}

TEST(RecipeFields, AnUnknownNameListsTheOthers) {
  try {
    FieldNamed("colour");
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_EQ(error.field(), "colour");
    EXPECT_NE(error.reason().find("factorization"), std::string::npos);
  }
}

}  // namespace
}  // namespace shiftrt
