// SPDX-License-Identifier: Apache-2.0
#include "export/read_back.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "engine/decoder.h"
#include "models/plan_checkpoint.h"
#include "runtime/check.h"
#include "runtime/random.h"

namespace shiftrt {

Matrix<float> ProbeLogits(const Context& context, const std::shared_ptr<const Weights>& weights,
                          const DepthPlan& plan) {
  constexpr int64_t kTokens = 64;
  const ModelConfig& config = weights->config;
  Random random(/*seed=*/64);
  std::vector<int32_t> tokens(static_cast<size_t>(std::min(kTokens, config.max_positions)));
  for (int32_t& token : tokens) token = static_cast<int32_t>(random.Below(config.vocab));
  Context cpu = Context::Default();
  cpu.threads = context.threads;
  Decoder decoder(cpu, weights, plan);
  Batch batch;
  batch.Add(tokens);
  return decoder.Logits(decoder.Forward(batch));
}

void CheckSameLogits(const ExportJob& job, const Model& opened, const std::filesystem::path& directory,
                     double tolerance) {
  job.progress.Begin("reading back", 2);
  const Matrix<float> expected = ProbeLogits(job.context, AsInFile(job.model.weights, job.plan), job.plan);
  job.progress.Advance(1);
  const Matrix<float> found = ProbeLogits(job.context, opened.weights, opened.plan);
  job.progress.Advance(1);
  job.progress.End();
  Check(found.rows() == expected.rows() && found.cols() == expected.cols(),
        "{}: read back, the model has logits ({}, {}), expected ({}, {})", directory.string(), found.rows(),
        found.cols(), expected.rows(), expected.cols());
  double largest = 0, furthest = 0;
  int64_t where = 0;
  for (int64_t i = 0; i < expected.size(); ++i) {
    const double e = expected.data()[i], f = found.data()[i];
    if (std::isfinite(e)) largest = std::max(largest, std::abs(e));
    const bool same = f == e || (std::isnan(f) && std::isnan(e));
    const double apart = same ? 0 : std::isfinite(f - e) ? std::abs(f - e) : std::numeric_limits<double>::infinity();
    if (apart <= furthest) continue;
    furthest = apart;
    where = i;
  }
  Check(furthest <= tolerance * largest,
        "{}: read back, the model does not run as the plan does: logit {} of token {} is {}, expected {} within {}",
        directory.string(), where % expected.cols(), where / expected.cols(), found.data()[where],
        expected.data()[where], tolerance * largest);
}

}  // namespace shiftrt
