// SPDX-License-Identifier: Apache-2.0
#include "models/lora_scaling.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "models/config_reader.h"
#include "runtime/check.h"
#include "runtime/json.h"
#include "runtime/printable.h"

namespace shiftrt {

namespace {

constexpr double kMostAlpha = 1e30;

// True if the module is called so, or its name ends with it after a point, as in PEFT's get_pattern_key. Throws Error
// at PCRE2's limits, which a pattern with nested repetitions reaches.
bool Matches(const std::string& pattern, const std::string& module, const std::string& where) {
  const std::string whole = "(?:.*\\.)?(?:" + pattern + ")";
  int code = 0;
  PCRE2_SIZE at = 0;
  const std::unique_ptr<pcre2_code, decltype(&pcre2_code_free)> compiled(
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(whole.data()), whole.size(), PCRE2_ANCHORED | PCRE2_ENDANCHORED, &code,
                    &at, nullptr),
      &pcre2_code_free);
  Check(compiled != nullptr, "{}: \"{}\" is no regular expression", where, Printable(pattern));
  const std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)> match(
      pcre2_match_data_create_from_pattern(compiled.get(), nullptr), &pcre2_match_data_free);
  const int found = pcre2_match(compiled.get(), reinterpret_cast<PCRE2_SPTR>(module.data()), module.size(), 0, 0,
                                match.get(), nullptr);
  Check(found >= 0 || found == PCRE2_ERROR_NOMATCH, "{}: \"{}\" takes too long to compare with {}", where,
        Printable(pattern), module);
  return found >= 0;
}

}  // namespace

LoraScaling::LoraScaling(const nlohmann::json& config, const std::string& file, int64_t most)
    : config_(config), file_(file) {
  const ConfigReader reader(config, file);
  rank_ = reader.Integer("r", 1, most);
  alpha_ = reader.Number("lora_alpha", 0, kMostAlpha);
  root_ = reader.Flag("use_rslora", false);
  for (const char* key : {"rank_pattern", "alpha_pattern"}) {
    if (!reader.Has(key)) continue;
    const bool ranks = std::string_view(key) == "rank_pattern";
    Check(config[key].is_object(), "{}: {} is {}, expected an object", file, key, Shown(config[key]));
    for (const auto& [pattern, value] : config[key].items()) {
      const double number = value.is_number() ? value.get<double>() : -1;
      Check(ranks ? value.is_number_integer() && number >= 1 && number <= static_cast<double>(most)
                  : number >= 0 && number <= kMostAlpha,
            "{}: {} has {} for {}, expected a number from {} on", file, key, Shown(value), pattern, ranks ? 1 : 0);
      Matches(pattern, "", fmt::format("{}: {}", file, key));
    }
  }
}

int64_t LoraScaling::RankOf(const std::string& module) const {
  return std::llround(Matched("rank_pattern", module, static_cast<double>(rank_)));
}

double LoraScaling::ScaleOf(const std::string& module) const {
  const auto rank = static_cast<double>(RankOf(module));
  return Matched("alpha_pattern", module, alpha_) / (root_ ? std::sqrt(rank) : rank);
}

double LoraScaling::Matched(const char* key, const std::string& module, double fallback) const {
  const auto patterns = config_.find(key);
  if (patterns == config_.end() || patterns->is_null()) return fallback;
  std::optional<double> found;
  for (const auto& [pattern, value] : patterns->items()) {
    if (!Matches(pattern, module, fmt::format("{}: {}", file_, key))) continue;
    Check(!found || *found == value.get<double>(),
          "{}: {} has two patterns for {} with different values; merge the adapter with peft", file_, key, module);
    found = value.get<double>();
  }
  return found.value_or(fallback);
}

}  // namespace shiftrt
