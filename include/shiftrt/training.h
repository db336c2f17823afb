// SPDX-License-Identifier: Apache-2.0
/// \file
/// The settings of a training and its course. Each setting has a type, and with the type a parser of the words that the
/// command line takes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "shiftrt/blocks.h"
#include "shiftrt/text_name.h"

namespace shiftrt {

/// Says what is trained.
enum class Method : uint8_t {
  kLora,         ///< "lora": low-rank changes of projections
  kPartial,      ///< "partial": all tensors of some blocks
  kAdapters,     ///< "adapters": the linear residual adapters alone
  kReplacement,  ///< "replacement": one block, or its MLP half, in the place of each run of removed blocks
};
/// \param method one of them
/// \return its word
const char* Name(Method method);
/// \param name "lora", "partial", "adapters" or "replacement"
/// \return the method
/// \throws UsageError for another word
Method ParseMethod(const std::string& name);

/// Low-rank changes of projections.
struct LoraOptions {
  std::vector<std::string> targets = {"q", "k", "v", "o", "gate", "up", "down"};  ///< projections that change
  int64_t rank = 8;                                                               ///< rank of the changes
  double alpha = 16;   ///< the changes are multiplied by alpha / rank
  double dropout = 0;  ///< share of their input that is dropped in training
};

/// Says how the learning rate falls after the warm-up.
enum class Decay : uint8_t {
  kConstant,  ///< "constant": it stays
  kLinear,    ///< "linear": to zero, linearly
  kCosine,    ///< "cosine": to zero, along half a cosine
};
/// \param decay one of them
/// \return its word
const char* Name(Decay decay);
/// \param name "constant", "linear" or "cosine"
/// \return the decay
/// \throws UsageError for another word
Decay ParseDecay(const std::string& name);

/// Says what a training minimises.
enum class TrainingLoss : uint8_t {
  kCrossEntropy,  ///< "ce": cross entropy with the text
  kDivergence,    ///< "kl": Kullback-Leibler divergence from the predictions of the original model
  kBoth,          ///< "both": half of each
};
/// \param loss one of them
/// \return its word
const char* Name(TrainingLoss loss);
/// \param name "ce", "kl" or "both"
/// \return the loss
/// \throws UsageError for another word
TrainingLoss ParseTrainingLoss(const std::string& name);

/// Says what stands for a run of removed blocks.
struct Replacement {
  Halves halves = Halves::kBoth;  ///< a copy of the first removed block, or of its half
  /// For kMlp: an MLP of so many units in place of the copy, a multiple of 32 up to the model's; 0: the copy.
  int64_t units = 0;

  /// \return whether both are the same
  bool operator==(const Replacement&) const = default;
};
/// \param replacement one of them
/// \return its word: "both", "attention", "mlp", or "mlp:UNITS"
std::string Name(const Replacement& replacement);
/// \param text "block" or "both", "attention", "mlp", or "mlp:UNITS"
/// \return the replacement
/// \throws UsageError with the field "replacement" for other text
Replacement ParseReplacement(const std::string& text);

/// The course of a training so far.
struct TrainingHistory {
  /// A loss on text that is not learnt from: the divergence from the original model where it is part of the training's
  /// loss, else the cross entropy with the text.
  struct Validation {
    int64_t step = 0;  ///< steps done before it
    double loss = 0;   ///< nats per token
  };

  std::vector<double> losses = {};           ///< mean loss over the tokens of each step, before the step is taken
  std::vector<double> gradient_norms = {};   ///< norm of the gradient at each step, before clipping
  std::vector<Validation> validations = {};  ///< ascending by step
  int64_t tokens = 0;                        ///< tokens that passed forwards and backwards
  double seconds = 0;                        ///< time of the steps, on whatever machines
  double validation_seconds = 0;             ///< time of the validations
  int64_t validation_sequences = 0;          ///< held-out sequences that each of them reads
  int64_t resumed = 0;                       ///< steps that came from a checkpoint

  /// \return steps done
  int64_t steps() const { return static_cast<int64_t>(losses.size()); }
  /// \param first a step
  /// \param last the step after the last one
  /// \return the mean of their losses
  double MeanLoss(int64_t first, int64_t last) const;
  /// \return the step of the lowest validation loss, the first one of equals; there must be one
  int64_t BestStep() const;
  /// \param kept_best whether the state with the lowest validation loss is kept, and not the last one
  /// \return the validation loss of the state that is kept; there must be one
  double ValidationLoss(bool kept_best) const;
};

/// Says how long a training takes: a time or a number of tokens.
struct TrainingBudget {
  double seconds = 0;  ///< limit on the time of steps and validations; 0: none
  int64_t tokens = 0;  ///< limit on the tokens trained on, rounded up to whole steps; 0: none
};
/// \param text "90s", "30min", "2h" or "tokens=1M", with k, M and G for powers of 1000
/// \return the budget
/// \throws UsageError with the field "budget" for other text
TrainingBudget ParseTrainingBudget(const std::string& text);
/// \param budget a time or a number of tokens
/// \return text that ParseTrainingBudget() reads; empty for no limit
std::string Format(const TrainingBudget& budget);

/// Says how Finetune() trains.
struct FinetuneSettings {
  Method method = Method::kLora;  ///< what is trained
  LoraOptions lora = {};          ///< settings of kLora
  /// For kPartial: the blocks, as "last:3", "first:2", "all" or layers of the original model ("3,5,8-10").
  std::string layers = "last:3";
  bool head = false;                                ///< train the head too
  bool adapters = false;                            ///< train the adapters too
  TrainingLoss loss = TrainingLoss::kCrossEntropy;  ///< not of kReplacement, which minimises the stream's error
  Replacement replacement = {};                     ///< for kReplacement: what stands for a run
  /// For kReplacement: keeps the correction that stands for a run already, with the new block after it.
  bool keep_correction = false;

