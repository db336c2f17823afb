// ReplaceMe (Shopkhoev et al., 2025), the L2 form: a linear map behind the MLP of the block before a removed run.
#pragma once

#include <vector>

#include "models/model.h"
#include "runtime/progress.h"
#include "shift/fit/fit.h"
#include "shift/text/calibration.h"

namespace shiftrt {

struct ReplaceMeResult {
  DepthPlan plan;
  std::vector<SiteReport> reports;  // r2 of what the run adds to the stream, as for adapters: by T - I
  FitSeconds seconds;
};

// T = argmin |M T + Y - L|^2 + lambda |T|^2 for each run: Y the stream behind the attention of the block before, M that
// block's MLP output, L the stream behind the run, all of the original model. T goes into the block's down projection.
// `sums`: sites with SiteInput::kMlpBefore, collected. Throws what SolveRidge throws.
ReplaceMeResult FitReplaceMe(const Context& context, const Weights& weights, const std::vector<SiteSums>& sums,
                             const RidgeOptions& options, Progress& progress);

}  // namespace shiftrt
