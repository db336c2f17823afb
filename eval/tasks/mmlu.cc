// SPDX-License-Identifier: Apache-2.0
#include "eval/tasks/exam.h"
#include "eval/tasks/tasks.h"
#include "tokenizers/utf8.h"

namespace shiftrt {

namespace {

// Choices as a list (Hugging Face), in columns A to D, or choice0 to choice3.
std::vector<std::string> Choices(const Row& row) {
  if (row.Has("choices")) {
    std::vector<std::string> choices = row.Texts("choices");
    row.Require(choices.size() == 4, "{} choices, expected 4", choices.size());
    return choices;
  }
  if (row.Has("A")) return {row.Text("A"), row.Text("B"), row.Text("C"), row.Text("D")};
  return {row.Text("choice0"), row.Text("choice1"), row.Text("choice2"), row.Text("choice3")};
}

Example ReadMmlu(const Row& row) {
  const std::string subject = ReplaceAll(row.Text("subject"), "_", " ");
  return ExamExample("The following are multiple choice questions (with answers) about " + subject + ".\n\n",
                     row.Text("question"), Choices(row), "Answer:", LetterOrIndex(row, "answer"));
}

}  // namespace

Task MmluTask() {
  return {.name = "mmlu",
          .title = "MMLU",
          .kind = TaskKind::kChoice,
          .metric = "acc",
          .metrics = {"acc"},
          .rows = 14042,
          .repository = "cais/mmlu",
          .hub_rows = "all/test",
          .hub_shot_rows = "all/dev",
          .files = {"mmlu/test/*_test.csv", "mmlu/test/*.csv", "mmlu/test/*.jsonl", "mmlu_test*.jsonl"},
          .shots = Shots::kFirst,
          .shot_files = {"mmlu/dev/*_dev.csv", "mmlu/dev/*.csv", "mmlu/dev/*.jsonl", "mmlu_dev*.jsonl"},
          .columns = {"question", "A", "B", "C", "D", "answer"},
          .by_subject = true,
          .read = ReadMmlu,
          .sample = R"({"subject": "formal_logic", "question": " Is A true? ", "choices": ["a", "b", "c", "d"],
                        "answer": 2})"};
}

}  // namespace shiftrt
