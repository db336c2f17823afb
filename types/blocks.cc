// SPDX-License-Identifier: Apache-2.0
#include "include/shiftrt/blocks.h"

#include <algorithm>

#include "runtime/parse.h"
#include "runtime/words.h"

namespace shiftrt {

namespace {

constexpr Words<Halves, 3> kHalves = {{"both", "attention", "mlp"}};

}  // namespace

const char* Name(Unit unit) { return unit == Unit::kHalf ? "half" : "block"; }

const char* Name(Halves halves) { return kHalves.Of(halves); }

std::optional<Halves> ParseHalves(std::string_view name) { return kHalves.Find(name); }

std::string Name(const BlockPart& part) {
  const char* const half = part.halves == Halves::kBoth ? "" : part.halves == Halves::kMlp ? ".mlp" : ".attn";
  return fmt::format("{}{}", part.layer, half);
}

std::optional<BlockPart> ParseBlockPart(std::string_view name) {
  const size_t dot = std::min(name.find('.'), name.size());
  BlockPart part;
  if (!ParseNumber(name.substr(0, dot), &part.layer) || part.layer < 0) return std::nullopt;
  for (const Halves halves : {Halves::kBoth, Halves::kAttention, Halves::kMlp}) {
    part.halves = halves;
    if (name == Name(part)) return part;
  }
  return std::nullopt;
}

std::string Names(std::span<const BlockPart> parts, std::string_view between) {
  std::string names;
  for (const BlockPart& part : parts) names += (names.empty() ? "" : std::string(between)) + Name(part);
  return names;
}

std::string SpanName(std::span<const BlockPart> parts) {
  if (parts.empty()) return "";
  return parts.size() == 1 ? Name(parts.front()) : fmt::format("{}-{}", Name(parts.front()), Name(parts.back()));
}

}  // namespace shiftrt
