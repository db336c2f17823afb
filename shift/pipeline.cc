#include "shift/pipeline.h"

#include <chrono>

#include "runtime/check.h"

namespace shiftrt {

namespace {

class Stopwatch {
 public:
  // Seconds since the last call, or since the start.
  double Lap() {
    const auto now = std::chrono::steady_clock::now();
    const double seconds = std::chrono::duration<double>(now - last_).count();
    last_ = now;
    return seconds;
  }

 private:
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

// One pass of the original model over `batches`: an accumulator a removed layer, fed by its taps.
std::vector<RidgeAccumulator> Accumulate(const Context& context, const Model& model,
                                         const std::vector<int64_t>& removed, const std::vector<Batch>& batches,
                                         std::string_view phase, Progress& progress) {
  std::vector<RidgeAccumulator> sums;
  for (size_t i = 0; i < removed.size(); ++i) sums.emplace_back(model.weights->config.hidden);
  Matrix<float> block_input;
  std::vector<Tap> taps;
  for (size_t i = 0; i < removed.size(); ++i) {
    taps.push_back({removed[i], TapPoint::kInput, [&](MatrixView<const float> h) {
                      if (block_input.rows() != h.rows) block_input = Matrix<float>(h.rows, h.cols);
                      std::copy_n(h.data, h.rows * h.cols, block_input.data());
                    }});
    taps.push_back({removed[i], TapPoint::kUpdate,
                    [&, i](MatrixView<const float> delta) { sums[i].Add(context, block_input.view(), delta); }});
  }
  Decoder decoder(context, model.weights, DepthPlan::Original(model.weights->config.layers), std::move(taps));
  int64_t tokens = 0;
  for (const Batch& batch : batches) tokens += batch.size();
  progress.Begin(phase, tokens);
  for (const Batch& batch : batches) {
    decoder.Forward(batch, /*taps_only=*/true);
    progress.Advance(batch.size());
  }
  progress.End();
  return sums;
}

Matrix<double> Product(const LowRank& factors) {
  Matrix<double> a = Matrix<double>::Zeros(factors.p.rows(), factors.q.cols());
  for (int64_t i = 0; i < a.rows(); ++i)
    for (int64_t k = 0; k < factors.p.cols(); ++k)
      for (int64_t j = 0; j < a.cols(); ++j) a(i, j) += factors.p(i, k) * factors.q(k, j);
  return a;
}

}  // namespace

ShiftResult Shift(const Context& context, const Model& model, const CalibrationSet& calibration,
                  const ShiftOptions& options, Progress& progress) {
  const int64_t layers = model.weights->config.layers, hidden = model.weights->config.hidden;
  if (options.rank < 0 || options.rank > hidden)
    FailUsage("--lra {}: the rank must be from 1 to {}, the model's hidden size, or \"full\"", options.rank, hidden);
  ShiftResult result;
  Stopwatch watch;
  const CriterionInput input{context, model.weights, &calibration.fit, options.seed};
  result.selection = SelectLayers(options.prune, input, progress);
  const std::vector<int64_t>& removed = result.selection.removed;
  result.seconds.select = watch.Lap();

  const auto fitted = Accumulate(context, model, removed, calibration.fit, "calibrating", progress);
  std::vector<RidgeAccumulator> heldout;
  if (!calibration.heldout.empty())
    heldout = Accumulate(context, model, removed, calibration.heldout, "calibrating, held out", progress);
  result.seconds.calibrate = watch.Lap();

  std::vector<std::shared_ptr<const Lra>> adapters;
  progress.Begin("solving", static_cast<int64_t>(removed.size()));
  for (size_t i = 0; i < removed.size(); ++i) {
    RidgeSolution solution = SolveRidge(context, fitted[i], options.ridge);
    result.seconds.solve += watch.Lap();
    SiteReport site{removed[i], solution.lambda, hidden, 0, 0, solution.condition, {}, solution.warning};
    if (options.rank > 0) {
      LowRank factors = Factorize(context, fitted[i], solution, options.rank, options.factorization);
      adapters.push_back(MakeLra(factors));
      site.rank = options.rank;
      site.singular_values = std::move(factors.singular_values);
      solution.a = Product(factors);
      solution.b = std::move(factors.b);
    } else {
      adapters.push_back(MakeLra(solution));
    }
    site.r2_fit = RSquared(context, fitted[i], solution.a.view(), solution.b.view());
    if (!heldout.empty()) site.r2_heldout = RSquared(context, heldout[i], solution.a.view(), solution.b.view());
    result.sites.push_back(std::move(site));
    result.seconds.factorize += watch.Lap();
    progress.Advance(1);
  }
  progress.End();

  result.pruned = DepthPlan::Pruned(layers, removed);
  result.corrected = DepthPlan::Corrected(layers, removed, adapters);
  if (options.merge != Merge::kOff) result.merged = MergeAdapters(result.corrected, options.merge);
  result.seconds.factorize += watch.Lap();
  return result;
}

}  // namespace shiftrt
