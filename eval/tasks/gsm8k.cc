// SPDX-License-Identifier: Apache-2.0
#include "eval/harness/answers.h"
#include "eval/harness/text.h"
#include "eval/tasks/tasks.h"

namespace shiftrt {

namespace {

// The answer is a derivation, and after "#### " the number.
Example ReadGsm8k(const Row& row) {
  const std::string& answer = row.Text("answer");
  row.Require(answer.find("#### ") != std::string::npos, "column answer has no \"#### \" before a number");
  return {.contexts = {"Question: " + row.Text("question") + "\nAnswer:"}, .answers = {answer}};
}

// The answer of a row of the data set is its number alone; a shot has a derivation in words in the column `target`.
Example ReadGsm8kCot(const Row& row) {
  const std::string context = "Q: " + row.Text("question") + "\nA:";
  if (!row.Has("answer") && row.Has("target")) return {.contexts = {context}, .answers = {row.Text("target")}};
  const std::string& answer = row.Text("answer");
  const size_t hashes = answer.rfind("####");
  row.Require(hashes != std::string::npos, "column answer has no \"####\" before a number");
  return {.contexts = {context}, .answers = {std::string(Strip(std::string_view(answer).substr(hashes + 4)))}};
}

bool IsRight(std::string_view metric, std::string_view reply, std::string_view answer) {
  return SameNumber(metric == "strict-match" ? NumberAfterHashes(reply) : LastNumber(reply), answer);
}

bool IsRightInWords(std::string_view metric, std::string_view reply, std::string_view answer) {
  return SameNumber(metric == "strict-match" ? NumberAfterTheAnswerIs(reply) : LastNumber(reply), answer);
}

}  // namespace

Task Gsm8kTask() {
  return {.name = "gsm8k",
          .title = "GSM8K",
          .kind = TaskKind::kReply,
          .metric = "strict-match",
          .metrics = {"strict-match", "flexible-extract"},
          .rows = 1319,
          .repository = "openai/gsm8k",
          .hub_rows = "main/test",
          .hub_shot_rows = "main/train",
          .files = {"gsm8k_test*.jsonl", "gsm8k/test*.jsonl", "grade_school_math/data/test.jsonl"},
          .shots = Shots::kDrawn,
          .shot_files = {"gsm8k_train*.jsonl", "gsm8k/train*.jsonl", "grade_school_math/data/train.jsonl"},
          .read = ReadGsm8k,
          .sample = R"({"question": "How many?", "answer": "One and one.\n#### 2"})",
          .stop = {"Question:", "</s>", "<|im_end|>"},
          .usual_shots = 5,
          .right = IsRight};
}

Task Gsm8kCotTask() {
  Task task = Gsm8kTask();
  task.name = "gsm8k_cot";
  task.title = "GSM8K (CoT)";
  task.hub_shot_rows.clear();
  task.shots = Shots::kFirst;
  task.shot_files = {"gsm8k_cot_shots*.jsonl", "gsm8k_cot/shots*.jsonl"};
  task.shots_made_by = "scripts/gsm8k-cot-shots";
  task.read = ReadGsm8kCot;
  task.stop = {"Q:", "</s>", "<|im_end|>"};
  task.usual_shots = 8;
  task.right = IsRightInWords;
  return task;
}

}  // namespace shiftrt
