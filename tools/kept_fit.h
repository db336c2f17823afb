// SPDX-License-Identifier: Apache-2.0
// The selection and the fit of a command, kept on disk until the command is done.
#pragma once

#include "api/kept_fit.h"

namespace shiftrt {

// A fit may take hours, and what follows it as long again. So it is kept in the cache directory, and a command that is
// interrupted or killed after the fit does not fit again when it is started once more.
class CommandFit {
 public:
  // Prepares the fit that `job` makes by `options`.
  CommandFit(const ShiftJob& job, const ShiftOptions& options);
  // Says where the fit is kept, unless Done() was called.
  ~CommandFit();
  CommandFit(const CommandFit&) = delete;
  CommandFit& operator=(const CommandFit&) = delete;

  // The fit that an interrupted command left, or else the one that Shift() makes, which is then kept.
  ShiftResult Get(const ShiftJob& job, const ShiftOptions& options) { return fit_.Get(job, options); }
  // Nothing has to be done again: removes what is kept.
  void Done();

 private:
  KeptFit fit_;
  bool first_;  // of the processes
};

}  // namespace shiftrt
