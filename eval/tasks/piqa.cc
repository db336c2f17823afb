// SPDX-License-Identifier: Apache-2.0
#include "eval/tasks/tasks.h"

namespace shiftrt {

namespace {

Example ReadPiqa(const Row& row) {
  return {.contexts = {"Question: " + row.Text("goal") + "\nAnswer:"},
          .answers = {row.Text("sol1"), row.Text("sol2")},
          .gold = row.Index("label", 2)};
}

}  // namespace

Task PiqaTask() {
  return {.name = "piqa",
          .title = "PIQA",
          .kind = TaskKind::kChoice,
          .metric = "acc",
          .metrics = {"acc", "acc_norm"},
          .rows = 1838,
          .repository = "baber/piqa",
          .hub_rows = "*/validation",
          .hub_shot_rows = "*/train",
          .files = {"piqa_validation*.jsonl", "piqa/validation*.jsonl", "piqa/valid.jsonl"},
          .shots = Shots::kDrawnSparing,
          .shot_files = {"piqa_train*.jsonl", "piqa/train*.jsonl"},
          .read = ReadPiqa,
          .sample = R"({"goal": "Boil water", "sol1": "Heat it", "sol2": "Cool it", "label": 0})"};
}

}  // namespace shiftrt