  /// Text to learn from, as CalibrationSpec::source, or several with commas between them, whose documents are mixed. A
  /// share of the tokens may stand after each ("c4:30%"). "own:PROMPTS" is what the original model answers to prompts,
  /// one per line of a text file or document of another; "own" alone answers the instructions of Alpaca. Empty:
  /// calibration.txt next to the model.
  TextName text = {};
  /// A directory that keeps the answers of own texts, from which they are taken again; empty: they are not kept.
  std::filesystem::path answers = {};
  int64_t samples = 0;   ///< sequences to learn from; 0: all
  int64_t length = 512;  ///< tokens at which a sequence is cut
  /// Divide a longer document into several sequences instead, so that all of it is learnt. A row of Alpaca is cut.
  bool divide = false;
  /// Sequences that are held out, at most a fifth of the text. With a budget in seconds, validations together take
  /// about a tenth of it, and read as many of these as that allows, in one pass at least.
  int64_t validation = 200;
  TextName validation_text = {};  ///< another text for them; empty: the same
  bool train_on_inputs = false;   ///< learn the prompts of rows of Alpaca and of own texts too

  int64_t epochs = 1;  ///< how often the text is read
  int64_t steps = 0;   ///< stop after so many; 0: when the epochs are over
  /// Stop when it is spent; the text is read as often as that takes, whatever `epochs` and `steps` say. A budget in
  /// tokens gives the same bits again. With one in seconds the number of steps depends on the machine, and the rate
  /// falls with the time; a third of the time is for the answers of own texts.
  TrainingBudget budget = {};
  int64_t batch = 8;           ///< sequences per step
  int64_t pass_tokens = 2048;  ///< tokens that pass through the model together
  /// Learning rate of AdamW; 0: DefaultRate() of the method, and of kAdapters and kPartial for the adapters and the
  /// head that are trained with it, or RecoveryRate() for all of these if all blocks are trained.
  double rate = 0;
  Decay decay = Decay::kLinear;  ///< how it falls
  double warmup = 0.03;          ///< steps over which the rate rises; below 1: a share of the whole training
  double weight_decay = 0.01;    ///< weight decay of matrices
  double clip = 1;               ///< largest norm of the gradient; 0: no limit
  /// Steps between validations; below 1: a share of the whole training; 0: before the first and after the last only.
  double validate_every = 0;
  bool keep_best =
      false;          ///< the result is the state with the lowest validation loss, maybe that before the first step
  uint64_t seed = 0;  ///< seed of sequences, their order, first values and dropout

  /// A file from which the same training continues after an interruption. It stays when the training is done: remove
  /// it once the result is saved. Empty: there is none.
  std::filesystem::path checkpoint = {};
  double checkpoint_seconds = 600;  ///< between two writes of it
};

/// Sets one field of the settings of a training from text.
/// \param field a field of FinetuneSettings by name, or one of LoraOptions such as "lora.rank" or "rank"
/// \param text what the parser of the field's type reads, "true" or "false" for a flag, or a list with commas;
///     for "validation" a number, or "FILE:NUMBER", which sets the text, too
/// \param settings the settings to change
/// \throws UsageError with the name of the field, for a field that does not exist and for text that it cannot have
void Set(std::string_view field, const std::string& text, FinetuneSettings& settings);

/// The learning rate of a training that names none. It was measured on models of two sizes (docs/training.md).
/// \param method what is trained
/// \param hidden the hidden size of the model
/// \return the highest rate of AdamW, after the warm-up
double DefaultRate(Method method, int64_t hidden);

/// The learning rate of a training of whole models (Method::kPartial with all blocks, as RecoverySettings() has it)
/// that names none: 1e-4 up to a hidden size of 640, and 0.018 / hidden above. It was measured at 576 and 896
/// (docs/training.md).
/// \param hidden the hidden size of the model
/// \return the highest rate of AdamW, after the warm-up
double RecoveryRate(int64_t hidden);

/// Checks a field that a user has set: fields have values even if the method does not read them.
/// \param method what is trained
/// \param field a name that Set() takes
/// \throws UsageError with the field if a training by this method does not read it, or if it does not exist
void CheckGiven(Method method, std::string_view field);

}  // namespace shiftrt
