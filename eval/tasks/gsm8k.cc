// SPDX-License-Identifier: Apache-2.0
#include "eval/harness/answers.h"
#include "eval/tasks/tasks.h"

namespace shiftrt {

namespace {

// The answer is a derivation, and after "#### " the number.
Example ReadGsm8k(const Row& row) {
  const std::string& answer = row.Text("answer");
  row.Require(answer.find("#### ") != std::string::npos, "column answer has no \"#### \" before a number");
  return {.contexts = {"Question: " + row.Text("question") + "\nAnswer:"}, .answers = {answer}};
}

bool IsRight(std::string_view metric, std::string_view reply, std::string_view answer) {
  return SameNumber(metric == "strict-match" ? NumberAfterHashes(reply) : LastNumber(reply), answer);
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

}  // namespace shiftrt
