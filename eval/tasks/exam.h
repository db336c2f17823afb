// SPDX-License-Identifier: Apache-2.0
// Four-choice examination questions with a subject, as in MMLU and CMMLU.
#pragma once

#include "eval/task.h"

namespace shiftrt {

// "{question}\nA. ..\nB. ..\nC. ..\nD. ..\n{cue}" with the question stripped; answers "A" to "D".
Example ExamExample(std::string preamble, std::string_view question, const std::vector<std::string>& choices,
                    std::string_view cue, int64_t gold);

// A column with an index from 0 or one of the letters A to D.
int64_t LetterOrIndex(const Row& row, const char* column);

}  // namespace shiftrt
