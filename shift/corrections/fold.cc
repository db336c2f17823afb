#include "shift/corrections/fold.h"

#include <deque>

#include "runtime/check.h"
#include "runtime/linalg/linalg.h"

namespace shiftrt {

namespace {

template <typename T>
void Store(const Matrix<double>& values, Buffer<std::byte>& out) {
  T* to = reinterpret_cast<T*>(out.data());
  for (int64_t i = 0; i < values.size(); ++i) to[i] = T(static_cast<float>(values.data()[i]));
}

template <typename T>
void Load(const TensorView& tensor, Matrix<double>& values) {
  const T* from = static_cast<const T*>(tensor.data);
  for (int64_t i = 0; i < values.size(); ++i) values.data()[i] = static_cast<float>(from[i]);
}

Matrix<double> Widened(const TensorView& tensor) {
  Matrix<double> values(tensor.rows(), tensor.cols());
  switch (tensor.dtype) {
    case DType::kFloat32: Load<float>(tensor, values); return values;
    case DType::kFloat16: Load<Float16>(tensor, values); return values;
    case DType::kBFloat16: Load<BFloat16>(tensor, values); return values;
    case DType::kFloat64: break;
  }
  Fail("folding a {} tensor", Name(tensor.dtype));
}

// A block some of whose tensors are its own.
struct OwnedBlock {
  BlockWeights weights;
  std::deque<Buffer<std::byte>> storage;

  // In the type and shape the tensor had.
  void Replace(TensorView BlockWeights::*member, const Matrix<double>& values) {
    TensorView& tensor = weights.*member;
    Buffer<std::byte>& buffer = storage.emplace_back(tensor.bytes());
    switch (tensor.dtype) {
      case DType::kFloat32: Store<float>(values, buffer); break;
      case DType::kFloat16: Store<Float16>(values, buffer); break;
      case DType::kBFloat16: Store<BFloat16>(values, buffer); break;
      case DType::kFloat64: Fail("folding into a {} tensor", Name(tensor.dtype));
    }
    tensor.data = buffer.data();
  }
};

std::shared_ptr<const BlockWeights> Shared(std::shared_ptr<OwnedBlock> block) {
  const BlockWeights* weights = &block->weights;
  return {std::move(block), weights};
}

constexpr TensorView BlockWeights::*kTensors[] = {
    &BlockWeights::input_norm, &BlockWeights::q,        &BlockWeights::k,      &BlockWeights::v,
    &BlockWeights::o,          &BlockWeights::q_bias,   &BlockWeights::k_bias, &BlockWeights::v_bias,
    &BlockWeights::o_bias,     &BlockWeights::q_norm,   &BlockWeights::k_norm, &BlockWeights::post_norm,
    &BlockWeights::gate,       &BlockWeights::up,       &BlockWeights::down,   &BlockWeights::gate_bias,
    &BlockWeights::up_bias,    &BlockWeights::down_bias};

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
    for (TensorView BlockWeights::*member : kTensors) {
      const TensorView own = weights.blocks[run.layer - 1].*member;
      if (own.empty()) continue;
      const Matrix<double> before = Widened(own), sum = before.Clone();
      for (int64_t layer : run.Layers()) {
        const Matrix<double> other = Widened(weights.blocks[layer].*member);
        for (int64_t i = 0; i < sum.size(); ++i) sum.data()[i] += other.data()[i] - before.data()[i];
      }
      block->Replace(member, sum);
    }
    folded.push_back(Shared(std::move(block)));
  }
  return FoldedPlan(weights.config.layers, runs, folded);
}

}  // namespace shiftrt
