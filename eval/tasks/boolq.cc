// SPDX-License-Identifier: Apache-2.0
#include "eval/tasks/tasks.h"

namespace shiftrt {

namespace {

// SuperGLUE's rows have `label`, true or false in its own release and 0 or 1 on the Hugging Face hub; the original
// release has `answer` and keeps the title that SuperGLUE put before the passage apart.
Example ReadBoolQ(const Row& row) {
  std::string passage = row.Text("passage");
  if (row.Has("title")) passage = row.Text("title") + " -- " + passage;
  const bool counted = row.Has("label") && !row.values()["label"].is_boolean();
  const int64_t gold = counted ? row.Index("label", 2) : int64_t{row.Flag(row.Has("label") ? "label" : "answer")};
  return {.contexts = {passage + "\nQuestion: " + row.Text("question") + "?\nAnswer:"},
          .answers = {"no", "yes"},
          .gold = gold};
}

}  // namespace

Task BoolqTask() {
  return {.name = "boolq",
          .title = "BoolQ",
          .kind = TaskKind::kChoice,
          .metric = "acc",
          .metrics = {"acc"},
          .rows = 3270,
          .repository = "aps/super_glue",
          .hub_rows = "boolq/validation",
          .hub_shot_rows = "boolq/train",
          .files = {"boolq_validation*.jsonl", "boolq/validation*.jsonl", "boolq/val.jsonl", "boolq/dev.jsonl"},
          .shots = Shots::kDrawnSparing,
          .shot_files = {"boolq_train*.jsonl", "boolq/train*.jsonl"},
          .read = ReadBoolQ,
          .sample = R"({"question": "is it", "passage": "It is.", "label": 1})"};
}

}  // namespace shiftrt
