// SPDX-License-Identifier: Apache-2.0
#include "eval/harness/text.h"
#include "eval/tasks/tasks.h"

namespace shiftrt {

namespace {

// Partial evaluation: the option stands in the context, and what follows the blank is the continuation of both.
Example ReadWinoGrande(const Row& row) {
  const std::string& sentence = row.Text("sentence");
  const size_t blank = sentence.find('_');
  row.Require(blank != std::string::npos, "column sentence has no blank: {}", sentence);
  const std::string before = sentence.substr(0, blank);
  return {.contexts = {before + row.Text("option1"), before + row.Text("option2")},
          .answers = {std::string(Strip(std::string_view(sentence).substr(blank + 1)))},
          .gold = row.Index("answer", 2, /*first=*/1)};
}

}  // namespace

Task WinograndeTask() {
  return {.name = "winogrande",
          .title = "WinoGrande",
          .kind = TaskKind::kChoice,
          .metric = "acc",
          .metrics = {"acc"},
          .rows = 1267,
          .repository = "allenai/winogrande",
          .hub_rows = "winogrande_xl/validation",
          .hub_shot_rows = "winogrande_xl/train",
          .files = {"winogrande_xl_validation*.jsonl", "winogrande_validation*.jsonl", "winogrande/validation*.jsonl",
                    "winogrande/dev.jsonl"},
          .shots = Shots::kDrawnSparing,
          .shot_files = {"winogrande_xl_train*.jsonl", "winogrande_train*.jsonl", "winogrande/train_xl.jsonl"},
          .read = ReadWinoGrande,
          .sample = R"({"sentence": "The cup fit the box as _ was big.", "option1": "the cup", "option2": "the box",
                        "answer": "2"})"};
}

}  // namespace shiftrt
