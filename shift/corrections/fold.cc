#include "shift/corrections/fold.h"

#include <deque>

#include "models/block_tensors.h"
#include "runtime/check.h"
#include "runtime/elements.h"
#include "runtime/linalg/linalg.h"

namespace shiftrt {

namespace {

Matrix<double> Widened(const TensorView& tensor) {
  Matrix<double> values(tensor.rows(), tensor.cols());
  WithElements(tensor, [&](const auto* from) {
    for (int64_t i = 0; i < values.size(); ++i) values.data()[i] = static_cast<float>(from[i]);
  });
  return values;
}

// A block some of whose tensors are its own.
struct OwnedBlock {
  BlockWeights weights;
  std::deque<Buffer<std::byte>> storage;

  // In the type and shape the tensor had.
  void Replace(TensorView BlockWeights::*member, const Matrix<double>& values) {
    TensorView& tensor = weights.*member;
    Buffer<std::byte>& buffer = storage.emplace_back(tensor.bytes());
    WithType(tensor.dtype, [&]<typename T>(std::type_identity<T>) {
      T* const to = reinterpret_cast<T*>(buffer.data());
      for (int64_t i = 0; i < values.size(); ++i) to[i] = T(static_cast<float>(values.data()[i]));
    });
    tensor.data = buffer.data();
  }
};

std::shared_ptr<const BlockWeights> Shared(std::shared_ptr<OwnedBlock> block) {
  const BlockWeights* weights = &block->weights;
  return {std::move(block), weights};
}

}  // namespace

DepthPlan FoldedPlan(int64_t layers, const std::vector<Site>& sites,
                     const std::vector<std::shared_ptr<const BlockWeights>>& folded) {
  DepthPlan plan = CorrectedPlan(layers, sites, std::vector<std::shared_ptr<const Lra>>(sites.size()));
  for (size_t i = 0; i < sites.size(); ++i) {
    const int64_t before = sites[i].layer - 1;
    plan = plan.With(plan.StageOf(before), BlockStage{.layer = before, .own = folded[i]});
  }
  return plan;
}

void CheckBlockBefore(const std::vector<Site>& runs) {
  if (!runs.empty() && runs.front().layer == 0)
    FailUsage("layer 0 is removed, so there is no block before it to fold into; add keep=first:1 to --prune");
}

// m = x W' + c becomes x (T'W)' + c T.
std::shared_ptr<const BlockWeights> FoldIntoDown(const Context& context, const BlockWeights& block,
                                                 MatrixView<const double> t) {
  auto folded = std::make_shared<OwnedBlock>();
  folded->weights = block;
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
  return Shared(std::move(folded));
}

DepthPlan FoldLaco(const Weights& weights, const std::vector<Site>& runs) {
  CheckBlockBefore(runs);
  std::vector<std::shared_ptr<const BlockWeights>> folded;
  for (const Site& run : runs) {
    auto block = std::make_shared<OwnedBlock>();
    block->weights = weights.blocks[run.layer - 1];
    ForEachTensor(weights.blocks[run.layer - 1], [&](const BlockTensor& row, const TensorView& own) {
      const Matrix<double> before = Widened(own), sum = before.Clone();
      for (int64_t layer : run.Layers()) {
        const Matrix<double> other = Widened(weights.blocks[layer].*row.member);
        for (int64_t i = 0; i < sum.size(); ++i) sum.data()[i] += other.data()[i] - before.data()[i];
      }
      block->Replace(row.member, sum);
    });
    folded.push_back(Shared(std::move(block)));
  }
  return FoldedPlan(weights.config.layers, runs, folded);
}

}  // namespace shiftrt
