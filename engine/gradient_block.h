// SPDX-License-Identifier: Apache-2.0
// The functions of engine/gradient_stages.h for a block stage.
#pragma once

#include "engine/gradient_stages.h"

namespace shiftrt {

int64_t BlockFloats(const StagePass& pass, const TrainedStage& stage, int64_t tokens, Direction direction);
int64_t BlockKeptFloats(const StagePass& pass, const TrainedStage& stage, int64_t tokens);
void BlockForward(const StagePass& pass, const TrainedStage& stage, const StageMemory& memory, MatrixView<float> h);
void BlockBackward(const StagePass& pass, const TrainedStage& stage, const StageMemory& memory,
                   const StreamGradient& stream);

}  // namespace shiftrt
