// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <algorithm>
#include <nlohmann/json.hpp>

#include "shiftrt/inspect.h"
#include "tools/gpus.h"
#include "tools/options.h"
#include "tools/selection.h"
#include "tools/standard_output.h"
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

// Tensors in place of the model's, such as "block 3 (mlp.down_proj)".
std::vector<std::string> OwnNames(const ModelDescription& description) {
  std::vector<std::string> names;
  for (const auto& [layer, tensors] : description.own)
    names.push_back(fmt::format("block {} ({})", layer, fmt::join(tensors, ", ")));
  if (description.own_norm) names.emplace_back("final norm");
  if (description.own_head) names.emplace_back("head");
  return names;
}

void PrintFacts(const LanguageModel& model, const ModelDescription& d) {
  const ModelShape shape = model.Shape();
  fmt::print(
      "{} ({}): {} of {} layers, hidden {}, intermediate {}, {} attention heads, {} key-value heads, head_dim {}\n",
      model.Name(), d.family, model.Blocks(), model.Blocks() + std::ssize(d.removed), shape.hidden, d.intermediate,
      d.heads, d.kv_heads, d.head_dim);
  if (d.mixture)
    fmt::print(
        "{} layers have {} experts of {} units, of which {} are active{}: {} active parameters\n", d.mixture->layers,
        d.mixture->experts, d.mixture->units, d.mixture->active,
        d.mixture->shared_units > 0 ? fmt::format(", and a shared expert of {} units", d.mixture->shared_units) : "",
        Scaled(static_cast<double>(d.active_parameters), ""));
  if (!d.removed.empty()) fmt::print("layers removed: {}\n", fmt::join(d.removed, ", "));
  if (d.recurrent > 0)
    fmt::print("{} of the {} blocks have {} instead of attention\n", d.recurrent, model.Blocks(), d.mixers);
  std::vector<std::string> halves;
  for (const BlockPart& half : d.half_blocks) halves.push_back(fmt::format("{} ({})", half.layer, Name(half.halves)));
  if (!halves.empty()) fmt::print("half blocks, with the half that runs: {}\n", fmt::join(halves, ", "));
  const std::vector<std::string> own = OwnNames(d);
  if (!own.empty()) fmt::print("tensors in place of the model's: {}\n", fmt::join(own, ", "));
  if (d.lora)
    fmt::print("LoRA of rank {} and alpha {} for {} projections, merged into them\n", d.lora->rank, d.lora->alpha,
               d.lora->projections);
  fmt::print("vocabulary {}, context {}, head {}, {}\n", shape.vocabulary, shape.max_positions,
             d.tied_head ? "tied" : "untied", model.WeightTypeName());
  fmt::print("{} parameters, {} read per token\n\n", Scaled(static_cast<double>(model.Parameters()), ""),
             Scaled(static_cast<double>(model.BytesPerToken()), "B"));
}

void PrintGroups(const ModelDescription& description) {
  const auto& [embedding, attention, mlp, norms, head] = description.bytes;
  Table table({"group", "bytes"});
  const auto row = [&](const char* name, int64_t bytes) { table.Add({name, Scaled(static_cast<double>(bytes), "B")}); };
  row("embedding", embedding);
  row("attention", attention);
  row("mlp", mlp);
  row("norms", norms);
  if (!description.tied_head) row("head", head);
  fmt::print("{}\n", table.Text());
}

void PrintStored(const std::vector<StoredType>& types) {
  Table table({"stored as", "tensors", "bytes"});
  for (const auto& [name, tensors, bytes] : types)
    table.Add({name, std::to_string(tensors), Scaled(static_cast<double>(bytes), "B")});
  fmt::print("{}\n", table.Text());
}

void PrintAdapters(const std::vector<AdapterDescription>& adapters) {
  Table table({"adapter for layers", "rank", "parameters"});
  for (const auto& [parts, rank, parameters] : adapters)
    table.Add({Names(parts, ","), std::to_string(rank), std::to_string(parameters)});
  if (!adapters.empty()) fmt::print("{}\n", table.Text());
}

