// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <algorithm>
#include <nlohmann/json.hpp>

#include "api/impl.h"
#include "engine/decoder.h"
#include "models/block_tensors.h"
#include "models/families.h"
#include "models/part_json.h"
#include "runtime/check.h"
#include "shift/criteria/criteria.h"
#include "tools/gpus.h"
#include "tools/options.h"
#include "tools/selection.h"
#include "tools/table.h"
#include "tools/texts.h"

namespace shiftrt {

namespace {

struct InspectOptions {
  CommonOptions common;
  std::string prune;  // criteria, with or without an amount
  std::string calib;
  bool table = false;  // print the table of options that go together
  bool devices = false;
  bool families = false;
};

// "block 3 (mlp.down_proj)": tensors that the plan runs instead of those of the model.
std::vector<std::string> TensorsOfItsOwn(const Model& model) {
  const Weights& weights = *model.weights;
  std::vector<std::string> own;
  for (const BlockStage* block : model.plan.Blocks()) {
    std::vector<std::string_view> changed;
    ForEachTensor(TensorsOf(weights, *block), block->halves, [&](const BlockTensor& row, const TensorView& tensor) {
      const std::string_view name = row.name;
      if (tensor.data != (weights.blocks[block->layer].*row.member).data)
        changed.push_back(name.substr(0, name.rfind(".weight")));
    });
    if (!changed.empty()) own.push_back(fmt::format("block {} ({})", block->layer, fmt::join(changed, ", ")));
  }
  const auto [final_norm, head, final_norm_bias] = model.plan.Output(weights);
  if (final_norm.data != weights.final_norm.data || final_norm_bias.data != weights.final_norm_bias.data)
    own.emplace_back("final norm");
  if (head.data != weights.head.data) own.emplace_back("head");
  return own;
}

void PrintFacts(const Model& model, const Decoder& decoder) {
  const ModelConfig& c = model.weights->config;
  const int64_t blocks = model.plan.blocks(), layers = blocks + static_cast<int64_t>(model.removed.size());
  fmt::print(
      "{} ({}): {} of {} layers, hidden {}, intermediate {}, {} attention heads, {} key-value heads, head_dim {}\n",
      model.name, c.family, blocks, layers, c.hidden, c.intermediate, c.heads, c.kv_heads, c.head_dim);
  if (!model.removed.empty()) fmt::print("layers removed: {}\n", fmt::join(model.removed, ", "));
  std::vector<std::string> halves;
  for (const BlockStage* block : model.plan.Blocks())
    if (block->halves != Halves::kBoth) halves.push_back(fmt::format("{} ({})", block->layer, Name(block->halves)));
  if (!halves.empty()) fmt::print("half blocks, with the half that runs: {}\n", fmt::join(halves, ", "));
  const std::vector<std::string> own = TensorsOfItsOwn(model);
  if (!own.empty()) fmt::print("tensors in place of the model's: {}\n", fmt::join(own, ", "));
  if (model.lora)
    fmt::print("LoRA of rank {} and alpha {} for {} projections, merged into them\n", model.lora->rank,
               model.lora->alpha, model.lora->factors.size());
  fmt::print("vocabulary {}, context {}, head {}, {}\n", c.vocab, c.max_positions,
             model.plan.TiedHead(*model.weights) ? "tied" : "untied", Name(model.weights->embedding.dtype));
  fmt::print("{} parameters, {} read per token\n\n", Scaled(static_cast<double>(decoder.Parameters()), ""),
             Scaled(static_cast<double>(decoder.BytesPerToken()), "B"));
}

// The bytes of the blocks that run, and of embedding, norms and head.
void PrintGroups(const Model& model) {
  const Weights& weights = *model.weights;
  const OutputWeights output = model.plan.Output(weights);
  int64_t attention = 0, mlp = 0, norms = output.final_norm.bytes();
  if (!output.final_norm_bias.empty()) norms += output.final_norm_bias.bytes();
  for (const BlockStage* block : model.plan.Blocks())
    ForEachTensor(TensorsOf(weights, *block), block->halves, [&](const BlockTensor& row, const TensorView& tensor) {
      const bool norm =
          std::string_view(row.name).find("norm.") != std::string_view::npos && row.output == Axis::kHidden;
      (norm ? norms : row.half == Halves::kMlp ? mlp : attention) += tensor.bytes();
    });
  Table table({"group", "bytes"});
  const auto row = [&](const char* name, int64_t bytes) { table.Add({name, Scaled(static_cast<double>(bytes), "B")}); };
  row("embedding", weights.embedding.bytes());
  row("attention", attention);
  row("mlp", mlp);
  row("norms", norms);
  if (!model.plan.TiedHead(weights)) row("head", output.head.bytes());
  fmt::print("{}\n", table.Text());
}

void PrintAdapters(const DepthPlan& plan) {
  Table table({"adapter for", "rank", "parameters"});
  for (const AdapterStage* adapter : plan.Adapters())
    table.Add({fmt::format("layers {}", Names(adapter->parts, ",")), std::to_string(adapter->lra->rank()),
               std::to_string(adapter->lra->parameters())});
  if (!plan.Adapters().empty()) fmt::print("{}\n", table.Text());
}

// Criterion and number of units of each selection.
std::vector<std::string> Labels(const std::vector<Selection>& selections) {
  std::vector<std::string> labels;
  labels.reserve(selections.size());
  for (const Selection& s : selections)
    labels.push_back(fmt::format("{}:{}{}", s.criterion, UnitsRemoved(s), s.unit == Unit::kHalf ? " halves" : ""));
  return labels;
}

// A row per block, or per half where halves are scored or removed; the score of a block is in the row of its first
// half.
void PrintScores(const std::vector<Selection>& selections, int64_t layers) {
  std::vector<std::string> header = {"layer"};
  for (const std::string& label : Labels(selections)) header.push_back(label);
  Table table(header);
  const bool halves = std::any_of(selections.begin(), selections.end(),
                                  [](const Selection& selection) { return selection.unit == Unit::kHalf; });
  const Unit rows = halves ? Unit::kHalf : Unit::kBlock;
  for (int64_t i = 0; i < UnitsOf(rows, layers); ++i) {
    const BlockPart part = PartOf(rows, i);
    std::vector<std::string> row = {Name(part)};
    for (const Selection& selection : selections) {
      const bool of_block = halves && selection.unit == Unit::kBlock;
      const std::string score = !of_block    ? ScoreText(selection, i)
                                : i % 2 == 0 ? ScoreText(selection, part.layer)
                                             : "";
      row.push_back(score + (Removes(selection, part) ? " x" : "  "));
    }
    table.Add(row);
  }
  fmt::print("{}  x: removed; the score of consecutive {} is in the row of the first\n\n", table.Text(),
             halves ? "halves, and of a block," : "layers");
}

// In layers; a half counts as half a layer.
double Overlap(const Selection& a, const Selection& b) {
  int64_t places = 0;
  for (const BlockPart& x : a.removed)
    for (const BlockPart& y : b.removed)
      places += std::max<int64_t>(0, std::min(x.end(), y.end()) - std::max(x.begin(), y.begin()));
  return static_cast<double>(places) / 2;
}

void PrintSets(const std::vector<Selection>& selections) {
  const std::vector<std::string> labels = Labels(selections);
  for (size_t i = 0; i < selections.size(); ++i) fmt::print("{} removes {}\n", labels[i], Names(selections[i].removed));
  if (selections.size() < 2) return;
  std::vector<std::string> header = {"layers in common"};
  header.insert(header.end(), labels.begin(), labels.end());
  Table table(header);
  for (size_t i = 0; i < selections.size(); ++i) {
    std::vector<std::string> row = {labels[i]};
    for (const Selection& other : selections) row.push_back(fmt::format("{:g}", Overlap(selections[i], other)));
    table.Add(row);
  }
  fmt::print("\n{}", table.Text());
}

std::string FamiliesTable() {
  Table table({"architecture", "family", "since", "models"});
  for (const Family& family : Families()) table.Add({family.architecture, family.name, family.since, family.models});
  return table.Text();
}

nlohmann::json SelectionsJson(const std::vector<Selection>& selections) {
  nlohmann::json json = nlohmann::json::array();
  for (const Selection& s : selections) {
    std::vector<double> overlap;
    overlap.reserve(selections.size());
    for (const Selection& other : selections) overlap.push_back(Overlap(s, other));
    json.push_back({{"criterion", s.criterion},
                    {"scores", s.scores},
                    {"removed", s.removed},
                    {"window", s.window},
                    {"unit", Name(s.unit)},
                    {"overlap", overlap}});
  }
  return json;
}

int Run(const InspectOptions& options) {
  if (options.table) {
    fmt::print("{}", OptionsTable());
    return 0;
  }
  if (options.devices) {
    fmt::print("{}", DeviceLines());
    return 0;
  }
  if (options.families) {
    fmt::print("{}", FamiliesTable());
    return 0;
  }
  std::vector<PruneSpec> specs;
  if (!options.prune.empty()) specs = ParsePruneList(options.prune, "0.25");
  const Context context = options.common.MakeContext();
  const LanguageModel opened = options.common.OpenLanguageModel();
  const Model& model = opened.impl().model;
  const Decoder decoder(context, model.weights, model.plan);
  PrintFacts(model, decoder);
  PrintGroups(model);
  PrintAdapters(model.plan);
  const int64_t layers = model.weights->config.layers;
  nlohmann::json json = {{"model", model.name},
                         {"layers", layers},
                         {"parameters", decoder.Parameters()},
                         {"bytes", decoder.BytesPerToken()}};
  if (!specs.empty()) {
    CalibrationSet calibration;
    if (NeedCalibration(specs))
      calibration = LoadCalibration(CalibrationFor(options.calib, opened, options.common), model.RequireTokenizer(),
                                    options.common.seed, CalibrationBatchTokens(context.device));
    const auto progress = options.common.MakeProgress();
    const std::vector<Selection> selections =
        SelectLayers(specs, {context, model.weights, &calibration.fit, options.common.seed}, *progress);
    PrintScores(selections, layers);
    PrintSets(selections);
    json["selections"] = SelectionsJson(selections);
  }
  options.common.WriteJson(json);
  return 0;
}

}  // namespace

Command AddInspect(CLI::App& app) {
  auto options = std::make_shared<InspectOptions>();
  options->common.AddTo(app);
  options->common.AddLoraTo(app);
  options->common.AddQuietTo(app);
  options->common.AddJsonTo(app);
  CLI::Option* const prune =
      app.add_option("--prune", options->prune,
                     "criteria, as in run; comma-separated list. Without an amount a quarter of the layers is removed");
  app.add_option("--calib", options->calib, "calibration text for criteria that need one, as in run");
  options->common.AddSeedTo(app, "calibration samples and random selection");
  options->common.AddMemoryTo(app);
  for (const char* name : {"--calib", "--seed", "--memory"}) app.get_option(name)->needs(prune);
  prune->excludes(app.get_option("--lora"));
  app.add_flag(
      "--options", options->table,
      "print which criteria, corrections and other options each option of run goes with, and nothing of a model");
  app.add_flag("--devices", options->devices,
               "print the CPU and the GPUs that --device can name, or why there is no GPU, and nothing of a model");
  app.add_flag("--families", options->families,
               "print the model families that this program runs, the name of each in config.json, and since which\n"
               "version, and nothing of a model");
  app.footer("Criteria:" + CriteriaHelp() +
             "\n\nExamples:\n  shiftrt inspect --model demo\n"
             "  shiftrt inspect --model demo --prune bi,angular:4,ppl,tokens=8192,reverse*:4,keep=first:2\n"
             "  shiftrt inspect --model demo --prune bi,angular,taylor,tokens=4096\n"
             "  shiftrt inspect --model demo --prune bi:0.25,bi:0.25,unit=half");
  return [options] { return Run(*options); };
}

}  // namespace shiftrt
