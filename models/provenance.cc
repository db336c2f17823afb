// SPDX-License-Identifier: Apache-2.0
#include "models/provenance.h"

#include <cmath>

#include "models/part_json.h"
#include "runtime/check.h"

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
}

Json SelectionJson(const Selection& selection) {
  return {{"criterion", selection.criterion},
          {"scores", selection.scores},
          {"removed", selection.removed},
          {"window", selection.window},
          {"unit", Name(selection.unit)}};
}

Selection ReadSelection(const Reader& from) {
  Selection selection;
  from.Read("criterion", selection.criterion);
  from.Numbers("scores", selection.scores);
  from.Read("removed", selection.removed);
  from.Read("window", selection.window);
  if (from["unit"] == Name(Unit::kHalf)) selection.unit = Unit::kHalf;
  return selection;
}

Json CalibrationJson(const CalibrationReport& text) {
  return {
      {"source", text.source}, {"hash", text.hash}, {"tokens", text.tokens}, {"heldout_tokens", text.heldout_tokens}};
}

CalibrationReport ReadCalibration(const Reader& from) {
  CalibrationReport text;
  from.Read("source", text.source);
  from.Read("hash", text.hash);
  from.Read("tokens", text.tokens);
  from.Read("heldout_tokens", text.heldout_tokens);
  return text;
}

Json FitsJson(const std::vector<FitReport>& fits) {
  Json out = Json::array();
  for (const FitReport& fit : fits)
    out.push_back({{"layers", fit.layers},
                   {"part", fit.part},
                   {"lambda", fit.lambda},
                   {"tokens", fit.tokens},
                   {"rank", fit.rank},
                   {"effective_rank", fit.effective_rank},
                   {"scale", fit.scale},
                   {"r2_fit", fit.r2_fit},
                   {"r2_heldout", fit.r2_heldout},
                   {"condition", fit.condition},
                   {"singular_values", fit.singular_values},
                   {"warning", fit.warning}});
  return out;
}

std::vector<FitReport> ReadFits(const Json& list) {
  std::vector<FitReport> fits;
  for (const Json& object : list) {
    const Reader from(object);
    FitReport& fit = fits.emplace_back();
    from.Read("layers", fit.layers);
    fit.name = SpanName(fit.layers);
    from.Read("part", fit.part);
    from.Number("lambda", fit.lambda);
    from.Read("tokens", fit.tokens);
    from.Read("rank", fit.rank);
    from.Number("effective_rank", fit.effective_rank);
    from.Number("scale", fit.scale);
    from.Number("r2_fit", fit.r2_fit);
    from.Number("r2_heldout", fit.r2_heldout);
    from.Number("condition", fit.condition);
    from.Numbers("singular_values", fit.singular_values);
    from.Read("warning", fit.warning);
  }
  return fits;
}

Json TrialsJson(const std::vector<TrialReport>& trials) {
  Json out = Json::array();
  for (const TrialReport& trial : trials)
    out.push_back({{"correction", trial.correction},
                   {"calibration", trial.calibration},
                   {"token_weight", trial.token_weight},
                   {"factorization", trial.factorization},
                   {"lambda", trial.lambda},
                   {"recipe", trial.recipe},
                   {"adapter_parameters", trial.adapter_parameters},
                   {"tokens", trial.tokens},
                   {"loss", trial.loss},
                   {"gain", trial.gain},
                   {"gain_error", trial.gain_error},
                   {"chosen", trial.chosen}});
  return out;
}

std::vector<TrialReport> ReadTrials(const Json& list) {
  std::vector<TrialReport> trials;
  for (const Json& object : list) {
    const Reader from(object);
    TrialReport& trial = trials.emplace_back();
    from.Read("correction", trial.correction);
    from.Read("calibration", trial.calibration);
    from.Read("token_weight", trial.token_weight);
    from.Read("factorization", trial.factorization);
    from.Read("lambda", trial.lambda);
    from.Read("recipe", trial.recipe);
    from.Read("adapter_parameters", trial.adapter_parameters);
    from.Read("tokens", trial.tokens);
    from.Number("loss", trial.loss);
    from.Number("gain", trial.gain);
    from.Number("gain_error", trial.gain_error, std::numeric_limits<double>::infinity());
    from.Read("chosen", trial.chosen);
  }
  return trials;
}

Json GateJson(const std::vector<GateVerdict>& verdicts) {
  Json out = Json::array();
  for (const GateVerdict& verdict : verdicts)
    out.push_back(
        {{"layers", verdict.parts}, {"with", verdict.with}, {"without", verdict.without}, {"kept", verdict.kept}});
  return out;
}

std::vector<GateVerdict> ReadGate(const Json& list) {
  std::vector<GateVerdict> verdicts;
  for (const Json& object : list) {
    const Reader from(object);
    GateVerdict& verdict = verdicts.emplace_back();
    from.Read("layers", verdict.parts);
    from.Number("with", verdict.with);
    from.Number("without", verdict.without);
    from.Read("kept", verdict.kept);
  }
  return verdicts;
}

