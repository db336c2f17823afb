// SPDX-License-Identifier: Apache-2.0
/// \file
/// How a model was made: what was removed and why, what was fitted, what was trained and what was measured. Save() of a
/// model writes all of it, and Open() reads it back.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "shiftrt/blocks.h"

namespace shiftrt {

/// Layers that a criterion chose.
struct Selection {
  std::string criterion = {};  ///< its name; "layers" if the caller named the layers
  /// One score per unit, the lowest removed first. Where `window` > 1, one score per `window` consecutive units, at the
  /// first of them. NaN for a unit that was protected from a greedy criterion; empty where nothing was scored.
  std::vector<double> scores = {};
  std::vector<BlockPart> removed = {};  ///< ascending
  int64_t window = 1;                   ///< consecutive units that one score is about
  Unit unit = Unit::kBlock;             ///< what was scored
};

/// The text that a repair was fitted on.
struct CalibrationReport {
  std::string source = {};     ///< its file, and samples x tokens
  std::string hash = {};       ///< hash of the text; empty if the sums were read from files
  int64_t tokens = 0;          ///< tokens that were fitted
  int64_t heldout_tokens = 0;  ///< tokens that were held out
};

/// One fit: of what stands in the place of removed blocks, or of a projection that was fitted again.
struct FitReport {
  std::vector<BlockPart> layers = {};  ///< ascending: the removed parts, or the block of the projection
  std::string name = {};               ///< name of these parts: "3", "3-6", "3.attn" or "3.mlp-6"
  std::string part = {};               ///< the projection that was fitted again, "o" or "down"; else empty
  double lambda = 0;                   ///< ridge penalty that was used
  int64_t tokens = 0;                  ///< tokens that were fitted
  int64_t rank = 0;                    ///< rank of the adapter
  double effective_rank = 0;           ///< effective rank of the full map, from its singular values
  /// Mean factor of a correction that scales the stream; NaN for others.
  double scale = std::numeric_limits<double>::quiet_NaN();
  double r2_fit = 0;      ///< share of the update that is explained on the fitted text; at most 1, NaN if not measured
  double r2_heldout = 0;  ///< the same on text that was not fitted
  double condition = 0;   ///< condition number of the solved system; NaN if no matrix was formed
  std::vector<double> singular_values = {};  ///< singular values of the full map, descending
  std::string warning = {};                  ///< empty, or what is doubtful about the fit, for people
};

/// A way to fit that the correction "auto" tried. The settings are in the words of Recipe's parsers.
struct TrialReport {
  std::string correction = {};     ///< its name
  std::string calibration = {};    ///< Recipe::mode
  std::string token_weight = {};   ///< Recipe::weighting
  std::string factorization = {};  ///< Recipe::factorization
  std::string lambda = {};         ///< Recipe::lambda
  std::string recipe = {};         ///< all of it in one line
  int64_t adapter_parameters = 0;  ///< parameters that it adds to the model
  int64_t tokens = 0;              ///< tokens that were fitted
  double loss = 0;                 ///< on held-out text, nats per token
  double gain = 0;                 ///< by which the loss is below that of the first trial
  double gain_error = 0;           ///< standard error of the gain; infinite for a single sequence
  bool chosen = false;             ///< true if the model has this one
};

/// Says whether a correction stayed, by the loss on held-out text.
struct GateVerdict {
  std::vector<BlockPart> parts = {};  ///< those of an adapter, or the block with tensors of its own
  double with = 0;                    ///< loss with the correction, nats per token
  double without = 0;                 ///< loss without it
  bool kept = true;                   ///< true if it stayed
};

/// The losses before and after a repair on held-out calibration text, in nats per token.
struct GainReport {
  int64_t tokens = 0;    ///< predicted tokens
  double original = 0;   ///< loss of the original model
  double pruned = 0;     ///< loss without the removed layers and without a repair
  double corrected = 0;  ///< loss of the repaired model
  double gain = 0;       ///< by which the repair lowers the loss; negative if it raises it
  double error = 0;      ///< paired standard error of the gain over the sequences; infinite for a single sequence
  bool kept = true;      ///< false if the repair was left out because of it

  /// \return whether the gain is more than twice its error
  bool Clear() const { return gain > 2 * error; }
  /// \return the share of what pruning cost that the repair returns; NaN if pruning cost nothing
  double Share() const {
    return pruned > original ? gain / (pruned - original) : std::numeric_limits<double>::quiet_NaN();
  }
};

/// Where the time of a repair went, in seconds.
struct RepairSeconds {
  double select = 0;                    ///< scoring layers
  double calibrate = 0;                 ///< passes over the calibration text
  double solve = 0;                     ///< linear systems
  double factorize = 0;                 ///< low ranks
  double quantise = 0;                  ///< rounding to fewer bits
  std::optional<double> evaluate = {};  ///< measuring the variants
};

/// The rounding of a model to types of fewer bits.
struct QuantiseReport {
  std::string mixture = {};  ///< QuantiseSpec::mixture
  int64_t matrices = 0;      ///< how many were rounded
  int64_t eight_bits = 0;    ///< how many of them to Q8_0, because fewer bits would change the stream too much
  int64_t tokens = 0;        ///< tokens of the calibration text that the rounding read
  int64_t bytes_before = 0;  ///< bytes of all weights before it, adapters included
  int64_t bytes_after = 0;   ///< the same after it
  /// The squared error of the products with the matrices over the text, as a share of their squares; NaN without text.
  double error = std::numeric_limits<double>::quiet_NaN();
};

/// A choice of as many blocks as were removed, by another criterion. Its loss was measured on the tokens of GainReport,
/// without a repair.
struct OtherChoice {
  std::string criterion = {};           ///< a name that Criteria() lists
  std::vector<BlockPart> removed = {};  ///< what it would remove
  double pruned = 0;                    ///< loss without these layers, nats per token
  double gain = 0;   ///< by which that is below the loss without the removed layers and without a repair
  double error = 0;  ///< paired standard error of the gain over the sequences; infinite for a single sequence

