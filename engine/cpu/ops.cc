// SPDX-License-Identifier: Apache-2.0
// The operations on the CPU: kernels/*.h, with the model's settings.
#include "engine/ops.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <vector>

#include "engine/backend.h"
#include "engine/cpu/kv.h"
#include "engine/cpu/recurrent_sequences.h"
#include "kernels/attention.h"
#include "kernels/elementwise.h"
#include "kernels/experts.h"
#include "kernels/gated_delta.h"
#include "kernels/layernorm.h"
#include "kernels/logprob.h"
#include "kernels/matmul.h"
#include "kernels/rmsnorm.h"
#include "kernels/rope.h"
#include "kernels/row_parts.h"
#include "kernels/short_convolution.h"
#include "kernels/widen.h"
#include "kernels/xielu.h"
#include "runtime/check.h"
#include "runtime/elements.h"
#include "runtime/parallel.h"

namespace shiftrt {

namespace {

// An operand as the kernels take it.
class Taken {
 public:
  explicit Taken(const Operand& operand) : Taken(operand, {operand.trained().rows, operand.trained().cols}) {}
  static Taken Vector(const Operand& operand) { return {operand, {operand.trained().cols}}; }
  Taken(const Taken&) = delete;
  Taken& operator=(const Taken&) = delete;
  const TensorView& view() const { return *view_; }
  // A matrix of an adapter, which is float32 in either form.
  MatrixView<const float> floats() const {
    Check(view_->dtype == DType::kFloat32, "an adapter's matrix of type {}, expected float32", Name(view_->dtype));
    return {static_cast<const float*>(view_->data), view_->rows(), view_->cols()};
  }

 private:
  Taken(const Operand& operand, std::initializer_list<int64_t> trained_shape) : view_(&operand.stored()) {
    if (!operand.is_trained()) return;
    const MatrixView<const float> trained = operand.trained().host();
    Check(trained.stride == trained.cols, "a trained tensor of ({}, {}) with rows {} apart", trained.rows, trained.cols,
          trained.stride);
    own_ = {trained.data, DType::kFloat32, trained_shape};
    view_ = &own_;
  }

  TensorView own_;
  const TensorView* view_;
};

class CpuOps : public Ops {
 public:
  CpuOps(const Context& context, std::shared_ptr<const Weights> weights)
      : context_(context),
        weights_(std::move(weights)),
        config_(weights_->config),
        spec_(config_.block),
        eps_(static_cast<float>(config_.rms_eps)),
        rotations_{Rotation(config_.rope, config_.head_dim), Rotation(config_.second_rope, config_.head_dim)} {}

  DeviceMemory Allocate(int64_t count) override {
    DeviceMemory memory = DeviceMemory::OnHost(count);
    Zero(memory.all());
    return memory;
  }
  void Zero(DeviceMatrix<float> x) override {
    const MatrixView<float> to = x.host();
    ForEachRowPart(context_, to,
                   [&](int64_t row, int64_t col, int64_t count) { std::fill_n(to.row(row) + col, count, 0.0f); });
  }
  void Copy(DeviceMatrix<const float> x, DeviceMatrix<float> y) override {
    const MatrixView<const float> from = x.host();
    const MatrixView<float> to = y.host();
    ForEachRowPart(context_, from, [&](int64_t row, int64_t col, int64_t count) {
      std::copy_n(from.row(row) + col, count, to.row(row) + col);
    });
  }
  void ToHost(DeviceMatrix<const float> from, std::span<float> host) override {
    std::copy_n(Dense(from).data(), host.size(), host.data());
  }
  void FromHost(std::span<const float> host, DeviceMatrix<float> to) override {
    std::copy_n(host.data(), host.size(), Dense(to).data());
  }
  DeviceMatrix<const float> Here(const Rows& rows, DeviceMemory&) override { return rows.host(); }
  Rows AsRows(DeviceMatrix<const float> here) const override { return here.host(); }

