// SPDX-License-Identifier: Apache-2.0
#include "types/suites.h"

#include <algorithm>
#include <sstream>

#include "runtime/check.h"
#include "runtime/words.h"

namespace shiftrt {

namespace {

using S = SuiteSettings;
using enum Recorded;

constexpr TwoWords kMetrics = {"paper", "all"};
constexpr double kMost = 1 << 30;
constexpr Words<Bos, 3> kBosWords = {{"auto", "always", "never"}};

std::string ParseBosWord(const std::string& words) {
  ParseBos(words);
  return words;
}

// "" for the shots that each task has by default.
void ReadShots(std::string_view field, const std::string& words, S& settings) {
  settings.shots.reset();
  if (!words.empty()) ReadField(field, words, settings.shots.emplace());
}

void ReadLines(std::string_view, const std::string& words, S& settings) {
  settings.data.clear();
  std::istringstream lines(words);
  for (std::string line; std::getline(lines, line);) settings.data.push_back(line);
}

// The rows stand in the order in which the help shows the options.
constexpr SuiteField kFields[] = {
    {MemberRow<&S::tasks>("tasks"), kAlways,
     "suites: a comma-separated list of names, paper7, small4, or all that need no generated replies (all)"},
    {{"data", FieldKind::kLines, [](const S& settings) { return fmt::format("{}", fmt::join(settings.data, "\n")); },
      ReadLines},
     kAlways,
     "directory with the files of the data sets, or TASK=FILE; may be repeated. Without it, and for\n"
     "what it lacks, they are pulled from the Hugging Face hub (docs/pull.md)"},
    {{"shots", FieldKind::kInteger,
      [](const S& settings) { return settings.shots ? FieldWords(*settings.shots) : std::string(); }, ReadShots},
     kAlways,
     "number of solved rows before each question (default: 5 for gsm8k, 0 for the other tasks)",
     Bounds{0, 100}},
    {MemberRow<&S::limit>("limit"), kAlways, "only the first N rows per task, or per subject; 0: all",
     Bounds{0, kMost}},
    {MemberRow<&S::allow_code>("allow_code"), kAlways,
     "allow tasks that run programs which the model writes (humaneval): each runs in a process without\n"
     "network and files of the user, with limits (docs/evaluation.md)"},
    {ParsedRow<ParseBosWord, &S::bos>("bos"),
     kAlways,
     "whether a BOS token begins every text; auto: as the tokenizer says",
     {},
     ~0U,
     "auto always never"},
    {FlagRow<&S::all_metrics, kMetrics>("all_metrics", FieldKind::kText),
     kAlways,
     "metrics to report: the one that the paper quotes, or all",
     {},
     ~0U,
     "paper all",
     "metrics"},
};
static_assert(std::size(kFields) == MembersOf<S>(), "every member has a row");

}  // namespace

std::span<const SuiteField> SuiteFields() { return kFields; }

void Set(std::string_view field, const std::string& text, SuiteSettings& settings) {
  FieldNamed(SuiteFields(), field, "an evaluation").set(text, settings);
}

Bos ParseBos(std::string_view name) {
  if (const std::optional<Bos> bos = kBosWords.Find(name)) return *bos;
  FailUsage(Field("bos"), "\"{}\" is none of auto, always and never", name);
}

const SuiteScore* SuiteResult::Find(size_t model, std::string_view metric) const {
  const auto found = std::find_if(scores[model].begin(), scores[model].end(),
                                  [&](const SuiteScore& score) { return score.metric == metric; });
  return found == scores[model].end() ? nullptr : &*found;
}

}  // namespace shiftrt
