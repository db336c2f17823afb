// SPDX-License-Identifier: Apache-2.0
#include "shift/quantise/mixture.h"

#include "include/shiftrt/recipe.h"
#include "runtime/check.h"
#include "runtime/parse.h"
#include "runtime/words.h"

namespace shiftrt {

namespace {

using enum BlockType;

constexpr Words<Rounding, 3> kRoundings = {{"nearest", "importance", "feedback"}};
constexpr Words<QuantiseWhen, 2> kWhens = {{"before", "after"}};

constexpr Mixture Uniform(const char* name, BlockType type, BlockType head, const char* summary) {
  return {name, type, type, type, type, type, type, type, type, head, summary};
}

constexpr Mixture kMixtures[] = {
    Uniform("q8_0", kQ8_0, kQ8_0, "8.5 bits per weight"),
    Uniform("q6_k", kQ6_K, kQ6_K, "6.6 bits per weight"),
    {"q5_k_m", kQ5_K, kQ5_K, kQ6_K, kQ5_K, kQ5_K, kQ5_K, kQ6_K, kQ5_K, kQ6_K, "5.7 bits per weight"},
    {"q4_k_m", kQ4_K, kQ4_K, kQ6_K, kQ4_K, kQ4_K, kQ4_K, kQ6_K, kQ4_K, kQ6_K, "4.8 bits per weight"},
    Uniform("q4_0", kQ4_0, kQ6_K, "4.5 bits per weight"),
    {"q3_k_m", kQ3_K, kQ4_K, kQ4_K, kQ5_K, kQ4_K, kQ4_K, kQ4_K, kQ5_K, kQ6_K, "3.9 bits per weight"},
    {"q2_k", kQ2_K, kQ3_K, kQ3_K, kQ3_K, kQ3_K, kQ3_K, kQ3_K, kQ3_K, kQ6_K, "2.9 bits per weight"},
};

// The first and the last eighth of the blocks, and every third one between them, get more bits.
bool GetsMore(int64_t index, int64_t count) {
  const int64_t eighth = count / 8;
  return index < eighth || index >= 7 * count / 8 || (index - eighth) % 3 == 2;
}

BlockType ForRows(BlockType type, int64_t columns) {
  if (columns % TraitsOf(type).elements == 0) return type;
  if (columns % 32 != 0) return kF32;
  switch (type) {
    case kQ4_K: return kQ5_0;
    case kQ5_K: return kQ5_1;
    case kQ6_K: return kQ8_0;
    default: return kQ4_0;
  }
}

BlockType TypeOf(const Mixture& mixture, const BlockTensor& tensor, int64_t index, int64_t count) {
  if (tensor.member == &BlockWeights::v) {
    if (mixture.value_first != mixture.value && index < 2) return mixture.value_first;
    return GetsMore(index, count) ? mixture.value_more : mixture.value;
  }
  if (tensor.member == &BlockWeights::down || tensor.member == &BlockWeights::shared_down ||
      tensor.of_expert == &ExpertWeights::down) {
    if (mixture.down_first != mixture.down && index < count / 16) return mixture.down_first;
    return GetsMore(index, count) ? mixture.down_more : mixture.down;
  }
  return tensor.member == &BlockWeights::o ? mixture.output : mixture.type;
}

}  // namespace

std::span<const Mixture> Mixtures() { return kMixtures; }

const Mixture& FindMixture(std::string_view name) {
  std::vector<std::string_view> names;
  for (const Mixture& mixture : kMixtures) {
    if (mixture.name == name) return mixture;
    names.emplace_back(mixture.name);
  }
  FailUsage(Field("quantize"), "there is no mixture of types \"{}\"; there are {}", name, fmt::join(names, ", "));
}

BlockType TypeIn(const Mixture& mixture, const BlockTensor& tensor, int64_t index, int64_t count, int64_t columns) {
  return ForRows(TypeOf(mixture, tensor, index, count), columns);
}

BlockType HeadTypeIn(const Mixture& mixture, const ModelConfig& config) { return ForRows(mixture.head, config.hidden); }

BlockType TableTypeIn(const Mixture& mixture, const ModelConfig& config) {
  return ForRows(mixture.type, config.hidden);
}

QuantiseSpec ParseQuantise(const std::string& text) {
  QuantiseSpec spec;
  if (text == "off") return spec;
  const std::vector<std::string_view> parts = SplitCommas(text);
  spec.mixture = FindMixture(parts.front()).name;
  for (size_t i = 1; i < parts.size(); ++i) {
    if (const auto when = kWhens.Find(parts[i])) {
      spec.when = *when;
    } else {
      spec.rounding = kRoundings.Parse(parts[i], "quantize", "\"{}\" is neither before nor after, nor a way to round");
    }
  }
  return spec;
}

std::string Format(const QuantiseSpec& spec) {
  if (!spec.any()) return "off";
  return fmt::format("{},{},{}", spec.mixture, kRoundings.Of(spec.rounding), kWhens.Of(spec.when));
}

std::vector<Choice> MixtureNames() {
  std::vector<Choice> names;
  for (const Mixture& mixture : Mixtures()) names.push_back({mixture.name, mixture.summary});
  return names;
}

}  // namespace shiftrt