  void Begin(const LayerCall& call) override;
  void Embed(DeviceMatrix<float> h) override {
    shiftrt::Embed(context_, batch_->tokens, weights_->embedding, h.host(), weights_->EmbeddingScale());
  }
  void Rope(int64_t layer, Rotated which, DeviceMatrix<float> x) override {
    if (const Rotation* r = RotationOf(layer))
      shiftrt::Rope(context_, x.host(), r->layout, r->angles, r->ScalesOf(which));
  }
  void RopeGradient(int64_t layer, Rotated which, DeviceMatrix<float> dx) override {
    if (const Rotation* r = RotationOf(layer))
      shiftrt::RopeGradient(context_, dx.host(), r->layout, r->angles, r->ScalesOf(which));
  }
  void PlaceInCache(AttentionActivations& a) override;
  void Attention(const AttentionActivations& a) override;
  void AttentionGradient(const AttentionActivations& a, DeviceMatrix<const float> dout, DeviceMatrix<float> dq,
                         DeviceMatrix<float> dk, DeviceMatrix<float> dv) override {
    const std::vector<float> sinks = SinksOf(a);
    shiftrt::AttentionGradient(context_, Packed(a, sinks), a.out.host(), a.log_sums.host(), dout.host(),
                               {dq.host(), dk.host(), dv.host()});
  }
  void AttentionSinkGradient(const AttentionActivations& a, DeviceMatrix<const float> dout,
                             DeviceMatrix<float> dsinks) override {
    const std::vector<float> sinks = SinksOf(a);
    shiftrt::AttentionSinkGradient(context_, ShapeOf(a.layer, sinks), a.out.host(), a.log_sums.host(), dout.host(),
                                   Dense(dsinks));
  }

  void GatedDelta(const DeltaActivations& a, const DeltaOperands& operands) override;
  void GatedDeltaGradient(const DeltaActivations& a, const DeltaOperands& operands, DeviceMatrix<const float> dout,
                          DeviceMatrix<float> dmixed, const DeltaActivations& gradients,
                          const DeltaOperandGradients& of_operands) override;
  void ShortConvolution(const ConvolutionActivations& a, const Operand& w) override;
  void ShortConvolutionGradient(const ConvolutionActivations& a, const Operand& w, DeviceMatrix<const float> dout,
                                DeviceMatrix<float> din, DeviceMatrix<float> dw) override {
    shiftrt::ShortConvolutionGradient(context_, spec_.convolution, recurrent_.Of(a.slot).front(), RowsOf(a),
                                      Taken::Vector(w).view(), dout.host(), din.host(), dw.host());
  }
  void DeltaNorm(DeviceMatrix<float> x, const Operand& weight) override {
    shiftrt::RmsNormHeads(context_, x.host(), spec_.delta.value_dim, Taken::Vector(weight).view(), eps_);
  }
  void DeltaNormGradient(DeviceMatrix<const float> x, const Operand& weight, DeviceMatrix<const float> dy,
                         DeviceMatrix<float> dx, DeviceMatrix<float> dweight) override {
    const Taken w = Taken::Vector(weight);
    shiftrt::RmsNormHeadsGradient(context_, {x.host(), w.view(), eps_}, spec_.delta.value_dim, dy.host(), dx.host(),
                                  dweight.host());
  }
  void SplitGates(DeviceMatrix<const float> both, DeviceMatrix<float> q, DeviceMatrix<float> gate) override {
    const int64_t dim = config_.head_dim;
    for (int64_t head = 0; head < config_.heads; ++head) {
      Copy(both.Cols(2 * head * dim, dim), q.Cols(head * dim, dim));
      Copy(both.Cols((2 * head + 1) * dim, dim), gate.Cols(head * dim, dim));
    }
  }
  void JoinGates(DeviceMatrix<const float> q, DeviceMatrix<const float> gate, DeviceMatrix<float> both) override {
    const int64_t dim = config_.head_dim;
    for (int64_t head = 0; head < config_.heads; ++head) {
      Copy(q.Cols(head * dim, dim), both.Cols(2 * head * dim, dim));
      Copy(gate.Cols(head * dim, dim), both.Cols((2 * head + 1) * dim, dim));
    }
  }
  void SigmoidGate(DeviceMatrix<const float> gate, DeviceMatrix<float> x) override {
    shiftrt::SigmoidGate(context_, gate.host(), x.host());
  }
  void SigmoidGateGradient(DeviceMatrix<const float> gate, DeviceMatrix<const float> x, DeviceMatrix<float> dy,
                           DeviceMatrix<float> dgate) override {
    shiftrt::SigmoidGateGradient(context_, gate.host(), x.host(), dy.host(), dgate.host());
  }

