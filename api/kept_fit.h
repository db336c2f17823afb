// SPDX-License-Identifier: Apache-2.0
// A selection and a fit, kept on disk so that what follows them can be interrupted.
#pragma once

#include <filesystem>
#include <functional>
#include <string>

#include "shift/pipeline.h"

namespace shiftrt {

// Everything that decides the selection and the fit, as a hash: version, model, text, settings and files of sums.
// Throws Error if a file of sums is missing.
std::string FitKey(const ShiftJob& job, const Recipe& recipe);

// The fit that an earlier call left in `directory`, or else the one that Shift() makes, which is then kept there. An
// earlier fit counts only if its FitKey() is that of this one. `kept` is told whether the fit is on disk now, and
// `tell` of whatever a user should know, in the words that continue "shiftrt: ". Of several processes, the first one
// writes and tells; all of them read. An empty `directory` keeps nothing.
struct KeptFit {
  std::filesystem::path directory;
  std::function<void(const std::string& message)> tell = {};
  bool kept = false;

  ShiftResult Get(const ShiftJob& job, const Recipe& recipe);
};

}  // namespace shiftrt
