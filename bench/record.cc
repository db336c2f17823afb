// SPDX-License-Identifier: Apache-2.0
#include "bench/record.h"

#include <fmt/chrono.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <fstream>
#include <limits>
#include <thread>

#include "include/shiftrt/version.h"
#include "runtime/check.h"
#include "runtime/files.h"
#include "runtime/json.h"
#include "runtime/median.h"

namespace shiftrt {

namespace {

constexpr const char* kHigher = "higher";
constexpr const char* kLower = "lower";

// As Linux names the processor; empty where it does not, as on ARM.
std::string ProcessorName() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("model name")) return line.substr(std::min(line.size(), line.find(':') + 2));
  return "";
}

nlohmann::json Machine(const Context& context) {
  return {{"processor", ProcessorName()},
          {"cores", std::thread::hardware_concurrency()},
          {"isa", Name(context.isa)},
          {"threads", context.threads}};
}

BenchFigure FigureOf(const std::string& name, const nlohmann::json& value) {
  BenchFigure figure{name, BenchFigure::Better::kHigher, value.at("values").get<std::vector<double>>()};
  if (value.at("better") == std::string(kLower)) figure.better = BenchFigure::Better::kLower;
  Check(!figure.rounds.empty() && std::all_of(figure.rounds.begin(), figure.rounds.end(),
                                              [](double round) { return std::isfinite(round) && round > 0; }),
        "the rounds of \"{}\" are not numbers above 0", name);
  return figure;
}

// The members in which two objects differ.
std::vector<std::string> Differences(const nlohmann::json& before, const nlohmann::json& now) {
  std::vector<std::string> differences;
  for (const auto& [key, value] : now.items())
    if (!before.contains(key) || before[key] != value)
      differences.push_back(fmt::format("{}: {} before, {} now", key,
                                        before.contains(key) ? Shown(before[key]) : std::string("none"), Shown(value)));
  for (const auto& [key, value] : before.items())
    if (!now.contains(key)) differences.push_back(fmt::format("{}: {} before, none now", key, Shown(value)));
  return differences;
}

ComparedFigure Compared(const BenchFigure& before, const BenchFigure& now) {
  ComparedFigure figure{now.name, before.median(), now.median()};
  figure.speedup = now.better == BenchFigure::Better::kHigher ? figure.now / figure.before : figure.before / figure.now;
  figure.error = std::hypot(before.error(), now.error());
  const auto [low, high] = std::minmax_element(before.rounds.begin(), before.rounds.end());
  const auto [low_now, high_now] = std::minmax_element(now.rounds.begin(), now.rounds.end());
  figure.differs = std::abs(std::log(figure.speedup)) > 2 * figure.error && (*high < *low_now || *high_now < *low);
  return figure;
}

}  // namespace

double BenchFigure::median() const { return Median(rounds); }

double BenchFigure::error() const {
  if (rounds.size() < 3) return std::numeric_limits<double>::quiet_NaN();
  const double middle = median();
  std::vector<double> distances;
  for (const double round : rounds) distances.push_back(std::abs(round - middle));
  return 1.2533 * 1.4826 * Median(distances) / (std::abs(middle) * std::sqrt(static_cast<double>(rounds.size())));
}

nlohmann::json BenchRecord(const std::string& what, const Context& context, const nlohmann::json& settings,
                           const std::vector<BenchFigure>& figures) {
  nlohmann::json record = {
      {"what", what},         {"machine", Machine(context)},
      {"version", Version()}, {"date", fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr)))},
      {"settings", settings},
  };
  for (const BenchFigure& figure : figures) {
    record["rounds"][figure.name] = {{"better", figure.better == BenchFigure::Better::kHigher ? kHigher : kLower},
                                     {"values", figure.rounds}};
    record[figure.name] = figure.median();
  }
  return record;
}

nlohmann::json ReadBenchRecord(const std::filesystem::path& file, const std::string& what,
                               const nlohmann::json& settings) {
  const std::string name = file.string();
  nlohmann::json record = ParseJson(ReadFile(file), name);
  try {
    Check(record.is_object() && record.contains("what") && record.contains("rounds"),
          "it has no \"what\" and \"rounds\", which `shiftrt bench --json FILE` writes");
    Check(record["what"] == what, "it is of bench {}, and this is bench {}", Shown(record["what"]), what);
    const std::vector<std::string> differences = Differences(record.at("settings"), settings);
    Check(differences.empty(), "it was measured with other settings: {}", fmt::join(differences, "; "));
    Check(record.at("machine").is_object(), "its \"machine\" is no object");
    for (const auto& [figure, value] : record["rounds"].items()) FigureOf(figure, value);
  } catch (const nlohmann::json::exception& error) {
    Fail("{}: this is not a record of a benchmark: {}", name, JsonReason(error));
  } catch (const Error& error) {
    Fail("{}: {}", name, error.what());
  }
  return record;
}

BenchComparison CompareRecords(const nlohmann::json& before, const nlohmann::json& now) {
  BenchComparison comparison;
  comparison.machine = Differences(before["machine"], now["machine"]);
  for (const auto& [figure, value] : now["rounds"].items())
    if (before["rounds"].contains(figure))
      comparison.figures.push_back(Compared(FigureOf(figure, before["rounds"][figure]), FigureOf(figure, value)));
  return comparison;
}

}  // namespace shiftrt
