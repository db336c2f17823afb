// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <chrono>
#include <nlohmann/json.hpp>

#include "eval/evaluate.h"
#include "eval/metrics.h"
#include "eval/perplexity.h"
#include "runtime/check.h"
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
Json ByWindow(const PplOptions& options, const Context& context, const Model& model, Progress& progress) {
  const int64_t window = ProtocolWindow(options.protocol, model.weights->config);
  options.common.processes->FirstBeforeOthers(
      [&] { return PullMissingText(options.text, options.common.offline, options.common.quiet); });
  HeldOutText text = ReadHeldOut(options.text, model);
  text.Limit(options.text_tokens, window);
  Decoder decoder(context, model.weights, model.plan);
  const auto start = std::chrono::steady_clock::now();
  const PerplexityResult result = WindowedPerplexity(decoder, text.tokens, window, options.protocol, progress);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  const std::string part = text.Part().empty() ? "" : ", " + text.Part();
  fmt::print("{} (windows of {}{}): perplexity {:.4f}, mean NLL {:.6f} over {} tokens, {:.0f} tokens/s\n",
             result.protocol, result.window, part, result.perplexity, result.mean_nll, result.predicted,
             static_cast<double>(result.predicted) / seconds);
  return {{"model", model.name},         {"protocol", result.protocol},
          {"window", result.window},     {"predicted", result.predicted},
          {"mean_nll", result.mean_nll}, {"perplexity", result.perplexity},
          {"seconds", seconds}};
}

// harness: documents from their beginnings, over their own words and bytes.
Json ByDocument(const PplOptions& options, const Context& context, const Model& model, Progress& progress) {
  const Task& task = *ParseTasks("wikitext")[0];
  const Dataset dataset = LoadDataset(task, {.data = {task.name + "=" + options.text}});
  Journal none("");
  const std::vector<Variant> variants = {{VariantKind::kOriginal, "model", "model", model.plan}};
  const EvalScores scores = Evaluate({context, model, variants, {}, none, progress}, dataset);
  Json json = {{"model", model.name},
               {"protocol", options.protocol},
               {"documents", dataset.items.size()},
               {"seconds", scores.seconds}};
  fmt::print("{} ({} documents):", options.protocol, dataset.items.size());
  for (const Metric& metric : Measure(task, dataset.items, scores.scores[0], /*all=*/false)) {
    json[metric.name] = metric.estimate.value;
    fmt::print(" {} {:.4f}", metric.name, metric.estimate.value);
  }
  fmt::print("\n");
  return json;
}

int Run(const PplOptions& options) {
  if (options.protocol == "harness" && options.text_tokens > 0)
    FailUsage("--text-tokens goes with the protocols gptq and seq128; harness reads whole documents");
  const Context context = options.common.MakeContext();
  const Model model = options.common.Open();
  const auto progress = options.common.MakeProgress();
  const Json json = options.protocol == "harness" ? ByDocument(options, context, model, *progress)
                                                  : ByWindow(options, context, model, *progress);
  options.common.WriteJson(json);
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
