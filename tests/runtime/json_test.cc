// SPDX-License-Identifier: Apache-2.0
#include "runtime/json.h"

#include <ctime>

#include "tests/runtime/refusal.h"

namespace shiftrt {
namespace {

void ExpectJsonRefused(const std::string& text, const std::string& word) {
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
    ExpectJsonRefused(text, "not valid JSON");
}

TEST(Json, IntegersAreNotRounded) {
  EXPECT_EQ(Integer(ParseJson("9223372036854775807", "some.json")), INT64_MAX);
  EXPECT_EQ(Integer(ParseJson("-9223372036854775808", "some.json")), INT64_MIN);
  for (const char* text : {"9223372036854775808", "1e84", "-1e300", "1.5", "1.0", "null", "true", "\"1\"", "[1]"})
    EXPECT_THROW(Integer(ParseJson(text, "some.json")), Error) << text;
}

TEST(Json, RefusesInvalidUtf8) {
  for (const char* text : {"\"\xFF\"", "\"\xC0\x80\"", "\"\xED\xA0\x80\"", "\"\xF4\x90\x80\x80\"", "{\"\xC3\": 1}",
                           "\"\\ud800\"", "\"\\ud800x\""})
    ExpectJsonRefused(text, "not valid JSON");
}

TEST(Json, RefusesZeroBytes) {
  using namespace std::string_literals;
  for (const std::string& text : {"{}\0"s, "{}\0 garbage"s, "\0{}"s, "\"a\0b\""s}) ExpectJsonRefused(text, "zero byte");
}

TEST(Json, RefusesAKeyTwiceInOneObjectOnly) {
  ExpectJsonRefused(R"({"a": 1, "b": 2, "a": 3})", "duplicate key a");
  ExpectJsonRefused(R"([{"x": {"a": 1, "\u0061": {}}}])", "duplicate key a");
  EXPECT_NO_THROW(ParseJson(R"({"a": {"a": 1}, "b": [{"a": 1}, {"a": 2}]})", "some.json"));
}

TEST(Json, SixteenLevelsAndNoMore) {
  const auto nested = [](size_t levels) { return std::string(levels, '[') + std::string(levels, ']'); };
  EXPECT_NO_THROW(ParseJson(nested(16), "some.json"));
  ExpectJsonRefused(nested(17), "nested");
  ExpectJsonRefused(std::string(1000000, '['), "nested");
  std::string objects;
  for (int i = 0; i < 100000; ++i) objects += "{\"a\":";
  ExpectJsonRefused(objects, "nested");
}

// CPU time, which other programs on the machine do not lengthen.
double SecondsToParse(const std::string& text) {
  const std::clock_t start = std::clock();
  ParseJson(text, "some.json");
  return static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
}

// The time per byte of many siblings must be that of few. Each of these took quadratic time: 25 s and more for a MB.
TEST(Json, TimeIsLinearInTheNumberOfSiblings) {
  const auto rows = [](const char* row, int count) {
    std::string text = "{\"x\": [{}";
    for (int i = 0; i < count; ++i) text += row;
    return text + "]}";
  };
  const auto tensors = [](int count) {
    std::string text = "{\"a\": 0";
    for (int i = 0; i < count; ++i)
      text += fmt::format(", \"layers.{}.weight\": {{\"dtype\": \"F32\", \"shape\": [2, 2]}}", i);
    return text + "}";
  };
  EXPECT_LT(SecondsToParse(rows(",{}", 300000)), 5);
  EXPECT_LT(SecondsToParse(rows(",{\"instruction\": \"a\", \"output\": \"b\"}", 50000)), 5);
  EXPECT_LT(SecondsToParse(tensors(60000)), 5);
  EXPECT_EQ(ParseJson(tensors(60000), "some.json").size(), 60001u);
}

TEST(Json, OrderedKeysStayInTheirOrder) {
  EXPECT_EQ(ParseOrderedJson(R"({"b": [{"z": 1, "y": 2}], "a": null})", "some.json").dump(),
            R"({"b":[{"z":1,"y":2}],"a":null})");
  ExpectRefusal([] { ParseOrderedJson(R"({"b": 1, "a": 2, "b": 3})", "some.json"); }, "some.json", "duplicate key b");
  std::string many = "{\"k\": 0";
  for (int i = 0; i < 5000; ++i) many += fmt::format(", \"{}\": 0", i);
  ExpectRefusal([&] { ParseOrderedJson(many + "}", "some.json"); }, "some.json", "more than 4096 keys");
}

TEST(Json, ErrorsShowNoTypeOfALibraryAndNoRawText) {
  const std::string broken =
      Refusal([] { ParseJson("{\"a\": \"" + std::string(1 << 20, 'x') + "\n\"}", "some.json"); });
  EXPECT_EQ(broken.find("exception"), broken.npos) << broken;
  EXPECT_LT(broken.size(), 300u);
  const std::string twice = "\x1b[2J" + std::string(5000, 'k');
  const nlohmann::json key = twice;
  const std::string message = Refusal([&] { ParseJson("{" + key.dump() + ":1," + key.dump() + ":2}", "some.json"); });
  EXPECT_NE(message.find("\\x1b[2J"), message.npos) << message;
  EXPECT_LT(message.size(), 300u);
}

}  // namespace
}  // namespace shiftrt
