// SPDX-License-Identifier: Apache-2.0
#include "eval/tasks/exam.h"

#include "eval/harness/text.h"

namespace shiftrt {

Example ExamExample(std::string preamble, std::string_view question, const std::vector<std::string>& choices,
                    std::string_view cue, int64_t gold) {
  return {.preamble = std::move(preamble),
          .contexts = {fmt::format("{}\nA. {}\nB. {}\nC. {}\nD. {}\n{}", Strip(question), choices[0], choices[1],
                                   choices[2], choices[3], cue)},
          .answers = {"A", "B", "C", "D"},
          .gold = gold};
}

int64_t LetterOrIndex(const Row& row, const char* column) {
  if (row.Has(column) && row.values()[column].is_string()) {
    const std::string& text = row.Text(column);
    if (text.size() == 1 && text[0] >= 'A' && text[0] <= 'D') return text[0] - 'A';
  }
  return row.Index(column, 4);
}

}  // namespace shiftrt
