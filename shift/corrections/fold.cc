// SPDX-License-Identifier: Apache-2.0
#include "shift/corrections/fold.h"

#include <cmath>

#include "runtime/check.h"
#include "runtime/elements.h"
#include "runtime/linalg/linalg.h"

namespace shiftrt {

Matrix<double> Widened(const TensorView& tensor) {
  Matrix<double> values(tensor.rows(), tensor.cols());
  WithElements(tensor, [&](const auto* from) {
    for (int64_t i = 0; i < values.size(); ++i) values.data()[i] = static_cast<float>(from[i]);
  });
  return values;
}

void FoldedBlock::Replace(TensorView BlockWeights::*member, const Matrix<double>& values) {
  TensorView& tensor = weights_.*member;
  Buffer<std::byte>& buffer = storage_.emplace_back(tensor.bytes());
  WithType(tensor.dtype, [&]<typename T>(std::type_identity<T>) {
    T* const to = reinterpret_cast<T*>(buffer.data());
    for (int64_t i = 0; i < values.size(); ++i) {
      to[i] = T(static_cast<float>(values.data()[i]));
      Check(std::isfinite(static_cast<float>(to[i])), "a folded weight of {} is beyond {}", values.data()[i],
            Name(tensor.dtype));
    }
  });
  tensor.data = buffer.data();
}

std::shared_ptr<const BlockWeights> FoldedBlock::Weights(std::shared_ptr<FoldedBlock> block) {
  const BlockWeights* weights = &block->weights_;
  return {std::move(block), weights};
}

void CheckBlockBefore(const std::vector<Site>& runs) {
  if (!runs.empty() && runs.front().layer == 0)
    FailUsage(Field("prune"), "layer 0 is removed, so there is no block before it to fold into; add keep=first:1");
}

void CheckFoldsIntoProjections(const ModelConfig& config) {
  if (config.block.update_norms)
    FailUsage(
        "{} norms what attention and MLP give before it is added, so that nothing can be folded into the "
        "projections in front of those norms; the correction lra works there",
        config.family);
}

// m = x W' + c becomes x (T'W)' + c T.
std::shared_ptr<const BlockWeights> FoldIntoDown(const Context& context, const BlockWeights& block,
                                                 MatrixView<const double> t) {
  auto folded = std::make_shared<FoldedBlock>(block);
  const Matrix<double> down = Widened(block.down);
  Matrix<double> product(down.rows(), down.cols());
  linalg::Gemm(context, true, false, 1.0, t, down.view(), 0.0, product.view());
  folded->Replace(&BlockWeights::down, product);
  if (!block.down_bias.empty()) {
    const Matrix<double> bias = Widened(block.down_bias);
    Matrix<double> mapped(bias.rows(), 1);
    linalg::Gemm(context, true, false, 1.0, t, bias.view(), 0.0, mapped.view());
    folded->Replace(&BlockWeights::down_bias, mapped);
  }
  return FoldedBlock::Weights(std::move(folded));
}

}  // namespace shiftrt
