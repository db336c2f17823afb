// SPDX-License-Identifier: Apache-2.0
// Perplexity under a named protocol.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/score.h"
#include "include/shiftrt/measurements.h"
#include "runtime/progress.h"

namespace shiftrt {

// The perplexity of each plan. `tokens` is the whole text tokenised once; disjoint windows of `window`, tail dropped,
// mean over the predicted tokens (the first of a window is not predicted). A text that is shorter than a window is one
// window of its own length (TextPerplexity::window). The caller sets the members that concern the file and the time.
// The batches are shared out (runtime/shared_items.h). Throws Error for fewer than two tokens.
std::vector<TextPerplexity> WindowedPerplexities(PlanTree& plans, std::span<const int32_t> tokens, int64_t window,
                                                 Progress& progress);
// Windows that are scored at once.
int64_t WindowsPerBatch(int64_t window);
// The protocol's window: gptq 2048, seq128 128, cut to the model's context.
int64_t ProtocolWindow(std::string_view protocol, const ModelConfig& config);

}  // namespace shiftrt
