// SPDX-License-Identifier: Apache-2.0
#include "types/training.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "include/shiftrt/recipe.h"
#include "runtime/check.h"
#include "runtime/words.h"

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

constexpr Words<Method, 4> kMethods = {{"lora", "partial", "adapters", "replacement"}};
constexpr Words<Decay, 3> kDecays = {{"constant", "linear", "cosine"}};
constexpr Words<TrainingLoss, 3> kLosses = {{"ce", "kl", "both"}};
constexpr Words<Halves, 3> kReplaced = {{"both", "attention", "mlp"}};

const TrainingHistory::Validation& Best(const std::vector<TrainingHistory::Validation>& validations) {
  const auto lower = [](const auto& a, const auto& b) { return a.loss < b.loss; };
  return *std::min_element(validations.begin(), validations.end(), lower);
}

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

const char* Name(Method method) { return kMethods.Of(method); }

Method ParseMethod(const std::string& name) { return kMethods.Parse(name, "method", "\"{}\" is not a method"); }

const char* Name(Decay decay) { return kDecays.Of(decay); }

Decay ParseDecay(const std::string& name) { return kDecays.Parse(name, "decay", "\"{}\" is not a schedule"); }

const char* Name(TrainingLoss loss) { return kLosses.Of(loss); }

TrainingLoss ParseTrainingLoss(const std::string& name) { return kLosses.Parse(name, "loss", "\"{}\" is not a loss"); }

std::string Name(const Replacement& replacement) {
  return replacement.units > 0 ? fmt::format("{}:{}", kReplaced.Of(replacement.halves), replacement.units)
                               : kReplaced.Of(replacement.halves);
}

Replacement ParseReplacement(const std::string& text) {
  const size_t colon = std::min(text.find(':'), text.size());
  const std::string word = text.substr(0, colon);
  const std::optional<Halves> halves = word == "block" ? Halves::kBoth : kReplaced.Find(word);
  Replacement replacement{halves.value_or(Halves::kBoth)};
  const bool counted = colon < text.size();
  if (!halves || (counted && (*halves != Halves::kMlp || !ParseNumber(text.substr(colon + 1), &replacement.units) ||
                              replacement.units < 1)))
    FailUsage(Field("replacement"), "\"{}\" is none of block, attention, mlp and mlp:UNITS (mlp:128)", text);
  return replacement;
}

TrainingBudget ParseTrainingBudget(const std::string& text) {
  constexpr std::string_view kTokens = "tokens=";
  struct Unit {
    std::string_view name;
    double factor;
  };
  constexpr Unit kTimes[] = {{"s", 1}, {"min", 60}, {"h", 3600}},
                 kCounts[] = {{"", 1}, {"k", 1e3}, {"M", 1e6}, {"G", 1e9}};
  const bool counts = text.starts_with(kTokens);
  const std::string value = text.substr(counts ? kTokens.size() : 0);
  const size_t digits = std::min(value.find_first_not_of("0123456789."), value.size());
  double number = 0;
  for (const Unit& unit : counts ? std::span<const Unit>(kCounts) : std::span<const Unit>(kTimes)) {
    if (value.substr(digits) != unit.name || !ParseNumber(value.substr(0, digits), &number)) continue;
    const double amount = number * unit.factor;
    if (amount < 1 || amount > 1e15) break;
    if (counts) return {.tokens = std::llround(amount)};
    return {.seconds = amount};
  }
  FailUsage(Field("budget"), "\"{}\" is neither a time of at least a second (90s, 30min, 2h) nor tokens=1M", text);
}

std::string Format(const TrainingBudget& budget) {
  if (budget.tokens > 0) return fmt::format("tokens={}", budget.tokens);
  return budget.seconds > 0 ? fmt::format("{}s", budget.seconds) : "";
}

double TrainingHistory::MeanLoss(int64_t first, int64_t last) const {
  return std::accumulate(losses.begin() + first, losses.begin() + last, 0.0) / static_cast<double>(last - first);
}

int64_t TrainingHistory::BestStep() const { return Best(validations).step; }

double TrainingHistory::ValidationLoss(bool kept_best) const {
  return (kept_best ? Best(validations) : validations.back()).loss;
}

double DefaultRate(Method method, int64_t hidden) {
  constexpr double kHighest = 1e-2;
  const double scale = method == Method::kLora || method == Method::kReplacement ? 1.2
                       : method == Method::kPartial                              ? 0.3
                                                                                 : 0.15;
  return std::min(kHighest, scale / static_cast<double>(hidden));
}

double RecoveryRate(int64_t hidden) {
  constexpr int64_t kSmall = 640;
  constexpr double kOfSmall = 1e-4, kTimesHidden = 0.018;
  return hidden <= kSmall ? kOfSmall : std::min(kOfSmall, kTimesHidden / static_cast<double>(hidden));
}

}  // namespace shiftrt
