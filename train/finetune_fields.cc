// SPDX-License-Identifier: Apache-2.0
#include "train/finetune_fields.h"

#include <algorithm>
#include <limits>

#include "include/shiftrt/recipe.h"
#include "runtime/check.h"

namespace shiftrt {

namespace {

using S = FinetuneSettings;
using L = LoraOptions;
using enum Recorded;

constexpr std::string_view kOfLora = "lora.";
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr Bounds kFromZero = {0, kInfinity};
constexpr Bounds kFiniteFromZero = {0, std::numeric_limits<double>::max()};
constexpr Bounds kPositive = {std::numeric_limits<double>::min(), std::numeric_limits<double>::max()};
constexpr std::nullopt_t kAny = std::nullopt;

constexpr TwoWords kModes = {"frozen", "trainable"}, kNoYes = {"no", "yes"};

// A number of steps, or a share of them.
double ParseWarmup(const std::string& words) {
  double warmup = 0;
  if (!ParseNumber(words, &warmup))
    FailUsage(Field("warmup"), "\"{}\" is neither a number of steps (100) nor a share of them (0.05)", words);
  return warmup;
}

std::string ValidationWords(const S& settings) {
  const std::string count = fmt::format("{}", settings.validation);
  return settings.validation_text.empty() ? count : fmt::format("{}:{}", std::string(settings.validation_text), count);
}

// A number leaves the text as it is.
void ReadValidation(std::string_view field, const std::string& words, S& settings) {
  const auto refuse = [&] {
    FailUsage(Field(std::string(field)), "\"{}\" is neither a number of sequences nor NAME|FILE[:sequences]", words);
  };
  int64_t count = 0;
  if (ParseNumber(words, &count)) {
    if (count < 0) refuse();
    settings.validation = count;
    return;
  }
  try {
    const CalibrationSpec spec = ParseCalibration(words);
    settings.validation_text = spec.source;
    settings.validation = spec.samples;
  } catch (const UsageError&) {  // its reason would name samples and tokens
    refuse();
  }
}

// The rows stand in the order in which the help shows the options.
constexpr FinetuneField kFields[] = {
    {ParsedRow<ParseMethod, &S::method>("method"), kAlways,
     "lora: low-rank changes of projections; partial: whole blocks; adapters: the linear residual adapters\n"
     "alone; replacement: one block in the place of each run of removed blocks, trained on the squared\n"
     "error of the stream after the run",
     kAny, kByAll, "lora partial adapters replacement"},
    {MemberRow<&S::text>("text"), kInText,
     "text to learn from: FILE, or c4, wikitext2 or alpaca, or several with commas between them, which are\n"
     "mixed. A .txt file is divided into windows of --length tokens; in other formats each document is a\n"
     "sequence (default: calibration.txt in the model's directory, or c4).",
     kAny, kByAll, "", "calib"},
    {MemberRow<&S::answers>("answers"), kNever},
    {MemberRow<&S::samples>("samples"), kInText, "sequences to learn from; 0: all", Bounds{0, 1 << 30}},
    {MemberRow<&S::length>("length"), kInText, "tokens at which a sequence is cut", Bounds{2, 1 << 20}},
    {MemberRow<&S::divide>("divide"), kInText,
     "divide a longer document into several sequences instead of cutting it; a row of Alpaca is cut"},
    {{"validation", FieldKind::kText, ValidationWords, ReadValidation},
     kInText,
     "sequences of the text that are held out for the validation loss, but at most a fifth of it; or\n"
     "another text, NAME|FILE[:sequences]"},
    {MemberRow<&S::validation_text>("validation_text"), kInText, "", kAny, kByAll, "", "validation"},
    {MemberRow<&S::train_on_inputs>("train_on_inputs"), kInText,
     "learn the prompts of rows of Alpaca and of own:PROMPTS too"},
    {FlagRow<&S::adapters, kModes>("adapters", FieldKind::kList), kAlways,
     "whether the model's adapters are trained too: frozen or trainable; with both, separated by a comma,\n"
     "there is one training for each, saved to DIR/frozen and DIR/trainable",
     kAny, kByLora | kByPartial, "frozen trainable"},
    {MemberRow<&S::head>("head"), kAlways, "train the head too", kAny, kByAll & ~kByReplacement},
    {MemberRow<&S::lora, &L::targets>("lora.targets"), kIfRead,
     "lora: projections that it changes, of q,k,v,o,gate,up,down", kAny, kByLora, "q k v o gate up down"},
    {MemberRow<&S::lora, &L::rank>("lora.rank"), kIfRead, "lora: rank of the changes", kAny, kByLora},
    {MemberRow<&S::lora, &L::alpha>("lora.alpha"), kIfRead, "lora: the changes are multiplied by alpha / rank",
     kPositive, kByLora},
    {MemberRow<&S::lora, &L::dropout>("lora.dropout"), kIfRead, "lora: share of its input that is dropped",
     Bounds{0, 0.99}, kByLora},
    {MemberRow<&S::layers>("layers"), kIfRead,
     "partial: blocks of which every tensor is trained: last:N, first:N, all, or layers of the original\n"
     "model (3,5,8-10)",
     kAny, kByPartial, "last: first: all"},
    {ParsedRow<ParseReplacement, &S::replacement>("replacement"), kIfRead,
     "replacement: block, a copy of the first removed one; mlp, its MLP half; or mlp:UNITS, an MLP of so\n"
     "many units (mlp:128), those of the run's MLPs that would change the stream most, which adds nothing\n"
     "at first",
     kAny, kByReplacement},
    {FlagRow<&S::keep_correction, kNoYes>("keep_correction"), kIfRead,
     "replacement: keep what stands for a run already (of --correction joint, refit or lra), with the new\n"
     "block after it. The block's output projections begin at zero: training begins at the fit's error",
     kAny, kByReplacement},
    {ParsedRow<ParseTrainingLoss, &S::loss>("loss"), kAlways,
     "ce: cross entropy with the text; kl: divergence from the predictions of the original model, which\n"
     "runs as well, over the same weights; both: half of each",
     kAny, kByAll & ~kByReplacement, "ce kl both"},
    {MemberRow<&S::epochs>("epochs"), kInSteps, "how often the text is read", Bounds{1, 1'000'000}},
    {MemberRow<&S::steps>("steps"), kInSteps, "stop after so many steps; 0: when the epochs are over",
     Bounds{0, 1 << 30}},
    {ParsedRow<ParseTrainingBudget, &S::budget>("budget"), kInSteps,
     "stop when so much is spent, however often the text is read: a time (90s, 30min, 2h) or tokens=1M. Tokens\n"
     "give the same bits again; with a time, the number of steps depends on the machine"},
    {MemberRow<&S::batch>("batch"), kAlways, "sequences per step", Bounds{1, 1 << 20}},
    {MemberRow<&S::pass_tokens>("pass_tokens"), kAlways,
     "tokens that pass through the model together. A step adds up the gradients of as many passes as its\n"
     "batch takes; the memory for activations grows with it",
     Bounds{1, 1 << 24}},
    {MemberRow<&S::rate>("rate"), kAlways,
     "learning rate of AdamW (default: by method and hidden size, docs/training.md#the-learning-rate)", kPositive},
    {ParsedRow<ParseDecay, &S::decay>("decay"), kAlways,
     "how the rate falls after the warm-up: linear, cosine or constant", kAny, kByAll, "linear cosine constant",
     "schedule"},
    {ParsedRow<ParseWarmup, &S::warmup>("warmup"), kAlways, "steps over which the rate rises, or a share of all steps"},
    {MemberRow<&S::weight_decay>("weight_decay"), kAlways, "weight decay of matrices; norms and biases have none",
     Bounds{0, 10}},
    {MemberRow<&S::clip>("clip"), kAlways, "largest norm of the gradient; 0: no limit", kFromZero},
    {MemberRow<&S::validate_every>("validate_every"), kAlways,
     "steps between two validation losses; below 1: a share of the training; 0: before the first step and\n"
     "after the last only",
     kFiniteFromZero},
    {FlagRow<&S::keep_best, kNoYes>("keep_best"), kIfOn,
     "save the state with the lowest validation loss, not the last one"},
    {MemberRow<&S::seed>("seed"), kAlways},
    {MemberRow<&S::checkpoint_seconds>("checkpoint_seconds"), kNever, "minutes between two checkpoints", kFromZero,
     kByAll, "", "checkpoint-minutes", 60},
    {MemberRow<&S::checkpoint>("checkpoint"), kNever,
     "file of the checkpoint, from which the same command continues (default: DIR.checkpoint)"},
};
// The rows of LoraOptions stand for the one member `lora`.
static_assert(std::size(kFields) == MembersOf<S>() - 1 + MembersOf<L>(), "every member has a row");

}  // namespace

std::span<const FinetuneField> FinetuneFields() { return kFields; }

const FinetuneField& FinetuneFieldNamed(std::string_view name) {
  for (const FinetuneField& field : kFields)
    if (field.name.starts_with(kOfLora) && field.name.substr(kOfLora.size()) == name) return field;
  return FieldNamed(FinetuneFields(), name, "a training");
}

void Set(std::string_view field, const std::string& text, FinetuneSettings& settings) {
  FinetuneFieldNamed(field).set(text, settings);
}

void CheckGiven(Method method, std::string_view field) {
  const FinetuneField& row = FinetuneFieldNamed(field);
  if (!row.has_reader(method)) FailUsage(Field(std::string(row.name)), "does not go with method {}", Name(method));
}

void CheckBounds(const FinetuneSettings& settings) {
  for (const FinetuneField& field : kFields) {
    const std::string words = field.words(settings);
    double value = 0;
    if (!field.bounds || !ParseNumber(words, &value) || field.bounds->has(value) || words == field.words({})) continue;
    const auto& [least, most] = *field.bounds;
    const Field name{std::string(field.name)};
    if (most < kFiniteFromZero.most) FailUsage(name, "{}, expected at least {} and at most {}", words, least, most);
    FailUsage(name, "{}, expected {}", words, least == 0 ? "at least 0" : "a number above 0");
  }
}

std::vector<std::pair<std::string, std::string>> RecordedSettings(const FinetuneSettings& settings) {
  std::vector<std::pair<std::string, std::string>> recorded;
  for (const FinetuneField& field : kFields) {
    const std::string words = field.words(settings);
    if (field.recorded == kAlways || (field.recorded == kIfRead && field.has_reader(settings.method)) ||
        (field.recorded == kIfOn && words != field.words({})))
      recorded.emplace_back(field.recorded_as(), words);
  }
  return recorded;
}

}  // namespace shiftrt
