// SPDX-License-Identifier: Apache-2.0
#include "eval/tasks/science.h"

#include <algorithm>

#include "eval/harness/text.h"

namespace shiftrt {

namespace {

struct Labelled {
  std::vector<std::string> texts, labels;
};

Labelled ReleasedChoices(const Row& question) {
  question.Require(question.Has("choices") && question.values()["choices"].is_array(), "question.choices is no list");
  Labelled out;
  for (const auto& choice : question.values()["choices"]) {
    const Row entry(choice, question.where() + ": question.choices");
    entry.Require(choice.is_object(), "not a list of objects");
    out.texts.push_back(entry.Text("text"));
    out.labels.push_back(entry.Text("label"));
  }
  return out;
}

}  // namespace

ScienceQuestion ReadScienceQuestion(const Row& row, const char* stem_column) {
  ScienceQuestion out;
  Labelled choices;
  if (row.Has("question") && row.values()["question"].is_object()) {
    const Row question(row.Object("question"), row.where());
    out.stem = question.Text("stem");
    choices = ReleasedChoices(question);
  } else {
    const Row columns(row.Object("choices"), row.where());
    out.stem = row.Text(stem_column);
    choices = {columns.Texts("text"), columns.Texts("label")};
  }
  row.Require(choices.texts.size() == choices.labels.size() && choices.texts.size() >= 2, "{} choices with {} labels",
              choices.texts.size(), choices.labels.size());
  const std::string_view key = StripLeft(row.Text("answerKey"));
  const auto gold = std::find(choices.labels.begin(), choices.labels.end(), key);
  row.Require(gold != choices.labels.end(), "answerKey {} is none of the labels {}", key,
              fmt::join(choices.labels, ", "));
  out.gold = gold - choices.labels.begin();
  out.choices = std::move(choices.texts);
  return out;
}

}  // namespace shiftrt
