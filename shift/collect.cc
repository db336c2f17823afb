#include "shift/collect.h"

#include <algorithm>
#include <deque>

#include "runtime/check.h"
#include "shift/stream_copy.h"

namespace shiftrt {

namespace {

// What goes by at one site while a batch runs.
class SiteTaps {
 public:
  // `shared` serves every site of one block that reads the stream: the next site's input comes after its update.
  SiteTaps(const Context& context, const SiteSums& site, RidgeAccumulator& sums, StreamCopy& shared)
      : context_(context),
        site_(site),
        sums_(sums),
        input_(site.blocks == 1 && site.input == SiteInput::kStream ? shared : own_) {}

  void AddTo(std::vector<Tap>& taps, const Batch* const& batch) {
    const auto keep = [this](MatrixView<const float> h) { input_.Set(h); };
    if (site_.input == SiteInput::kStream) {
      taps.push_back({site_.layer, TapPoint::kInput, keep});
    } else {
      taps.push_back({site_.layer - 1, TapPoint::kMlp, keep});
    }
    for (int64_t layer = site_.layer; layer <= site_.last(); ++layer)
      taps.push_back({layer, TapPoint::kUpdate,
                      [this, layer, &batch](MatrixView<const float> update) { Take(layer, update, *batch); }});
  }

 private:
  void Take(int64_t layer, MatrixView<const float> update, const Batch& batch) {
    if (site_.blocks == 1) return Finish(update, batch);
    if (layer == site_.layer) {
      sum_.Set(update);
    } else {
      sum_.Add(update);
    }
    if (layer == site_.last()) Finish(sum_.view(), batch);
  }

  void Finish(MatrixView<const float> update, const Batch& batch) {
    try {
      sums_.Add(context_, input_.view(), update, site_.weighting.Weights(input_.view(), update, batch.offsets));
    } catch (const Error& error) {
      Fail("calibrating layer {}: {}", site_.Name(), error.what());
    }
  }

  const Context& context_;
  const SiteSums& site_;
  RidgeAccumulator& sums_;
  StreamCopy own_, sum_;
  StreamCopy& input_;
};

// One pass over batches[done..]: adds to each site's `part`.
void Pass(const Context& context, const Model& model, CollectedSums& sums, RidgeAccumulator SiteSums::*part,
          const std::vector<Batch>& batches, int64_t& done, const char* phase, Progress& progress,
          const std::function<void()>& after_batch) {
  if (sums.sites.empty() || done == static_cast<int64_t>(batches.size())) return;
  StreamCopy shared;
  std::deque<SiteTaps> sites;
  std::vector<Tap> taps;
  const Batch* batch = nullptr;
  for (SiteSums& site : sums.sites) sites.emplace_back(context, site, site.*part, shared).AddTo(taps, batch);
  Decoder decoder(context, model.weights, DepthPlan::Original(model.weights->config.layers), std::move(taps));
  int64_t tokens = 0;
  for (size_t b = done; b < batches.size(); ++b) tokens += batches[b].size();
  progress.Begin(phase, tokens);
  while (done < static_cast<int64_t>(batches.size())) {
    batch = &batches[done];
    decoder.Forward(*batch, true);
    ++done;
    if (after_batch) after_batch();
    progress.Advance(batch->size());
  }
  progress.End();
}

}  // namespace

CollectedSums CollectedSums::Empty(const std::vector<int64_t>& layers, int64_t hidden) {
  CollectedSums sums;
  for (int64_t layer : layers) sums.sites.emplace_back(Site{layer}, hidden);
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
  Pass(context, model, sums, &SiteSums::fit, calibration.fit, sums.fit_batches, "calibrating", progress, after_batch);
  Pass(context, model, sums, &SiteSums::heldout, calibration.heldout, sums.heldout_batches,
       "measuring on held-out text", progress, after_batch);
}

}  // namespace shiftrt