  void MatMul(DeviceMatrix<const float> x, const Operand& w, const Operand& bias, bool accumulate,
              DeviceMatrix<float> y) override {
    shiftrt::MatMul(context_, x.host(), Taken(w).view(), Taken::Vector(bias).view(), accumulate, y.host());
  }
  void MatMulEach(std::span<const Product> products) override {
    std::vector<MatMulItem> items;
    items.reserve(products.size());
    for (const Product& product : products)
      items.push_back({product.x.host(), product.w, product.y.host(), product.bias});
    shiftrt::MatMulEach(context_, items);
  }
  void MatMulRight(DeviceMatrix<const float> x, const Operand& b, bool accumulate, DeviceMatrix<float> y) override {
    shiftrt::MatMulRight(context_, x.host(), Taken(b).floats(), accumulate, y.host());
  }
  void MatMulInputGradient(DeviceMatrix<const float> dy, const Operand& w, bool accumulate,
                           DeviceMatrix<float> dx) override {
    shiftrt::MatMulInputGradient(context_, dy.host(), Taken(w).view(), accumulate, dx.host());
  }
  void MatMulWeightGradient(DeviceMatrix<const float> dy, DeviceMatrix<const float> x,
                            DeviceMatrix<float> dw) override {
    shiftrt::MatMulWeightGradient(context_, dy.host(), x.host(), dw.host());
  }
  void BiasGradient(DeviceMatrix<const float> dy, DeviceMatrix<float> db) override {
    shiftrt::BiasGradient(context_, dy.host(), db.host());
  }
  void MatMulLowRank(DeviceMatrix<const float> x, const Operand& w, const Operand& bias, const LowRankTerm& low,
                     DeviceMatrix<float> y) override {
    const Taken a(low.a), b(low.b);
    shiftrt::MatMulLowRank(context_, x.host(), Taken(w).view(), Taken::Vector(bias).view(),
                           {a.view(), b.view(), low.scale, low.inner.host()}, y.host());
  }
  void MatMulInputGradientLowRank(DeviceMatrix<const float> dy, const Operand& w, const LowRankTerm& low,
                                  bool accumulate, DeviceMatrix<float> dx) override {
    const Taken a(low.a), b(low.b);
    shiftrt::MatMulInputGradientLowRank(context_, dy.host(), Taken(w).view(),
                                        {a.view(), b.view(), low.scale, low.inner.host()}, accumulate, dx.host());
  }

  void Norm(DeviceMatrix<const float> x, const NormOperands& norm, DeviceMatrix<float> out) override {
    if (norm.weight.empty()) return Copy(x, out);
    const Taken w = Taken::Vector(norm.weight), b = Taken::Vector(norm.bias);
    if (spec_.layer_norm) {
      LayerNorm(context_, x.host(), w.view(), b.view(), eps_, out.host(), spec_.norm_offset);
    } else {
      RmsNorm(context_, x.host(), w.view(), eps_, out.host(), spec_.norm_offset);
    }
  }
  void RmsNormHeads(DeviceMatrix<float> x, const Operand& weight) override {
    shiftrt::RmsNormHeads(context_, x.host(), NormedTogether(x), Taken::Vector(weight).view(), eps_, spec_.norm_offset);
  }
  void NormGradient(DeviceMatrix<const float> x, const NormOperands& norm, DeviceMatrix<const float> dy,
                    bool accumulate, DeviceMatrix<float> dx, const NormGradients& gradients) override {
    if (norm.weight.empty()) return accumulate ? AddTo(dy, dx) : Copy(dy, dx);
    const Taken w = Taken::Vector(norm.weight);
    const shiftrt::NormGradient of = {x.host(), w.view(), eps_, spec_.norm_offset};
    if (spec_.layer_norm) {
      LayerNormGradient(context_, of, dy.host(), accumulate, dx.host(), gradients.weight.host(), gradients.bias.host());
    } else {
      RmsNormGradient(context_, of, dy.host(), accumulate, dx.host(), gradients.weight.host());
    }
  }
  void RmsNormHeadsGradient(DeviceMatrix<const float> x, const Operand& weight, DeviceMatrix<const float> dy,
                            DeviceMatrix<float> dx, DeviceMatrix<float> dweight) override {
    const Taken w = Taken::Vector(weight);
    shiftrt::RmsNormHeadsGradient(context_, {x.host(), w.view(), eps_, spec_.norm_offset}, NormedTogether(x), dy.host(),
                                  dx.host(), dweight.host());
  }

