// SPDX-License-Identifier: Apache-2.0
/// \file
/// A recipe says what to remove from a model and how to repair it. Each setting has a type, and with the type a
/// parser of the words that the command line takes; docs/dev/method.md explains them. A sweep tries many recipes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "shiftrt/blocks.h"
#include "shiftrt/text_name.h"

namespace shiftrt {

/// Says what to remove: a criterion and an amount, or the layers themselves. Set one of `ratio`, `count`, `parameters`,
/// `bytes`, `max_divergence` and `layers`.
struct PruneSpec {
  std::string criterion = {};  ///< a name that Criteria() lists, such as "bi"; "layers" with `layers`
  Unit unit = Unit::kBlock;    ///< the part that is scored and removed
  double ratio = 0;            ///< removes floor(ratio * layers) blocks, or halves of as many bytes
  int64_t count = 0;           ///< removes so many units
  int64_t parameters = 0;      ///< removes until no more parameters than these stay, adapters not counted
  int64_t bytes = 0;           ///< the same in bytes of weights
  /// Removes as many units as Repair() finds with which KL(original || repaired), nats per token of held-out
  /// calibration text, is at most this; half of the units at most.
  double max_divergence = 0;
  std::vector<BlockPart> layers = {};                        ///< removes these
  int64_t keep_first = 0;                                    ///< never removes the first so many blocks
  int64_t keep_last = 0;                                     ///< never removes the last so many blocks
  std::map<std::string, int64_t, std::less<>> options = {};  ///< options of the criterion alone: {"rank", 16}

  /// \param name an option that the criterion has
  /// \return its value: as given, or its default
  int64_t Option(std::string_view name) const;
  /// \return whether it may remove one half of a block alone
  bool halves() const;
};
/// \param text "CRITERION:AMOUNT[,keep=first:N,last:N][,unit=half][,OPTION=N]", for example "bi:0.25",
///     "streamline:8", "bi:params=6.3B" or "bi:max-kl=0.2"; or "layers=3.attn,5,8-10"
/// \param default_amount what a criterion without an amount gets; empty: that is an error
/// \return what is to be removed
/// \throws UsageError naming what is wrong, and listing the criteria if the name is unknown
PruneSpec ParsePrune(const std::string& text, const std::string& default_amount = "");
/// \param text several of them with commas between them: "bi,angular:4,keep=first:2,layers=3,5"
/// \param default_amount what a criterion without an amount gets
/// \return what is to be removed by each
/// \throws UsageError as ParsePrune() does
std::vector<PruneSpec> ParsePruneList(const std::string& text, const std::string& default_amount);
/// The inverse of ParsePrune(): ParsePrune(Format(spec)) removes what `spec` does. Equal specs have equal words.
/// \param spec what is to be removed
/// \return its words
std::string Format(const PruneSpec& spec);

/// A name with one line of explanation.
struct Choice {
  std::string_view name;     ///< as it is given
  std::string_view summary;  ///< for people
};

/// Says how many directions an adapter keeps.
struct RankSpec {
  /// The rule that chooses the rank.
  enum class Kind {
    kFull,    ///< no factorization: one full matrix
    kFixed,   ///< the same rank everywhere
    kEnergy,  ///< the least rank that keeps a share of the squared singular values
    kBudget,  ///< as many directions as a number of parameters has room for, the largest singular values first
  };
  Kind kind = Kind::kFixed;  ///< the rule that chooses the rank
  int64_t rank = 64;         ///< rank of kFixed
  double energy = 0;         ///< for kEnergy: the share, above 0 and at most 1
  int64_t parameters = 0;    ///< for kBudget: parameters of all adapters together, biases included

