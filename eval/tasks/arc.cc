// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "eval/tasks/science.h"
#include "eval/tasks/tasks.h"

namespace shiftrt {

namespace {

Example ReadArc(const Row& row) {
  ScienceQuestion question = ReadScienceQuestion(row, "question");
  return {.contexts = {"Question: " + question.stem + "\nAnswer:"},
          .answers = std::move(question.choices),
          .gold = question.gold};
}

Task ArcTask(const std::string& name, const std::string& title, const std::string& release, int64_t rows) {
  return {.name = name,
          .title = title,
          .kind = TaskKind::kChoice,
          .metric = name == "arc_easy" ? "acc" : "acc_norm",
          .metrics = {"acc", "acc_norm"},
          .rows = rows,
          .repository = "allenai/ai2_arc",
          .hub_rows = release + "/test",
          .hub_shot_rows = release + "/train",
          .files = {name + "_test*.jsonl", name + "/test*.jsonl", release + "/" + release + "-Test.jsonl",
                    release + "-Test.jsonl"},
          .shots = Shots::kDrawn,
          .shot_files = {name + "_train*.jsonl", name + "/train*.jsonl", release + "/" + release + "-Train.jsonl",
                         release + "-Train.jsonl"},
          .read = ReadArc,
          .sample = R"({"question": "What is ice?", "choices": {"text": ["water", "air", "sand"],
                        "label": ["1", "2", "3"]}, "answerKey": "1"})"};
}

}  // namespace

Task ArcEasyTask() { return ArcTask("arc_easy", "ARC-e", "ARC-Easy", 2376); }
Task ArcChallengeTask() { return ArcTask("arc_challenge", "ARC-c", "ARC-Challenge", 1172); }

}  // namespace shiftrt
