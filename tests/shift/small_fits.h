// SPDX-License-Identifier: Apache-2.0
// Fits on the small model, and what its streams are.
#pragma once

#include <string>
#include <utility>

#include "engine/decoder.h"
#include "shift/pipeline.h"
#include "tests/shift/small_model.h"

namespace shiftrt::test {

class SmallFits : public SmallModel {
 protected:
  static constexpr double kLambda = 0.05;
  static constexpr int64_t kTokens = 28 * 32;  // that are fitted

  // Full rank, and kLambda as it is.
  static ShiftOptions Options(const std::string& correction, const std::string& prune) {
    ShiftOptions options;
    options.prune = ParsePrune(prune);
    options.correction = &FindCorrection(correction);
    options.fit.rank = RankSpec::Full();
    options.fit.ridge.lambda = {LambdaSpec::Kind::kAbsolute, kLambda};
    return options;
  }
  ShiftResult Run(const ShiftOptions& options) {
    NoProgress progress;
    return Shift({context_, model_, calibration_, progress}, options);
  }

  // The rows that a tap of `plan` sees over the fitted batches, one batch after another.
  Matrix<float> Seen(const DepthPlan& plan, int64_t layer, TapPoint point) {
    Matrix<float> all;
    int64_t row = 0;
    Decoder decoder(context_, model_.weights, plan, {{layer, point, [&](const Rows& h, const Batch&) {
                                                        if (all.empty()) all = Matrix<float>(kTokens, h.hidden());
                                                        for (int64_t t = 0; t < h.count(); ++t, ++row)
                                                          std::copy_n(h.host().row(t), h.hidden(), all.row(row));
                                                      }}});
    for (const Batch& batch : calibration_.fit) decoder.Forward(batch);
    EXPECT_EQ(row, kTokens);
    return all;
  }
};

}  // namespace shiftrt::test
