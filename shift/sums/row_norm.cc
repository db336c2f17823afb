// SPDX-License-Identifier: Apache-2.0
#include "shift/sums/row_norm.h"

#include <algorithm>
#include <utility>

namespace shiftrt {

Matrix<float> NormOfGainOne(const ModelConfig& config) {
  Matrix<float> weight(1, config.hidden);
  std::fill_n(weight.data(), weight.size(), 1 - config.block.norm_offset);
  return weight;
}

RowNorm::RowNorm(const Context& context, std::shared_ptr<const Weights> weights)
    : context_(context),
      weights_(std::move(weights)),
      weight_(NormOfGainOne(weights_->config)),
      view_{weight_.data(), DType::kFloat32, {weight_.cols()}} {}

Rows RowNorm::Of(const Rows& stream, const NormOperands& norm) {
  if (ops_ == nullptr && stream.on_host()) ops_ = MakeCpuOps(context_, weights_);
  if (ops_ == nullptr) {
    const auto which = std::find(context_.gpus.begin(), context_.gpus.end(), stream.gpu()) - context_.gpus.begin();
    ops_ = MakeOps(context_.WithGpu(which), weights_);
  }
  const DeviceMatrix<const float> from = ops_->Here(stream, copy_);
  if (normed_.count() < from.rows * from.cols) {
    normed_ = {};  // before the larger one is asked for
    normed_ = ops_->Allocate(from.rows * from.cols);
  }
  const DeviceMatrix<float> to = normed_.matrix(from.rows, from.cols);
  ops_->Norm(from, norm, to);
  return ops_->AsRows(to);
}

}  // namespace shiftrt