// The facts that the tables above show.
nlohmann::json ModelJson(const LanguageModel& model, const ModelDescription& d) {
  const ModelShape shape = model.Shape();
  nlohmann::json json = {{"model", model.Name()},
                         {"family", d.family},
                         {"layers", shape.layers},
                         {"blocks", model.Blocks()},
                         {"removed", d.removed},
                         {"hidden", shape.hidden},
                         {"intermediate", d.intermediate},
                         {"heads", d.heads},
                         {"kv_heads", d.kv_heads},
                         {"head_dim", d.head_dim},
                         {"recurrent", d.recurrent},
                         {"vocabulary", shape.vocabulary},
                         {"context", shape.max_positions},
                         {"tied_head", d.tied_head},
                         {"dtype", model.WeightTypeName()},
                         {"parameters", model.Parameters()},
                         {"bytes", model.BytesPerToken()},
                         {"bytes_by_group",
                          {{"embedding", d.bytes.embedding},
                           {"attention", d.bytes.attention},
                           {"mlp", d.bytes.mlp},
                           {"norms", d.bytes.norms},
                           {"head", d.bytes.head}}},
                         {"stored", nlohmann::json::array()},
                         {"half_blocks", nlohmann::json::array()},
                         {"own", OwnNames(d)},
                         {"adapters", nlohmann::json::array()}};
  for (const auto& [type, tensors, bytes] : d.stored)
    json["stored"].push_back({{"type", type}, {"tensors", tensors}, {"bytes", bytes}});
  for (const BlockPart& half : d.half_blocks)
    json["half_blocks"].push_back({{"layer", half.layer}, {"runs", Name(half.halves)}});
  for (const auto& [parts, rank, parameters] : d.adapters)
    json["adapters"].push_back({{"layers", Names(parts, ",")}, {"rank", rank}, {"parameters", parameters}});
  if (d.mixture)
    json["mixture"] = {{"layers", d.mixture->layers},
                       {"experts", d.mixture->experts},
                       {"active", d.mixture->active},
                       {"units", d.mixture->units},
                       {"shared_units", d.mixture->shared_units},
                       {"active_parameters", d.active_parameters}};
  if (d.lora) json["lora"] = {{"rank", d.lora->rank}, {"alpha", d.lora->alpha}, {"projections", d.lora->projections}};
  return json;
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
  for (int64_t i = 0; i < (halves ? 2 * layers : layers); ++i) {
    const BlockPart part = halves ? BlockPart::At(i) : BlockPart(i);
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
  for (const auto& [architecture, name, since, models] : SupportedFamilies())
    table.Add({architecture, name, since, models});
  return table.Text();
}

// Says why no text can be read, if none can. The rest of what `inspect` shows does not need the tokenizer.
void TellOfTokenizer(const LanguageModel& model) {
  try {
    model.Encode("");
  } catch (const Error& error) {
    Tell(error.what());
  }
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
  const Resources resources = options.common.MakeResources();
  const LanguageModel model = options.common.OpenLanguageModel();
  const ModelDescription description = Describe(model);
  PrintFacts(model, description);
  PrintGroups(description);
  PrintStored(description.stored);
  PrintAdapters(description.adapters);
  if (options.common.processes->first()) TellOfTokenizer(model);
  nlohmann::json json = ModelJson(model, description);
  if (!specs.empty()) {
    const CalibrationSpec text =
        ReadsText(specs) ? CalibrationFor(options.calib, model, options.common) : CalibrationSpec();
    const auto progress = options.common.MakeProgress();
    const std::vector<Selection> selections =
        ScoreLayers(model, specs, text, options.common.seed, resources, progress.get());
    PrintScores(selections, model.Shape().layers);
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
  options->common.AddOutputTo(app);
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
