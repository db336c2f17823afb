#include "shift/collect.h"

#include <algorithm>

#include "runtime/check.h"

namespace shiftrt {

namespace {

// One pass over batches[done..]: adds to sums[i] what layers[i] takes in and adds to the stream.
void Pass(const Context& context, const Model& model, const std::vector<int64_t>& layers,
          const std::vector<RidgeAccumulator*>& sums, const std::vector<Batch>& batches, int64_t& done,
          const char* phase, Progress& progress, const std::function<void()>& after_batch) {
  if (layers.empty() || done == static_cast<int64_t>(batches.size())) return;
  Buffer<float> input;  // the stream is updated in place, so a block's input is kept until its update is known
  std::vector<Tap> taps;
  for (size_t i = 0; i < layers.size(); ++i) {
    const int64_t layer = layers[i];
    taps.push_back({layer, TapPoint::kInput, [&](MatrixView<const float> h) {
                      input.Reserve(h.rows * h.cols);
                      for (int64_t t = 0; t < h.rows; ++t) std::copy_n(h.row(t), h.cols, input.data() + t * h.cols);
                    }});
    taps.push_back({layer, TapPoint::kUpdate, [&, i, layer](MatrixView<const float> delta) {
                      try {
                        sums[i]->Add(context, {input.data(), delta.rows, delta.cols}, delta);
                      } catch (const Error& error) {
                        Fail("calibrating layer {}: {}", layer, error.what());
                      }
                    }});
  }
  Decoder decoder(context, model.weights, DepthPlan::Original(model.weights->config.layers), std::move(taps));
  int64_t tokens = 0;
  for (size_t b = done; b < batches.size(); ++b) tokens += batches[b].size();
  progress.Begin(phase, tokens);
  while (done < static_cast<int64_t>(batches.size())) {
    const Batch& batch = batches[done];
    decoder.Forward(batch, true);
    ++done;
    if (after_batch) after_batch();
    progress.Advance(batch.size());
  }
  progress.End();
}

}  // namespace

CollectedSums CollectedSums::Empty(const std::vector<int64_t>& layers, int64_t hidden) {
  CollectedSums sums;
  for (int64_t layer : layers) sums.sites.push_back({layer, RidgeAccumulator(hidden), RidgeAccumulator(hidden)});
  return sums;
}

std::vector<int64_t> CollectedSums::Layers() const {
  std::vector<int64_t> layers;
  for (const SiteSums& site : sites) layers.push_back(site.layer);
  return layers;
}

std::vector<const SiteSums*> CollectedSums::Sites(const std::vector<int64_t>& layers) const {
  const std::vector<int64_t> held = Layers();
  std::vector<const SiteSums*> chosen;
  for (int64_t layer : layers) {
    const auto found = std::lower_bound(held.begin(), held.end(), layer);
    Check(found != held.end() && *found == layer, "there are no sums of layer {}; there are of {}", layer,
          fmt::join(held, ", "));
    chosen.push_back(&sites[found - held.begin()]);
  }
  return chosen;
}

void Collect(const Context& context, const Model& model, const CalibrationSet& calibration, CollectedSums& sums,
             Progress& progress, const std::function<void()>& after_batch) {
  const std::vector<int64_t> layers = sums.Layers();
  std::vector<RidgeAccumulator*> fit, heldout;
  for (SiteSums& site : sums.sites) {
    fit.push_back(&site.fit);
    heldout.push_back(&site.heldout);
  }
  Pass(context, model, layers, fit, calibration.fit, sums.fit_batches, "calibrating", progress, after_batch);
  Pass(context, model, layers, heldout, calibration.heldout, sums.heldout_batches, "measuring on held-out text",
       progress, after_batch);
}

}  // namespace shiftrt
