// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "shiftrt/evaluate.h"
#include "tools/options.h"
#include "tools/pulling.h"
#include "tools/texts.h"

namespace shiftrt {

namespace {

struct PplOptions {
  CommonOptions common;
  std::string text;
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

int Run(const PplOptions& options) {
  if (options.protocol == "harness" && options.text_tokens > 0)
    throw UsageError("--text-tokens goes with the protocols gptq and seq128; harness reads whole documents");
  const Resources resources = options.common.MakeResources();
  const LanguageModel model = options.common.OpenLanguageModel();
  options.common.processes->FirstBeforeOthers(
      [&] { return PullMissingText(options.text, options.common.offline, options.common.quiet); });
  const auto progress = options.common.MakeProgress();
  options.common.WriteJson(options.protocol == "harness" ? ByDocument(options, model, resources, *progress)
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
  options->common.AddQuietTo(app);
  options->common.AddJsonTo(app);
  app.add_option("--text", options->text,
                 "text file; WikiText (.raw) is split into rows or documents as the protocol asks")
      ->required();
  app.add_option(
         "--protocol", options->protocol,
         "gptq: windows of 2048 tokens; seq128: of 128 tokens (both: at most the model's context); harness: whole\n"
         "documents, per word and per byte")
      ->check(CLI::IsMember({"gptq", "seq128", "harness"}))
      ->capture_default_str();
  AddTextTokens(app, options->text_tokens);
  app.footer(
      "Example:\n  shiftrt ppl --model demo --text models/demo/heldout.txt --protocol seq128\n"
      "  shiftrt ppl --model base --lora adapter --text heldout.txt\n"
      "  mpirun -n 4 shiftrt ppl --model Llama-2-70b-hf --text wiki.test.raw --split 4    (docs/scale.md)");
  return [options] { return Run(*options); };
}

}  // namespace shiftrt
