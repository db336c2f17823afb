// SPDX-License-Identifier: Apache-2.0
// The record of a benchmark, which a later run on the same machine is compared with.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "runtime/context.h"

namespace shiftrt {

// A figure that a benchmark measures once per round.
struct BenchFigure {
  std::string name;  // its key in the record, with the unit: "prefill_tokens_per_second"
  enum class Better : uint8_t { kHigher, kLower } better = Better::kHigher;
  std::vector<double> rounds = {};

  double median() const;
  // The standard error of the median, relative to it: 1.2533 / sqrt(rounds) times the standard deviation that the
  // median absolute deviation of normally distributed rounds stands for (1.4826). It knows nothing of what changes
  // between two runs. NaN for fewer than three rounds.
  double error() const;
};

// The record: {"what", "machine", "version", "date", "settings", "rounds": {figure: {"better", "values"}}}, and the
// median of every figure under its name. `settings` say what was measured, and must be equal in records that are
// compared.
nlohmann::json BenchRecord(const std::string& what, const Context& context, const nlohmann::json& settings,
                           const std::vector<BenchFigure>& figures);
// Reads a record. Throws Error for a file that is none, and for one of another benchmark or of other settings.
nlohmann::json ReadBenchRecord(const std::filesystem::path& file, const std::string& what,
                               const nlohmann::json& settings);

// A figure of two records. `speedup` is above 1 where the later one is better.
struct ComparedFigure {
  std::string name;
  double before = 0, now = 0, speedup = 0;
  double error = 0;  // relative error of the speedup; NaN if one record has too few rounds
  // The difference exceeds twice the error, and no round of one record is between two rounds of the other.
  bool differs = false;
};

struct BenchComparison {
  std::vector<ComparedFigure> figures;  // that both records have, in the order of the later one
  // In which the machines differ: "threads: 2 before, 16 now". Empty: they look the same.
  std::vector<std::string> machine;
};
BenchComparison CompareRecords(const nlohmann::json& before, const nlohmann::json& now);

}  // namespace shiftrt
