// SPDX-License-Identifier: Apache-2.0
// --device: which GPUs a process works on.
#pragma once

#include <string>
#include <vector>

#include "runtime/processes.h"

namespace shiftrt {

// By index; none: the CPU. A process that is alone works on all that are named, and "auto" and "cuda" name the first.
// Of several processes, each works on one: of those that see the same GPUs of a host and name the same, the first takes
// the first that is named, and so on, where "auto" and "cuda" name all; a GPU that is named twice serves two. All
// processes make this call. Throws UsageError for a GPU that is not there, and for fewer GPUs than processes; Error
// where the processes would not work on devices of one kind, whose results would differ.
std::vector<int> ChooseGpus(const std::string& device, Processes& processes);
// A line for the CPU and one for each GPU, or one that says why there is none.
std::string DeviceLines();

}  // namespace shiftrt
