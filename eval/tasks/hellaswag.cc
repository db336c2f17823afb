// SPDX-License-Identifier: Apache-2.0
#include "eval/harness/text.h"
#include "eval/tasks/tasks.h"
#include "tokenizers/utf8.h"

namespace shiftrt {

namespace {

// Deletes what matches \[.*?\]: from a bracket to the next closing one on the same line.
std::string WithoutBrackets(std::string_view text) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const size_t end = text[at] == '[' ? text.find_first_of("]\n", at) : std::string_view::npos;
    if (end != std::string_view::npos && text[end] == ']') {
      at = end + 1;
    } else {
      out += text[at++];
    }
  }
  return out;
}

std::string Clean(std::string_view text) {
  return ReplaceAll(WithoutBrackets(ReplaceAll(Strip(text), " [title]", ". ")), "  ", " ");
}

Example ReadHellaSwag(const Row& row) {
  const std::string context =
      row.Text("activity_label") + ": " + row.Text("ctx_a") + " " + Capitalize(row.Text("ctx_b"));
  Example example{.contexts = {Clean(context)}, .answers = {}};
  for (const std::string& ending : row.Texts("endings")) example.answers.push_back(Clean(ending));
  example.gold = row.Index("label", static_cast<int64_t>(example.answers.size()));
  return example;
}

}  // namespace

Task HellaswagTask() {
  return {.name = "hellaswag",
          .title = "HellaSwag",
          .kind = TaskKind::kChoice,
          .metric = "acc_norm",
          .metrics = {"acc", "acc_norm"},
          .rows = 10042,
          .repository = "Rowan/hellaswag",
          .hub_rows = "*/validation",
          .hub_shot_rows = "*/train",
          .files = {"hellaswag_val*.jsonl", "hellaswag/val*.jsonl"},
          .shots = Shots::kDrawnSparing,
          .shot_files = {"hellaswag_train*.jsonl", "hellaswag/train*.jsonl"},
          .read = ReadHellaSwag,
          .sample = R"({"activity_label": "Cooking", "ctx_a": "Water boils.  [step] It", "ctx_b": "the COOK",
                        "endings": ["waits [substeps] now.", "leaves. [title] Then"], "label": "0"})"};
}

}  // namespace shiftrt
