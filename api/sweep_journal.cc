// SPDX-License-Identifier: Apache-2.0
#include "api/sweep_journal.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "runtime/files.h"
#include "runtime/json.h"
#include "types/part_json.h"

namespace shiftrt {

namespace {

using Json = nlohmann::json;

Json ToJson(const Quality& quality) { return {quality.perplexity, quality.accuracy, quality.accuracy_error}; }

// A number that is not finite is null in JSON.
double OrNan(const Json& json) { return json.is_null() ? std::nan("") : json.get<double>(); }

Quality ToQuality(const Json& json) { return {OrNan(json.at(0)), OrNan(json.at(1)), OrNan(json.at(2))}; }

}  // namespace

SweepJournal::SweepJournal(std::filesystem::path file, std::string key) : file_(std::move(file)), key_(std::move(key)) {
  if (file_.empty() || !Exists(file_)) return;
  bad_ = ReadJsonLines(file_, "not one of a sweep", [&](const Json& line) { Take(line); });
}

void SweepJournal::Take(const Json& json) {
  if (json.at("key").get_ref<const std::string&>() != key_) return;
  const Json& seed = json.at("seed");
  Check(seed.is_number_unsigned(), "{} is not a seed", Shown(seed));
  SweepRow row;  // its recipe is the one that it is asked for by
  row.samples = Integer(json.at("samples"));
  row.removed = json.at("removed").get<std::vector<BlockPart>>();
  row.tokens = Integer(json.at("tokens"));
  row.r2_fit = OrNan(json.at("r2_fit"));
  row.r2_heldout = OrNan(json.at("r2_heldout"));
  row.parameters = Integer(json.at("adapter_parameters"));
  row.chosen = json.at("chosen").get<std::string>();
  row.original = ToQuality(json.at("original"));
  row.pruned = ToQuality(json.at("pruned"));
  row.corrected = ToQuality(json.at("corrected"));
  rows_[{json.at("settings").get<std::string>(), seed.get<uint64_t>(), row.samples}] = std::move(row);
}

const SweepRow* SweepJournal::Find(const Recipe& recipe, int64_t samples) const {
  const auto found = rows_.find({SettingText(recipe), recipe.seed, samples});
  return found == rows_.end() ? nullptr : &found->second;
}

void SweepJournal::Add(const SweepRow& row) {
  if (file_.empty()) return;
  const Json json = {{"key", key_},
                     {"settings", SettingText(row.recipe)},
                     {"seed", row.recipe.seed},
                     {"samples", row.samples},
                     {"removed", row.removed},
                     {"tokens", row.tokens},
                     {"r2_fit", row.r2_fit},
                     {"r2_heldout", row.r2_heldout},
                     {"adapter_parameters", row.parameters},
                     {"chosen", row.chosen},
                     {"original", ToJson(row.original)},
                     {"pruned", ToJson(row.pruned)},
                     {"corrected", ToJson(row.corrected)}};
  if (!lines_) lines_.emplace(file_);
  lines_->Add(json.dump());
  rows_[{SettingText(row.recipe), row.recipe.seed, row.samples}] = row;
}

}  // namespace shiftrt