  void GatedUnit(DeviceMatrix<float> gate, DeviceMatrix<const float> up) override {
    if (spec_.clamped.limit > 0) return ClampedGatedUnit(context_, spec_.clamped, gate.host(), up.host());
    shiftrt::GatedUnit(context_, spec_.activation, gate.host(), up.host());
  }
  void GatedUnitGradient(DeviceMatrix<const float> gate, DeviceMatrix<const float> up, DeviceMatrix<float> dgate,
                         DeviceMatrix<float> dup) override {
    if (spec_.clamped.limit > 0)
      return ClampedGatedUnitGradient(context_, spec_.clamped, gate.host(), up.host(), dgate.host(), dup.host());
    shiftrt::GatedUnitGradient(context_, spec_.activation, gate.host(), up.host(), dgate.host(), dup.host());
  }
  void Xielu(const XieluOperands& numbers, DeviceMatrix<float> x) override {
    shiftrt::Xielu(context_, NumbersOf(numbers), x.host());
  }
  void XieluGradient(const XieluOperands& numbers, DeviceMatrix<const float> x, DeviceMatrix<float> dx,
                     const XieluGradients& of_numbers) override {
    const XieluNumberGradients sums = shiftrt::XieluGradient(context_, NumbersOf(numbers), x.host(), dx.host());
    if (!of_numbers.alpha_p.empty()) Dense(of_numbers.alpha_p)[0] += static_cast<float>(sums.alpha_p);
    if (!of_numbers.alpha_n.empty()) Dense(of_numbers.alpha_n)[0] += static_cast<float>(sums.alpha_n);
  }
  void AddTo(DeviceMatrix<const float> x, DeviceMatrix<float> y) override {
    shiftrt::AddTo(context_, x.host(), y.host());
  }
  void AddRow(const Operand& row, DeviceMatrix<float> to) override {
    const Taken taken(row);
    const MatrixView<const float> b = taken.floats();
    const MatrixView<float> y = to.host();
    ForEachRow(y, [&](int64_t i) {
      for (int64_t j = 0; j < y.cols; ++j) y(i, j) += b(0, j);
    });
  }
  void Scale(float factor, DeviceMatrix<float> rows) override {
    const MatrixView<float> x = rows.host();
    ForEachRow(x, [&](int64_t i) {
      for (int64_t j = 0; j < x.cols; ++j) x(i, j) *= factor;
    });
  }
  void ApplyDropout(const Dropout& dropout, DeviceMatrix<const float> x, DeviceMatrix<float> out) override {
    shiftrt::ApplyDropout(context_, dropout, x.host(), out.host());
  }
  void Gather(std::span<const int64_t> rows, DeviceMatrix<const float> x, DeviceMatrix<float> y) override {
    const MatrixView<const float> from = x.host();
    const MatrixView<float> to = y.host();
    ForEachRow(to, [&](int64_t i) { std::copy_n(from.row(rows[i]), to.cols, to.row(i)); });
  }
  void Scatter(std::span<const int64_t> rows, DeviceMatrix<const float> x, DeviceMatrix<float> y) override {
    const MatrixView<const float> from = x.host();
    const MatrixView<float> to = y.host();
    ForEachRow(from, [&](int64_t i) { std::copy_n(from.row(i), from.cols, to.row(rows[i])); });
  }

