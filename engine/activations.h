// SPDX-License-Identifier: Apache-2.0
// How much memory a decoder takes besides weights, by the shape of the model: for messages, and for plans of work.
#pragma once

#include <cstdint>

#include "models/config.h"
#include "models/plan.h"
#include "runtime/dtype.h"

namespace shiftrt {

// Bytes of device memory that a token of a batch takes while it runs, the cache apart: about what the decoder's scratch
// grows by.
int64_t ActivationBytesPerToken(const ModelConfig& config, DType dtype);

// The bytes per token of a decoder on the CPU without taps, whose activations are all float32: the stream, the input
// and the update of one half of a block, the angles of the rotary embedding, and either queries, keys, values and the
// heads' outputs or gate and up of the MLP (of a mixture of experts those of the active ones, and their outputs),
// whichever is larger. Sequences with parents (engine/decoder.h) take more.
int64_t CpuActivationBytesPerToken(const ModelConfig& config);

// Logits that exist at a time while a GPU scores rows, in float32.
inline constexpr int64_t kGpuScoredRows = 1024, kGpuVocabChunk = 8192;

// Bytes of the keys and values of one position, in elements of `dtype`: float32 on a CPU, the weights' type on a GPU.
int64_t KvBytesPerPosition(const ModelConfig& config, const DepthPlan& plan, DType dtype);

// The blocks of the plan that run a gated delta network, and the bytes of their states for one sequence, in float32.
int64_t RecurrentBlocks(const ModelConfig& config, const DepthPlan& plan);
int64_t StateBytes(const ModelConfig& config, const DepthPlan& plan);

}  // namespace shiftrt
