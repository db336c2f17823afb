// SPDX-License-Identifier: Apache-2.0
#include "include/shiftrt/compare.h"

#include <algorithm>

#include "api/impl.h"
#include "engine/generate.h"
#include "engine/score.h"
#include "eval/perplexity.h"
#include "runtime/check.h"
#include "runtime/median.h"
#include "runtime/processes.h"
#include "runtime/text.h"
#include "shift/corrections/corrections.h"
#include "shift/measure/drift.h"
#include "shift/options.h"
#include "text/documents.h"

namespace shiftrt {

namespace {

constexpr int kSpeedRounds = 5;
constexpr int64_t kSpeedTokens = 24;

// True if blocks of the model were trained, or projections of them fitted again.
bool ChangesBlocks(const Provenance& made) {
  if (made.finetune) return true;
  const RecipeText& recipe = made.recipe;
  return (!recipe.heal.empty() && ParseHeal(recipe.heal) != Heal::kOff) ||
         (!recipe.correction.empty() && FindCorrection(recipe.correction).changes_blocks());
}

// The beginning of a text as batches to follow the stream through.
std::vector<Batch> DriftBatches(std::span<const int32_t> tokens, int64_t positions) {
  constexpr size_t kTokens = 2048, kSequence = 512;
  tokens = tokens.first(std::min(tokens.size(), kTokens));
  const size_t length = std::min<size_t>(kSequence, positions);
  std::vector<Batch> batches;
  for (; !tokens.empty(); tokens = tokens.subspan(std::min(length, tokens.size())))
    batches.emplace_back().Add(tokens.first(std::min(length, tokens.size())));
  return batches;
}

// The ids of a prompt: with BOS as the tokenizer's configuration says, or, in a chat, as the template writes it.
std::vector<int32_t> PromptTokens(const LanguageModel& model, const ComparisonSettings& settings) {
  return settings.chat ? model.EncodeMessage(settings.prompt, settings.system) : model.Encode(settings.prompt);
}

// The arguments of Compare() that are the same for all variants.
struct Comparing {
  const Context& context;
  const HeldOutText& heldout;
  const ComparisonSettings& settings;
  Progress& progress;
};

// Everything but the perplexity and the speed.
MeasuredVariant Measured(const Comparing& with, const ModelVariant& variant, Decoder& decoder) {
  const ComparisonSettings& settings = with.settings;
  const Model& model = variant.model.impl().model;
  const Tokenizer& tokenizer = model.RequireTokenizer();
  const std::vector<int32_t> prompt = PromptTokens(variant.model, settings);
  MeasuredVariant measured;
  measured.name = variant.name;
  measured.label = variant.label;
  measured.parameters = decoder.Parameters();
  measured.bytes = decoder.BytesPerToken();
  if (with.context.processes->group() > 0) return measured;  // one model alone writes text
  with.progress.Begin("continuing the prompt", settings.max_tokens);
  auto reply = Generate(decoder, prompt, settings.max_tokens, {}, 0, StopTokens(model), [&](int32_t) {
    with.progress.Advance(1);
    return true;
  });
  with.progress.End();
  // A vocabulary padded beyond the tokenizer's has ids that stand for no text.
  std::erase_if(reply.tokens, [&](int32_t token) { return token >= tokenizer.vocab_size(); });
  measured.continuation =
      settings.chat ? tokenizer.Decode(reply.tokens, true) : DecodeReply(tokenizer, prompt, reply.tokens);
  return measured;
}

// The perplexity of every variant on the held-out text; none without such a text.
std::vector<double> Perplexities(const Comparing& with, std::span<const ModelVariant> variants) {
  std::vector<double> perplexities;
  if (!with.heldout.Scored()) return perplexities;
  const std::shared_ptr<const Weights>& weights = variants.front().model.impl().model.weights;
  std::vector<DepthPlan> plans;
  for (const ModelVariant& variant : variants) plans.push_back(variant.model.impl().model.plan);
  PlanTree tree(with.context, weights, plans);
  const int64_t window = ProtocolWindow(with.settings.protocol, weights->config);
  for (const TextPerplexity& result : WindowedPerplexities(tree, with.heldout.tokens, window, with.progress))
    perplexities.push_back(result.perplexity);
  return perplexities;
}

}  // namespace

std::vector<ModelVariant> SavedVariants(const LanguageModel& saved) {
  const Model& model = saved.impl().model;
  const auto with = [&](const std::string& name, const std::string& label, const DepthPlan& plan) {
    return ModelVariant{name, label, WithPlan(model, plan, {})};
  };
  const auto corrected = [](const std::string& correction) { return correction.empty() ? "lra" : correction; };
  const DepthPlan original = DepthPlan::Original(model.weights->config.layers), bare = model.plan.Uncorrected();
  const bool pruned = !model.removed.empty() || bare != original;
  // Saved with its weights after its blocks were trained or fitted again: the blocks before that are not there.
  if (bare == original && model.provenance && ChangesBlocks(*model.provenance)) {
    const std::string name = corrected(model.provenance->recipe.correction);
    return {{name, name, saved}};
  }
  std::vector<ModelVariant> variants;
  // A directory of the format hf-lra has no more than runs, so that there is no original to compare with.
  const std::vector<const BlockStage*> blocks = original.Blocks();
  const bool whole = std::none_of(blocks.begin(), blocks.end(), [&](const BlockStage* block) {
    return MissingTensor(*model.weights, *block) != nullptr;
  });
  if (!pruned || (bare != original && whole)) variants.push_back(with("original", "original", original));
  if (pruned) variants.push_back(with("pruned", "pruned", bare));
  if (model.plan == bare) return variants;
  const std::string before = variants.back().name + " + ";
  if (!model.provenance) {  // a model of somebody else's with LoRA
    variants.push_back({"lora", before + "LoRA", saved});
    return variants;
  }
  const std::string& merge = model.provenance->recipe.merge;
  if (!merge.empty() && ParseMerge(merge) != Merge::kOff) {
    variants.push_back({"merged", fmt::format("merged ({})", merge), saved});
  } else {
    const std::string name = corrected(model.provenance->recipe.correction);
    variants.push_back({name, before + name, saved});
  }
  return variants;
}

std::string HeldOutText::Part() const {
  return std::ssize(tokens) == all ? "" : fmt::format("first {} of {} tokens", tokens.size(), all);
}

std::string HeldOutText::Description() const { return Part().empty() ? source : source + ", " + Part(); }

HeldOutText ReadHeldOutText(const LanguageModel& model, const std::string& text, int64_t limit) {
  const std::filesystem::path file = ResolveText(text);
  HeldOutText read{.source = file.filename().string()};
  read.tokens = model.impl().model.RequireTokenizer().EncodeWithBos(RunningText(file), file.string());
  read.all = std::ssize(read.tokens);
  if (limit > 0) read.tokens.resize(static_cast<size_t>(std::min(read.all, limit)));
  return read;
}

int64_t WindowOf(const LanguageModel& model, const std::string& protocol) {
  return ProtocolWindow(protocol, model.impl().model.weights->config);
}

int64_t DecodedTokens(const ComparisonSettings& settings) { return settings.max_tokens + kSpeedRounds * kSpeedTokens; }

void CheckComparison(const LanguageModel& model, const ComparisonSettings& settings) {
  WindowOf(model, settings.protocol);
  CheckFits(std::ssize(PromptTokens(model, settings)), settings.max_tokens, model.impl().model.weights->config);
}

std::vector<MeasuredVariant> Compare(std::span<const ModelVariant> variants, const HeldOutText& heldout,
                                     const ComparisonSettings& settings, const Resources& resources,
                                     Progress* progress) {
  if (variants.empty()) FailUsage(Field("variants"), "there is none");
  for (const ModelVariant& variant : variants) RequireSharedWeights(variants.front().model, variant.model);
  const Model& model = variants.front().model.impl().model;
  const Context context = MakeContext(resources);
  const auto turn = context.TakeTurn();
  ProgressOf reports(progress);
  const Comparing with = {context, heldout, settings, reports};
  const std::vector<double> perplexities = Perplexities(with, variants);
  std::vector<Decoder> decoders;
  std::vector<MeasuredVariant> measured;
  for (const ModelVariant& variant : variants) {
    Decoder& decoder = decoders.emplace_back(context, model.weights, variant.model.impl().model.plan);
    measured.push_back(Measured(with, variant, decoder));
    if (!perplexities.empty()) measured.back().perplexity = perplexities[measured.size() - 1];
  }
  if (context.processes->group() > 0) return measured;
  const std::vector<int32_t> prompt = PromptTokens(variants.front().model, settings);
  const int64_t room = model.weights->config.max_positions - std::ssize(prompt);
  const int64_t tokens = std::min(kSpeedTokens, room);
  std::vector<std::vector<double>> speed(variants.size());
  reports.Begin("timing", kSpeedRounds * std::ssize(variants));
  for (int round = 0; round < kSpeedRounds; ++round) {
    for (size_t v = 0; v < variants.size(); ++v) {
      const auto reply = Generate(decoders[v], prompt, tokens, {}, 0, {});
      speed[v].push_back(static_cast<double>(reply.tokens.size() - 1) / reply.decode_seconds);
      reports.Advance(1);
    }
  }
  reports.End();
  for (size_t v = 0; v < variants.size(); ++v) measured[v].tokens_per_second = Median(speed[v]);
  return measured;
}

DriftReport MeasureDrift(std::span<const LanguageModel> models, const HeldOutText& text, uint64_t seed,
                         const Resources& resources, Progress* progress) {
  if (models.empty()) FailUsage(Field("models"), "there is none");
  const std::shared_ptr<const Weights>& weights = models.front().impl().model.weights;
  std::vector<DepthPlan> plans;
  for (const LanguageModel& model : models) {
    RequireSharedWeights(models.front(), model);
    plans.push_back(model.impl().model.plan);
  }
  ProgressOf reports(progress);
  const Context context = MakeContext(resources);
  const auto turn = context.TakeTurn();
  return MeasureDrift(context, weights, plans, DriftBatches(text.tokens, weights->config.max_positions), reports,
                      {.seed = seed});
}

}  // namespace shiftrt
