// SPDX-License-Identifier: Apache-2.0
#include "runtime/json.h"

#include "tests/runtime/refusal.h"

namespace shiftrt {
namespace {

void ExpectRefused(const std::string& text, const std::string& word) {
  ExpectRefusal([&] { ParseJson(text, "some.json"); }, "some.json", word);
}

TEST(Json, TakesWhatIsValid) {
  const nlohmann::json json = ParseJson(R"( {"a": [1, -2.5, true, null, "\u00e9"], "b": {"a": {}}} )", "some.json");
  EXPECT_EQ(json["a"][4], "\xC3\xA9");
  EXPECT_EQ(json["a"].size(), 5u);
  EXPECT_TRUE(json["b"]["a"].is_object());
}

TEST(Json, RefusesWhatIsNot) {
  for (const char* text : {"", " ", "{", "{]", "[1,]", "{\"a\"}", "{\"a\":1,}", "nul", "01", "1 2", "{} {}", "[1e999]",
                           "'a'", "\"\\x\"", "\"\n\"", "// nothing\n1", "NaN", "Infinity"})
    ExpectRefused(text, "not valid JSON");
}

TEST(Json, RefusesInvalidUtf8) {
  for (const char* text : {"\"\xFF\"", "\"\xC0\x80\"", "\"\xED\xA0\x80\"", "\"\xF4\x90\x80\x80\"", "{\"\xC3\": 1}",
                           "\"\\ud800\"", "\"\\ud800x\""})
    ExpectRefused(text, "not valid JSON");
}

TEST(Json, RefusesZeroBytes) {
  using namespace std::string_literals;
  for (const std::string& text : {"{}\0"s, "{}\0 garbage"s, "\0{}"s, "\"a\0b\""s}) ExpectRefused(text, "zero byte");
}

TEST(Json, RefusesAKeyTwiceInOneObjectOnly) {
  ExpectRefused(R"({"a": 1, "b": 2, "a": 3})", "duplicate key a");
  ExpectRefused(R"([{"x": {"a": 1, "\u0061": {}}}])", "duplicate key a");
  EXPECT_NO_THROW(ParseJson(R"({"a": {"a": 1}, "b": [{"a": 1}, {"a": 2}]})", "some.json"));
}

TEST(Json, SixteenLevelsAndNoMore) {
  const auto nested = [](size_t levels) { return std::string(levels, '[') + std::string(levels, ']'); };
  EXPECT_NO_THROW(ParseJson(nested(16), "some.json"));
  ExpectRefused(nested(17), "nested");
  ExpectRefused(std::string(1000000, '['), "nested");
  std::string objects;
  for (int i = 0; i < 100000; ++i) objects += "{\"a\":";
  ExpectRefused(objects, "nested");
}

}  // namespace
}  // namespace shiftrt