void AddRepair(const RepairReport& repair, Json& json) {
  json["selection"] = SelectionJson(repair.selection);
  json["sites"] = FitsJson(repair.sites);
  json["healed"] = FitsJson(repair.healed);
  json["merged_runs"] = FitsJson(repair.merged_runs);
  json["trials"] = TrialsJson(repair.trials);
  json["untried"] = repair.untried;
  json["gate"] = GateJson(repair.gate);
  if (repair.healing) json["healing"] = GateJson({*repair.healing}).front();
  const RepairSeconds& seconds = repair.seconds;
  json["seconds"] = {{"select", seconds.select},
                     {"calibrate", seconds.calibrate},
                     {"solve", seconds.solve},
                     {"factorize", seconds.factorize}};
  if (seconds.evaluate) json["seconds"]["evaluate"] = *seconds.evaluate;
}

RepairReport ReadRepair(const Reader& from) {
  RepairReport repair;
  repair.selection = ReadSelection(Reader(from["selection"]));
  repair.sites = ReadFits(from.List("sites"));
  repair.healed = ReadFits(from.List("healed"));
  repair.merged_runs = ReadFits(from.List("merged_runs"));
  repair.trials = ReadTrials(from.List("trials"));
  from.Read("untried", repair.untried);
  repair.gate = ReadGate(from.List("gate"));
  if (from["healing"].is_object()) repair.healing = ReadGate(Json::array({from["healing"]})).front();
  const Reader seconds(from["seconds"]);
  seconds.Read("select", repair.seconds.select);
  seconds.Read("calibrate", repair.seconds.calibrate);
  seconds.Read("solve", repair.seconds.solve);
  seconds.Read("factorize", repair.seconds.factorize);
  if (seconds["evaluate"].is_number()) repair.seconds.evaluate = seconds["evaluate"].get<double>();
  return repair;
}

Json VariantsJson(const std::vector<MeasuredVariant>& variants) {
  Json out = Json::array();
  for (const MeasuredVariant& variant : variants) {
    out.push_back({{"name", variant.name},
                   {"label", variant.label},
                   {"parameters", variant.parameters},
                   {"bytes", variant.bytes},
                   {"tokens_per_second", variant.tokens_per_second},
                   {"continuation", variant.continuation}});
    if (!std::isnan(variant.perplexity)) out.back()["perplexity"] = variant.perplexity;
  }
  return out;
}

std::vector<MeasuredVariant> ReadVariants(const Json& list) {
  std::vector<MeasuredVariant> variants;
  for (const Json& object : list) {
    const Reader from(object);
    MeasuredVariant& variant = variants.emplace_back();
    from.Read("name", variant.name);
    from.Read("label", variant.label);
    from.Read("parameters", variant.parameters);
    from.Read("bytes", variant.bytes);
    from.Number("perplexity", variant.perplexity);
    from.Number("tokens_per_second", variant.tokens_per_second);
    from.Read("continuation", variant.continuation);
  }
  return variants;
}

Json HeldOutJson(const HeldOutReport& text) {
  return {{"text", text.text}, {"tokens", text.tokens}, {"protocol", text.protocol}, {"window", text.window}};
}

HeldOutReport ReadHeldOut(const Reader& from) {
  HeldOutReport text;
  from.Read("text", text.text);
  from.Read("tokens", text.tokens);
  from.Read("protocol", text.protocol);
  from.Read("window", text.window);
  return text;
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

}  // namespace

Json ProvenanceJson(const Provenance& provenance) {
  Json json = Json::object();
  if (!provenance.state.empty()) json["state"] = provenance.state;
  if (!provenance.model.empty()) json["model"] = provenance.model;
  if (!provenance.criterion.empty()) json["selection"]["criterion"] = provenance.criterion;
  ForEachSetting(provenance.recipe, [&](const char* key, const std::string& value) {
    if (!value.empty()) json[key] = value;
  });
  if (provenance.recipe.span) json["span"] = *provenance.recipe.span;
  if (provenance.calibration) json["calibration"] = CalibrationJson(*provenance.calibration);
  if (provenance.repair) AddRepair(*provenance.repair, json);
  if (!provenance.variants.empty()) json["variants"] = VariantsJson(provenance.variants);
  if (provenance.heldout) json["heldout"] = HeldOutJson(*provenance.heldout);
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
  if (from["span"].is_boolean()) provenance.recipe.span = from["span"].get<bool>();
  if (from["calibration"].is_object()) provenance.calibration = ReadCalibration(Reader(from["calibration"]));
  if (from["sites"].is_array()) provenance.repair = ReadRepair(from);
  provenance.variants = ReadVariants(from.List("variants"));
  if (from["heldout"].is_object()) provenance.heldout = ReadHeldOut(Reader(from["heldout"]));
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
