// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <span>
#include <vector>

#include "shiftrt/evaluate.h"
#include "shiftrt/fidelity.h"
#include "tools/fidelity_output.h"
#include "tools/options.h"
#include "tools/originals.h"
#include "tools/pulling.h"
#include "tools/table.h"
#include "tools/texts.h"

namespace shiftrt {

namespace {

struct PplOptions {
  CommonOptions common;
  std::string text, against;
  std::string protocol = "gptq";
  int64_t text_tokens = 0;
};

using Json = nlohmann::json;

// gptq and seq128: windows of the whole text.
Json ByWindow(const PplOptions& options, const LanguageModel& model, const Resources& resources, Progress& progress) {
  const TextPerplexity result =
      MeasurePerplexity(model, options.text, {options.protocol, options.text_tokens}, resources, &progress);
  const std::string part =
      result.tokens == result.all ? "" : fmt::format(", first {} of {} tokens", result.tokens, result.all);
  fmt::print("{} (windows of {}{}): perplexity {:.4f}, mean NLL {:.6f} over {} tokens, {:.0f} tokens/s\n",
             options.protocol, result.window, part, result.perplexity, result.mean_nll, result.predicted,
             static_cast<double>(result.predicted) / result.seconds);
  return {{"model", model.Name()},         {"text", result.text},          {"tokens", result.tokens},
          {"tokens_of_text", result.all},  {"protocol", options.protocol}, {"window", result.window},
          {"predicted", result.predicted}, {"mean_nll", result.mean_nll},  {"perplexity", result.perplexity},
          {"seconds", result.seconds}};
}

// harness: documents from their beginnings, over their own words and bytes.
Json ByDocument(const PplOptions& options, const LanguageModel& model, const Resources& resources, Progress& progress) {
  const SuiteSettings wikitext = {.tasks = "wikitext", .data = {"wikitext=" + FileOfText(options.text)}};
  const SuiteResult result = Evaluate({&model, 1}, wikitext, resources, &progress).front();
  Json json = {{"model", model.Name()},
               {"text", std::filesystem::path(FileOfText(options.text)).filename().string()},
               {"protocol", options.protocol},
               {"documents", result.items},
               {"seconds", result.seconds}};
  fmt::print("{} ({} documents):", options.protocol, result.items);
  for (const SuiteScore& score : result.scores.front()) {
    json[score.metric] = score.value;
    fmt::print(" {} {:.4f}", score.metric, score.value);
  }
  fmt::print("\n");
  return json;
}

// The perplexities of the model and of its original, and how far the model is from it, in one pass.
Json Against(const PplOptions& options, std::span<const ModelVariant> models, const Resources& resources,
             Progress& progress) {
  HeldOutText text = ReadHeldOutText(models.front().model, options.text);
  Limit(options.text_tokens, models.front().model, options.protocol, text);
  const HeldOutText other = ReadHeldOutText(models.back().model, options.text);
  if (text.all != other.all || !std::equal(text.tokens.begin(), text.tokens.end(), other.tokens.begin()))
    FailUsage(
        "{}: the tokenizers of {} and {} read this text differently, so that their predictions cannot be compared "
        "token "
        "by token; --against takes the model that {} was made from",
        options.text, options.against, options.common.model, options.common.model);
  const auto start = std::chrono::steady_clock::now();
  const FidelityTable table{text.Description(),
                            {models.back().name},
                            {models.back().label},
                            MeasureFidelity(models, text, options.protocol, resources, &progress)};
  const Fidelity& found = table.rows.front();
  fmt::print("{}: perplexity {:.4f}, {:.4f} of {}, log ratio {:+.6f}{}\n", options.protocol, found.perplexity,
             found.perplexity_original, options.against, found.log_perplexity_ratio,
             PlusMinus(found.log_perplexity_ratio_error, 6));
  fmt::print("{}", table.Text());
  Json json = FidelityJson(found);
  json.update({{"model", options.common.model},
               {"against", options.against},
               {"text", text.source},
               {"tokens_of_text", text.all},
               {"protocol", options.protocol},
               {"seconds", std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count()}});
  return json;
}

int Run(const PplOptions& options) {
  if (options.protocol == "harness" && options.text_tokens > 0)
    throw UsageError("--text-tokens goes with the protocols gptq and seq128; harness reads whole documents");
  const bool harness = options.protocol == "harness";
  if (harness && !options.against.empty())
    throw UsageError("--against goes with the protocols gptq and seq128; harness has no figures token by token");
  if (options.common.split != 1 && !options.against.empty())
    throw UsageError("--against does not work with --split, where no process has the whole models");
  const Resources resources = options.common.MakeResources();
  std::vector<ModelVariant> models;
  if (options.against.empty()) {
    models.push_back({"model", "model", options.common.OpenLanguageModel()});
  } else {
    models = WithOriginal(options.common, options.against);
  }
  options.common.processes->FirstBeforeOthers(
      [&] { return PullMissingText(options.text, options.common.offline, options.common.quiet); });
  const auto progress = options.common.MakeProgress();
  const LanguageModel& model = models.back().model;
  options.common.WriteJson(harness             ? ByDocument(options, model, resources, *progress)
                           : models.size() > 1 ? Against(options, models, resources, *progress)
                                               : ByWindow(options, model, resources, *progress));
  return 0;
}

}  // namespace

Command AddPpl(CLI::App& app, const std::shared_ptr<Processes>& processes) {
  auto options = std::make_shared<PplOptions>();
  options->common = CommonOptions(processes);
  options->common.AddTo(app);
  options->common.AddLoraTo(app);
  options->common.AddSplitTo(app);
  options->common.AddOutputTo(app);
  app.add_option("--text", options->text,
                 "text file; WikiText (.raw) is split into rows or documents as the protocol asks")
      ->required();
  app.add_option(
         "--protocol", options->protocol,
         "gptq: windows of 2048 tokens; seq128: of 128 tokens (both: at most the model's context); harness: whole\n"
         "documents, per word and per byte")
      ->check(CLI::IsMember({"gptq", "seq128", "harness"}))
      ->capture_default_str();
  app.add_option("--against", options->against,
                 "the original that the model was made from: also how far the model is from it, as llama.cpp's\n"
                 "--kl-divergence says it: KL(original || model) per token, and how often the likeliest token agrees")
      ->type_name("ORIGINAL");
  AddTextTokens(app, options->text_tokens);
  app.footer(
      "Example:\n  shiftrt ppl --model demo --text models/demo/heldout.txt --protocol seq128\n"
      "  shiftrt ppl --model base --lora adapter --text heldout.txt\n"
      "  shiftrt ppl --model out --against qwen2-1.5b --text wiki.test.raw --text-tokens 16384\n"
      "  mpirun -n 4 shiftrt ppl --model Llama-2-70b-hf --text wiki.test.raw --split 4    (docs/scale.md)");
  return [options] { return Run(*options); };
}

}  // namespace shiftrt
