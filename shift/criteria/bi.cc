#include "shift/criteria/criteria.h"
#include "shift/statistics.h"

namespace shiftrt::criteria {

std::vector<double> BlockInfluence(const CriterionInput& input, Progress& progress) {
  const int64_t layers = input.weights->config.layers;
  InfluenceStatistics statistics(layers);
  Matrix<float> block_input;  // of the block under way
  std::vector<Tap> taps;
  for (int64_t layer = 0; layer < layers; ++layer) {
    taps.push_back({layer, TapPoint::kInput, [&](MatrixView<const float> h) {
                      if (block_input.rows() != h.rows) block_input = Matrix<float>(h.rows, h.cols);
                      std::copy_n(h.data, h.rows * h.cols, block_input.data());
                    }});
    taps.push_back({layer, TapPoint::kOutput,
                    [&, layer](MatrixView<const float> h) { statistics.Add(layer, block_input.view(), h); }});
  }
  Decoder decoder(input.context, input.weights, DepthPlan::Original(layers), std::move(taps));
  int64_t tokens = 0;
  for (const Batch& batch : *input.calibration) tokens += batch.size();
  progress.Begin("selecting layers", tokens);
  for (const Batch& batch : *input.calibration) {
    decoder.Forward(batch, /*taps_only=*/true);
    progress.Advance(batch.size());
  }
  progress.End();
  return statistics.Scores();
}

}  // namespace shiftrt::criteria
