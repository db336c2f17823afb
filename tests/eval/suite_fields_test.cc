// SPDX-License-Identifier: Apache-2.0
// The table of an evaluation's settings: each has words that it reads back, and each takes part in every key.
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "runtime/work_key.h"
#include "tests/runtime/refusal.h"
#include "types/suites.h"

namespace shiftrt {
namespace {

// Words of each setting that are not those of its default. A setting without any fails the test.
const std::map<std::string_view, std::string> kOthers = {
    {"tasks", "piqa"},      {"data", "a,b\npiqa=c"}, {"shots", "3"},        {"limit", "7"},
    {"allow_code", "true"}, {"bos", "never"},        {"all_metrics", "all"}};

TEST(SuiteFields, EachReadsItsOwnWordsAndIsInTheKey) {
  const auto key = [](const SuiteSettings& settings) { return WorkKey("k").AddRows(SuiteFields(), settings).Hash(); };
  std::set<std::string> keys = {key({})};
  for (const SuiteField& field : SuiteFields()) {
    ASSERT_TRUE(kOthers.contains(field.name)) << "words of " << field.name << " that are not its default's";
    SuiteSettings settings;
    Set(field.name, kOthers.at(field.name), settings);
    EXPECT_EQ(field.words(settings), kOthers.at(field.name));
    EXPECT_TRUE(keys.insert(key(settings)).second) << field.name << " is not in the key";
    Set(field.name, field.words({}), settings);
    EXPECT_EQ(key(settings), key({})) << field.name;
  }
}

TEST(SuiteFields, WhatIsWrongIsNamed) {
  SuiteSettings settings;
  EXPECT_TRUE(Refusal([&] { Set("shots", "many", settings); }).starts_with("shots: "));
  EXPECT_TRUE(Refusal([&] { Set("bos", "often", settings); }).starts_with("bos: "));
  EXPECT_TRUE(Refusal([&] { Set("all_metrics", "some", settings); }).starts_with("all_metrics: "));
  EXPECT_NE(Refusal([&] { Set("colour", "red", settings); }).find("allow_code"), std::string::npos);
}

TEST(WorkKey, NamesAndLengthsTellValuesApart) {
  const auto key = [] { return WorkKey("k"); };
  EXPECT_NE(key().Add("a", "1\nb=1:2").Hash(), key().Add("a", "1").Add("b", "2").Hash());
  EXPECT_NE(key().Add("a", "1").Hash(), key().Add("b", "1").Hash());
  EXPECT_NE(key().Hash(), WorkKey("l").Hash());
  EXPECT_EQ(key().Add("a", 1).Hash(), key().Add("a", "1").Hash());
}

}  // namespace
}  // namespace shiftrt
