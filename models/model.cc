// SPDX-License-Identifier: Apache-2.0
#include "models/model.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>

#include "hub/names.h"
#include "hub/settings.h"
#include "models/adapted.h"
#include "models/gguf_layers.h"
#include "models/hf_lra.h"
#include "models/layouts.h"
#include "runtime/check.h"
#include "runtime/files.h"
#include "runtime/gguf.h"

namespace shiftrt {

namespace {

namespace fs = std::filesystem;

// A variable of the environment, or "".
std::string Environment(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

bool HoldsModel(const fs::path& directory) {
  return Exists(directory / "config.json") || Exists(directory / kAdaptedFile);
}

// True if all files of a snapshot are there; a pull may have been interrupted.
bool IsWhole(const fs::path& snapshot) {
  return (Exists(snapshot / kAdaptedFile) ? MissingOfSaved(snapshot) : MissingOfModel(snapshot)).empty();
}

// The first of `places` that holds a model; otherwise throws Error listing them, with the advice.
fs::path FirstOf(const std::string& name, const std::vector<fs::path>& places, const std::string& advice = "") {
  std::string looked;
  for (const fs::path& place : places) {
    if (HoldsModel(place)) return place;
    looked += "\n  " + place.string();
  }
  const auto layout = [&]() -> std::string {
    for (const fs::path& place : places)
      if (std::string found = LayoutWithoutConfig(place); !found.empty()) return found;
    return "";
  };
  Fail("model {} was not found; looked at:{}{}{}", name, looked, advice, layout());
}

std::vector<fs::path> DemoPlaces() {
  std::vector<fs::path> places;
  if (const auto demo = Environment("SHIFTRT_DEMO"); !demo.empty()) places.emplace_back(demo);
  places.emplace_back(fs::path(SHIFTRT_SOURCE_DIR) / "models/demo");
  places.emplace_back(fs::path(SHIFTRT_DATA_DIR) / "demo");
  // An installation may have been moved, or installed with another prefix than it was configured for.
  std::error_code none;
  if (const fs::path program = fs::read_symlink("/proc/self/exe", none); !program.empty())
    places.push_back(program.parent_path().parent_path() / "share/shiftrt/demo");
  return places;
}

// The directories in which a repository may be: DIR/name and DIR/<last part of name> for each DIR of SHIFTRT_MODELS,
// then every snapshot in the hub's cache. Whole snapshots come first, and among those the one of the revision asked
// for.
std::vector<fs::path> RepositoryPlaces(const std::string& name, const Repository& repository) {
  std::vector<fs::path> places;
  const std::string roots = Environment("SHIFTRT_MODELS");
  for (size_t begin = 0; begin < roots.size();) {
    const size_t end = std::min(roots.find(':', begin), roots.size());
    const fs::path root = roots.substr(begin, end - begin);
    begin = end + 1;
    places.push_back(root / name);
    places.push_back(root / repository.id.substr(repository.id.find('/') + 1));
  }
  const fs::path cache = HuggingFaceCache();
  std::vector<fs::path> snapshots = Snapshots(repository, cache);
  if (repository.revision != "main") snapshots = {FindSnapshot(repository, cache)};
  std::stable_partition(snapshots.begin(), snapshots.end(), IsWhole);
  places.insert(places.end(), snapshots.begin(), snapshots.end());
  if (snapshots.empty()) places.push_back(cache / repository.Folder());
  return places;
}

}  // namespace

fs::path ResolveModel(const std::string& name) {
  if (IsGguf(name)) return name;
  if (IsDirectory(name)) {
    if (!HoldsModel(name))
      Fail("model {}: the directory has neither config.json nor {}{}", name, kAdaptedFile, LayoutWithoutConfig(name));
    return name;
  }
  if (name == "demo") return FirstOf(name, DemoPlaces());
  if (const auto repository = RepositoryOfModel(name))
    return FirstOf(name, RepositoryPlaces(name, *repository),
                   fmt::format("\n`shiftrt pull {}` downloads it. For --dry-run, --config FILE is enough", name));
  // A name that has the form of a path was meant as one: say only that.
  if (name.find('/') != name.npos) Fail("model {}: no such file or directory", name);
  const auto same = [](unsigned char a, unsigned char b) { return std::tolower(a) == std::tolower(b); };
  const std::string_view family = std::string_view(name).substr(0, name.find('-'));
  std::string similar;
  for (const auto& [known, repository] : KnownModels())
    if (std::search(known.begin(), known.end(), family.begin(), family.end(), same) != known.end())
      similar += fmt::format("{}{}", similar.empty() ? "; known: " : ", ", known);
  Fail("model {}: no such file or directory, and no model is known by this name{}", name,
       similar.empty() ? "; `shiftrt pull --help` lists the known names" : similar);
}

bool IsToBePulled(const std::string& name) {
  const auto repository = RepositoryOfModel(name);
  if (!repository || Exists(name)) return false;
  const std::vector<fs::path> places = RepositoryPlaces(name, *repository);
  return std::none_of(places.begin(), places.end(),
                      [](const fs::path& place) { return HoldsModel(place) && IsWhole(place); });
}

Model OpenModel(const std::string& name, const LoadOptions& options) {
  const fs::path directory = ResolveModel(name);
  Model model;
  model.name = name;
  if (Exists(directory / kAdaptedFile)) {
    model = OpenAdapted(directory, options);
    model.name = name;
  } else if (IsHfLra(directory)) {
    model = OpenHfLra(directory, options);
    model.name = name;
  } else {
    model.directory = directory;
    model.weights = LoadWeights(directory, options);
    model.plan = DepthPlan::Original(model.weights->config.layers);
    if (IsGguf(directory))
      if (const GgufFile file(directory); IsGgufOfLayers(file.contents())) ReadGgufPlan(file.contents(), model);
  }
  if (HasTokenizer(model.directory)) model.tokenizer = {model.directory, model.weights->config.vocab};
  return model;
}

const Tokenizer& Model::RequireTokenizer() const {
  Check(static_cast<bool>(tokenizer), "{}: text cannot be read or written without a tokenizer ({})", directory.string(),
        kTokenizerFiles);
  return tokenizer.Get();
}

fs::path TokenizerDirectory(const std::string& name) {
  if (IsDirectory(name) && !HoldsModel(name)) return name;
  const fs::path directory = ResolveModel(name);
  return Exists(directory / kAdaptedFile) ? AdaptedBase(directory) : directory;
}

std::unique_ptr<Tokenizer> OpenTokenizer(const std::string& name) { return LoadTokenizer(TokenizerDirectory(name)); }

}  // namespace shiftrt
