// SPDX-License-Identifier: Apache-2.0
#include "eval/tasks/science.h"
#include "eval/tasks/tasks.h"

namespace shiftrt {

namespace {

Example ReadOpenBookQa(const Row& row) {
  ScienceQuestion question = ReadScienceQuestion(row, "question_stem");
  return {.contexts = {std::move(question.stem)}, .answers = std::move(question.choices), .gold = question.gold};
}

}  // namespace

Task OpenbookqaTask() {
  return {.name = "openbookqa",
          .title = "OBQA",
          .kind = TaskKind::kChoice,
          .metric = "acc_norm",
          .metrics = {"acc", "acc_norm"},
          .rows = 500,
          .repository = "allenai/openbookqa",
          .hub_rows = "main/test",
          .hub_shot_rows = "main/train",
          .files = {"openbookqa_test*.jsonl", "openbookqa/test*.jsonl", "OpenBookQA-V1-Sep2018/Data/Main/test.jsonl"},
          .shots = Shots::kDrawn,
          .shot_files = {"openbookqa_train*.jsonl", "openbookqa/train*.jsonl",
                         "OpenBookQA-V1-Sep2018/Data/Main/train.jsonl"},
          .read = ReadOpenBookQa,
          .sample = R"({"question_stem": "Ice is", "choices": {"text": ["water", "air"], "label": ["A", "B"]},
                        "answerKey": "A"})"};
}

}  // namespace shiftrt
