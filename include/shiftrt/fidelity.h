// SPDX-License-Identifier: Apache-2.0
/// \file
/// How far variants of a model are from the original: the divergence of their predictions, token by token.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "shiftrt/compare.h"
#include "shiftrt/measurements.h"
#include "shiftrt/model.h"
#include "shiftrt/progress.h"
#include "shiftrt/resources.h"

namespace shiftrt {

/// Compares the predictions of all tokens. The models run over the same batches, and those that share their weights run
/// the stages with which all begin once. Logits are held for some rows at a time.
/// \param models the original and at least one variant, whose weights may be others with the same vocabulary
/// \param sequences what they read; at least one token is predicted
/// \param resources what the measurement may use of the machine
/// \param progress receives reports; null: none are made
/// \return for each variant, which are the models but the first, the figures of each sequence
/// \throws UsageError for fewer than two models, a model that is split over processes, and sequences in which no token
///     is predicted; Error for models of different vocabularies, a sequence that is longer than the positions of a
///     model, and predictions that are not finite; OutOfMemory; Interrupted after RequestInterrupt()
std::vector<SequenceFidelities> MeasureTokenFidelity(std::span<const ModelVariant> models,
                                                     std::span<const FidelitySequence> sequences,
                                                     const Resources& resources = {}, Progress* progress = nullptr);

/// Tokens of a held-out text on which `run` measures the fidelity at most.
constexpr int64_t kFidelityTokens = 2048;

/// The same over the windows of a text, which a protocol of the perplexity makes.
/// \param models the original and at least one variant
/// \param heldout the text, as the tokenizer of the original reads it; at least 2 tokens
/// \param protocol "gptq" or "seq128"; the windows are those of the model with the fewest positions
/// \param resources what the measurement may use of the machine
/// \param progress receives reports; null: none are made
/// \return for each variant, its figures
/// \throws UsageError for another protocol; what MeasureTokenFidelity() throws
std::vector<Fidelity> MeasureFidelity(std::span<const ModelVariant> models, const HeldOutText& heldout,
                                      const std::string& protocol = "gptq", const Resources& resources = {},
                                      Progress* progress = nullptr);

}  // namespace shiftrt
