// SPDX-License-Identifier: Apache-2.0
// Fits on the small model, and what its streams are.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/decoder.h"
#include "shift/pipeline.h"
#include "tests/shift/small_model.h"
#include "tests/shift/tokens.h"

namespace shiftrt::test {

// The elements of a float32 tensor.
inline std::vector<float> Floats(const TensorView& tensor) {
  const auto* const data = static_cast<const float*>(tensor.data);
  return {data, data + tensor.elements()};
}

class SmallFits : public SmallModel {
 protected:
  static constexpr double kLambda = 0.05;
  static constexpr int64_t kTokens = 28 * 32;  // fitted tokens

  // Full rank, and kLambda as it is.
  static Recipe Options(const std::string& correction, const std::string& prune) {
    Recipe options{.mode = Calibration::kIndependent};
    options.prune = ParsePrune(prune);
    options.correction = correction;
    options.rank = RankSpec::Full();
    options.lambda = {LambdaSpec::Kind::kAbsolute, kLambda};
    return options;
  }
  ShiftResult Run(const Recipe& options) {
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

  const BlockWeights& Old(int64_t layer) const { return model_.weights->blocks[layer]; }
  // The block at `layer` of a plan, which has tensors of its own.
  static std::shared_ptr<const BlockWeights> Own(const DepthPlan& plan, int64_t layer) {
    const BlockStage& block = plan.stages[plan.StageOf(layer)].block();
    EXPECT_NE(block.own, nullptr) << layer;
    return block.own;
  }
  // W' - W is the transpose of `change`.
  static void ExpectChange(const TensorView& now, const TensorView& old, const Matrix<double>& change,
                           double tolerance = 1e-4) {
    const std::vector<float> after = Floats(now), before = Floats(old);
    std::vector<double> found(change.size());
    const int64_t inputs = change.rows(), outputs = change.cols();
    for (int64_t i = 0; i < outputs; ++i)
      for (int64_t j = 0; j < inputs; ++j)
        found[j * outputs + i] = static_cast<double>(after[i * inputs + j]) - before[i * inputs + j];
    EXPECT_LT(RelativeError(found, change.span()), tolerance);
  }
};

}  // namespace shiftrt::test
