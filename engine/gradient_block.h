// SPDX-License-Identifier: Apache-2.0
// The three functions of engine/gradient_stages.h for a block stage.
#pragma once

#include "engine/gradient_stages.h"

namespace shiftrt {

int64_t BlockFloats(const StagePass& pass, const TrainedStage& stage, int64_t tokens, Direction direction);
void BlockForward(const StagePass& pass, const TrainedStage& stage, float* base, MatrixView<float> h);
void BlockBackward(const StagePass& pass, const TrainedStage& stage, float* base, const StreamGradient& stream);

}  // namespace shiftrt