  ExpertRouting RouteToExperts(DeviceMatrix<const float> logits, int64_t active, bool normalised) override {
    return shiftrt::RouteToExperts(context_, logits.host(), active, normalised);
  }
  void SumOverExperts(const ExpertRouting& routing, bool weighted, DeviceMatrix<const float> x,
                      DeviceMatrix<float> y) override {
    shiftrt::SumOverExperts(context_, routing, weighted, x.host(), y.host());
  }
  void ExpertWeightGradient(const ExpertRouting& routing, DeviceMatrix<const float> activation, DeviceMatrix<float> g,
                            std::span<float> dweights) override {
    shiftrt::ExpertWeightGradient(context_, routing, activation.host(), g.host(), dweights);
  }
  void ExpertBiasWeightGradient(const TensorView& b, DeviceMatrix<const float> dy, std::span<float> dweights) override {
    shiftrt::ExpertBiasWeightGradient(context_, b, dy.host(), dweights);
  }
  void ScaleByExpertWeights(const ExpertRouting& routing, DeviceMatrix<float> x) override {
    shiftrt::ScaleByExpertWeights(context_, routing, x.host());
  }
  void SigmoidGateRows(DeviceMatrix<const float> gate, DeviceMatrix<float> x) override {
    shiftrt::SigmoidGateRows(context_, gate.host(), x.host());
  }
  void SigmoidGateRowsGradient(DeviceMatrix<const float> gate, DeviceMatrix<const float> y, DeviceMatrix<float> dy,
                               DeviceMatrix<float> dgate) override {
    shiftrt::SigmoidGateRowsGradient(context_, gate.host(), y.host(), dy.host(), dgate.host());
  }
  void RouteToExpertsGradient(const ExpertRouting& routing, bool normalised, std::span<const float> dweights,
                              DeviceMatrix<float> dlogits) override {
    shiftrt::RouteToExpertsGradient(context_, routing, normalised, dweights, dlogits.host());
  }

  void HeadLossGradient(const HeadRows& rows, std::span<const float> scales, std::span<float> losses,
                        DeviceMatrix<float> dx, DeviceMatrix<float> dw) override {
    const Taken w(rows.head);
    const OutputHead head(w.view(), spec_.logit_cap), teacher(weights_->head, spec_.logit_cap);
    shiftrt::HeadLossGradient(context_, rows.x.host(),
                              {head, rows.targets, rows.cross_entropy, rows.divergence, rows.teacher.host(),
                               rows.teacher.empty() ? nullptr : &teacher, &logits_},
                              scales, losses, dx.host(), dw.host());
  }
  void LogProbs(const HeadRows& rows, std::span<float> log_probs) override {
    const Taken w(rows.head);
    TokenLogProbs(context_, rows.x.host(), OutputHead(w.view(), spec_.logit_cap), rows.targets, log_probs, {});
  }

  void AdamWStep(const AdamW& settings, DeviceMatrix<const float> gradient, DeviceMatrix<float> values,
                 DeviceMatrix<float> first, DeviceMatrix<float> second) override {
    shiftrt::AdamWStep(context_, settings, Dense(gradient), Dense(values), Dense(first), Dense(second));
  }
  double SumOfSquares(DeviceMatrix<const float> values) override {
    return shiftrt::SumOfSquares(context_, Dense(values));
  }
  double SumOfAbsoluteProducts(const Operand& w, DeviceMatrix<const float> gradient) override;

