// SPDX-License-Identifier: Apache-2.0
// Cross-entropy of packed batches.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/decoder.h"

namespace shiftrt {

// Tokens of a batch that are predicted: all but the first of each sequence.
int64_t PredictedTokens(const Batch& batch);
int64_t PredictedTokens(const std::vector<Batch>& batches);

// -log p of each predicted token in nats, sequence by sequence. `stream` is the batch's stream before the final norm,
// (batch.size(), hidden), as Decoder::Forward leaves it.
std::vector<float> TokenLosses(Decoder& decoder, const Batch& batch, const Rows& stream);
// The sums of these over each sequence, and over the batch.
std::vector<double> SequenceLosses(Decoder& decoder, const Batch& batch, const Rows& stream);
double SummedLoss(Decoder& decoder, const Batch& batch, const Rows& stream);

}  // namespace shiftrt
