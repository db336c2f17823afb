// SPDX-License-Identifier: Apache-2.0
// The operations of gradients on the CPU: kernels/*.h, with the model's settings.
#include "engine/gradient_ops.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "kernels/attention.h"
#include "kernels/elementwise.h"
#include "kernels/logprob.h"
#include "kernels/matmul.h"
#include "kernels/rmsnorm.h"
#include "kernels/rope.h"
#include "runtime/check.h"
#include "runtime/elements.h"
#include "runtime/parallel.h"

namespace shiftrt {

namespace {

// An operand as the kernels take it.
class Taken {
 public:
  explicit Taken(const Operand& operand) : view_(operand.stored) {
    const MatrixView<const float>& trained = operand.trained;
    if (trained.data == nullptr) return;
    Check(trained.stride == trained.cols, "a trained tensor of ({}, {}) with rows {} apart", trained.rows, trained.cols,
          trained.stride);
    view_ = {trained.data, DType::kFloat32, {trained.rows, trained.cols}};
  }
  const TensorView& matrix() const { return view_; }
  // A matrix of an adapter, which is float32 in either form.
  MatrixView<const float> floats() const {
    Check(view_.dtype == DType::kFloat32, "an adapter's matrix of type {}, expected float32", Name(view_.dtype));
    return {static_cast<const float*>(view_.data), view_.rows(), view_.cols()};
  }
  // A vector, whose trained form is (1, n).
  TensorView vector() const { return view_.empty() ? view_ : TensorView{view_.data, view_.dtype, {view_.elements()}}; }

 private:
  TensorView view_;
};

class CpuGradientOps : public GradientOps {
 public:
  CpuGradientOps(const Context& context, std::shared_ptr<const Weights> weights)
      : context_(context),
        weights_(std::move(weights)),
        config_(weights_->config),
        spec_(config_.block),
        eps_(static_cast<float>(config_.rms_eps)),
        rope_(MakeRopeFrequencies(config_)) {}