 private:
  template <typename T>
  static std::span<T> Dense(const DeviceMatrix<T>& x) {
    Check(x.dense(), "a matrix of ({}, {}) with rows {} apart, expected dense rows", x.rows, x.cols, x.stride);
    return {x.host().data, static_cast<size_t>(x.rows * x.cols)};
  }
  template <typename Body>
  void ForEachRow(const MatrixView<const float>& x, const Body& body) const {
    ParallelFor(context_, x.rows, 16, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) body(i);
    });
  }
  // The elements of a row of queries or keys that one norm has.
  int64_t NormedTogether(DeviceMatrix<const float> x) const { return spec_.qk_norm_whole ? x.cols : config_.head_dim; }

  // The rotations of the call in progress by one of the model's rotary embeddings.
  struct Rotation {
    Rotation(const RopeSpec& spec, int64_t head_dim)
        : spec(spec),
          layout(head_dim, spec.RotaryDim(head_dim), spec.interleaved),
          frequencies(MakeRopeFrequencies(spec, head_dim)) {
      if (spec.kind == RopeKind::kLongRope) long_frequencies = MakeRopeFrequencies(spec, head_dim, /*is_long=*/true);
    }
    void Begin(const Context& context, const CallLayout& call, std::span<const int64_t> positions);
    std::span<const float> ScalesOf(Rotated which) const {
      return which == Rotated::kQueries ? std::span<const float>(query_scales) : std::span<const float>();
    }
    const RopeSpec& spec;
    RopeLayout layout;
    RopeFrequencies frequencies, long_frequencies;
    RopeAngles angles;
    std::vector<float> query_scales;  // empty: there are none
  };
  // Null for a layer without rotary embedding.
  const Rotation* RotationOf(int64_t layer) const {
    const RopeChoice choice = spec_.Rope(layer);
    return choice == RopeChoice::kNone ? nullptr : &rotations_[choice == RopeChoice::kSecond ? 1 : 0];
  }

  static XieluNumbers NumbersOf(const XieluOperands& of) {
    const auto number = [](const Operand& operand) { return Widened(Taken::Vector(operand).view()).front(); };
    return {number(of.alpha_p), number(of.alpha_n), number(of.beta), number(of.eps)};
  }
  static std::vector<float> SinksOf(const AttentionActivations& a) { return Widened(Taken::Vector(a.sinks).view()); }
  AttentionShape ShapeOf(int64_t layer, std::span<const float> sinks) const {
    return {.heads = config_.heads,
            .kv_heads = config_.kv_heads,
            .head_dim = config_.head_dim,
            .scale = spec_.attention_scale,
            .window = spec_.Window(layer),
            .soft_cap = spec_.attention_cap,
            .sinks = sinks};
  }
  PackedAttention Packed(const AttentionActivations& a, std::span<const float> sinks) const {
    return {.shape = ShapeOf(a.layer, sinks),
            .offsets = batch_->offsets,
            .q = a.q.host(),
            .keys = a.k.host(),
            .values = a.v.host()};
  }
  static ShortConvolutionRows RowsOf(const ConvolutionActivations& a) {
    return {a.in.host(), a.product.host(), a.convolved.host()};
  }
  void FillCaches(const AttentionActivations& a);
  void JoinBranches(const AttentionActivations& a);

  Context context_;
  std::shared_ptr<const Weights> weights_;
  const ModelConfig& config_;
  const BlockSpec& spec_;
  float eps_;
  std::array<Rotation, 2> rotations_;  // by ModelConfig::rope and second_rope

  // The call in progress.
  const Batch* batch_ = nullptr;
  std::vector<std::pair<CpuKv*, int64_t>> caches_;  // those that the sequences continue, and their lengths
  CallLayout layout_;
  std::vector<AttentionSequence> sequences_;  // Attention() sets their keys and values
  RecurrentSequences recurrent_;
  Buffer<float> joined_keys_, joined_values_;  // the rows in layout_.joined_rows
  Buffer<float> logits_;                       // memory of a loss
};

