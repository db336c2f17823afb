// SPDX-License-Identifier: Apache-2.0
#include "tools/kept_fit.h"

#include <algorithm>
#include <cstdio>

#include "tools/cache.h"
#include "tools/standard_output.h"

namespace shiftrt {

namespace fs = std::filesystem;

CommandFit::CommandFit(const RepairJob& job, const Recipe& recipe, bool first) : job_(job), first_(first) {
  const std::vector<fs::path>& load = recipe.gram.load;
  // The job says what is wrong with a file that is missing.
  if (std::all_of(load.begin(), load.end(), [](const fs::path& file) { return fs::exists(file); }))
    keep_.directory = CachePath("run-" + job.Key());
  keep_.tell = Tell;
}

CommandFit::~CommandFit() {
  if (kept_)
    std::fprintf(stderr, "shiftrt: the selection and the fit are kept in %s; the same command continues from there\n",
                 keep_.directory.c_str());
}

void CommandFit::Done() {
  kept_ = false;
  std::error_code ignored;
  if (!keep_.directory.empty() && first_) fs::remove_all(keep_.directory, ignored);
}

}  // namespace shiftrt