  std::shared_ptr<float> Allocate(int64_t count) override {
    auto buffer = std::make_shared<Buffer<float>>(count);
    std::fill_n(buffer->data(), count, 0.0f);
    float* const data = buffer->data();
    return {std::move(buffer), data};
  }
  void Zero(MatrixView<float> x) override {
    ParallelFor(context_, x.rows, 16, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) std::fill_n(x.row(i), x.cols, 0.0f);
    });
  }
  void Copy(MatrixView<const float> from, MatrixView<float> to) override {
    ParallelFor(context_, from.rows, 16, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) std::copy_n(from.row(i), from.cols, to.row(i));
    });
  }
  void ToHost(const float* from, std::span<float> host) override { std::copy_n(from, host.size(), host.data()); }
  void FromHost(std::span<const float> host, float* to) override { std::copy_n(host.data(), host.size(), to); }
  MatrixView<const float> Here(const Rows& rows, std::shared_ptr<float>&) override { return rows.host(); }

  void Begin(const Batch& batch) override;
  void Embed(MatrixView<float> h) override {
    shiftrt::Embed(context_, batch_->tokens, weights_->embedding, h, weights_->EmbeddingScale());
  }
  void Rope(MatrixView<float> x) override { shiftrt::Rope(context_, x, config_.head_dim, angles_); }
  void RopeGradient(MatrixView<float> dx) override { shiftrt::RopeGradient(context_, dx, config_.head_dim, angles_); }
  void Attention(const AttentionActivations& a) override {
    AttentionForGradient(context_, Packed(a), a.out, a.log_sums);
  }
  void AttentionGradient(const AttentionActivations& a, MatrixView<const float> dout, MatrixView<float> dq,
                         MatrixView<float> dk, MatrixView<float> dv) override {
    shiftrt::AttentionGradient(context_, Packed(a), a.out, a.log_sums, dout, {dq, dk, dv});
  }

  void MatMul(MatrixView<const float> x, const Operand& w, const Operand& bias, bool accumulate,
              MatrixView<float> y) override {
    shiftrt::MatMul(context_, x, Taken(w).matrix(), Taken(bias).vector(), accumulate, y);
  }
  void MatMulRight(MatrixView<const float> x, const Operand& b, bool accumulate, MatrixView<float> y) override {
    shiftrt::MatMulRight(context_, x, Taken(b).floats(), accumulate, y);
  }
  void MatMulInputGradient(MatrixView<const float> dy, const Operand& w, bool accumulate,
                           MatrixView<float> dx) override {
    shiftrt::MatMulInputGradient(context_, dy, Taken(w).matrix(), accumulate, dx);
  }
  void MatMulWeightGradient(MatrixView<const float> dy, MatrixView<const float> x, MatrixView<float> dw) override {
    shiftrt::MatMulWeightGradient(context_, dy, x, dw);
  }
  void BiasGradient(MatrixView<const float> dy, MatrixView<float> db) override {
    shiftrt::BiasGradient(context_, dy, db);
  }

  void RmsNorm(MatrixView<const float> x, const Operand& weight, MatrixView<float> out) override {
    shiftrt::RmsNorm(context_, x, Taken(weight).vector(), eps_, out, spec_.norm_offset);
  }
  void RmsNormHeads(MatrixView<float> x, const Operand& weight) override {
    shiftrt::RmsNormHeads(context_, x, config_.head_dim, Taken(weight).vector(), eps_, spec_.norm_offset);
  }
  void RmsNormGradient(MatrixView<const float> x, const Operand& weight, MatrixView<const float> dy, bool accumulate,
                       MatrixView<float> dx, MatrixView<float> dweight) override {
    const TensorView w = Taken(weight).vector();
    shiftrt::RmsNormGradient(context_, {x, w, eps_, spec_.norm_offset}, dy, accumulate, dx, dweight);
  }
  void RmsNormHeadsGradient(MatrixView<const float> x, const Operand& weight, MatrixView<const float> dy,
                            MatrixView<float> dx, MatrixView<float> dweight) override {
    const TensorView w = Taken(weight).vector();
    shiftrt::RmsNormHeadsGradient(context_, {x, w, eps_, spec_.norm_offset}, config_.head_dim, dy, dx, dweight);
  }

  void GatedUnit(MatrixView<float> gate, MatrixView<const float> up) override {
    (spec_.activation == Activation::kSilu ? SwiGlu : GeGlu)(context_, gate, up);
  }
  void GatedUnitGradient(MatrixView<const float> gate, MatrixView<const float> up, MatrixView<float> dgate,
                         MatrixView<float> dup) override {
    (spec_.activation == Activation::kSilu ? SwiGluGradient : GeGluGradient)(context_, gate, up, dgate, dup);
  }
  void AddTo(MatrixView<const float> x, MatrixView<float> y) override { shiftrt::AddTo(context_, x, y); }
  void AddRow(const Operand& row, MatrixView<float> y) override {
    const MatrixView<const float> b = Taken(row).floats();
    ForEachRow(y, [&](int64_t i) {
      for (int64_t j = 0; j < y.cols; ++j) y(i, j) += b(0, j);
    });
  }
  void Scale(float factor, MatrixView<float> x) override {
    ForEachRow(x, [&](int64_t i) {
      for (int64_t j = 0; j < x.cols; ++j) x(i, j) *= factor;
    });
  }
  void ApplyDropout(const Dropout& dropout, MatrixView<const float> x, MatrixView<float> out) override {
    shiftrt::ApplyDropout(context_, dropout, x, out);
  }
  void Gather(std::span<const int64_t> rows, MatrixView<const float> from, MatrixView<float> to) override {
    ForEachRow(to, [&](int64_t i) { std::copy_n(from.row(rows[i]), to.cols, to.row(i)); });
  }
  void Scatter(std::span<const int64_t> rows, MatrixView<const float> from, MatrixView<float> to) override {
    ForEachRow(from, [&](int64_t i) { std::copy_n(from.row(i), from.cols, to.row(rows[i])); });
  }

  void HeadLossGradient(const HeadRows& rows, std::span<const float> scales, std::span<float> losses,
                        MatrixView<float> dx, MatrixView<float> dw) override {
    const Taken w(rows.head);
    const OutputHead head(w.matrix(), spec_.logit_cap), teacher(weights_->head, spec_.logit_cap);
    shiftrt::HeadLossGradient(
        context_, rows.x,
        {head, rows.targets, rows.cross_entropy, rows.divergence, rows.teacher, rows.teacher.data ? &teacher : nullptr},
        scales, losses, dx, dw);
  }
  void LogProbs(const HeadRows& rows, std::span<float> log_probs) override {
    const Taken w(rows.head);
    TokenLogProbs(context_, rows.x, OutputHead(w.matrix(), spec_.logit_cap), rows.targets, log_probs, {});
  }

  void AdamWStep(const AdamW& settings, std::span<const float> gradient, std::span<float> values,
                 std::span<float> first, std::span<float> second) override {
    shiftrt::AdamWStep(context_, settings, gradient, values, first, second);
  }
  double SumOfSquares(std::span<const float> values) override { return shiftrt::SumOfSquares(context_, values); }
  double SumOfAbsoluteProducts(const Operand& w, MatrixView<const float> gradient) override;

 private:
  template <typename Body>
  void ForEachRow(const MatrixView<const float>& x, const Body& body) const {
    ParallelFor(context_, x.rows, 16, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) body(i);
    });
  }
  PackedAttention Packed(const AttentionActivations& a) const {
    return {.shape = {.heads = config_.heads,
                      .kv_heads = config_.kv_heads,
                      .head_dim = config_.head_dim,
                      .scale = spec_.attention_scale,
                      .window = spec_.Window(a.layer),
                      .soft_cap = spec_.attention_cap},
            .offsets = batch_->offsets,
            .q = a.q,
            .keys = a.k,
            .values = a.v};
  }

  Context context_;
  std::shared_ptr<const Weights> weights_;
  const ModelConfig& config_;
  const BlockSpec& spec_;
  float eps_;
  RopeFrequencies rope_;

  const Batch* batch_ = nullptr;  // in progress
  RopeAngles angles_;
};

