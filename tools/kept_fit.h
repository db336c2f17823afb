// SPDX-License-Identifier: Apache-2.0
// The selection and the fit of a command, kept on disk until the command is done.
#pragma once

#include "shiftrt/repair.h"

namespace shiftrt {

// A fit may take hours, and what follows it as long again. So it is kept in the cache directory, and a command that is
// interrupted or killed after the fit does not fit again when it is started once more.
class CommandFit {
 public:
  // `first`: this process writes. The job must outlive the object.
  CommandFit(const RepairJob& job, const Recipe& recipe, bool first);
  // Says where the fit is kept, unless Done() was called.
  ~CommandFit();
  CommandFit(const CommandFit&) = delete;
  CommandFit& operator=(const CommandFit&) = delete;

  // The fit that an interrupted command left, or else a new one, which is then kept.
  RepairResult Run(Progress& progress) { return job_.Run(&progress, keep_, &kept_); }
  // Nothing has to be done again: removes what is kept.
  void Done();

 private:
  const RepairJob& job_;
  KeepSettings keep_;
  const bool first_;
  bool kept_ = false;
};

}  // namespace shiftrt
