// SPDX-License-Identifier: Apache-2.0
// The subset of Jinja against what transformers renders (goldens/make_chat.py), its refusals, and its limits.
#include "tokenizers/jinja.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <ctime>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>

#include "runtime/check.h"
#include "runtime/random.h"
#include "tests/test_directory.h"
#include "tokenizers/jinja/python_text.h"

namespace shiftrt {
namespace {

using nlohmann::ordered_json;

constexpr int64_t kNow = 1769990400;  // 2 February 2026, 00:00 UTC

ordered_json Expected() {
  ordered_json all;
  std::ifstream(TestDirectory() / "goldens/chat/expected.json") >> all;
  return all;
}

// The text, or the error.
std::pair<std::optional<std::string>, std::string> Rendered(const std::string& text, const ordered_json& variables) {
  try {
    return {JinjaTemplate(text, "t").Render(variables, kNow), ""};
  } catch (const Error& error) {
    return {std::nullopt, error.what()};
  }
}

std::string ErrorOf(const std::string& text, const ordered_json& variables = ordered_json::object()) {
  const auto [found, error] = Rendered(text, variables);
  return found ? "no error, but: " + *found : error;
}

TEST(Jinja, ShortTemplatesAreRenderedAsTransformersRendersThem) {
  const ordered_json all = Expected();
  ASSERT_GT(all["short"].size(), 150u);
  for (const ordered_json& one : all["short"]) {
    const std::string text = one["template"];
    const auto [found, error] = Rendered(text, all["values"]);
    if (one["text"].is_null()) {
      EXPECT_FALSE(found.has_value()) << text << "\nis refused by Jinja, found: " << *found;
    } else {
      EXPECT_EQ(found.value_or(error), one["text"].get<std::string>()) << text;
    }
  }
}

TEST(Jinja, TemplatesOfConversationsAreRenderedAsTransformersRendersThem) {
  const ordered_json all = Expected();
  ASSERT_EQ(all["templates"].size(), 6u);
  for (const auto& [name, expected] : all["templates"].items()) {
    std::ifstream file(TestDirectory() / "goldens/chat" / name);
    const std::string text((std::istreambuf_iterator<char>(file)), {});
    const JinjaTemplate chat(text, name);
    ASSERT_GT(expected.size(), 12u);
    for (const auto& [conversation, wanted] : expected.items()) {
      ordered_json variables = {{"tools", nullptr}, {"documents", nullptr}, {"add_generation_prompt", false}};
      variables.update(all["special"]);
      variables.update(all["conversations"][conversation]);
      const auto [found, error] = Rendered(text, variables);
      EXPECT_EQ(found.has_value(), wanted.is_string()) << name << ", " << conversation << ": " << error;
      if (found && wanted.is_string()) {
        EXPECT_EQ(*found, wanted.get<std::string>()) << name << ", " << conversation;
      }
    }
  }
}

TEST(Jinja, WhatItDoesNotKnowIsRefusedByNameAndPlaceBeforeRendering) {
  const std::pair<const char*, const char*> cases[] = {
      {"ab\n  {% include 'x' %}", "t:2:6: the tag 'include' is not supported"},
      {"{% if false %}{{ x | wordwrap }}{% endif %}", "t:1:22: the filter 'wordwrap' is not supported"},
      {"{{ x is callable }}", "t:1:9: the test 'callable' is not supported"},
      {"{{ x.zfill(3) }}", "the method 'zfill' is not supported"},
      {"{{ lipsum() }}", "'lipsum' is not supported"},
      {"{{ now() }}", "the function 'now' is not supported"},
      {"{% macro m() %}{{ caller() }}{% endmacro %}", "'caller' is not supported"},
      {"{% for x in y recursive %}{% endfor %}", "recursive"},
      {"{{ loop.cycle(1) }}", "'loop.cycle' is not supported"},
      {"{% raw %}{% endraw %}", "'raw' is not supported"},
      {"{{ 2 ** 3 }}", "'**' is not supported"},
      {"{{ f(*x) }}", "'*' are not supported"},
      {"{{ x | tojson(default=1) }}", "the filter 'tojson' has no argument 'default'"},
      {"{{ x | replace('a') }}", "the filter 'replace' needs its argument 'new'"},
      {"{{ x | map('wordcount') }}", "needs a name that is known"},
      {"{{ x | selectattr('a', 'callable') }}", "needs a name that is known"},
      {"{{ \xE4\xBD\xA0 }}", "unexpected character"},
      {"\xE4\xBD\xA0\n\xE4\xBD\xA0{{ @ }}", "t:2:5: unexpected character '@'"},
      {"{{ 0x10 }}", "is not supported"},
      {"{{ 99999999999999999999 }}", "is not supported"},
      {"{{ '\\N{DASH}' }}", "\\N is not supported"},
      {"a\xFF", "t:1:2: not valid UTF-8"},
  };
  for (const auto& [text, message] : cases)
    EXPECT_NE(ErrorOf(text).find(message), std::string::npos) << text << "\n" << ErrorOf(text);
}

TEST(Jinja, WhatCannotBeRenderedIsRefusedWithItsPlace) {
  const std::pair<const char*, const char*> cases[] = {
      {"\n {{ x.y }}", "t:2:7: 'x' is undefined"},
      {"{{ raise_exception('not ' ~ 1) }}", "the template refuses: not 1"},
      {"{{ 'a'.encode }}", "the attribute 'encode' of a str is not supported"},
      {"{{ [1].append }}", "the attribute 'append' of a list is not supported"},
      {"{{ 'a'.__class__ }}", "'__class__' is not supported"},
      {"{{ '%s' % [1] }}", "to format a text with '%' is not supported"},
      {"{{ 9223372036854775807 + 1 }}", "beyond 64 bits"},
      {"{{ '\xC3\xA9' | upper }}", "letters that are not ASCII"},
      {"{{ {(1 + 0.5): 2} }}", "a key of a dict: expected a str, found float"},
      {"{% set ns = namespace() %}{% set ns.a = ns %}", "a namespace cannot be an element"},
      {"{{ [namespace()] }}", "a namespace cannot be an element"},
      {"{{ [1] | map('string') }}", "make it a list"},
      {"{{ ('a' | safe).strip() }}", "marked by the filter 'safe'"},
      {"{{ [1] | tojson(true) }}", "ensure_ascii"},
      {"{{ strftime_now('%Z') }}", "directive '%Z'"},
  };
  for (const auto& [text, message] : cases)
    EXPECT_NE(ErrorOf(text).find(message), std::string::npos) << text << "\n" << ErrorOf(text);
}

TEST(Jinja, DatesAreThoseOfTheClock) {
  ::setenv("TZ", "UTC", 1);
  EXPECT_EQ(JinjaTemplate("{{ strftime_now('%d %b %Y, %H:%M') }}", "t").Render(ordered_json::object(), kNow),
            "02 Feb 2026, 00:00");
  ::unsetenv("TZ");
}

// Repeats a piece of text.
std::string Times(int count, const std::string& piece) {
  std::string text;
  for (int i = 0; i < count; ++i) text += piece;
  return text;
}

TEST(Jinja, HostileTemplatesEndWithAnError) {
  const std::string loop = "{% for a in range(100000) %}";
  const std::pair<std::string, const char*> cases[] = {
      {"{% for i in range(1000000000) %}{% endfor %}", "more than 100000"},
      {loop + loop + loop + "{% endfor %}{% endfor %}{% endfor %}", "too much work"},
      {"{% set n = namespace(x='aaaaaaaaaaaaaaaa') %}" + loop + "{% set n.x = n.x + n.x %}{% endfor %}",
       "too much work"},
      {"{% set n = namespace(x=[1]) %}" + loop + "{% set n.x = n.x + n.x %}{% endfor %}", "too much work"},
      {"{% set n = namespace(x=[1]) %}" + loop + "{% set n.x = [n.x] %}{% endfor %}", "nested more than"},
      {"{% set n = namespace(x=[1]) %}{% for a in range(60) %}{% set n.x = [n.x, n.x] %}{% endfor %}{{ n.x }}",
       "too much work"},
      {"{% set n = namespace(x=[1]) %}{% for a in range(60) %}{% set n.x = [n.x, n.x] %}{% endfor %}{{ n.x | tojson }}",
       "too much work"},
      {"{% set n = namespace(x=[1], y=[1]) %}{% for a in range(60) %}{% set n.x = [n.x, n.x] %}{% set n.y = [n.y, n.y] "
       "%}{% endfor %}{{ n.x == n.y }}",
       "too much work"},
      {"{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "nested more than"},
      {"{% set s = ('a' ~ '" + Times(1000, "b") + "') %}" + loop +
           "{% set t = s.replace('b', s).replace('b', s) %}{% endfor %}",
       "too much work"},
      {"{{ " + Times(5000, "(") + "1" + Times(5000, ")") + " }}", "nested more than"},
      {"{{ " + Times(5000, "[") + Times(5000, "]") + " }}", "nested more than"},
      {"{{ " + Times(5000, "-") + "1 }}", "nested more than"},
      {"{{ " + Times(5000, "not ") + "1 }}", "nested more than"},
      {"{{ 1" + Times(5000, " if 1 else 1") + " }}", "nested more than"},
      {"{{ 1" + Times(50000, " + 1") + " }}", "more than 1000 parts"},
      {"{{ 1" + Times(50000, " | string") + " }}", "more than 1000 parts"},
      {"{{ x" + Times(50000, ".x") + " }}", "more than 1000 parts"},
      {"{{ 1" + Times(450, " + 1") + " }}", "nested more than"},
      {Times(5000, "{% if 1 %}") + Times(5000, "{% endif %}"), "nested more than"},
      {Times(5000, "{% if 1 %}"), "nested more than"},
  };
  for (const auto& [text, message] : cases)
    EXPECT_NE(ErrorOf(text).find(message), std::string::npos) << text.substr(0, 200) << "\n"
                                                              << ErrorOf(text).substr(0, 300);
  EXPECT_NE(ErrorOf(std::string(JinjaTemplate::kMaxBytes + 1, 'a')).find("larger than"), std::string::npos);
}

// A long conversation stays far below the limits.
TEST(Jinja, AThousandTurnsAreRendered) {
  std::ifstream file(TestDirectory() / "goldens/chat/thoughts.jinja");
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  ordered_json messages = ordered_json::array();
  for (int i = 0; i < 1000; ++i)
    messages.push_back({{"role", i % 2 == 0 ? "user" : "assistant"}, {"content", std::string(2000, 'a')}});
  const std::string rendered = JinjaTemplate(text, "t").Render({{"messages", messages}}, kNow);
  EXPECT_GT(rendered.size(), 2000000u);
}

// Templates that do as much as they can of one thing. Each must end, by an error or without one, in seconds: the limit
// on work counts what is done. The slowest of those that are refused is a bound for those that pass, because a refusal
// comes when all the work that is allowed is done.
TEST(Jinja, NoTemplateTakesLongWhateverItDoes) {
#if defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "times under the sanitizer say nothing about the program";
#endif
  // `a` has 2^20 characters, `p` is a needle that nearly matches everywhere, `w` has letters that are not ASCII.
  const std::string prelude =
      "{% set ns = namespace(a='a', p='a', w='\xC3\xA8', s=' ') %}"
      "{% for i in range(20) %}{% set ns.a = ns.a ~ ns.a %}{% set ns.w = ns.w ~ ns.w %}{% set ns.s = ns.s ~ ns.s %}"
      "{% if i < 18 %}{% set ns.p = ns.p ~ ns.p %}{% endif %}{% endfor %}"
      "{% set a = ns.a %}{% set p = ns.p %}{% set w = ns.w[:500000] %}{% set s = ns.s %}{% set d = {a: 1, 'x': 2} %}"
      "{% set e = {a ~ 'b': 1} %}{% set q = p ~ 'b' %}{% for i in range(100000) %}{% for j in range(100000) %}";
  const std::string end = "{% endfor %}{% endfor %}";
  const std::string bodies[] = {
      "",
      "{{ a.find(q) }}",
      "{{ a.rfind(q) }}",
      "{% if q in a %}{% endif %}",
      "{% set x = a.split(q) %}",
      "{% set x = s.split() %}",
      "{% set x = a.replace('a', 'bb') %}",
      "{% set x = a | length %}",
      "{% set x = a < a ~ 'b' %}",
      "{% set x = a.startswith(p) and a.endswith(p) %}",
      "{% set x = w.strip('\xC3\xA9\xC3\xAA\xC3\xA8') %}",
      "{% set x = w[400000] %}",
      "{% set x = w[::-1] %}",
      "{% set x = (s ~ 'x') | upper %}",
      "{% set x = s | int %}",
      "{% set x = d[a] %}",
      "{% set x = e[a ~ 'c'] is defined %}",
      "{% set x = {a: 1} %}",
      "{% set x = [1, 2, 3] | tojson(separators=[a, a]) %}",
      "{% set x = {a: 1, a ~ 'b': 2} | dictsort %}",
      "{% set x = a.join(['x', 'y']) %}",
      "{% set x = [{}] | map(attribute=a) | list %}",
      "{% set x = (a ~ '\n') | indent(p) %}",
      "{% set x = a | safe + '<' %}",
      "{% set x = strftime_now('%c%c%c%c%c%c%c%c%c%c%c%c%c%c%c%c%c%c%c%c') %}",
      "{% set x = range(1000) | list %}",
      "{% set x = range(1000) | map('string') | join %}",
      "{% macro m(a, b=1) %}{{ a }}{% endmacro %}{% set x = m(1) %}",
  };
  double slowest = 0;
  std::string which;
  for (const std::string& body : bodies) {
    const std::clock_t start = std::clock();
    const std::string error = ErrorOf(prelude + body + end);
    const double seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
    EXPECT_NE(error.find("too much work or memory"), error.npos) << body << "\n" << error.substr(0, 200);
    if (seconds > slowest) which = body;
    slowest = std::max(slowest, seconds);
  }
  RecordProperty("slowest_template", which);
  RecordProperty("slowest_milliseconds", static_cast<int>(slowest * 1e3));
  EXPECT_LT(slowest, 10) << which;
}

// Names are compared where they are read, and an unknown key or attribute is quoted.
TEST(Jinja, LongNamesAndMessagesAreCut) {
  EXPECT_NE(ErrorOf("{{ " + std::string(500000, 'a') + " }}").find("a name of more than 255 characters"),
            std::string::npos);
  const ordered_json variables = {{"t", std::string(1 << 20, 'k') + "\x1B[2J"}};
  for (const char* text : {"{{ raise_exception(t) }}", "{{ {}[t].x }}", "{{ raise_exception('\x1B[2J' ~ t) }}",
                           "{{ {}[[t]].x }}", "{{ strftime_now('%\x1B') }}"}) {
    const std::string error = ErrorOf(text, variables);
    EXPECT_LT(error.size(), 600u) << text;
    EXPECT_EQ(error.find('\x1B'), error.npos) << text;
  }
}

// The result of a search must not depend on the algorithm.
TEST(Jinja, SearchesAgreeWithTheStandardLibrary) {
  Random random(1);
  const auto word = [&](int64_t size) {
    std::string text;
    for (int64_t i = 0; i < size; ++i) text += random.Below(2) == 0 ? 'a' : 'b';
    return text;
  };
  for (int i = 0; i < 2000; ++i) {
    const std::string text = word(random.Below(40)), part = word(random.Below(6));
    const jinja::Finder finder(part);
    EXPECT_EQ(finder.First(text), text.find(part)) << text << " " << part;
    EXPECT_EQ(finder.Last(text), text.rfind(part)) << text << " " << part;
    EXPECT_EQ(finder.First(text, 5), text.find(part, 5)) << text << " " << part;
  }
}

}  // namespace
}  // namespace shiftrt