  /// \return full matrices
  static RankSpec Full() { return {Kind::kFull, 0, 0, 0}; }
  /// \param rank directions of each adapter
  /// \return adapters of that rank
  static RankSpec Fixed(int64_t rank) { return {Kind::kFixed, rank, 0, 0}; }
};
/// \param text "64", "full", "energy:0.9" or "budget:4M" (k, M and G are powers of 1000)
/// \return the rank
/// \throws UsageError for anything else
RankSpec ParseRank(const std::string& text);
/// The inverse of ParseRank().
/// \param spec a rank
/// \return its word
std::string Format(const RankSpec& spec);

/// The ridge penalty of a fit.
struct LambdaSpec {
  /// The rule that chooses the penalty.
  enum class Kind {
    kAbsolute,  ///< the value itself
    kRelative,  ///< the value times the mean diagonal of the Gram matrix
    kGcv,       ///< by generalised cross-validation, per site
    kHoldout,   ///< by the error on held-out text, per site
  };
  Kind kind = Kind::kGcv;  ///< the rule that chooses the penalty
  double value = 0;        ///< value of kAbsolute and kRelative
};
/// \param text "1e-2", "1e-4rel", "gcv" or "holdout"
/// \return the penalty
/// \throws UsageError for anything else, and for a number that is negative or not finite
LambdaSpec ParseLambda(const std::string& text);
/// The inverse of ParseLambda().
/// \param spec a penalty
/// \return its word
std::string Format(const LambdaSpec& spec);

/// Says how an adapter of low rank is made of a full map.
enum class Factorization {
  kSvd,          ///< "svd": truncated singular value decomposition, as in the paper
  kSvdRefit,     ///< "svd-refit": the same, with the bias that leaves no mean error
  kReducedRank,  ///< "rrr": reduced-rank regression, the best map of that rank on the data
};
/// \param text "svd", "svd-refit" or "rrr"
/// \return the factorization
/// \throws UsageError for another word
Factorization ParseFactorization(const std::string& text);
/// \param factorization one of them
/// \return its word
const char* Name(Factorization factorization);

/// The streams on which adapters are fitted.
enum class Calibration {
  kAuto,         ///< "auto": kDrift where that can be fitted, and else kIndependent
  kIndependent,  ///< "independent": all sites on one pass of the original model, as in the paper
  kSequential,   ///< "sequential": on the corrected stream, towards what the site's own blocks add to it
  kDrift,        ///< "drift": on the corrected stream, towards the original stream after the site
};
/// \param text "auto", "independent", "sequential" or "drift"
/// \return the mode
/// \throws UsageError for another word
Calibration ParseCalibrationMode(const std::string& text);
/// \param calibration one of them
/// \return its word
const char* Name(Calibration calibration);

/// Says how much each token counts in a fit: the product of what is set.
struct TokenWeights {
  bool norm = false;   ///< "norm": 1 / mean square of the block's output at the token
  double first = 1;    ///< "first:W": for the first token of a sample
  double massive = 1;  ///< "massive:W": for tokens with a massive activation

  /// \return whether all tokens count the same
  bool uniform() const { return !norm && first == 1 && massive == 1; }
};
/// \param text "none", or any of the words of TokenWeights with commas between them
/// \return the weights
/// \throws UsageError for anything else, and for a weight below 0
TokenWeights ParseTokenWeights(const std::string& text);
/// The inverse of ParseTokenWeights().
/// \param weights the weights
/// \return their words
std::string Format(const TokenWeights& weights);

/// Projections of the kept blocks after the first removed one that are fitted again.
enum class Heal {
  kOff,   ///< "off": none
  kDown,  ///< "down": the down projections of the MLPs
  kAll,   ///< "all": the output projections of the attentions, too
};
/// \param text "off", "down" or "all"
/// \return which are fitted again
/// \throws UsageError for another word
Heal ParseHeal(const std::string& text);
/// \param heal one of them
/// \return its word
const char* Name(Heal heal);

/// Says whether neighbouring adapters become one.
enum class Merge {
  kOff,      ///< "off": they stay apart
  kFull,     ///< "full": one full matrix for each run of neighbours
  kLowRank,  ///< "lowrank": one factored matrix, of at most the sum of the ranks
};
/// \param text "off", "full" or "lowrank"
/// \return how they are merged
/// \throws UsageError for another word
Merge ParseMerge(const std::string& text);
/// \param merge one of them
/// \return its word
const char* Name(Merge merge);

/// Calibration text.
struct CalibrationSpec {
  /// A file (.txt, .jsonl, .json, .parquet, .csv, .tsv) or a known name such as "c4"; or several with commas between
  /// them, "c4,alpaca", which have equally many samples. Also in the form of ParseCalibration(), whose numbers then
  /// stand for `samples` and `tokens`.
  TextName source = {};
  int64_t samples = 256;  ///< an eighth of them is held out
  int64_t tokens = 512;   ///< tokens of a sample; at most the positions of the model
};
/// \param text "FILE", "FILE:SAMPLES" or "FILE:SAMPLESxTOKENS"; "FILE,FILE:SAMPLESxTOKENS" for several texts
/// \return the text
/// \throws UsageError for anything else
CalibrationSpec ParseCalibration(const std::string& text);

/// Files of the sums over the calibration text. Without any, the sums are in memory only.
struct GramFiles {
  std::vector<std::filesystem::path> load = {};  ///< fits from the total of these files, without a pass over the text
  std::filesystem::path save = {};  ///< writes the sums; an interrupted calibration continues from the file
  bool all_layers = false;          ///< saves the sums of all layers, not only of the removed ones

