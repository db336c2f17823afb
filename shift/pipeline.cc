#include "shift/pipeline.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <utility>

#include "runtime/check.h"
#include "runtime/linalg.h"
#include "shift/convert.h"

namespace shiftrt {

namespace {

// Adds the time it lives to a counter of seconds.
class Stopwatch {
 public:
  explicit Stopwatch(double& seconds) : seconds_(seconds) {}
  Stopwatch(const Stopwatch&) = delete;
  ~Stopwatch() { seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count(); }

 private:
  double& seconds_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

// One pass of the original model over `batches`: an accumulator for each layer of `layers`.
std::vector<RidgeAccumulator> Accumulate(const Context& context, const Model& model, const std::vector<int64_t>& layers,
                                         const std::vector<Batch>& batches, const char* phase, Progress& progress) {
  const ModelConfig& config = model.weights->config;
  std::vector<RidgeAccumulator> sums;
  for (size_t i = 0; i < layers.size(); ++i) sums.emplace_back(config.hidden);
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
                        sums[i].Add(context, {input.data(), delta.rows, delta.cols}, delta);
                      } catch (const Error& error) {
                        Fail("calibrating layer {}: {}", layer, error.what());
                      }
                    }});
  }
  Decoder decoder(context, model.weights, DepthPlan::Original(config.layers), std::move(taps));
  int64_t tokens = 0;
  for (const Batch& batch : batches) tokens += batch.size();
  progress.Begin(phase, tokens);
  for (const Batch& batch : batches) {
    decoder.Forward(batch, true);
    progress.Advance(batch.size());
  }
  progress.End();
  return sums;
}

// Of the adapter as it runs, float32 factors and all.
double RSquaredOf(const Context& context, const RidgeAccumulator& sums, const Lra& lra) {
  Matrix<double> a = Converted<double>(lra.a);
  if (lra.low_rank()) {
    a = Matrix<double>(lra.hidden(), lra.hidden());
    linalg::Gemm(context, false, false, 1.0, Converted<double>(lra.p).view(), Converted<double>(lra.q).view(), 0.0,
                 a.view());
  }
  return RSquared(context, sums, a.view(), Converted<double>(lra.b).view());
}

std::shared_ptr<const Lra> FitSite(const Context& context, const RidgeAccumulator& sums, const ShiftOptions& options,
                                   ShiftSeconds& seconds, SiteReport& report) {
  RidgeSolution solution;
  {
    const Stopwatch watch(seconds.solve);
    solution = SolveRidge(context, sums, options.ridge);
  }
  report.lambda = solution.lambda;
  report.condition = solution.condition;
  report.warning = solution.warning;
  const Stopwatch watch(seconds.factorize);
  std::shared_ptr<const Lra> lra;
  if (options.rank == 0) {
    lra = MakeLra(solution);
  } else {
    LowRank factors = Factorize(context, sums, solution, options.rank, options.factorization);
    lra = MakeLra(factors);
    report.singular_values = std::move(factors.singular_values);
  }
  report.rank = lra->rank();
  report.r2_fit = RSquaredOf(context, sums, *lra);
  return lra;
}

}  // namespace

ShiftResult Shift(const Context& context, const Model& model, const CalibrationSet& calibration,
                  const ShiftOptions& options, Progress& progress) {
  const ModelConfig& config = model.weights->config;
  if (options.rank < 0 || options.rank > config.hidden)
    FailUsage("--lra {}: expected 1 to {}, the hidden size, or full", options.rank, config.hidden);
  ShiftResult result;
  ShiftSeconds& seconds = result.seconds;
  {
    const Stopwatch watch(seconds.select);
    result.selection = SelectLayers(options.prune, {context, model.weights, &calibration.fit, options.seed}, progress);
  }
  const std::vector<int64_t>& removed = result.selection.removed;

  std::vector<RidgeAccumulator> sums;
  {
    const Stopwatch watch(seconds.calibrate);
    sums = Accumulate(context, model, removed, calibration.fit, "calibrating", progress);
  }
  std::vector<std::shared_ptr<const Lra>> adapters;
  progress.Begin("solving", static_cast<int64_t>(removed.size()));
  for (size_t i = 0; i < removed.size(); ++i) {
    // Moved out, so that a site's accumulator is gone once it is solved.
    const RidgeAccumulator site = std::move(sums[i]);
    SiteReport report;
    report.layer = removed[i];
    report.r2_heldout = std::numeric_limits<double>::quiet_NaN();
    adapters.push_back(FitSite(context, site, options, seconds, report));
    result.sites.push_back(std::move(report));
    progress.Advance(1);
  }
  progress.End();

  if (!calibration.heldout.empty()) {
    const Stopwatch watch(seconds.calibrate);
    sums = Accumulate(context, model, removed, calibration.heldout, "measuring on held-out text", progress);
    for (size_t i = 0; i < removed.size(); ++i) result.sites[i].r2_heldout = RSquaredOf(context, sums[i], *adapters[i]);
  }

  result.pruned = DepthPlan::Pruned(config.layers, removed);
  result.corrected = DepthPlan::Corrected(config.layers, removed, adapters);
  if (options.merge != Merge::kOff) result.merged = MergeAdapters(result.corrected, options.merge, context);
  return result;
}

}  // namespace shiftrt
