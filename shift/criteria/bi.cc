// Block influence: one pass of the original model, its residual stream tapped before and after every block.
#include <algorithm>

#include "runtime/check.h"
#include "shift/criteria/scores.h"
#include "shift/statistics.h"

namespace shiftrt {

std::vector<double> BlockInfluenceScores(const CriterionInput& input, Progress& progress) {
  Check(input.calibration != nullptr && !input.calibration->empty(), "block influence needs calibration text");
  const int64_t layers = input.weights->config.layers;
  InfluenceStatistics statistics(layers);
  Buffer<float> before;  // the stream is updated in place, so what went in is kept until the block is done
  std::vector<Tap> taps;
  for (int64_t layer = 0; layer < layers; ++layer) {
    taps.push_back({layer, TapPoint::kInput, [&](MatrixView<const float> h) {
                      before.Reserve(h.rows * h.cols);
                      for (int64_t i = 0; i < h.rows; ++i) std::copy_n(h.row(i), h.cols, before.data() + i * h.cols);
                    }});
    taps.push_back({layer, TapPoint::kOutput, [&, layer](MatrixView<const float> h) {
                      statistics.Add(layer, {before.data(), h.rows, h.cols}, h);
                    }});
  }
  Decoder decoder(input.context, input.weights, DepthPlan::Original(layers), std::move(taps));
  int64_t tokens = 0;
  for (const Batch& batch : *input.calibration) tokens += batch.size();
  progress.Begin("selecting layers", tokens);
  for (const Batch& batch : *input.calibration) {
    decoder.Forward(batch, true);
    progress.Advance(batch.size());
  }
  progress.End();
  return statistics.Scores();
}

}  // namespace shiftrt