  /// \return whether there are any
  bool used() const { return !load.empty() || !save.empty(); }
};

/// Says whether a repair is compared with the model without it, by the loss on up to 8,192 tokens of held-out
/// calibration text, and whether it must help. A split model and a text without held-out samples have no comparison.
enum class Benefit {
  kUnmeasured,  ///< nothing
  kMeasured,    ///< RepairReport::gain says what it is
  kRequired,    ///< the same, and a repair with which the loss is higher is left out
};

/// Says how a weight is rounded to a type of fewer bits.
enum class Rounding {
  kNearest,     ///< "nearest": each number to the nearest one that the type holds
  kImportance,  ///< "importance": the same, with scales for the least error weighted by the mean square of the inputs
  kFeedback,    ///< "feedback": each number makes good, on calibration text, for the errors of those before it (GPTQ)
};
/// The step before or after which the kept blocks are rounded.
enum class QuantiseWhen {
  kBefore,  ///< "before": the repair is fitted to the rounded blocks
  kAfter,   ///< "after": the repaired model is rounded
};
/// The types to which the matrices of the kept blocks, the head and the embedding table are rounded.
struct QuantiseSpec {
  std::string mixture = {};                   ///< such as "q4_k_m"; empty: nothing is rounded
  Rounding rounding = Rounding::kFeedback;    ///< how
  QuantiseWhen when = QuantiseWhen::kBefore;  ///< when

