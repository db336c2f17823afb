// SPDX-License-Identifier: Apache-2.0
#include "models/layouts.h"

#include <algorithm>
#include <set>
#include <system_error>

#include "models/lora.h"
#include "runtime/check.h"
#include "runtime/files.h"
#include "runtime/json.h"
#include "runtime/printable.h"

namespace shiftrt {

namespace {

namespace fs = std::filesystem;

// The names in a directory, in order.
std::set<std::string> NamesIn(const fs::path& directory) {
  std::set<std::string> names;
  std::error_code none;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory, none))
    names.insert(entry.path().filename().string());
  return names;
}

// The first name with this beginning and end, or "".
std::string FirstLike(const std::set<std::string>& names, std::string_view begin, std::string_view end) {
  const auto at = std::find_if(names.begin(), names.end(), [&](const std::string& name) {
    return name.size() >= begin.size() + end.size() && name.starts_with(begin) && name.ends_with(end);
  });
  return at == names.end() ? "" : *at;
}

// The model of which an adapter is, as its configuration names it, or "".
std::string BaseOf(const fs::path& adapter) {
  constexpr uint64_t kMost = 1 << 20;
  try {
    const nlohmann::json config = ParseJson(ReadFile(adapter, kMost), adapter.string());
    const auto base = config.find("base_model_name_or_path");
    return base != config.end() && base->is_string() ? Printable(base->get<std::string>()) : "";
  } catch (const Error&) {  // only the name of the base is lost, and the message is about something else
    return "";
  }
}

constexpr const char* kConvert =
    "convert it to Hugging Face form with the script of transformers for its family, or take the repository that has "
    "the model in that form";

}  // namespace

std::string LayoutWithoutConfig(const fs::path& directory) {
  const std::set<std::string> names = NamesIn(directory);
  if (names.contains(kLoraConfig)) {
    const std::string base = BaseOf(directory / kLoraConfig);
    return fmt::format(
        ". {} has a LoRA adapter of peft and no model: give its base model{} as the model, "
        "and this directory as the adapter",
        directory.string(), base.empty() ? "" : fmt::format(" ({})", base));
  }
  if (names.contains("snapshots")) {
    const std::set<std::string> snapshots = NamesIn(directory / "snapshots");
    if (!snapshots.empty())
      return fmt::format(
          ". {} is the folder of a repository in the cache of the hub: give its name (ORG/NAME), or one of its "
          "snapshots, {}",
          directory.string(), (directory / "snapshots" / *snapshots.begin()).string());
  }
  if (names.contains("params.json"))
    return fmt::format(". {} has a model in the layout of {} (params.json): {}", directory.string(),
                       FirstLike(names, "consolidated", ".safetensors").empty() ? "Meta" : "Mistral", kConvert);
  if (const std::string gguf = FirstLike(names, "", ".gguf"); !gguf.empty())
    return fmt::format(". {} has a GGUF file: give the file itself, {}", directory.string(),
                       (directory / gguf).string());
  for (const std::string& name : names)
    if (Exists(directory / name / "config.json"))
      return fmt::format(". {} has a model one level below: give {}", directory.string(), (directory / name).string());
  return "";
}

std::string LayoutWithoutWeights(const fs::path& directory) {
  const std::set<std::string> names = NamesIn(directory);
  if (const std::string shard = FirstLike(names, "model-", ".safetensors"); !shard.empty())
    return fmt::format(
        "; {} is a shard, and the index that belongs to the shards is missing: download it from "
        "the repository of the model",
        shard);
  if (const std::string variant = FirstLike(names, "model.", ".safetensors"); !variant.empty())
    return fmt::format("; {} is a variant, which is read under the name model.safetensors: rename it or link to it",
                       variant);
  if (const std::string index = FirstLike(names, "model.safetensors.index.", ".json"); !index.empty())
    return fmt::format("; {} is the index of a variant, which is read under the name model.safetensors.index.json",
                       index);
  if (const std::string whole = FirstLike(names, "consolidated", ""); !whole.empty())
    return fmt::format("; {} is in the layout of Mistral or Meta: {}", whole, kConvert);
  for (const char* end : {".bin", ".pth", ".pt"})
    for (const char* begin : {"pytorch_model", "model", "consolidated"})
      if (const std::string pickled = FirstLike(names, begin, end); !pickled.empty())
        return fmt::format(
            "; {} is pickled, which is not read: save the model as safetensors with transformers "
            "(save_pretrained)",
            pickled);
  if (const std::string gguf = FirstLike(names, "", ".gguf"); !gguf.empty())
    return fmt::format("; give the GGUF file itself, {}", (directory / gguf).string());
  if (names.contains(kLoraConfig))
    return "; there is a LoRA adapter of peft: give its base model as the model, and this directory as the adapter";
  return "";
}

}  // namespace shiftrt
