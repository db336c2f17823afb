// SPDX-License-Identifier: Apache-2.0
// The words of QuantiseSpec.
#include "include/shiftrt/recipe.h"
#include "runtime/check.h"
#include "runtime/parse.h"
#include "runtime/words.h"
#include "shift/quantise/mixture.h"

namespace shiftrt {

namespace {

constexpr Words<Rounding, 3> kRoundings = {{"nearest", "importance", "feedback"}};
constexpr Words<QuantiseWhen, 2> kWhens = {{"before", "after"}};

}  // namespace

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