void CpuOps::Begin(const LayerCall& call) {
  batch_ = &call.batch;
  caches_.clear();
  for (const Continued& c : call.continued) caches_.emplace_back(static_cast<CpuKv*>(c.cache), c.past);
  layout_ = LayOut(call);
  sequences_.clear();
  std::vector<int64_t> positions(call.batch.tokens.size());
  for (const CallLayout::Sequence& s : layout_.sequences) {
    std::iota(positions.begin() + s.begin, positions.begin() + s.begin + s.count, s.past);
    sequences_.push_back({s.begin, s.count, s.past, {}, {}});
  }
  if (spec_.Recurrent()) recurrent_.Begin(call, layout_, spec_.StateFloats(), spec_.RowFloats());
  const auto second = std::find(spec_.ropes.begin(), spec_.ropes.end(), RopeChoice::kSecond);
  rotations_[0].Begin(context_, layout_, positions);
  if (second != spec_.ropes.end()) rotations_[1].Begin(context_, layout_, positions);
}

void CpuOps::Rotation::Begin(const Context& context, const CallLayout& call, std::span<const int64_t> positions) {
  angles = MakeRopeAngles(context, positions, frequencies.inverse, frequencies.scale);
  const auto copy = [](const Matrix<float>& from, int64_t row, Matrix<float>& to) {
    std::copy_n(from.row(row), from.cols(), to.row(row));
  };
  const auto is_long = [&](const CallLayout::Sequence& s) { return spec.IsLong(s.reach); };
  if (std::any_of(call.sequences.begin(), call.sequences.end(), is_long)) {
    const RopeAngles all_long = MakeRopeAngles(context, positions, long_frequencies.inverse, long_frequencies.scale);
    for (const CallLayout::Sequence& s : call.sequences) {
      for (int64_t t = s.begin; is_long(s) && t < s.begin + s.count; ++t) {
        copy(all_long.cosine, t, angles.cosine);
        copy(all_long.sine, t, angles.sine);
      }
    }
  }
  query_scales.clear();
  if (spec.query_beta == 0) return;
  for (const int64_t position : positions) query_scales.push_back(spec.QueryScale(position));
}

void CpuOps::PlaceInCache(AttentionActivations& a) {
  if (caches_.size() != 1) return;  // the rows of several caches do not lie together: Attention() copies them there
  const auto& [cache, past] = caches_.front();
  CpuKv::Slot& slot = cache->slots[a.slot];
  a.k = slot.keys.view().Rows(past, a.q.rows);
  a.v = slot.values.view().Rows(past, a.q.rows);
}

void CpuOps::Attention(const AttentionActivations& a) {
  const std::vector<float> sinks = SinksOf(a);
  if (!a.log_sums.empty()) return AttentionForGradient(context_, Packed(a, sinks), a.out.host(), a.log_sums.host());
  if (!caches_.empty()) {
    FillCaches(a);
  } else {
    for (AttentionSequence& s : sequences_) {
      s.keys = a.k.host().Rows(s.begin, s.count);
      s.values = a.v.host().Rows(s.begin, s.count);
    }
    JoinBranches(a);
  }
  shiftrt::Attention(context_, ShapeOf(a.layer, sinks), sequences_, a.q.host(), a.out.host());
}

// Gives the sequences the keys and values of their caches, those of the call's tokens included.
void CpuOps::FillCaches(const AttentionActivations& a) {
  for (size_t i = 0; i < caches_.size(); ++i) {
    CpuKv::Slot& slot = caches_[i].first->slots[a.slot];
    AttentionSequence& s = sequences_[i];
    s.keys = slot.keys.view();
    s.values = slot.values.view();
    if (caches_.size() == 1) continue;  // PlaceInCache() had them computed there
    Copy(a.k.Rows(s.begin, s.count), slot.keys.view().Rows(s.past, s.count));
    Copy(a.v.Rows(s.begin, s.count), slot.values.view().Rows(s.past, s.count));
  }
}

