// SPDX-License-Identifier: Apache-2.0
#include "types/provenance.h"

#include <cmath>
#include <type_traits>

#include "runtime/check.h"
#include "types/part_json.h"

namespace shiftrt {

namespace {

using Json = nlohmann::json;

// Reads one object. A key that is missing, or whose value has another type, leaves the field as it was.
class Reader {
 public:
  explicit Reader(const Json& object) : object_(object) {}

  template <typename T>
  void Read(const char* key, T& field) const {
    const Json& value = (*this)[key];
    if (value.is_null()) return;
    try {
      field = value.get<T>();
    } catch (const Json::exception&) {
    } catch (const Error&) {  // a part of a block that does not exist
    }
  }
  // A number; null is `null`.
  void Number(const char* key, double& field, double null = std::numeric_limits<double>::quiet_NaN()) const {
    const Json& value = (*this)[key];
    if (value.is_number()) field = value.get<double>();
    if (value.is_null()) field = null;
  }
  void Numbers(const char* key, std::vector<double>& field) const {
    for (const Json& value : List(key)) {
      field.push_back(std::numeric_limits<double>::quiet_NaN());
      if (value.is_number()) field.back() = value.get<double>();
    }
  }
  // The elements of a list; none of anything else.
  const Json& List(const char* key) const {
    static const Json none = Json::array();
    const Json& value = (*this)[key];
    return value.is_array() ? value : none;
  }
  // The value, or null.
  const Json& operator[](const char* key) const {
    static const Json none;
    const auto found = object_.is_object() ? object_.find(key) : object_.end();
    return found == object_.end() ? none : *found;
  }

