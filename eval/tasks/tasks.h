// SPDX-License-Identifier: Apache-2.0
// One declaration a task; the table is eval/tasks.cc.
#pragma once

#include "eval/task.h"

namespace shiftrt {

Task BoolqTask();
Task PiqaTask();
Task HellaswagTask();
Task WinograndeTask();
Task ArcEasyTask();
Task ArcChallengeTask();
Task OpenbookqaTask();
Task MmluTask();
Task CmmluTask();
Task LambadaTask();
Task WikitextTask();
Task Gsm8kTask();
Task Gsm8kCotTask();
Task HumanEvalTask();
Task HumanEvalInstructTask();

}  // namespace shiftrt
