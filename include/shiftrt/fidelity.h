// SPDX-License-Identifier: Apache-2.0
/// \file
/// How far variants of a model are from the original: the divergence of their predictions, token by token.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "shiftrt/compare.h"
#include "shiftrt/model.h"
#include "shiftrt/progress.h"
#include "shiftrt/resources.h"

namespace shiftrt {

/// The predictions of one token by the original and by a variant.
struct TokenFidelity {
  double divergence = 0;    ///< KL(original || variant) over the whole vocabulary, nats
  double nll_original = 0;  ///< -log of the probability that the original gives the token of the text
  double nll = 0;           ///< the same of the variant
  bool same_top = false;    ///< the likeliest token of both is the same

  /// \return the probability of the token of the text under the variant less that under the original
  double DeltaP() const;
};

/// The figures that llama.cpp's --kl-divergence prints of the tokens of a text. The standard errors take tokens as
/// independent.
struct Fidelity {
  int64_t tokens = 0;                     ///< tokens that were predicted
  double mean_kld = 0;                    ///< mean of KL(original || variant), nats
  double mean_kld_error = 0;              ///< its standard error; NaN for a single token, as the other errors
  double median_kld = 0;                  ///< median of the divergences; between two of them, they are interpolated
  double kld_90 = 0;                      ///< 90% of the divergences are at most this
  double kld_99 = 0;                      ///< 99% of the divergences are at most this
  double max_kld = 0;                     ///< the largest divergence
  double same_top = 0;                    ///< share of the tokens whose likeliest token is the same
  double same_top_error = 0;              ///< its standard error
  double mean_delta_p = 0;                ///< mean of TokenFidelity::DeltaP()
  double mean_delta_p_error = 0;          ///< its standard error
  double rms_delta_p = 0;                 ///< root of the mean of its square
  double perplexity_original = 0;         ///< perplexity of the original on these tokens
  double perplexity = 0;                  ///< perplexity of the variant on these tokens
  double log_perplexity_ratio = 0;        ///< log(perplexity / perplexity_original)
  double log_perplexity_ratio_error = 0;  ///< its standard error, from the differences token by token
};
/// \param tokens at least one
/// \return their figures
/// \throws UsageError for no token
Fidelity SummarizeFidelity(std::span<const TokenFidelity> tokens);

/// A sequence of tokens of which some are predicted.
struct FidelitySequence {
  std::vector<int32_t> tokens = {};  ///< token ids
  int64_t given = 1;                 ///< so many tokens at its beginning, at least 1, are not predicted
};
/// The figures of every predicted token, by sequence.
using SequenceFidelities = std::vector<std::vector<TokenFidelity>>;

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
