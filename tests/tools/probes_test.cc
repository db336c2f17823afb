// SPDX-License-Identifier: Apache-2.0
#include "tools/probes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <set>
#include <sstream>

namespace shiftrt {
namespace {

int64_t WordsOf(const std::string& text) {
  std::istringstream words(text);
  return std::distance(std::istream_iterator<std::string>(words), {});
}

std::vector<int64_t> Numbers(const std::string& text) {
  std::istringstream numbers(text);
  return {std::istream_iterator<int64_t>(numbers), {}};
}

// The question of a prompt, which stands between two texts at its end.
std::string Asked(const std::string& prompt, const std::string& before, const std::string& after) {
  const size_t begin = prompt.rfind(before) + before.size();
  return prompt.substr(begin, prompt.rfind(after) - begin);
}

TEST(Probes, HaveTheAnswersThatTheirQuestionsSay) {
  const std::vector<ProbeItems> probes =
      MakeProbes({.items = 8, .tokens = 1024, .positions = 4096, .seed = 5}, WordsOf);
  std::set<std::string> seen;
  for (const ProbeItems& probe : probes) {
    seen.insert(probe.probe);
    EXPECT_EQ(probe.items.size(), probe.probe == "fact" ? size_t{2} : size_t{8});
    for (const ProbeItem& item : probe.items) {
      SCOPED_TRACE(item.prompt + " -> " + item.answer);
      EXPECT_TRUE(AnswersProbe(probe.probe, " " + item.answer + "\nmore", item.answer));
      EXPECT_FALSE(AnswersProbe(probe.probe, " " + item.answer.substr(1), item.answer));
      if (probe.probe == "copy") {
        EXPECT_EQ(Asked(item.prompt, "Input: ", "\nOutput:"), item.answer);
        EXPECT_EQ(WordsOf(item.answer), probe.length);
      } else if (probe.probe == "sort") {
        std::vector<int64_t> numbers = Numbers(Asked(item.prompt, "Input: ", "\nOutput:"));
        EXPECT_EQ(std::ssize(numbers), probe.length);
        std::sort(numbers.begin(), numbers.end());
        EXPECT_EQ(numbers, Numbers(item.answer));
      } else if (probe.probe == "sum") {
        const std::string sum = Asked(item.prompt, "\n\n", " =");
        const int64_t a = std::stoll(sum), b = std::stoll(sum.substr(sum.find('+') + 1));
        EXPECT_EQ(std::to_string(a).size(), static_cast<size_t>(probe.length));
        EXPECT_EQ(std::to_string(a + b), item.answer);
      } else if (probe.probe == "brackets") {
        std::string open = Asked(item.prompt, "Open: ", "\nClose:"), closed = item.answer;
        std::reverse(closed.begin(), closed.end());
        for (char& c : closed) c = c == ')' ? '(' : c == ']' ? '[' : c == '}' ? '{' : c;
        EXPECT_EQ(open, closed);
        EXPECT_EQ(WordsOf(open), probe.length);
      } else {
        EXPECT_NE(item.prompt.find(" is " + item.answer + "."), std::string::npos);
        EXPECT_LE(WordsOf(item.prompt), probe.length);
        EXPECT_GT(WordsOf(item.prompt), probe.length - 20);
      }
    }
  }
  const std::vector<std::string> names = ProbeNames();
  EXPECT_EQ(seen, std::set<std::string>(names.begin(), names.end()));
}

TEST(Probes, DependOnTheSeedAndFitTheModel) {
  const auto prompts = [](uint64_t seed, int64_t tokens, int64_t positions) {
    std::vector<std::string> all;
    for (const ProbeItems& probe :
         MakeProbes({.items = 2, .tokens = tokens, .positions = positions, .seed = seed}, WordsOf))
      for (const ProbeItem& item : probe.items) all.push_back(item.prompt);
    return all;
  };
  const std::vector<std::string> some = prompts(1, 256, 4096), more = prompts(1, 512, 4096);
  EXPECT_EQ(some, prompts(1, 256, 4096));
  EXPECT_NE(some, prompts(2, 256, 4096));
  EXPECT_TRUE(std::equal(some.begin(), some.end(), more.begin()));  // a longer text leaves the others as they are
  EXPECT_GT(more.size(), some.size());
  for (const std::string& prompt : prompts(1, 4096, 100)) EXPECT_LE(WordsOf(prompt), 100);
  EXPECT_TRUE(prompts(1, 4096, 10).empty());
}

TEST(Probes, TakeTheFirstLineOfAReplyAndTheFirstNumber) {
  EXPECT_TRUE(AnswersProbe("copy", " apple river \n\nInput:", "apple river"));
  EXPECT_FALSE(AnswersProbe("copy", " apple river stone", "apple river"));
  EXPECT_FALSE(AnswersProbe("copy", "\n apple river", "apple river"));
  EXPECT_TRUE(AnswersProbe("sum", " 68 and so on", "68"));
  EXPECT_FALSE(AnswersProbe("sum", " 680", "68"));
  EXPECT_TRUE(AnswersProbe("fact", " 4821.", "4821"));
  EXPECT_FALSE(AnswersProbe("fact", "", "4821"));
}

}  // namespace
}  // namespace shiftrt
