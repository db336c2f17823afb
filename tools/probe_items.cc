// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <string_view>

#include "runtime/random.h"
#include "tools/probes.h"

namespace shiftrt {

namespace {

constexpr int kShots = 3;

constexpr const char* kWords[] = {"apple", "river", "stone", "cloud", "tiger", "paper", "green", "music",
                                  "house", "light", "bread", "water", "horse", "chair", "plant", "north",
                                  "glass", "smile", "train", "earth", "snake", "table", "queen", "beach",
                                  "ocean", "field", "night", "sugar", "metal", "dream"};
constexpr const char* kNames[] = {"Anna", "David", "Maria", "Peter", "Laura", "Simon", "Clara", "Oscar"};
constexpr const char* kFiller[] = {
    "The road along the coast is quiet in the morning.",
    "A baker opens the shop before the sun rises.",
    "Several boats lie in the harbour and wait for the tide.",
    "The old library has a garden with three apple trees.",
    "Rain is expected in the evening, and the wind turns to the west.",
    "Children walk to school across the wooden bridge.",
    "The market sells vegetables, cheese and fresh flowers.",
    "A train stops at the small station twice a day.",
    "The museum shows paintings of ships and fishermen.",
    "In autumn the leaves of the park are red and yellow.",
};

// A question and its answer.
struct Case {
  std::string question, answer;
};

template <typename T, size_t N>
const T& AnyOf(const T (&values)[N], Random& random) {
  return values[random.Below(static_cast<int64_t>(N))];
}

Case CopyCase(int64_t length, Random& random) {
  std::vector<std::string> words;
  words.reserve(static_cast<size_t>(length));
  for (int64_t i = 0; i < length; ++i) words.emplace_back(AnyOf(kWords, random));
  const std::string text = fmt::format("{}", fmt::join(words, " "));
  return {text, text};
}

// Different numbers of two digits.
Case SortCase(int64_t length, Random& random) {
  std::vector<int64_t> numbers;
  while (std::ssize(numbers) < length) {
    const int64_t number = 10 + random.Below(90);
    if (std::find(numbers.begin(), numbers.end(), number) == numbers.end()) numbers.push_back(number);
  }
  Case made{fmt::format("{}", fmt::join(numbers, " ")), ""};
  std::sort(numbers.begin(), numbers.end());
  made.answer = fmt::format("{}", fmt::join(numbers, " "));
  return made;
}

// Two numbers of so many digits.
Case SumCase(int64_t digits, Random& random) {
  int64_t low = 1;
  for (int64_t i = 1; i < digits; ++i) low *= 10;
  const int64_t a = low + random.Below(9 * low), b = low + random.Below(9 * low);
  return {fmt::format("{} + {}", a, b), std::to_string(a + b)};
}

// Brackets that are open, and those that close them.
Case BracketsCase(int64_t length, Random& random) {
  constexpr const char* kOpen[] = {"(", "[", "{"};
  constexpr const char* kClosed[] = {")", "]", "}"};
  std::vector<std::string> open, closed;
  for (int64_t i = 0; i < length; ++i) {
    const int64_t kind = random.Below(3);
    open.emplace_back(kOpen[kind]);
    closed.insert(closed.begin(), kClosed[kind]);
  }
  return {fmt::format("{}", fmt::join(open, " ")), fmt::format("{}", fmt::join(closed, " "))};
}

// A probe whose prompt is an instruction, solved cases and a question.
struct ShortProbe {
  const char* name;
  const char* instruction;
  const char *before, *between;  // around the question
  Case (*make)(int64_t length, Random& random);
  std::vector<int64_t> lengths;
};

const std::vector<ShortProbe>& ShortProbes() {
  static const std::vector<ShortProbe> probes = {
      {"copy", "Copy the words.\n\n", "Input: ", "\nOutput:", CopyCase, {4, 8, 16, 32}},
      {"sort", "Sort the numbers from small to large.\n\n", "Input: ", "\nOutput:", SortCase, {3, 5, 8, 12}},
      {"sum", "Add the numbers.\n\n", "", " =", SumCase, {1, 2, 3, 4}},
      {"brackets", "Close the brackets in the reverse order.\n\n", "Open: ", "\nClose:", BracketsCase, {2, 4, 8, 16}}};
  return probes;
}

ProbeItem ShortItem(const ShortProbe& probe, int64_t length, Random& random) {
  ProbeItem item{probe.instruction, ""};
  for (int shot = 0; shot < kShots; ++shot) {
    const Case solved = probe.make(length, random);
    item.prompt += fmt::format("{}{}{} {}\n\n", probe.before, solved.question, probe.between, solved.answer);
  }
  const Case asked = probe.make(length, random);
  item.prompt += fmt::format("{}{}{}", probe.before, asked.question, probe.between);
  item.answer = asked.answer;
  return item;
}

// A number in the middle of sentences that have nothing to do with it. The prompt has at most `length` tokens.
ProbeItem FactItem(int64_t length, Random& random, const std::function<int64_t(const std::string&)>& count) {
  const std::string name = AnyOf(kNames, random), number = std::to_string(1000 + random.Below(9000));
  const std::string fact = fmt::format("The secret number of {} is {}.", name, number);
  const std::string question =
      fmt::format("\n\nQuestion: What is the secret number of {}?\nAnswer: The secret number of {} is", name, name);
  const double place = random.Uniform();
  std::vector<std::string> sentences;
  const auto prompt = [&] {
    std::vector<std::string> all = sentences;
    all.insert(all.begin() + static_cast<int64_t>(place * static_cast<double>(all.size())), fact);
    return fmt::format("{}{}", fmt::join(all, " "), question);
  };
  // The sentences are counted one by one first, because a long text takes time to encode.
  int64_t tokens = count(prompt());
  while (true) {
    const std::string sentence = AnyOf(kFiller, random);
    tokens += count(" " + sentence);
    if (tokens > length) break;
    sentences.push_back(sentence);
  }
  while (!sentences.empty() && count(prompt()) > length) sentences.pop_back();
  return {prompt(), number};
}

bool HasRoom(const ProbeItem& item, int64_t positions, const std::function<int64_t(const std::string&)>& count) {
  return count(item.prompt + " " + item.answer) + 2 <= positions;
}

}  // namespace

std::vector<std::string> ProbeNames() {
  std::vector<std::string> names;
  names.reserve(ShortProbes().size() + 1);
  for (const ShortProbe& probe : ShortProbes()) names.emplace_back(probe.name);
  names.emplace_back("fact");
  return names;
}

std::vector<ProbeItems> MakeProbes(const ProbeSettings& settings,
                                   const std::function<int64_t(const std::string& text)>& count) {
  std::vector<ProbeItems> probes;
  uint64_t stream = 0;
  const auto add = [&](const char* name, int64_t length, int64_t items, const auto& make) {
    Random random(SplitMix64(settings.seed, stream++));  // its own draws, so that other settings leave them as they are
    ProbeItems probe{name, length, {}};
    for (int64_t i = 0; i < items; ++i) {
      ProbeItem item = make(random);
      if (!HasRoom(item, settings.positions, count)) return;
      probe.items.push_back(std::move(item));
    }
    probes.push_back(std::move(probe));
  };
  for (const ShortProbe& probe : ShortProbes())
    for (const int64_t length : probe.lengths)
      add(probe.name, length, settings.items, [&](Random& random) { return ShortItem(probe, length, random); });
  for (int64_t length = 256; length <= settings.tokens && length <= settings.positions; length *= 2)
    add("fact", length, std::max<int64_t>(2, settings.items / 4),
        [&](Random& random) { return FactItem(std::min(length, settings.positions - 16), random, count); });
  return probes;
}

bool AnswersProbe(const std::string& probe, const std::string& reply, const std::string& answer) {
  const size_t begin = reply.find_first_not_of(' ');
  if (begin == std::string::npos) return false;
  std::string_view line = std::string_view(reply).substr(begin);
  line = line.substr(0, line.find('\n'));
  if (probe == "fact" || probe == "sum") {
    line = line.substr(0, std::min(line.find_first_not_of("0123456789"), line.size()));
  } else {
    line = line.substr(0, line.find_last_not_of(" \r\t") + 1);
  }
  return line == answer;
}

}  // namespace shiftrt
