// SPDX-License-Identifier: Apache-2.0
// Runs programs that a model wrote, each in a process that can neither reach the network nor harm the machine.
#pragma once

#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "eval/programs/confinement.h"

namespace shiftrt {

enum class ProgramOutcome { kPassed, kFailed, kTimedOut };
const char* Name(ProgramOutcome outcome);

class ProgramRunner {
 public:
  static constexpr Isolation kAll[] = {Isolation::kNamespaces, Isolation::kLandlock};

  // Finds Python and the first of the isolations in which it runs. Throws Error if there is no Python, or if none of
  // them works, saying why.
  explicit ProgramRunner(const ProgramLimits& limits = {}, std::span<const Isolation> isolations = kAll);
  ~ProgramRunner();
  ProgramRunner(const ProgramRunner&) = delete;
  ProgramRunner& operator=(const ProgramRunner&) = delete;

  Isolation isolation() const { return isolation_; }

  // Runs the program as Python runs a text with exec() and an empty dictionary, with no input and no output. It passes
  // if it ends without an exception, sys.exit() included. Its process is gone when the call returns. Throws Error if
  // the process could not be isolated, and Interrupted.
  ProgramOutcome Run(std::string_view program) const;

 private:
  std::filesystem::path directory_;
  ProgramLimits limits_;
  Isolation isolation_ = Isolation::kNamespaces;
  std::unique_ptr<const Confinement> confinement_;
};

}  // namespace shiftrt
