// SPDX-License-Identifier: Apache-2.0
#include "eval/tasks/tasks.h"

namespace shiftrt {

namespace {

// The last word of a passage, cut at its last space.
Example ReadLambada(const Row& row) {
  if (!row.Has("text")) return {.contexts = {row.Text("context")}, .answers = {row.Text("continuation")}};
  const std::string& text = row.Text("text");
  const size_t space = text.rfind(' ');
  row.Require(space != std::string::npos, "column text is a single word");
  return {.contexts = {text.substr(0, space)}, .answers = {text.substr(space + 1)}};
}

}  // namespace

Task LambadaTask() {
  return {.name = "lambada",
          .alias = "lambada_openai",
          .title = "LAMBADA (OpenAI)",
          .kind = TaskKind::kWord,
          .metric = "acc",
          .metrics = {"acc", "perplexity"},
          .rows = 5153,
          .repository = "EleutherAI/lambada_openai",
          .hub_rows = "default/test",
          .files = {"lambada_openai*.jsonl", "lambada/lambada_openai*.jsonl", "lambada/test*.jsonl",
                    "data/lambada_test_en.jsonl"},
          .read = ReadLambada,
          .sample = R"({"text": "The sea was calm"})"};
}

}  // namespace shiftrt
