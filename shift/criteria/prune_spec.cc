// SPDX-License-Identifier: Apache-2.0
#include "shift/criteria/prune_spec.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <set>
#include <string_view>
#include <utility>

#include "models/block_tensors.h"
#include "runtime/check.h"
#include "runtime/parse.h"
#include "shift/criteria/criteria.h"

namespace shiftrt {

namespace {

constexpr std::string_view kLayers = "layers=", kParameters = "params=", kBytes = "bytes=", kMaxDivergence = "max-kl=",
                           kKeep = "keep=", kUnit = "unit=", kFirst = "first:", kLast = "last:";

bool ParseIndex(std::string_view text, int64_t* value) { return ParseNumber(text, value) && *value >= 0; }

// "3.attn,5.mlp,8-10", in the order of depth.
std::vector<BlockPart> ParseLayers(std::string_view list, const std::string& text) {
  constexpr int64_t kMaxLayer = 100000;  // bounds what a range can allocate
  std::set<int64_t> places;
  for (std::string_view range : SplitCommas(list)) {
    const size_t dash = range.find('-');
    const auto first = ParseBlockPart(range.substr(0, dash)),
               last = dash == range.npos ? first : ParseBlockPart(range.substr(dash + 1));
    if (!first || !last || first->begin() >= last->end() || last->layer >= kMaxLayer)
      FailUsage(Field("prune"),
                "{}: \"{}\" is neither a layer (5), nor a half of one (5.attn, 5.mlp), nor a range of these (8-10)",
                text, range);
    for (int64_t place = first->begin(); place < last->end(); ++place)
      if (!places.insert(place).second) FailUsage(Field("prune"), "{}: layer {} is named twice", text, place / 2);
  }
  return PartsAt(std::vector<int64_t>(places.begin(), places.end()));
}

void ParseAmount(std::string_view amount, const std::string& text, PruneSpec& spec) {
  constexpr double kKi = 1024, kMi = kKi * kKi, kGi = kMi * kKi;
  if (amount.starts_with(kParameters)) {
    if (!ParseParameters(amount.substr(kParameters.size()), &spec.parameters))
      FailUsage(Field("prune"), "{}: \"{}\" is not a number of parameters (params=6.3B)", text, amount);
  } else if (amount.starts_with(kBytes)) {
    const auto units = {UnitSuffix{"KiB", kKi}, UnitSuffix{"MiB", kMi}, UnitSuffix{"GiB", kGi}, UnitSuffix{"kB", 1e3},
                        UnitSuffix{"MB", 1e6},  UnitSuffix{"GB", 1e9},  UnitSuffix{"B", 1}};
    if (!ParseWithUnit(amount.substr(kBytes.size()), units, &spec.bytes))
      FailUsage(Field("prune"), "{}: \"{}\" is not a number of bytes (bytes=12GiB)", text, amount);
  } else if (amount.starts_with(kMaxDivergence)) {
    if (!ParseNumber(amount.substr(kMaxDivergence.size()), &spec.max_divergence) || !(spec.max_divergence > 0) ||
        !std::isfinite(spec.max_divergence))
      FailUsage(Field("prune"), "{}: \"{}\" is not a divergence above 0 in nats per token (max-kl=0.2)", text, amount);
  } else if (ParseNumber(amount, &spec.count)) {
    if (spec.count < 1) FailUsage(Field("prune"), "{}: a count of {} removes nothing", text, spec.count);
  } else if (ParseNumber(amount, &spec.ratio)) {
    if (!(spec.ratio > 0 && spec.ratio < 1))
      FailUsage(Field("prune"), "{}: a ratio of {} is not between 0 and 1", text, amount);
    spec.count = 0;
  } else {
    FailUsage(Field("prune"),
              "{}: amount \"{}\" is neither a ratio (0.25) nor a count (8) nor a target (params=6.3B, bytes=12GiB, "
              "max-kl=0.2)",
              text, amount);
  }
}

// "rank=16", where the criterion has such an option.
bool ParseOwnOption(std::string_view part, const Criterion& criterion, const std::string& text, PruneSpec& spec) {
  const size_t equals = part.find('=');
  const CriterionOption* option = criterion.OptionNamed(part.substr(0, equals));
  if (equals == part.npos || option == nullptr) return false;
  int64_t value = 0;
  if (!ParseNumber(part.substr(equals + 1), &value) || value < 1)
    FailUsage(Field("prune"), "{}: \"{}\" is not a number above 0", text, part);
  spec.options[std::string(option->name)] = value;
  return true;
}

// Reads the parts that follow the amount: "unit=half", "keep=first:4,last:2", and the criterion's own options.
void ParseOptions(const std::vector<std::string_view>& parts, const std::string& text, PruneSpec& spec) {
  const Criterion& criterion = FindCriterion(spec.criterion);
  bool keeping = false;
  for (size_t i = 1; i < parts.size(); ++i) {
    std::string_view part = parts[i];
    if (ParseOwnOption(part, criterion, text, spec)) continue;
    if (part.starts_with(kUnit)) {
      spec.unit = ParseUnit(part.substr(kUnit.size()));
      continue;
    }
    if (part.starts_with(kKeep)) {
      keeping = true;
      part.remove_prefix(kKeep.size());
    }
    const bool first = part.starts_with(kFirst);
    if (!keeping || !(first || part.starts_with(kLast))) {
      std::string known = "keep=first:N,last:N, unit=half";
      for (const CriterionOption& option : criterion.options) known += fmt::format(", {}=N", option.name);
      FailUsage(Field("prune"), "{}: unknown option \"{}\" of {}; known: {}", text, parts[i], spec.criterion, known);
    }
    const std::string_view number = part.substr(first ? kFirst.size() : kLast.size());
    if (!ParseIndex(number, first ? &spec.keep_first : &spec.keep_last))
      FailUsage(Field("prune"), "{}: \"{}\" is not a number of layers to keep", text, number);
  }
}

// True if a comma-separated part is an option or a layer of the criterion before it, and not a criterion.
bool Continues(std::string_view part) {
  if (part.starts_with(kLayers)) return false;
  const std::string_view word = part.substr(0, part.find(':'));
  return word.find('=') != word.npos || part.starts_with(kFirst) || part.starts_with(kLast) ||
         (!part.empty() && part[0] >= '0' && part[0] <= '9');
}

struct Sizes {
  int64_t parameters = 0, bytes = 0;

