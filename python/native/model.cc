// SPDX-License-Identifier: Apache-2.0
// Binds models: how they are opened, what they say of themselves, and how they are saved, exported and downloaded.
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "python/native/common.h"

namespace shiftrt::python {

namespace {

namespace fs = std::filesystem;

WeightType WeightTypeOf(const std::string& name) {
  const std::map<std::string, WeightType> types = {{"as-stored", WeightType::kAsStored},
                                                   {"expanded", WeightType::kExpanded},
                                                   {"float32", WeightType::kFloat32},
                                                   {"float16", WeightType::kFloat16},
                                                   {"bfloat16", WeightType::kBFloat16}};
  const auto found = types.find(name);
  if (found == types.end())
    throw UsageError("weights", "\"" + name + "\" is none of as-stored, expanded, float32, float16 and bfloat16");
  return found->second;
}

LanguageModel Open(const std::string& name, const std::string& weights, bool check_finite, const fs::path& lora,
                   nb::object progress) {
  Reports reports(std::move(progress));
  return Released([&] {
    return LanguageModel::Open(name, {.weights = WeightTypeOf(weights),
                                      .check_finite = check_finite,
                                      .lora = lora,
                                      .processes = {},
                                      .progress = &reports});
  });
}

// The model without parts that are named as "3", "3.attn" or "3.mlp".
LanguageModel Without(const LanguageModel& model, const std::vector<std::string>& names) {
  std::vector<BlockPart> parts;
  parts.reserve(names.size());
  for (const std::string& name : names) {
    const std::optional<BlockPart> part = ParseBlockPart(name);
    if (!part) throw UsageError("parts", "\"" + name + "\" is no block or half of one, such as 3, 3.attn or 3.mlp");
    parts.push_back(*part);
  }
  return model.Without(parts);
}

std::optional<std::string> ProvenanceJson(const LanguageModel& model) {
  return model.MadeBy() == nullptr ? std::nullopt : std::optional(ToJson(*model.MadeBy()));
}

std::vector<int32_t> EncodedChat(const LanguageModel& model,
                                 const std::vector<std::pair<std::string, std::string>>& messages) {
  std::vector<ChatMessage> conversation;
  conversation.reserve(messages.size());
  for (const auto& [role, content] : messages) conversation.push_back({role, content});
  return Released([&] { return EncodeChat(model, conversation); });
}

std::vector<std::string> ExportModel(const LanguageModel& model, const fs::path& output, const std::string& format,
                                     int64_t shard_bytes, bool q8_0, const std::string& base_name,
                                     const Resources& resources, nb::object progress) {
  Reports reports(std::move(progress));
  return Released([&] {
    return Export(model, output, {.format = format, .shard_bytes = shard_bytes, .q8_0 = q8_0, .base_name = base_name},
                  resources, &reports);
  });
}

// The names and the directories of the repositories.
std::vector<std::pair<std::string, std::string>> PullAll(const std::string& name, bool dataset,
                                                         const std::vector<std::string>& include,
                                                         const std::vector<std::string>& exclude, bool verify) {
  PullObserver observer;
  observer.progress = [](std::span<const FileProgress>) {
    const nb::gil_scoped_acquire acquire;
    HandleSignals();
  };
  return Released([&] {
    const PullSettings settings = {
        .name = name, .dataset = dataset, .revision = {}, .include = include, .exclude = exclude, .verify = verify};
    std::vector<std::pair<std::string, std::string>> pulled;
    for (const PulledRepository& repository : Pull(settings, observer))
      pulled.emplace_back(repository.name, repository.directory.string());
    return pulled;
  });
}

}  // namespace

void AddModel(nb::module_& module) {
  nb::class_<LanguageModel>(module, "LanguageModel", "A handle of shared weights, a tokenizer and a depth plan.")
      .def_prop_ro("name", &LanguageModel::Name, "The name under which the model was opened.")
      .def_prop_ro(
          "directory", [](const LanguageModel& model) { return model.Directory().string(); },
          "The directory of the original model, or its GGUF file.")
      .def_prop_ro(
          "shape",
          [](const LanguageModel& model) {
            const ModelShape shape = model.Shape();
            return std::tuple(shape.layers, shape.hidden, shape.vocabulary, shape.max_positions);
          },
          "(layers, hidden, vocabulary, max_positions) of the original model.")
      .def_prop_ro("removed_layers", &LanguageModel::RemovedLayers, "Layers of which nothing runs, ascending.")
      .def_prop_ro("blocks", &LanguageModel::Blocks, "Blocks of which at least one half runs.")
      .def_prop_ro("adapters", &LanguageModel::Adapters, "Adapters that run.")
      .def_prop_ro("parameters", &LanguageModel::Parameters, "Parameters as the model runs, adapters included.")
      .def_prop_ro("bytes_per_token", &LanguageModel::BytesPerToken, "Bytes that decoding one token reads.")
      .def("provenance", &ProvenanceJson, "How the model was made, as JSON; None for an original model.")
      .def(
          "encode",
          [](const LanguageModel& model, std::string_view text) {
            return Released([&] { return model.Encode(text); });
          },
          "text"_a, "Token ids of a text.")
      .def("encode_chat", &EncodedChat, "messages"_a,
           "Token ids of a conversation of (role, content) pairs, up to where the model's reply begins.")
      .def(
          "decode",
          [](const LanguageModel& model, const Tokens& tokens) {
            return Released([&] { return model.Decode(View(tokens)); });
          },
          "tokens"_a, "The text of token ids, without special tokens.")
      .def("without", &Without, "parts"_a, "The same weights without some blocks or halves, and without adapters.")
      .def("save", &LanguageModel::Save, "directory"_a, "with_weights"_a, "merge_lora"_a,
           nb::call_guard<nb::gil_scoped_release>(), "Writes the plan and what it changes.");
  module.def("open", &Open, "name"_a, "weights"_a, "check_finite"_a, "lora"_a, "progress"_a.none(), "Opens a model.");
  module.def("export", &ExportModel, "model"_a, "output"_a, "format"_a, "shard_bytes"_a, "q8_0"_a, "base_name"_a,
             "resources"_a, "progress"_a.none(), "Writes a model for other programs; returns notes.");
  module.def(
      "export_formats",
      [] {
        std::vector<std::pair<std::string, std::string>> formats;
        for (const ExportFormatName& format : ExportFormatNames()) formats.emplace_back(format.name, format.summary);
        return formats;
      },
      "(name, summary) of each format.");
  module.def("pull", &PullAll, "name"_a, "dataset"_a, "include"_a, "exclude"_a, "verify"_a,
             "Downloads from the Hugging Face hub: (repository, directory) each.");
}

}  // namespace shiftrt::python
