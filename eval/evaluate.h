// A data set scored by several variants of one model.
#pragma once

#include <string>
#include <vector>

#include "eval/dataset.h"
#include "eval/journal.h"
#include "eval/requests.h"
#include "models/model.h"
#include "runtime/progress.h"

namespace shiftrt {

struct EvalVariant {
  std::string name;
  DepthPlan plan;
};

// What was computed for one variant, beside what the requests would have cost one by one.
struct EvalCost {
  int64_t requests = 0;
  int64_t tokens_requested = 0, tokens_computed = 0;  // through the blocks
  int64_t head_rows = 0;                              // through the head
  int64_t shared_stages = 0;                          // run once for all variants, before they part
};

struct EvalScores {
  EvalCost cost;
  std::vector<std::vector<std::vector<Score>>> scores;  // of each variant, item, prompt
  double seconds = 0;                                   // for all variants; what came from the journal took none
};

struct EvalOptions {
  Bos bos = Bos::kAuto;
  int64_t batch_tokens = 2048;
};

// Scores depend on the arguments but the journal only, bit for bit.
EvalScores Evaluate(const Context& context, const Model& model, const std::vector<EvalVariant>& variants,
                    const Dataset& dataset, const EvalOptions& options, Journal& journal, Progress& progress);

}  // namespace shiftrt