  void Add(const TensorView& tensor) {
    parameters += tensor.elements();
    bytes += tensor.bytes();
  }
};
using Measure = int64_t Sizes::*;

int64_t SizeOf(const Weights& weights, const BlockPart& part, Measure size) {
  Sizes sizes;
  ForEachTensor(weights.blocks[part.layer], part.halves,
                [&](const BlockTensor&, const TensorView& tensor) { sizes.Add(tensor); });
  return sizes.*size;
}

// The size of the whole model.
int64_t SizeOf(const Weights& weights, Measure size) {
  Sizes whole;
  weights.ForEach([&](const std::string&, const TensorView& tensor) { whole.Add(tensor); });
  return whole.*size;
}

// The least number of blocks with which `target` is reached even if the smallest blocks are removed.
int64_t CountForTarget(const PruneSpec& spec, const Weights& weights, Measure size, int64_t target, const char* unit) {
  std::vector<int64_t> blocks;
  for (int64_t layer = 0; layer < weights.config.layers; ++layer) blocks.push_back(SizeOf(weights, layer, size));
  std::sort(blocks.begin(), blocks.end());
  int64_t left = SizeOf(weights, size), count = 0;
  for (; count < static_cast<int64_t>(blocks.size()) && left > target; ++count) left -= blocks[count];
  if (left > target)
    FailUsage(Field("prune"), "{}: cannot be reached: without any block the model still has {} {}", Format(spec), left,
              unit);
  if (count == 0) FailUsage(Field("prune"), "{}: the model has only {} {} already", Format(spec), left, unit);
  return count;
}

// Blocks that an amount other than a count would remove.
int64_t BlockCount(const PruneSpec& spec, const Weights& weights) {
  if (spec.parameters > 0) return CountForTarget(spec, weights, &Sizes::parameters, spec.parameters, "parameters");
  if (spec.bytes > 0) return CountForTarget(spec, weights, &Sizes::bytes, spec.bytes, "bytes");
  // The nudge makes 0.29 of 100 layers 29, though 0.29 * 100 is just below it in binary.
  return static_cast<int64_t>(std::floor(spec.ratio * static_cast<double>(weights.config.layers) + 1e-9));
}

// The number of halves that layers= removes.
int64_t HalvesOf(const std::vector<BlockPart>& parts) {
  int64_t halves = 0;
  for (const BlockPart& part : parts) halves += part.end() - part.begin();
  return halves;
}

}  // namespace

std::string Format(const PruneSpec& spec) {
  if (!spec.layers.empty()) return fmt::format("{}{}", kLayers, Names(spec.layers, ","));
  std::string text = spec.criterion + ":";
  if (spec.parameters > 0) {
    text += fmt::format("{}{}", kParameters, spec.parameters);
  } else if (spec.bytes > 0) {
    text += fmt::format("{}{}B", kBytes, spec.bytes);
  } else if (spec.max_divergence > 0) {
    text += fmt::format("{}{}", kMaxDivergence, spec.max_divergence);
  } else {
    text += spec.count > 0 ? std::to_string(spec.count) : fmt::format("{}", spec.ratio);
  }
  for (const auto& [option, value] : spec.options) text += fmt::format(",{}={}", option, value);
  if (spec.unit != Unit::kBlock) text += fmt::format(",{}{}", kUnit, Name(spec.unit));
  if (spec.keep_first > 0) text += fmt::format(",{}{}{}", kKeep, kFirst, spec.keep_first);
  if (spec.keep_last > 0) text += fmt::format(",{}{}{}", kKeep, kLast, spec.keep_last);
  return text;
}

Unit ParseUnit(std::string_view name) {
  for (const Unit unit : {Unit::kBlock, Unit::kHalf})
    if (name == Name(unit)) return unit;
  FailUsage(Field("prune"), "unknown unit \"{}\"; known: block, half", name);
}

int64_t UnitsOf(Unit unit, int64_t layers) { return unit == Unit::kHalf ? 2 * layers : layers; }

BlockPart PartOf(Unit unit, int64_t index) { return unit == Unit::kHalf ? BlockPart::At(index) : BlockPart(index); }

int64_t PruneSpec::Option(std::string_view name) const {
  const auto given = options.find(name);
  if (given != options.end()) return given->second;
  const CriterionOption* option = FindCriterion(criterion).OptionNamed(name);
  Check(option != nullptr, "criterion {} has no option {}", criterion, name);
  return option->default_value;
}

PruneSpec ParsePrune(const std::string& text, const std::string& default_amount) {
  PruneSpec spec;
  if (text.starts_with(kLayers)) {
    spec.criterion = "layers";
    spec.layers = ParseLayers(std::string_view(text).substr(kLayers.size()), text);
    return spec;
  }
  const std::vector<std::string_view> parts = SplitCommas(text);
  const Criterion* alone = default_amount.empty() ? nullptr : CriterionNamed(parts[0]);
  const size_t colon = parts[0].rfind(':');
  if (alone != nullptr) {
    spec.criterion = alone->name;
    ParseAmount(default_amount, text, spec);
  } else if (colon != std::string_view::npos) {
    spec.criterion = FindCriterion(parts[0].substr(0, colon)).name;
    ParseAmount(parts[0].substr(colon + 1), text, spec);
  } else {
    FailUsage(Field("prune"),
              "\"{}\" is not of the form CRITERION:AMOUNT (bi:0.25) or layers=LIST (layers=3.attn,5,8-10)", text);
  }
  ParseOptions(parts, text, spec);
  return spec;
}

std::vector<PruneSpec> ParsePruneList(const std::string& text, const std::string& default_amount) {
  std::vector<std::string> texts;
  for (std::string_view part : SplitCommas(text)) {
    if (!texts.empty() && Continues(part)) {
      texts.back() += fmt::format(",{}", part);
    } else {
      texts.emplace_back(part);
    }
  }
  std::vector<PruneSpec> specs;
  specs.reserve(texts.size());
  for (const std::string& one : texts) specs.push_back(ParsePrune(one, default_amount));
  return specs;
}

int64_t RemovalCount(const PruneSpec& spec, const Weights& weights) {
  const int64_t layers = weights.config.layers;
  const bool halves = spec.halves();
  const int64_t of_a_block = halves ? 2 : 1, units = of_a_block * layers;
  const char* const name = halves ? "half blocks" : "layers";
  const int64_t count = !spec.layers.empty() ? HalvesOf(spec.layers) * of_a_block / 2
                        : spec.count > 0     ? spec.count
                        : spec.max_divergence > 0
                            ? of_a_block * std::clamp<int64_t>(layers - spec.keep_first - spec.keep_last, 0, layers / 2)
                            : of_a_block * BlockCount(spec, weights);
  if (!spec.layers.empty() && spec.layers.back().layer >= layers)
    FailUsage(Field("prune"), "{}: the model's layers are 0 to {}", Format(spec), layers - 1);
  if (count < 1) FailUsage(Field("prune"), "{}: removes none of {} {}", Format(spec), units, name);
  if (count >= units)
    FailUsage(Field("prune"), "{}: would remove {} of {} {}; one must stay", Format(spec), count, units, name);
  const bool room = spec.keep_first <= layers && spec.keep_last <= layers &&
                    count <= of_a_block * (layers - spec.keep_first - spec.keep_last);
  if (!room)
    FailUsage(Field("prune"), "{}: cannot remove {} of {} {} and keep the first {} and the last {} layers",
              Format(spec), count, units, name, spec.keep_first, spec.keep_last);
  return count;
}

Quota::Quota(const PruneSpec& spec, const Weights& weights)
    : unit_(spec.unit), count_(RemovalCount(spec, weights)), limit_(count_) {
  const int64_t layers = weights.config.layers, units = UnitsOf(unit_, layers), of_a_block = units / layers;
  first_ = of_a_block * spec.keep_first;
  end_ = units - of_a_block * spec.keep_last;
  sizes_.assign(units, 1);
  if (unit_ == Unit::kBlock || spec.count > 0) return;
  const Measure size = spec.parameters > 0 ? &Sizes::parameters : &Sizes::bytes;
  int64_t all = 0;
  for (int64_t unit = 0; unit < units; ++unit) all += sizes_[unit] = SizeOf(weights, PartOf(unit_, unit), size);
  by_size_ = true;
  reach_ = spec.parameters > 0 || spec.bytes > 0;
  limit_ = reach_ ? SizeOf(weights, size) - std::max(spec.parameters, spec.bytes) : all * (count_ / 2) / layers;
}

bool Quota::Admits(int64_t unit) const {
  if (unit < first_ || unit >= end_ || std::find(taken_.begin(), taken_.end(), unit) != taken_.end()) return false;
  return reach_ ? size_ < limit_ : size_ + sizes_[unit] <= limit_;
}

void Quota::Take(int64_t unit) {
  taken_.push_back(unit);
  size_ += sizes_[unit];
}

std::vector<BlockPart> Quota::Removed() const {
  int64_t size = size_;
  std::vector<int64_t> units;
  for (auto unit = taken_.rbegin(); unit != taken_.rend(); ++unit) {
    if (reach_ && size - sizes_[*unit] >= limit_) {
      size -= sizes_[*unit];
    } else {
      units.push_back(*unit);
    }
  }
  std::sort(units.begin(), units.end());
  return unit_ == Unit::kHalf ? PartsAt(units) : WholeBlocks(units);
}

}  // namespace shiftrt