// Attention reads a sequence's keys and values in one piece, so a branch gets a copy of what it continues.
void CpuOps::JoinBranches(const AttentionActivations& a) {
  const std::vector<int64_t>& rows = layout_.joined_rows;
  if (rows.empty()) return;
  const auto join = [&](DeviceMatrix<const float> from, Buffer<float>& buffer) {
    buffer.Reserve(std::ssize(rows) * from.cols);
    const MatrixView<float> to(buffer.data(), std::ssize(rows), from.cols);
    Gather(rows, from, to);
    return to;
  };
  const MatrixView<float> keys = join(a.k, joined_keys_), values = join(a.v, joined_values_);
  for (size_t s = 0; s < sequences_.size(); ++s) {
    const CallLayout::Sequence& sequence = layout_.sequences[s];
    if (sequence.joined < 0) continue;
    sequences_[s].keys = keys.Rows(sequence.joined, sequence.past + sequence.count);
    sequences_[s].values = values.Rows(sequence.joined, sequence.past + sequence.count);
  }
}

void CpuOps::GatedDelta(const DeltaActivations& a, const DeltaOperands& operands) {
  const Taken conv = Taken::Vector(operands.conv), a_log = Taken::Vector(operands.a_log),
              dt_bias = Taken::Vector(operands.dt_bias);
  const DeltaInputs inputs = {a.mixed.host(), a.a.host(), a.b.host(), a_log.view(), dt_bias.view()};
  for (const std::vector<DeltaSequence>& generation : recurrent_.Of(a.slot)) {
    CausalConvolution(context_, spec_.delta.convolution(), generation, a.channels.host(), conv.view(), a.mixed.host());
    shiftrt::GatedDelta(context_, spec_.delta, generation, inputs, a.out.host());
  }
  recurrent_.Done(a.slot);
}

void CpuOps::ShortConvolution(const ConvolutionActivations& a, const Operand& w) {
  const Taken taken = Taken::Vector(w);
  for (const std::vector<DeltaSequence>& generation : recurrent_.Of(a.slot))
    shiftrt::ShortConvolution(context_, spec_.convolution, generation, RowsOf(a), taken.view(), a.out.host());
  recurrent_.Done(a.slot);
}

void CpuOps::GatedDeltaGradient(const DeltaActivations& a, const DeltaOperands& operands,
                                DeviceMatrix<const float> dout, DeviceMatrix<float> dmixed,
                                const DeltaActivations& gradients, const DeltaOperandGradients& of_operands) {
  const Taken conv = Taken::Vector(operands.conv), a_log = Taken::Vector(operands.a_log),
              dt_bias = Taken::Vector(operands.dt_bias);
  const DeltaInputs inputs = {a.mixed.host(), a.a.host(), a.b.host(), a_log.view(), dt_bias.view()};
  const std::vector<DeltaSequence>& sequences = recurrent_.Of(a.slot).front();
  shiftrt::GatedDeltaGradient(
      context_, spec_.delta, sequences, inputs, dout.host(),
      {dmixed.host(), gradients.a.host(), gradients.b.host(), of_operands.a_log.host(), of_operands.dt_bias.host()});
  CausalConvolutionGradient(context_, spec_.delta.convolution(), sequences, a.channels.host(), conv.view(),
                            dmixed.host(), gradients.channels.host(), of_operands.conv.host());
}

// Row by row, so that the order of the additions does not depend on the threads.
double CpuOps::SumOfAbsoluteProducts(const Operand& w, DeviceMatrix<const float> of_w) {
  const MatrixView<const float> gradient = of_w.host();
  const Taken taken(w);
  const TensorView& view = taken.view();
  Check(view.elements() == gradient.rows * gradient.cols, "products of {} weights and a gradient of ({}, {})",
        view.elements(), gradient.rows, gradient.cols);
  std::vector<double> sums(gradient.rows);
  ForEachRow(gradient, [&](int64_t i) {
    std::vector<float> values(gradient.cols);
    WidenRow(view, i, values.data());
    for (int64_t j = 0; j < gradient.cols; ++j) sums[i] += std::abs(static_cast<double>(values[j]) * gradient(i, j));
  });
  return std::accumulate(sums.begin(), sums.end(), 0.0);
}

}  // namespace

std::unique_ptr<Ops> MakeCpuOps(const Context& context, std::shared_ptr<const Weights> weights) {
  return std::make_unique<CpuOps>(context, std::move(weights));
}

}  // namespace shiftrt
