// SPDX-License-Identifier: Apache-2.0
#include "tools/kept_fit.h"

#include <algorithm>
#include <cstdio>

#include "runtime/processes.h"
#include "tools/cache.h"

namespace shiftrt {

namespace fs = std::filesystem;

CommandFit::CommandFit(const ShiftJob& job, const ShiftOptions& options) : first_(job.context.processes->first()) {
  const std::vector<fs::path>& load = options.gram.load;
  // Shift() says what is wrong with a file that is missing.
  if (std::all_of(load.begin(), load.end(), [](const fs::path& file) { return fs::exists(file); }))
    fit_.directory = CachePath("run-" + FitKey(job, options));
  fit_.tell = [](const std::string& message) { std::fprintf(stderr, "shiftrt: %s\n", message.c_str()); };
}

CommandFit::~CommandFit() {
  if (fit_.kept)
    std::fprintf(stderr, "shiftrt: the selection and the fit are kept in %s; the same command continues from there\n",
                 fit_.directory.c_str());
}

void CommandFit::Done() {
  fit_.kept = false;
  std::error_code ignored;
  if (!fit_.directory.empty() && first_) fs::remove_all(fit_.directory, ignored);
}

}  // namespace shiftrt
