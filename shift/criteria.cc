#include "shift/criteria.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>
#include <set>

#include "runtime/check.h"
#include "shift/criteria/criteria.h"

namespace shiftrt {

namespace {

constexpr const char* kLayersPrefix = "layers=";

int64_t ParseCount(std::string_view text, const std::string& whole) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0)
    FailUsage("--prune {}: \"{}\" is not a whole number", whole, text);
  return value;
}

std::vector<std::string_view> Split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (true) {
    const size_t at = text.find(separator);
    parts.push_back(text.substr(0, at));
    if (at == std::string_view::npos) return parts;
    text.remove_prefix(at + 1);
  }
}

// "3,5,8-10"
std::vector<int64_t> ParseLayers(std::string_view list, const std::string& whole) {
  std::set<int64_t> layers;
  for (std::string_view part : Split(list, ',')) {
    const size_t dash = part.find('-');
    const int64_t first = ParseCount(part.substr(0, dash), whole);
    const int64_t last = dash == std::string_view::npos ? first : ParseCount(part.substr(dash + 1), whole);
    if (last < first || last >= 10000) FailUsage("--prune {}: \"{}\" is not a range of layers", whole, part);
    for (int64_t layer = first; layer <= last; ++layer)
      if (!layers.insert(layer).second) FailUsage("--prune {}: layer {} is named twice", whole, layer);
  }
  return {layers.begin(), layers.end()};
}

// "first:4" and "last:2", after "keep=" or after another of them.
void ParseKeep(std::string_view part, PruneSpec& spec) {
  if (part.starts_with("first:")) {
    spec.keep_first = ParseCount(part.substr(6), spec.text);
  } else if (part.starts_with("last:")) {
    spec.keep_last = ParseCount(part.substr(5), spec.text);
  } else {
    FailUsage("--prune {}: unknown option \"{}\"; known: keep=first:N,last:N", spec.text, part);
  }
}

void ParseAmount(std::string_view amount, PruneSpec& spec) {
  if (amount.find('.') == std::string_view::npos) {
    spec.count = ParseCount(amount, spec.text);
    if (spec.count == 0) FailUsage("--prune {}: the amount removes no layer", spec.text);
    return;
  }
  const auto [end, error] = std::from_chars(amount.data(), amount.data() + amount.size(), spec.ratio);
  if (error != std::errc() || end != amount.data() + amount.size() || !(spec.ratio > 0 && spec.ratio < 1))
    FailUsage("--prune {}: \"{}\" is neither a ratio between 0 and 1 nor a number of layers", spec.text, amount);
}

const Criterion& FindCriterion(const std::string& name) {
  std::string known;
  for (const Criterion& criterion : Criteria()) {
    if (name == criterion.name) return criterion;
    known += std::string(known.empty() ? "" : ", ") + criterion.name;
  }
  FailUsage("unknown criterion \"{}\"; known: {}, layers=LIST", name, known);
}

}  // namespace

const std::vector<Criterion>& Criteria() {
  static const std::vector<Criterion> table = {
      {"bi", "block influence: 1 - mean cosine of a block's input and output", true, criteria::BlockInfluence},
      {"reverse", "deepest first", false, criteria::Reverse},
      {"reverse*", "deepest first, the final block kept", false, criteria::ReverseStar},
      {"magnitude-l1", "sum of absolute weights", false, criteria::MagnitudeL1},
      {"magnitude-l2", "sum of squared weights", false, criteria::MagnitudeL2},
      {"random", "seeded", false, criteria::RandomOrder},
  };
  return table;
}

PruneSpec ParsePrune(const std::string& text) {
  PruneSpec spec;
  spec.text = text;
  if (text.starts_with(kLayersPrefix)) {
    spec.criterion = "layers";
    spec.layers = ParseLayers(std::string_view(text).substr(std::string_view(kLayersPrefix).size()), text);
    return spec;
  }
  const std::vector<std::string_view> parts = Split(text, ',');
  const size_t colon = parts[0].rfind(':');
  if (colon == std::string_view::npos)
    FailUsage("--prune {}: expected CRITERION:AMOUNT, such as bi:0.25 or reverse*:8", text);
  spec.criterion = parts[0].substr(0, colon);
  if (spec.criterion == "bi:token") spec.criterion = "bi";
  FindCriterion(spec.criterion);
  ParseAmount(parts[0].substr(colon + 1), spec);
  for (size_t i = 1; i < parts.size(); ++i) {
    const bool first = parts[i].starts_with("keep=");
    if (!first && i == 1) FailUsage("--prune {}: unknown option \"{}\"; known: keep=first:N,last:N", text, parts[i]);
    ParseKeep(first ? parts[i].substr(5) : parts[i], spec);
  }
  return spec;
}

std::vector<int64_t> PickLayers(const std::vector<double>& scores, int64_t count, int64_t keep_first,
                                int64_t keep_last) {
  const auto layers = static_cast<int64_t>(scores.size());
  std::vector<int64_t> candidates;
  for (int64_t l = layers - keep_last - 1; l >= keep_first; --l) candidates.push_back(l);
  if (count < 1 || count >= layers)
    FailUsage("removing {} of {} layers leaves no pruned model: choose from 1 to {}", count, layers, layers - 1);
  if (count > static_cast<int64_t>(candidates.size()))
    FailUsage("keep= leaves {} layers to choose from; {} are to be removed", candidates.size(), count);
  // Candidates come deepest first and the sort is stable, so ties go to the deeper layer.
  std::stable_sort(candidates.begin(), candidates.end(), [&](int64_t a, int64_t b) { return scores[a] < scores[b]; });
  candidates.resize(count);
  std::sort(candidates.begin(), candidates.end());
  return candidates;
}

Selection SelectLayers(const PruneSpec& spec, const CriterionInput& input, Progress& progress) {
  const int64_t layers = input.weights->config.layers;
  if (spec.criterion == "layers") {
    for (int64_t layer : spec.layers)
      if (layer >= layers) FailUsage("--prune {}: the model has {} layers, 0 to {}", spec.text, layers, layers - 1);
    if (static_cast<int64_t>(spec.layers.size()) == layers) FailUsage("--prune {}: removes every layer", spec.text);
    return {spec.criterion, {}, spec.layers};
  }
  const Criterion& criterion = FindCriterion(spec.criterion);
  const int64_t count = spec.count > 0 ? spec.count : static_cast<int64_t>(spec.ratio * static_cast<double>(layers));
  if (count == 0) FailUsage("--prune {}: {} of {} layers is less than one", spec.text, spec.ratio, layers);
  // An amount that cannot be met is refused before any work.
  PickLayers(std::vector<double>(layers, 0.0), count, spec.keep_first, spec.keep_last);
  Check(!criterion.needs_calibration || (input.calibration != nullptr && !input.calibration->empty()),
        "criterion {} needs calibration text", criterion.name);
  std::vector<double> scores = criterion.score(input, progress);
  for (size_t l = 0; l < scores.size(); ++l)
    Check(std::isfinite(scores[l]), "criterion {}: the score of layer {} is {}", criterion.name, l, scores[l]);
  std::vector<int64_t> removed = PickLayers(scores, count, spec.keep_first, spec.keep_last);
  return {spec.criterion, std::move(scores), std::move(removed)};
}

}  // namespace shiftrt