void CpuGradientOps::Begin(const Batch& batch) {
  batch_ = &batch;
  std::vector<int64_t> positions(batch.tokens.size());
  for (int64_t s = 0; s < batch.sequences(); ++s)
    std::iota(positions.begin() + batch.offsets[s], positions.begin() + batch.offsets[s + 1], 0);
  angles_ = MakeRopeAngles(context_, positions, rope_.inverse, rope_.scale);
}

// Row by row, so that the order of the additions does not depend on the threads.
double CpuGradientOps::SumOfAbsoluteProducts(const Operand& w, MatrixView<const float> gradient) {
  const TensorView view = Taken(w).matrix();
  Check(view.elements() == gradient.rows * gradient.cols, "products of {} weights and a gradient of ({}, {})",
        view.elements(), gradient.rows, gradient.cols);
  std::vector<double> sums(gradient.rows);
  WithElements(view, [&](const auto* values) {
    ForEachRow(gradient, [&](int64_t i) {
      for (int64_t j = 0; j < gradient.cols; ++j)
        sums[i] += std::abs(static_cast<double>(static_cast<float>(values[i * gradient.cols + j])) * gradient(i, j));
    });
  });
  return std::accumulate(sums.begin(), sums.end(), 0.0);
}

}  // namespace

std::unique_ptr<GradientOps> MakeCpuGradientOps(const Context& context, std::shared_ptr<const Weights> weights) {
  return std::make_unique<CpuGradientOps>(context, std::move(weights));
}

std::unique_ptr<GradientOps> MakeGradientOps(const Context& context, std::shared_ptr<const Weights> weights) {
  return context.device == Device::kCuda ? MakeCudaGradientOps(context, std::move(weights))
                                         : MakeCpuGradientOps(context, std::move(weights));
}

}  // namespace shiftrt
