// SPDX-License-Identifier: Apache-2.0
#include <cctype>

#include "eval/tasks/tasks.h"

namespace shiftrt {

namespace {

constexpr std::string_view kFence = "```";

bool IsIdentifier(const std::string& name) {
  if (name.empty() || std::isdigit(static_cast<unsigned char>(name[0])) != 0) return false;
  for (const char c : name)
    if (std::isalnum(static_cast<unsigned char>(c)) == 0 && c != '_') return false;
  return true;
}

// A row is the beginning of a function, its name, and the text of a function `check` that tests it. The answer is the
// end of the program after the reply.
Example ReadHumanEval(const Row& row) {
  const std::string &prompt = row.Text("prompt"), &name = row.Text("entry_point"), &test = row.Text("test");
  row.Require(IsIdentifier(name), "column entry_point is \"{}\", expected the name of a function", name);
  row.Require(prompt.find("def " + name + "(") != std::string::npos, "column prompt does not define {}", name);
  row.Require(test.find("def check(") != std::string::npos, "column test does not define check");
  return {.contexts = {prompt}, .answers = {test + "\ncheck(" + name + ")"}, .code = prompt};
}

// The question is followed by the beginning of the answer.
Example ReadInstruct(const Row& row) {
  Example example = ReadHumanEval(row);
  example.contexts = {"Write a solution to the following problem and make sure that it passes the tests:\n```python\n" +
                      example.code + "\n```\nHere is the completed function:\n```python\n" + example.code + "\n"};
  return example;
}

std::string Program(const std::string& code, std::string_view reply, const std::string& answer) {
  return code + std::string(reply) + "\n" + answer;
}

std::string ProgramBeforeFence(const std::string& code, std::string_view reply, const std::string& answer) {
  return Program(code, reply.substr(0, reply.find(kFence)), answer);
}

}  // namespace

Task HumanEvalTask() {
  return {.name = "humaneval",
          .title = "HumanEval",
          .kind = TaskKind::kReply,
          .metric = "pass@1",
          .metrics = {"pass@1"},
          .rows = 164,
          .repository = "openai/openai_humaneval",
          .hub_rows = "openai_humaneval/test",
          .files = {"humaneval.jsonl", "humaneval_test*.jsonl", "humaneval/test*.jsonl", "HumanEval.jsonl"},
          .read = ReadHumanEval,
          .sample = R"({"prompt": "def f(x):\n    \"\"\"Doubles x.\"\"\"\n", "entry_point": "f",)"
                    R"( "test": "def check(f):\n    assert f(1) == 2\n"})",
          .stop = {"\nclass", "\ndef", "\n#", "\nif", "\nprint"},
          .max_tokens = 1024,
          .program = Program};
}

Task HumanEvalInstructTask() {
  Task task = HumanEvalTask();
  task.name = "humaneval_instruct";
  task.title = "HumanEval instruct";
  task.read = ReadInstruct;
  task.program = ProgramBeforeFence;
  return task;
}

}  // namespace shiftrt