  /// \return whether anything is rounded
  bool any() const { return !mixture.empty(); }
  /// \return whether the rounding reads calibration text
  bool reads_text() const { return any() && rounding != Rounding::kNearest; }
};
/// \param text "off" or "MIXTURE[,nearest|importance|feedback][,before|after]", for example "q4_k_m"
/// \return the types
/// \throws UsageError for anything else, listing the mixtures
QuantiseSpec ParseQuantise(const std::string& text);
/// The inverse of ParseQuantise().
/// \param spec the types
/// \return its words
std::string Format(const QuantiseSpec& spec);
/// \return the mixtures of types that QuantiseSpec::mixture can name
std::vector<Choice> MixtureNames();

/// Says what to remove and how to repair it.
struct Recipe {
  PruneSpec prune = {.criterion = "streamline", .ratio = 0.25};  ///< what is removed
  /// Says what takes the place of the removed blocks: a name that Corrections() lists, such as "lra" (linear residual
  /// adapters), "refit", "joint", "none" or "auto". Without a name it is the one that CorrectionName() returns.
  std::string correction = {};
  RankSpec rank = {};                                         ///< rank of the adapters
  LambdaSpec lambda = {};                                     ///< ridge penalty
  bool penalize_bias = false;                                 ///< penalise the bias of the adapters too
  Factorization factorization = Factorization::kReducedRank;  ///< how an adapter of low rank is made
  Calibration mode = Calibration::kAuto;                      ///< the streams on which adapters are fitted
  TokenWeights weighting = {};                                ///< how much each token counts
  bool span = false;                       ///< one adapter for each run of neighbouring removed blocks
  bool gate = false;                       ///< drop corrections without which the loss on held-out text is lower
  Benefit benefit = Benefit::kUnmeasured;  ///< what the repair must do for the loss on held-out text
  Heal heal = Heal::kOff;                  ///< the projections of kept blocks that are fitted again
  Merge merge = Merge::kOff;               ///< how neighbouring adapters become one
  QuantiseSpec quantise = {};              ///< the types of fewer bits to which the weights are rounded
  uint64_t seed = 0;                       ///< seed of the choice of samples, and of criteria that draw random numbers
  /// Calibration text; without a source the file calibration.txt next to the model.
  CalibrationSpec text = {};
  GramFiles gram = {};  ///< files of the sums over that text
};

/// \param recipe what to remove and how to repair it
/// \return whether Repair() reads calibration text for it
/// \throws UsageError for a criterion or a correction that does not exist
bool ReadsText(const Recipe& recipe);

/// \param recipe what to remove and how to repair it
/// \param field a name that Set() takes
/// \return whether the correction of the recipe reads that field; true for a field that is not a correction's
/// \throws UsageError for a correction that does not exist
bool Reads(const Recipe& recipe, std::string_view field);

/// Checks a field that a user has set, which CheckRecipe() does not: fields have values even if nothing reads them.
/// \param recipe what to remove and how to repair it
/// \param field a name that Set() takes
/// \throws UsageError if the correction of the recipe does not read it
void CheckGiven(const Recipe& recipe, std::string_view field);

/// \param recipe what to remove and how to repair it
/// \return the name of its correction. Where the recipe has none, it is "joint", or "lra" if the recipe has a setting
///     that joint does not take, such as a calibration mode or files of sums. Repair() takes "lra" for a model too that
///     joint cannot repair (RepairJob::WhyCorrection()).
std::string CorrectionName(const Recipe& recipe);

/// A recipe by name, for what the repaired model may cost at run time.
struct NamedRecipe {
  const char* name;     ///< "paper", "stock", "adapters", "best", "portable" or "recover"
  const char* cost;     ///< what is added at run time, for people
  const char* summary;  ///< one line for lists of recipes
  /// The settings that the recipe decides, by the names of the fields of RecipeText and "prune", "span" and "gate", in
  /// the words of the parsers; "false" for a flag that is not set. `prune` alone may be given another value.
  std::vector<std::pair<const char*, const char*>> settings = {};
  /// The budget of the training that follows Repair(), as ParseTrainingBudget() reads it; RecoverySettings() has the
  /// other settings of that training. Empty: there is none.
  const char* recover = "";
  /// The known calibration text of the program for a user who names none; empty: the program's own choice.
  const char* text = "";
};
/// \return all named recipes
const std::vector<NamedRecipe>& NamedRecipes();
/// \param name of a named recipe
/// \return the recipe with that name's settings, and defaults for the others; a training is not a part of it
/// \throws UsageError listing the names for one that is unknown
Recipe FindRecipe(std::string_view name);

/// Sets one field of a recipe from text.
/// \param field "prune", "correction", "rank", "lambda", "penalize_bias", "factorization", "mode",
///     "weighting", "span", "gate", "heal", "merge", "quantize", "seed" or "text"
/// \param text what the parser of the field's type reads; "true" or "false" for a flag
/// \param recipe the recipe to change
/// \throws UsageError with the name of the field, for a field that does not exist and for text that it cannot have
void Set(std::string_view field, const std::string& text, Recipe& recipe);

/// \return the criteria that PruneSpec::criterion can name
std::vector<Choice> CriteriaNames();
/// \return the corrections that Recipe::correction can name
std::vector<Choice> CorrectionNames();

/// The values that a sweep tries, at least one of each. `prunes` and `seeds` must not repeat a value.
struct SweepAxes {
  std::vector<PruneSpec> prunes = {};                                         ///< what is removed
  std::vector<std::string> corrections = {"lra"};                             ///< names that CorrectionNames() lists
  std::vector<Calibration> modes = {Calibration::kIndependent};               ///< Recipe::mode
  std::vector<TokenWeights> weightings = {{}};                                ///< Recipe::weighting
  std::vector<LambdaSpec> lambdas = {{}};                                     ///< Recipe::lambda
  std::vector<Factorization> factorizations = {Factorization::kReducedRank};  ///< Recipe::factorization
  std::vector<RankSpec> ranks = {{}};                                         ///< Recipe::rank
  std::vector<Heal> heals = {Heal::kOff};                                     ///< Recipe::heal
  std::vector<int64_t> samples = {256};  ///< samples of calibration text, every eighth of which is held out
  std::vector<uint64_t> seeds = {0};     ///< Recipe::seed
  bool penalize_bias = false;            ///< Recipe::penalize_bias
  /// If there are any, the sweep takes these instead of Combinations(). Their prune, seed and text are not read,
  /// and span, gate, merge and gram must be unset.
  std::vector<Recipe> recipes = {};
};
/// \param axes the values of corrections, modes, weightings, lambdas, factorizations, ranks and heals
/// \return every combination of them, or else SweepAxes::recipes, each once: a setting that a correction does not read
///     has its default
/// \throws UsageError for an unknown correction
std::vector<Recipe> Combinations(const SweepAxes& axes);

/// The scores by which models are compared.
struct Quality {
  /// The value of what was not measured: NaN.
  static constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

