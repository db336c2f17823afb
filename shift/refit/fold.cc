// SPDX-License-Identifier: Apache-2.0
#include "shift/refit/fold.h"

#include "runtime/check.h"
#include "runtime/elements.h"
#include "runtime/linalg/linalg.h"

namespace shiftrt {

Matrix<double> InFloat64(const TensorView& tensor) {
  Matrix<double> values(tensor.rows(), tensor.elements() / tensor.rows());
  ForEachWidenedRow(tensor, [&, out = values.data()](int64_t, const std::vector<float>& row) mutable {
    out = std::copy(row.begin(), row.end(), out);
  });
  return values;
}

void CheckBlockBefore(const std::vector<Site>& runs) {
  if (!runs.empty() && runs.front().begin() == 0)
    FailUsage(
        Field("prune"),
        "layer {} is removed, so there is no block before it to fold into; keep it (a criterion takes keep=first:1)",
        Name(runs.front().Parts().front()));
}

// m = x W' + c becomes x (T'W)' + c T.
std::shared_ptr<const BlockWeights> FoldIntoDown(const Context& context, const BlockWeights& block,
                                                 MatrixView<const double> t) {
  auto folded = std::make_shared<OwnBlock>(block);
  const Matrix<double> down = InFloat64(block.down);
  Matrix<double> product(down.rows(), down.cols());
  linalg::Gemm(context, true, false, 1.0, t, down.view(), 0.0, product.view());
  folded->Replace(&BlockWeights::down, product.span());
  if (!block.down_bias.empty()) {
    const Matrix<double> bias = InFloat64(block.down_bias);
    Matrix<double> mapped(bias.rows(), 1);
    linalg::Gemm(context, true, false, 1.0, t, bias.view(), 0.0, mapped.view());
    folded->Replace(&BlockWeights::down_bias, mapped.span());
  }
  return OwnBlock::Share(std::move(folded));
}

}  // namespace shiftrt
