// SPDX-License-Identifier: Apache-2.0
#include "train/checkpoint.h"

#include <algorithm>
#include <cstring>
#include <system_error>

#include "runtime/check.h"
#include "runtime/files.h"
#include "runtime/interrupts_held.h"
#include "runtime/json.h"
#include "runtime/safetensors.h"

namespace shiftrt {

namespace {

using Json = nlohmann::json;

constexpr const char* kFormat = "shiftrt training checkpoint 2";

TensorView View(std::span<const float> values) { return {values.data(), DType::kFloat32, {std::ssize(values)}}; }
TensorView View(std::span<const double> values) { return {values.data(), DType::kFloat64, {std::ssize(values)}}; }

// Tensor `name` of `count` numbers; of any number where `count` is negative.
template <typename T>
std::vector<T> ReadVector(const SafetensorsFile& file, const std::string& name, DType dtype, int64_t count) {
  const auto found = file.tensors().find(name);
  Check(found != file.tensors().end(), "{}: tensor {} is missing", file.path().string(), name);
  const TensorView& tensor = found->second;
  Check(tensor.dtype == dtype && tensor.shape.size() == 1 && (count < 0 || tensor.shape[0] == count),
        "{}: tensor {} is {} [{}], expected {} [{}]", file.path().string(), name, Name(tensor.dtype),
        fmt::join(tensor.shape, ", "), Name(dtype), count);
  std::vector<T> values(tensor.elements());
  if (!values.empty()) std::memcpy(values.data(), tensor.data, tensor.bytes());
  return values;
}

const std::string& Entry(const SafetensorsFile& file, const std::string& name) {
  const auto found = file.metadata().find(name);
  Check(found != file.metadata().end(), "{}: {} is missing in its metadata", file.path().string(), name);
  return found->second;
}

void CheckSettings(const SafetensorsFile& file, const TrainingSettings& expected) {
  const std::string name = file.path().string();
  const Json found = ParseJson(Entry(file, "settings"), name);
  Check(found.is_object(), "{}: settings is not an object", name);
  for (const auto& [setting, value] : expected) {
    const Json& had = found.value(setting, Json());
    Check(
        had == value,
        "{}: the checkpoint is of another training: its {} is {}, and that of this one \"{}\". Give the settings that "
        "it was made with, or another file for the checkpoint, or delete it",
        name, setting, Shown(had), value);
  }
  for (const auto& item : found.items()) {
    const auto is_this = [&](const auto& known) { return known.first == item.key(); };
    Check(std::any_of(expected.begin(), expected.end(), is_this),
          "{}: the checkpoint has the setting {}, which this training has not", name, item.key());
  }
}

}  // namespace

void CheckpointFile::Try() const {
  if (path_.empty()) return;
  std::error_code error;
  if (path_.has_parent_path()) std::filesystem::create_directories(path_.parent_path(), error);
  Check(!error, "{}: cannot create its directory: {}", path_.string(), error.message());
  const AtomicFile trial(path_);
}

std::optional<TrainingState> CheckpointFile::Read(int64_t count) const {
  if (!Exists(path_)) return std::nullopt;
  const SafetensorsFile file(path_);
  Check(Entry(file, "format") == kFormat, "{}: \"{}\", expected \"{}\"", path_.string(), Entry(file, "format"),
        kFormat);
  CheckSettings(file, settings_);
  TrainingState state;
  state.values = ReadVector<float>(file, "values", DType::kFloat32, count);
  state.first = ReadVector<float>(file, "first_moments", DType::kFloat32, count);
  state.second = ReadVector<float>(file, "second_moments", DType::kFloat32, count);
  if (file.tensors().contains("best_values"))
    state.best = ReadVector<float>(file, "best_values", DType::kFloat32, count);
  TrainingHistory& history = state.history;
  history.losses = ReadVector<double>(file, "losses", DType::kFloat64, -1);
  history.resumed = history.steps();
  history.gradient_norms = ReadVector<double>(file, "gradient_norms", DType::kFloat64, history.steps());
  const Json progress = ParseJson(Entry(file, "progress"), path_.string());
  try {
    history.tokens = Integer(progress.at("tokens"));
    history.seconds = progress.at("seconds").get<double>();
    history.validation_seconds = progress.value("validation_seconds", 0.0);
    history.validation_sequences = progress.value("validation_sequences", int64_t{0});
    for (const Json& at : progress.at("validations"))
      history.validations.push_back({Integer(at.at(0)), at.at(1).get<double>()});
  } catch (const Json::exception& error) {
    Fail("{}: progress in its metadata: {}", path_.string(), JsonReason(error));
  } catch (const Error& error) {
    Fail("{}: progress in its metadata: {}", path_.string(), error.what());
  }
  Check(Entry(file, "checksum") == ChecksumOf(Entry(file, "settings") + Entry(file, "progress"), file.tensors()),
        "{}: the file is damaged: its checksum is not that of its contents. Delete it to begin again", path_.string());
  return state;
}

void CheckpointFile::Write(const TrainingNumbers& numbers, const TrainingHistory& history) const {
  if (path_.empty()) return;
  const InterruptsHeld held;
  Json settings = Json::object(), validations = Json::array();
  for (const auto& [setting, value] : settings_) settings[setting] = value;
  for (const auto& [step, loss] : history.validations) validations.push_back({step, loss});
  const Json progress = {{"tokens", history.tokens},
                         {"seconds", history.seconds},
                         {"validation_seconds", history.validation_seconds},
                         {"validation_sequences", history.validation_sequences},
                         {"validations", validations}};
  std::vector<NamedTensor> tensors = {{"values", View(numbers.values)},
                                      {"first_moments", View(numbers.first)},
                                      {"second_moments", View(numbers.second)},
                                      {"losses", View(history.losses)},
                                      {"gradient_norms", View(history.gradient_norms)}};
  if (!numbers.best.empty()) tensors.push_back({"best_values", View(numbers.best), numbers.best_in_file});
  WriteSafetensors(path_, tensors,
                   {{"format", kFormat},
                    {"settings", settings.dump()},
                    {"progress", progress.dump()},
                    {"checksum", ChecksumOf(settings.dump() + progress.dump(), tensors)}});
}

}  // namespace shiftrt
