#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <set>

#include "models/decoder.h"
#include "runtime/check.h"
#include "runtime/files.h"
#include "shift/calibration.h"
#include "shift/criteria.h"
#include "tools/options.h"
#include "tools/table.h"

namespace shiftrt {

namespace {

struct Options {
  CommonOptions common;
  std::vector<std::string> prune;  // criteria, with or without an amount
  std::string calib;
};

void PrintFacts(const Model& model, const Decoder& decoder) {
  const ModelConfig& c = model.weights->config;
  fmt::print("{} ({}): {} of {} layers, hidden {}, intermediate {}, {} heads over {} of keys and values, {} wide\n",
             model.name, c.family, model.plan.blocks(), c.layers, c.hidden, c.intermediate, c.heads, c.kv_heads,
             c.head_dim);
  fmt::print("vocabulary {}, context {}, head {}, {}\n", c.vocab, c.max_positions, c.tied_head ? "tied" : "untied",
             Name(model.weights->embedding.dtype));
  fmt::print("{} parameters, {} read a token\n\n", Scaled(static_cast<double>(decoder.Parameters()), ""),
             Scaled(static_cast<double>(decoder.BytesPerToken()), "B"));
}

void PrintGroups(const Weights& weights) {
  int64_t attention = 0, mlp = 0, norms = 0;
  for (const BlockWeights& block : weights.blocks)
    Weights::ForEachInBlock(block, [&](const std::string& name, const TensorView& tensor) {
      (name.starts_with("self_attn") ? attention : name.starts_with("mlp") ? mlp : norms) += tensor.bytes();
    });
  Table table({"group", "bytes"});
  const auto row = [&](const char* name, int64_t bytes) { table.Add({name, Scaled(static_cast<double>(bytes), "B")}); };
  row("embedding", weights.embedding.bytes());
  row("attention", attention);
  row("mlp", mlp);
  row("norms", norms + weights.final_norm.bytes());
  if (!weights.config.tied_head) row("head", weights.head.bytes());
  fmt::print("{}\n", table.Text());
}

void PrintAdapters(const DepthPlan& plan) {
  Table table({"adapter for", "rank", "parameters"});
  bool any = false;
  for (const Stage& stage : plan.stages) {
    const auto* adapter = std::get_if<AdapterStage>(&stage);
    if (adapter == nullptr) continue;
    any = true;
    table.Add({fmt::format("layers {}", fmt::join(adapter->layers, ",")), std::to_string(adapter->lra->rank()),
               std::to_string(adapter->lra->parameters())});
  }
  if (any) fmt::print("{}\n", table.Text());
}

int Run(const Options& options) {
  const Context context = options.common.MakeContext();
  const Model model = options.common.Open();
  const Decoder decoder(context, model.weights, model.plan);
  PrintFacts(model, decoder);
  PrintGroups(*model.weights);
  PrintAdapters(model.plan);
  if (options.prune.empty()) return 0;

  const int64_t layers = model.weights->config.layers;
  const auto progress = options.common.MakeProgress();
  std::vector<PruneSpec> specs;
  bool needs_text = false;
  for (const std::string& text : options.prune) {
    const size_t colon = text.rfind(':');
    const bool amount = colon != std::string::npos && text.substr(colon + 1) != "token";
    specs.push_back(ParsePrune(amount ? text : text + ":0.25"));
    for (const Criterion& criterion : Criteria())
      needs_text = needs_text || (specs.back().criterion == criterion.name && criterion.needs_calibration);
  }
  CalibrationSet calibration;
  if (needs_text) {
    std::string text = options.calib;
    if (text.empty() && std::filesystem::exists(model.directory / "calibration.txt"))
      text = (model.directory / "calibration.txt").string();
    if (text.empty()) FailUsage("this criterion needs text: give --calib FILE[:samples[xtokens]]");
    CalibrationSpec spec = ParseCalibration(text);
    spec.tokens = std::min(spec.tokens, model.weights->config.max_positions);
    calibration = LoadCalibration(spec, *model.tokenizer, options.common.seed);
  }
  std::vector<Selection> selections;
  std::vector<std::string> header = {"layer"};
  for (const PruneSpec& spec : specs) {
    selections.push_back(
        SelectLayers(spec, {context, model.weights, &calibration.fit, options.common.seed}, *progress));
    header.push_back(spec.criterion);
  }
  Table table(header);
  for (int64_t layer = 0; layer < layers; ++layer) {
    std::vector<std::string> row = {std::to_string(layer)};
    for (const Selection& selection : selections) {
      const bool gone = std::binary_search(selection.removed.begin(), selection.removed.end(), layer);
      row.push_back((selection.scores.empty() ? "" : fmt::format("{:.5g}", selection.scores[layer])) +
                    (gone ? " x" : "  "));
    }
    table.Add(row);
  }
  fmt::print("{}  x: removed\n", table.Text());
  if (!options.common.json.empty()) {
    nlohmann::json json = {{"model", model.name}, {"layers", layers}};
    for (const Selection& s : selections)
      json["selections"].push_back({{"criterion", s.criterion}, {"scores", s.scores}, {"removed", s.removed}});
    AtomicFile file(options.common.json);
    file.Write(json.dump(2) + "\n");
    file.Commit();
  }
  return 0;
}

}  // namespace

Command AddInspect(CLI::App& app) {
  auto options = std::make_shared<Options>();
  options->common.AddTo(app, /*with_json=*/true);
  app.add_option("--prune", options->prune, "criteria, comma separated; an amount (default 0.25) marks what it removes")
      ->delimiter(',');
  app.add_option("--calib", options->calib, "FILE[:samples[xtokens]] for criteria that need text");
  app.footer(
      "Examples:\n  shiftrt inspect --model demo\n  shiftrt inspect --model demo --prune bi,magnitude-l1,reverse*:4");
  return [options] { return Run(*options); };
}

}  // namespace shiftrt