 private:
  const Json& object_;
};

// The settings by their keys. `visit` is called with each key and field.
template <typename Settings, typename Visit>
void ForEachSetting(Settings& settings, const Visit& visit) {
  visit("prune", settings.prune);
  visit("correction", settings.correction);
  visit("lra", settings.rank);
  visit("lambda", settings.lambda);
  visit("factorization", settings.factorization);
  visit("calibration_mode", settings.calibration_mode);
  visit("token_weight", settings.token_weight);
  visit("heal", settings.heal);
  visit("merge", settings.merge);
  visit("quantize", settings.quantise);
}

// True for one of these types, const or not.
template <typename Record, typename... Types>
concept Is = (std::is_same_v<std::remove_const_t<Record>, Types> || ...);

// The fields of records by their keys, for reading and for writing. `visit` is called with each key and field, and with
// the value that null stands for in a number, if that is not NaN.
template <Is<CalibrationReport> Record, typename Visit>
void ForEachField(Record& text, const Visit& visit) {
  visit("source", text.source);
  visit("hash", text.hash);
  visit("tokens", text.tokens);
  visit("heldout_tokens", text.heldout_tokens);
}

template <Is<Selection> Record, typename Visit>
void ForEachField(Record& selection, const Visit& visit) {
  visit("criterion", selection.criterion);
  visit("scores", selection.scores);
  visit("removed", selection.removed);
  visit("window", selection.window);
}

template <Is<FitReport> Record, typename Visit>
void ForEachField(Record& fit, const Visit& visit) {
  visit("layers", fit.layers);
  visit("part", fit.part);
  visit("lambda", fit.lambda);
  visit("tokens", fit.tokens);
  visit("rank", fit.rank);
  visit("effective_rank", fit.effective_rank);
  visit("scale", fit.scale);
  visit("r2_fit", fit.r2_fit);
  visit("r2_heldout", fit.r2_heldout);
  visit("condition", fit.condition);
  visit("singular_values", fit.singular_values);
  visit("warning", fit.warning);
}

template <Is<TrialReport> Record, typename Visit>
void ForEachField(Record& trial, const Visit& visit) {
  visit("correction", trial.correction);
  visit("calibration", trial.calibration);
  visit("token_weight", trial.token_weight);
  visit("factorization", trial.factorization);
  visit("lambda", trial.lambda);
  visit("recipe", trial.recipe);
  visit("adapter_parameters", trial.adapter_parameters);
  visit("tokens", trial.tokens);
  visit("loss", trial.loss);
  visit("gain", trial.gain);
  visit("gain_error", trial.gain_error, std::numeric_limits<double>::infinity());
  visit("chosen", trial.chosen);
}

template <Is<GateVerdict> Record, typename Visit>
void ForEachField(Record& verdict, const Visit& visit) {
  visit("layers", verdict.parts);
  visit("with", verdict.with);
  visit("without", verdict.without);
  visit("kept", verdict.kept);
}

template <Is<QuantiseReport> Record, typename Visit>
void ForEachField(Record& rounded, const Visit& visit) {
  visit("mixture", rounded.mixture);
  visit("matrices", rounded.matrices);
  visit("tokens", rounded.tokens);
  visit("eight_bits", rounded.eight_bits);
  visit("bytes_before", rounded.bytes_before);
  visit("bytes_after", rounded.bytes_after);
  visit("error", rounded.error);
}

template <Is<GainReport> Record, typename Visit>
void ForEachField(Record& gain, const Visit& visit) {
  visit("tokens", gain.tokens);
  visit("original", gain.original);
  visit("pruned", gain.pruned);
  visit("corrected", gain.corrected);
  visit("gain", gain.gain);
  visit("error", gain.error, std::numeric_limits<double>::infinity());
  visit("kept", gain.kept);
}

template <Is<OtherChoice> Record, typename Visit>
void ForEachField(Record& other, const Visit& visit) {
  visit("criterion", other.criterion);
  visit("removed", other.removed);
  visit("pruned", other.pruned);
  visit("gain", other.gain);
  visit("error", other.error, std::numeric_limits<double>::infinity());
}

template <Is<CutReport> Record, typename Visit>
void ForEachField(Record& cut, const Visit& visit) {
  visit("units", cut.units);
  visit("removed", cut.removed);
  visit("tokens", cut.tokens);
  visit("divergence", cut.divergence);
  visit("error", cut.error, std::numeric_limits<double>::infinity());
  visit("within", cut.within);
}

template <Is<MeasuredVariant> Record, typename Visit>
void ForEachField(Record& variant, const Visit& visit) {
  visit("name", variant.name);
  visit("label", variant.label);
  visit("parameters", variant.parameters);
  visit("bytes", variant.bytes);
  visit("perplexity", variant.perplexity);
  visit("tokens_per_second", variant.tokens_per_second);
  visit("continuation", variant.continuation);
}

template <Is<HeldOutReport> Record, typename Visit>
void ForEachField(Record& text, const Visit& visit) {
  visit("text", text.text);
  visit("tokens", text.tokens);
  visit("protocol", text.protocol);
  visit("window", text.window);
}

template <Is<RepairSeconds> Record, typename Visit>
void ForEachField(Record& seconds, const Visit& visit) {
  visit("select", seconds.select, 0);
  visit("calibrate", seconds.calibrate, 0);
  visit("solve", seconds.solve, 0);
  visit("factorize", seconds.factorize, 0);
  visit("quantise", seconds.quantise, 0);
}

template <typename Record>
Json RecordJson(const Record& record) {
  Json json = Json::object();
  ForEachField(record, [&](const char* key, const auto& field, double = 0) { json[key] = field; });
  return json;
}

template <typename Record>
Json RecordsJson(const std::vector<Record>& records) {
  Json out = Json::array();
  for (const Record& record : records) out.push_back(RecordJson(record));
  return out;
}

template <typename Record>
Record ReadRecord(const Json& json) {
  const Reader from(json);
  Record record;
  ForEachField(record, [&](const char* key, auto& field, double null = std::nan("")) {
    if constexpr (std::is_same_v<decltype(field), double&>) {
      from.Number(key, field, null);
    } else if constexpr (std::is_same_v<decltype(field), std::vector<double>&>) {
      from.Numbers(key, field);
    } else {
      from.Read(key, field);
    }
  });
  return record;
}

template <typename Record>
std::vector<Record> ReadRecords(const Json& list) {
  std::vector<Record> records;
  for (const Json& object : list) records.push_back(ReadRecord<Record>(object));
  return records;
}

void AddRepair(const RepairReport& repair, Json& json) {
  if (!repair.cuts.empty()) json["cuts"] = RecordsJson(repair.cuts);
  json["selection"] = RecordJson(repair.selection);
  json["selection"]["unit"] = Name(repair.selection.unit);
  json["sites"] = RecordsJson(repair.sites);
  json["healed"] = RecordsJson(repair.healed);
  json["merged_runs"] = RecordsJson(repair.merged_runs);
  json["trials"] = RecordsJson(repair.trials);
  json["untried"] = repair.untried;
  json["gate"] = RecordsJson(repair.gate);
  if (repair.healing) json["healing"] = RecordJson(*repair.healing);
  if (repair.quantised) json["quantised"] = RecordJson(*repair.quantised);
  if (repair.gain) json["gain"] = RecordJson(*repair.gain);
  if (repair.other) json["other_choice"] = RecordJson(*repair.other);
  json["seconds"] = RecordJson(repair.seconds);
  if (repair.seconds.evaluate) json["seconds"]["evaluate"] = *repair.seconds.evaluate;
}

std::vector<FitReport> ReadFits(const Json& list) {
  std::vector<FitReport> fits = ReadRecords<FitReport>(list);
  for (FitReport& fit : fits) fit.name = SpanName(fit.layers);
  return fits;
}

RepairReport ReadRepair(const Reader& from) {
  RepairReport repair;
  repair.cuts = ReadRecords<CutReport>(from.List("cuts"));
  repair.selection = ReadRecord<Selection>(from["selection"]);
  if (Reader(from["selection"])["unit"] == Name(Unit::kHalf)) repair.selection.unit = Unit::kHalf;
  repair.sites = ReadFits(from.List("sites"));
  repair.healed = ReadFits(from.List("healed"));
  repair.merged_runs = ReadFits(from.List("merged_runs"));
  repair.trials = ReadRecords<TrialReport>(from.List("trials"));
  from.Read("untried", repair.untried);
  repair.gate = ReadRecords<GateVerdict>(from.List("gate"));
  if (from["healing"].is_object()) repair.healing = ReadRecord<GateVerdict>(from["healing"]);
  if (from["quantised"].is_object()) repair.quantised = ReadRecord<QuantiseReport>(from["quantised"]);
  if (from["gain"].is_object()) repair.gain = ReadRecord<GainReport>(from["gain"]);
  if (from["other_choice"].is_object()) repair.other = ReadRecord<OtherChoice>(from["other_choice"]);
  repair.seconds = ReadRecord<RepairSeconds>(from["seconds"]);
  if (const Json& evaluate = Reader(from["seconds"])["evaluate"]; evaluate.is_number())
    repair.seconds.evaluate = evaluate.get<double>();
  return repair;
}

Json VariantsJson(const std::vector<MeasuredVariant>& variants) {
  Json out = RecordsJson(variants);
  for (Json& variant : out)
    if (std::isnan(variant["perplexity"].get<double>())) variant.erase("perplexity");
  return out;
}

Json FinetuneJson(const FinetuneReport& tuning) {
  Json settings = Json::object();
  for (const auto& [setting, value] : tuning.settings) settings[setting] = value;
  const auto or_null = [](const std::string& text) { return text.empty() ? Json() : Json(text); };
  Json json = {{"settings", std::move(settings)},
               {"text", tuning.text},
               {"before", {{"correction", or_null(tuning.correction_before)}, {"merge", or_null(tuning.merge_before)}}},
               {"tokens", tuning.tokens},
               {"loss", tuning.loss}};
  if (!tuning.validation.empty()) json["validation"] = tuning.validation;
  return json;
}

FinetuneReport ReadFinetune(const Reader& from) {
  FinetuneReport tuning;
  if (const Json& settings = from["settings"]; settings.is_object())
    for (const auto& [setting, value] : settings.items())
      if (value.is_string()) tuning.settings.emplace_back(setting, value.get<std::string>());
  from.Read("text", tuning.text);
  const Reader before(from["before"]);
  before.Read("correction", tuning.correction_before);
  before.Read("merge", tuning.merge_before);
  from.Read("tokens", tuning.tokens);
  from.Number("loss", tuning.loss);
  from.Numbers("validation", tuning.validation);
  return tuning;
}

// The flags of a recipe, by the names of their fields.
constexpr std::pair<const char*, std::optional<bool> RecipeText::*> kFlags[] = {
    {"span", &RecipeText::span}, {"penalize_bias", &RecipeText::penalize_bias}, {"gated", &RecipeText::gate}};

}  // namespace

Json ProvenanceJson(const Provenance& provenance) {
  Json json = Json::object();
  if (!provenance.state.empty()) json["state"] = provenance.state;
  if (!provenance.model.empty()) json["model"] = provenance.model;
  if (!provenance.criterion.empty()) json["selection"] = {{"criterion", provenance.criterion}};
  ForEachSetting(provenance.recipe, [&](const char* key, const std::string& value) {
    if (!value.empty()) json[key] = value;
  });
  for (const auto& [key, flag] : kFlags)
    if (const std::optional<bool>& value = provenance.recipe.*flag) json[key] = *value;
  if (provenance.recipe.seed) json["seed"] = *provenance.recipe.seed;
  if (provenance.calibration) json["calibration"] = RecordJson(*provenance.calibration);
  if (provenance.repair) AddRepair(*provenance.repair, json);
  if (!provenance.variants.empty()) json["variants"] = VariantsJson(provenance.variants);
  if (provenance.heldout) json["heldout"] = RecordJson(*provenance.heldout);
  if (provenance.finetune) json["finetune"] = FinetuneJson(*provenance.finetune);
  return json;
}

Provenance ReadProvenance(const Json& json) {
  const Reader from(json);
  Provenance provenance;
  from.Read("state", provenance.state);
  from.Read("model", provenance.model);
  Reader(from["selection"]).Read("criterion", provenance.criterion);
  ForEachSetting(provenance.recipe, [&](const char* key, std::string& field) { from.Read(key, field); });
  for (const auto& [key, flag] : kFlags)
    if (from[key].is_boolean()) provenance.recipe.*flag = from[key].get<bool>();
  if (from["seed"].is_number_unsigned()) provenance.recipe.seed = from["seed"].get<uint64_t>();
  if (from["calibration"].is_object()) provenance.calibration = ReadRecord<CalibrationReport>(from["calibration"]);
  if (from["sites"].is_array()) provenance.repair = ReadRepair(from);
  provenance.variants = ReadRecords<MeasuredVariant>(from.List("variants"));
  if (from["heldout"].is_object()) provenance.heldout = ReadRecord<HeldOutReport>(from["heldout"]);
  if (from["finetune"].is_object()) provenance.finetune = ReadFinetune(Reader(from["finetune"]));
  return provenance;
}

Provenance Essentials(const Provenance& provenance) {
  Provenance part;
  part.criterion = provenance.criterion;
  part.recipe.correction = provenance.recipe.correction;
  part.recipe.merge = provenance.recipe.merge;
  part.recipe.lambda = provenance.recipe.lambda;
  part.calibration = provenance.calibration;
  return part;
}

std::string ToJson(const Provenance& provenance) { return ProvenanceJson(provenance).dump(2) + "\n"; }

}  // namespace shiftrt
