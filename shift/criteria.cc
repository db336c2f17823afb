#include "shift/criteria.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>
#include <string_view>

#include "runtime/check.h"
#include "shift/criteria/scores.h"
#include "shift/parse.h"

namespace shiftrt {

namespace {

constexpr std::string_view kLayers = "layers=";

std::vector<std::string_view> SplitCommas(std::string_view text) {
  std::vector<std::string_view> parts;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

bool ParseIndex(std::string_view text, int64_t* value) { return ParseNumber(text, value) && *value >= 0; }

// "3,5,8-10", ascending.
std::vector<int64_t> ParseLayers(std::string_view list, const std::string& text) {
  constexpr int64_t kMaxLayer = 100000;  // bounds what a range can allocate
  std::set<int64_t> layers;
  for (std::string_view part : SplitCommas(list)) {
    const size_t dash = part.find('-');
    int64_t first = 0, last = 0;
    const bool good = ParseIndex(part.substr(0, dash), &first) &&
                      ParseIndex(dash == part.npos ? part : part.substr(dash + 1), &last) && first <= last &&
                      last < kMaxLayer;
    if (!good) FailUsage("--prune {}: \"{}\" is neither a layer (5) nor a range of layers (8-10)", text, part);
    for (int64_t layer = first; layer <= last; ++layer)
      if (!layers.insert(layer).second) FailUsage("--prune {}: layer {} is named twice", text, layer);
  }
  return {layers.begin(), layers.end()};
}

void ParseAmount(std::string_view amount, PruneSpec& spec) {
  if (amount.starts_with("params=") || amount.starts_with("bytes="))
    FailUsage("--prune {}: \"{}\" is not supported; give a ratio (0.25) or a count (8)", spec.text, amount);
  if (ParseNumber(amount, &spec.count)) {
    if (spec.count < 1) FailUsage("--prune {}: a count of {} removes nothing", spec.text, spec.count);
  } else if (ParseNumber(amount, &spec.ratio)) {
    if (!(spec.ratio > 0 && spec.ratio < 1))
      FailUsage("--prune {}: a ratio of {} is not between 0 and 1", spec.text, amount);
    spec.count = 0;
  } else {
    FailUsage("--prune {}: amount \"{}\" is neither a ratio (0.25) nor a count (8)", spec.text, amount);
  }
}

// What follows the amount: "keep=first:4,last:2".
void ParseOptions(const std::vector<std::string_view>& parts, PruneSpec& spec) {
  constexpr std::string_view kKeep = "keep=", kFirst = "first:", kLast = "last:";
  bool keeping = false;
  for (size_t i = 1; i < parts.size(); ++i) {
    std::string_view part = parts[i];
    if (part.starts_with(kKeep)) {
      keeping = true;
      part.remove_prefix(kKeep.size());
    }
    const bool first = part.starts_with(kFirst);
    if (!keeping || !(first || part.starts_with(kLast)))
      FailUsage("--prune {}: unknown option \"{}\"; known: keep=first:N,last:N", spec.text, parts[i]);
    const std::string_view number = part.substr(first ? kFirst.size() : kLast.size());
    if (!ParseIndex(number, first ? &spec.keep_first : &spec.keep_last))
      FailUsage("--prune {}: \"{}\" is not a number of layers to keep", spec.text, number);
  }
}

int64_t Amount(const PruneSpec& spec, int64_t layers) {
  // The nudge makes 0.29 of 100 layers 29, though 0.29 * 100 is just below it in binary.
  const int64_t count =
      spec.count > 0 ? spec.count : static_cast<int64_t>(std::floor(spec.ratio * static_cast<double>(layers) + 1e-9));
  if (count < 1) FailUsage("--prune {}: removes none of {} layers", spec.text, layers);
  if (count >= layers) FailUsage("--prune {}: would remove {} of {} layers; one must stay", spec.text, count, layers);
  const bool room =
      spec.keep_first <= layers && spec.keep_last <= layers && count <= layers - spec.keep_first - spec.keep_last;
  if (!room)
    FailUsage("--prune {}: cannot remove {} of {} layers and keep the first {} and the last {}", spec.text, count,
              layers, spec.keep_first, spec.keep_last);
  return count;
}

}  // namespace

const std::vector<Criterion>& Criteria() {
  static const std::vector<Criterion> table = {
      {"bi", "block influence: 1 - mean cosine of a token's stream before and after the block", true,
       &BlockInfluenceScores},
      {"reverse", "deepest first", false, &ReverseScores},
      {"reverse*", "deepest first, the final block kept", false, &ReverseKeepLastScores},
      {"magnitude-l1", "sum of |w| over the block's projections and norms", false, &MagnitudeL1Scores},
      {"magnitude-l2", "sum of w^2 over the block's projections and norms", false, &MagnitudeL2Scores},
      {"random", "seeded", false, &RandomScores},
  };
  return table;
}

const Criterion& FindCriterion(const std::string& name) {
  std::string known;
  for (const Criterion& criterion : Criteria()) {
    if (name == criterion.name || (name == "bi:token" && criterion.name == std::string_view("bi"))) return criterion;
    known += fmt::format("{}, ", criterion.name);
  }
  FailUsage("unknown criterion \"{}\"; known: {}layers=", name, known);
}

PruneSpec ParsePrune(const std::string& text) {
  PruneSpec spec;
  spec.text = text;
  if (text.starts_with(kLayers)) {
    spec.criterion = "layers";
    spec.layers = ParseLayers(std::string_view(text).substr(kLayers.size()), text);
    return spec;
  }
  const std::vector<std::string_view> parts = SplitCommas(text);
  const size_t colon = parts[0].rfind(':');
  if (colon == std::string_view::npos)
    FailUsage("--prune \"{}\": expected CRITERION:AMOUNT (bi:0.25) or layers=LIST (layers=3,5,8-10)", text);
  spec.criterion = FindCriterion(std::string(parts[0].substr(0, colon))).name;
  ParseAmount(parts[0].substr(colon + 1), spec);
  ParseOptions(parts, spec);
  return spec;
}

std::vector<int64_t> PickLayers(const std::vector<double>& scores, int64_t count, int64_t keep_first,
                                int64_t keep_last) {
  const int64_t layers = static_cast<int64_t>(scores.size());
  std::vector<int64_t> order(std::max<int64_t>(0, layers - keep_first - keep_last));
  Check(count <= static_cast<int64_t>(order.size()), "cannot pick {} of {} layers", count, order.size());
  std::iota(order.rbegin(), order.rend(), keep_first);  // deeper first, which a stable sort leaves so among equals
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return scores[a] < scores[b]; });
  order.resize(count);
  std::sort(order.begin(), order.end());
  return order;
}

Selection SelectLayers(const PruneSpec& spec, const CriterionInput& input, Progress& progress) {
  const int64_t layers = input.weights->config.layers;
  if (!spec.layers.empty()) {
    if (spec.layers.back() >= layers) FailUsage("--prune {}: the model's layers are 0 to {}", spec.text, layers - 1);
    PruneSpec listed = spec;
    listed.count = static_cast<int64_t>(spec.layers.size());
    Amount(listed, layers);
    return {spec.criterion, {}, spec.layers};
  }
  const int64_t count = Amount(spec, layers);
  std::vector<double> scores = FindCriterion(spec.criterion).score(input, progress);
  for (int64_t layer = 0; layer < layers; ++layer)
    Check(std::isfinite(scores[layer]), "criterion {}: the score of layer {} is not finite", spec.criterion, layer);
  std::vector<int64_t> removed = PickLayers(scores, count, spec.keep_first, spec.keep_last);
  return {spec.criterion, std::move(scores), std::move(removed)};
}

}  // namespace shiftrt