  /// \return whether the gain is more than twice its error
  bool Clear() const { return gain > 2 * error; }
};

/// A cut that the search for PruneSpec::max_divergence repaired and measured.
struct CutReport {
  int64_t units = 0;                    ///< blocks, or halves, that were removed
  std::vector<BlockPart> removed = {};  ///< what they were
  int64_t tokens = 0;                   ///< tokens of calibration text that the repair was fitted on
  double divergence = 0;                ///< mean KL(original || repaired) per predicted held-out token, nats
  double error = 0;                     ///< its standard error over the sequences; infinite for a single sequence
  bool within = false;                  ///< the divergence is at most PruneSpec::max_divergence
};

/// The findings of a repair.
struct RepairReport {
  std::vector<CutReport> cuts = {};    ///< cuts in the order of their trials; the last is the result
  Selection selection = {};            ///< what was removed
  std::vector<FitReport> sites = {};   ///< fits in the place of removed blocks; empty if nothing was fitted
  std::vector<FitReport> healed = {};  ///< projections of kept blocks that were fitted again, in the order of the fits
  std::optional<GateVerdict> healing = {};  ///< tells if these stayed; no value without healing or held-out text
  std::vector<FitReport> merged_runs = {};  ///< merged adapters, as far as they were measured
  std::vector<TrialReport> trials = {};     ///< fits that the correction "auto" tried
  std::vector<std::string> untried = {};    ///< fits that it could not try, with the reason
  std::vector<GateVerdict> gate = {};       ///< empty unless Recipe::gate
  std::optional<GainReport> gain = {};      ///< no value without held-out text, or if Recipe::benefit asks for none
  std::optional<OtherChoice> other = {};    ///< with `gain`, where `bi` chose other blocks than `streamline` does
  std::optional<QuantiseReport> quantised = {};  ///< no value unless Recipe::quantise names a mixture
  RepairSeconds seconds = {};                    ///< where the time went
};

/// The text on which perplexities were measured, and how.
struct HeldOutReport {
  std::string text = {};      ///< its name
  int64_t tokens = 0;         ///< measured tokens of it
  std::string protocol = {};  ///< "gptq" or "seq128" (docs/evaluation.md)
  int64_t window = 0;         ///< tokens of a window; those of the text if it is shorter
};

/// The measurements of a model or of one of its variants.
struct MeasuredVariant {
  std::string name = {};   ///< "original", "pruned", "merged" or the name of the correction
  std::string label = {};  ///< for tables, as "pruned + LRA 64"
  int64_t parameters = 0;  ///< adapters included
  int64_t bytes = 0;       ///< bytes of weights that decoding one token reads
  /// On held-out text; NaN without any.
  double perplexity = std::numeric_limits<double>::quiet_NaN();
  double tokens_per_second = 0;   ///< decoding one token at a time
  std::string continuation = {};  ///< continuation of a prompt
};

/// Says how a model was fine-tuned.
struct FinetuneReport {
  std::vector<std::pair<std::string, std::string>> settings = {};  ///< everything that decides the result
  std::string text = {};                                           ///< text that was learnt from
  std::string correction_before = {};   ///< RecipeText::correction of the model that training started from
  std::string merge_before = {};        ///< RecipeText::merge of that model
  int64_t tokens = 0;                   ///< tokens that were read
  double loss = 0;                      ///< loss of the last step, nats per token
  std::vector<double> validation = {};  ///< losses on held-out text, before the first step and of the result; or empty
};

/// The settings of a repair in the words that the parsers of shiftrt/recipe.h read. Empty: not recorded.
struct RecipeText {
  std::string prune = {};                  ///< Recipe::prune
  std::string correction = {};             ///< Recipe::correction; "finetuned" after training
  std::string rank = {};                   ///< Recipe::rank
  std::string lambda = {};                 ///< Recipe::lambda
  std::string factorization = {};          ///< Recipe::factorization
  std::string calibration_mode = {};       ///< Recipe::mode
  std::string token_weight = {};           ///< Recipe::weighting
  std::string heal = {};                   ///< Recipe::heal
  std::string merge = {};                  ///< Recipe::merge
  std::optional<bool> span = {};           ///< Recipe::span
  std::optional<bool> penalize_bias = {};  ///< Recipe::penalize_bias
  std::optional<bool> gate = {};           ///< Recipe::gate
  std::optional<uint64_t> seed = {};       ///< Recipe::seed
  std::string quantise = {};               ///< Recipe::quantise
};

/// Says how a model was made. Fields that the maker did not record are empty.
struct Provenance {
  /// For a model that a command saved: "fitted" until its variants have been compared, and "evaluated" from then on.
  std::string state = {};
  std::string model = {};                             ///< the original, as it was named
  std::string criterion = {};                         ///< by which its layers were chosen
  RecipeText recipe = {};                             ///< how it was repaired
  std::optional<CalibrationReport> calibration = {};  ///< the text of the repair
  std::optional<RepairReport> repair = {};            ///< what the repair found
  std::vector<MeasuredVariant> variants = {};         ///< what was measured when it was made
  std::optional<HeldOutReport> heldout = {};          ///< the text of their perplexities
  std::optional<FinetuneReport> finetune = {};        ///< how it was trained afterwards
};

/// \param provenance how a model was made
/// \return a JSON object, as in the key "provenance" of the file shiftrt.json (docs/dev/formats.md)
std::string ToJson(const Provenance& provenance);

}  // namespace shiftrt