  double perplexity = 0;          ///< on held-out text
  double accuracy = kNone;        ///< mean over zero-shot suites, between 0 and 1; NaN without suites
  double accuracy_error = kNone;  ///< standard error of the accuracy over the items; NaN without suites
};

/// One cell of a sweep: its settings and its results.
struct SweepRow {
  Recipe recipe = {};                   ///< the settings with the seed, without the text; see Combinations()
  int64_t samples = 0;                  ///< samples of calibration text
  std::vector<BlockPart> removed = {};  ///< ascending
  int64_t tokens = 0;                   ///< fitted tokens; 0 if nothing is fitted
  double r2_fit = 0;                    ///< mean over the fits of FitReport::r2_fit; NaN if nothing is fitted
  double r2_heldout = 0;                ///< mean over the fits of FitReport::r2_heldout; NaN if nothing is fitted
  int64_t parameters = 0;               ///< parameters of all adapters together
  std::string chosen = {};              ///< TrialReport::recipe of the trial that the correction "auto" chose
  Quality original = {};                ///< quality of the original model
  Quality pruned = {};                  ///< quality without the removed blocks and without a repair
  Quality corrected = {};               ///< quality with the repair
};

/// The means over rows that differ in their seeds alone.
struct SweepSummary {
  SweepRow first = {};               ///< the first of the rows
  int64_t seeds = 0;                 ///< the number of rows
  Quality original = {};             ///< mean of SweepRow::original
  Quality pruned = {};               ///< mean of SweepRow::pruned
  Quality corrected = {};            ///< mean of SweepRow::corrected
  Quality pruned_deviation = {};     ///< standard deviation (n - 1) of SweepRow::pruned; 0 for one seed
  Quality corrected_deviation = {};  ///< standard deviation (n - 1) of SweepRow::corrected; 0 for one seed
  double r2_fit = 0;                 ///< mean of SweepRow::r2_fit
  double r2_heldout = 0;             ///< mean of SweepRow::r2_heldout
  std::string chosen = {};           ///< values of SweepRow::chosen, each once, separated by "; "
};
/// \param rows rows of a sweep
/// \return one summary per setting, in the order of their first rows
std::vector<SweepSummary> Summarize(const std::vector<SweepRow>& rows);

}  // namespace shiftrt
