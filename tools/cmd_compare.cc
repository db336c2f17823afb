// SPDX-License-Identifier: Apache-2.0
#include "tools/cmd_compare.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "tools/chat.h"
#include "tools/options.h"
#include "tools/originals.h"
#include "tools/outputs.h"
#include "tools/probes.h"
#include "tools/prompts.h"
#include "tools/replies.h"
#include "tools/report_output.h"
#include "tools/standard_output.h"
#include "tools/table.h"

namespace shiftrt {

namespace {

using Json = nlohmann::json;

struct CompareOptions {
  CommonOptions common;
  bool named = false;  // --model was given
  std::vector<std::string> with;
  PromptChoice prompts;
  ChatOptions chat;
  ReplySettings replies;
  bool probes = false;
  ProbeSettings probing;
  std::string report;
};

// The variants of a model that was saved, its original first.
std::vector<ModelVariant> OfSaved(const CompareOptions& options) {
  const LanguageModel saved = options.common.OpenLanguageModel();
  if (!OriginalWithin(saved) && options.probes) {
    const std::string name = NameOfDirectory(options.common.model);
    return {{name, name, saved}};
  }
  if (!OriginalWithin(saved))
    FailUsage("{} is no model that --save wrote beside its original: name what it is compared with: --with VARIANT",
              options.common.model);
  return SavedVariants(saved);
}

// The original: that of --model, or the one from which the first variant was made.
LanguageModel Original(const CompareOptions& options) {
  if (options.named) return options.common.OpenLanguageModel();
  CommonOptions common = options.common;
  common.model = options.with.front();
  const std::optional<LanguageModel> original = OriginalWithin(common.OpenLanguageModel());
  if (!original)
    FailUsage("{} has no original in its record, or not all of its blocks: name it with --model ORIGINAL",
              options.with.front());
  return *original;
}

std::vector<ModelVariant> ComparedModels(const CompareOptions& options) {
  if (options.with.empty()) return OfSaved(options);
  std::vector<ModelVariant> models = {{"original", "original", Original(options)}};
  for (const std::string& name : options.with) {
    CommonOptions common = options.common;
    common.model = name;
    common.lora.clear();  // it is one of --model
    ModelVariant variant = VariantOf(common, models.front().model);
    for (const ModelVariant& known : models)
      if (known.name == variant.name)
        FailUsage("--with {}: another model is called {}, too; rename the directory", name, variant.name);
    models.push_back(std::move(variant));
  }
  return models;
}

// The models answer the probes.
int Probe(const CompareOptions& options, std::span<const ModelVariant> models, const Resources& resources) {
  const LanguageModel& original = models.front().model;
  ProbeSettings settings = options.probing;
  settings.seed = options.common.seed;
  settings.positions = original.Shape().max_positions;
  for (const ModelVariant& variant : models)
    settings.positions = std::min(settings.positions, variant.model.Shape().max_positions);
  const std::vector<ProbeItems> probes =
      MakeProbes(settings, [&](const std::string& text) { return std::ssize(original.Encode(text)); });
  if (probes.empty())
    FailUsage("{}: its context of {} tokens has no room for a probe", original.Name(), settings.positions);
  const auto progress = options.common.MakeProgress();
  const ProbeResults results = RunProbes(models, probes, options.replies.batch, resources, *progress);
  fmt::print("right answers to synthetic probes, by length\n{}", Table(results.Table()).Text());
  options.common.WriteJson({{"model", original.Name()}, {"seed", settings.seed}, {"probes", results.ToJson()}});
  if (!options.report.empty())
    WriteReport(
        {fmt::format("{}: synthetic probes", original.Name()),
         fmt::format("Exact answers, each after three solved examples but the hidden fact; seed {}.", settings.seed),
         {{"Right answers by probe and length", "", {results.Table()}}}},
        options.report);
  RequireStandardOutput();
  return 0;
}

int Run(CompareOptions options) {
  options.prompts.chat = options.chat.chat;
  options.prompts.system = options.chat.system;
  const Resources resources = options.common.MakeResources();
  const std::vector<ModelVariant> models = ComparedModels(options);
  if (options.probes) return Probe(options, models, resources);
  const std::vector<std::string> texts = options.prompts.Texts(options.common);
  const std::vector<std::vector<int32_t>> ids =
      options.prompts.Encode(models.front().model, texts, options.replies.max_tokens);
  for (size_t m = 1; m < models.size(); ++m)
    for (const std::string& text : texts) CheckReadAlike(models.front(), models[m], text);
  const auto progress = options.common.MakeProgress();
  const ReplyComparison comparison = CompareReplies(models, texts, ids, options.replies, resources, *progress);
  fmt::print("{}", comparison.Text());
  Json json = comparison.ToJson();
  json["model"] = models.front().model.Name();
  json["chat"] = options.chat.chat;
  json["max_tokens"] = options.replies.max_tokens;
  options.common.WriteJson(json);
  if (!options.report.empty())
    WriteReport({fmt::format("{}: replies of its variants", models.front().model.Name()),
                 fmt::format("{} prompts, at most {} tokens for each reply, always the likeliest token.", texts.size(),
                             options.replies.max_tokens),
                 comparison.Sections()},
                options.report);
  RequireStandardOutput();
  return 0;
}

}  // namespace

Command AddCompare(CLI::App& app) {
  auto options = std::make_shared<CompareOptions>();
  options->common.AddTo(app);
  CommonOptions::RefuseSplitIn(app, "compare in one process");
  options->common.AddOutputTo(app);
  app.add_option("--with", options->with,
                 "variants to compare with the original: directories that --save wrote, or any models with its "
                 "tokenizer.\nWithout it, the variants of the saved model that --model names; without --model, the "
                 "original is the one\nthat the first variant was made from")
      ->type_name("VARIANT");
  CLI::Option* const prompt = app.add_option("--prompt", options->prompts.prompt, "text to reply to");
  app.add_option(
         "--prompts", options->prompts.prompts,
         "a file of prompts: a text file with one per line, or .jsonl, .json or .parquet with documents or rows "
         "of\nAlpaca (default: prompts that the program has)")
      ->excludes(prompt);
  app.add_option("--limit", options->prompts.limit, "the first so many prompts (all)")->check(CLI::Range(1, 1 << 30));
  options->chat.AddTo(app);
  app.add_option("--max-tokens", options->replies.max_tokens, "length of a reply in tokens, at most")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  app.add_option("--batch", options->replies.batch, "how many replies are continued together, at most")
      ->check(CLI::Range(1, 1 << 12))
      ->capture_default_str();
  CLI::Option* const probes = app.add_flag(
      "--probes", options->probes,
      "instead of replies: synthetic tasks at several lengths, and how many answers of each model are right: copying\n"
      "words, sorting numbers, sums, closing brackets, and a fact hidden in a long text. One model alone does, too");
  app.add_option("--probe-items", options->probing.items, "items of each probe and length; of the fact, a quarter")
      ->check(CLI::Range(1, 1 << 20))
      ->needs(probes)
      ->capture_default_str();
  app.add_option("--probe-tokens", options->probing.tokens,
                 "tokens of the longest text with a fact; it begins with 256 and doubles, up to the model's context")
      ->check(CLI::Range(256, 1 << 20))
      ->needs(probes)
      ->capture_default_str();
  for (const char* option : {"--prompt", "--prompts", "--limit", "--chat", "--max-tokens"})
    probes->excludes(app.get_option(option));
  options->common.AddSeedTo(app, "the items of --probes");
  AddReport(app, options->report, "write an HTML page with the replies beside each other to this directory");
  app.footer(
      "Replies are greedy. Each variant also reads the original's reply: how often its likeliest token is that of the\n"
      "original, and KL(original || variant) per token.\n\n"
      "Examples:\n  shiftrt compare --model qwen2-1.5b --with out --chat\n"
      "  shiftrt compare --with pruned repaired --prompts questions.txt --chat --report page\n"
      "  shiftrt compare --model out --prompt \"It is a truth\" --max-tokens 40 --json replies.json\n"
      "  shiftrt compare --model qwen2-1.5b --with out --probes --probe-tokens 8192");
  return [options, &app] {
    options->named = app.count("--model") > 0;
    return Run(*options);
  };
}

}  // namespace shiftrt
