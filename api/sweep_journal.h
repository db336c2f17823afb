// SPDX-License-Identifier: Apache-2.0
// The journal of a sweep: the cells that an interrupted sweep has finished.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "runtime/checked_lines.h"
#include "shift/sweep.h"

namespace shiftrt {

class SweepJournal {
 public:
  // Reads the cells of `file` whose key is `key`, which stands for everything that decides a cell besides its settings:
  // model, texts, protocol and suites. "" keeps nothing. A line that breaks off counts for nothing.
  SweepJournal(std::filesystem::path file, std::string key);

  // The cell of these settings (prune and seed among them), or null.
  const SweepRow* Find(const Recipe& recipe, int64_t samples) const;
  // Appends a line; throws Error where that fails.
  void Add(const SweepRow& row);
  int64_t cells() const { return std::ssize(rows_); }
  // Names the file and the line of each damaged line that was read.
  const std::vector<std::string>& bad() const { return bad_; }

 private:
  // Takes the cell of a line, if it has this journal's key.
  void Take(const nlohmann::json& json);

  using Cell = std::tuple<std::string, uint64_t, int64_t>;  // settings, seed, samples

  std::filesystem::path file_;
  std::string key_;
  std::map<Cell, SweepRow> rows_;
  std::vector<std::string> bad_;
  std::optional<LineAppender> lines_;  // once a line was written
};

}  // namespace shiftrt
