// SPDX-License-Identifier: Apache-2.0
// The operations of gradients on a GPU. Streams, activations and gradients are float32. Products of a 16-bit model
// round both operands to its type, as the decoder rounds activations, and add up in float32; products with adapters,
// and all products of a float32 model, are float32. Attention rounds its operands likewise.
#include "engine/ops.h"

#include <algorithm>

#include "engine/cuda/call.h"
#include "engine/cuda/delta_gradients.h"
#include "engine/cuda/expert_gradients.h"
#include "engine/cuda/gradient_products.h"
#include "kernels/cuda/adamw.h"
#include "kernels/cuda/head_loss.h"
#include "kernels/cuda/rmsnorm.h"
#include "kernels/cuda/rowwise.h"
#include "runtime/check.h"

namespace shiftrt {

namespace {

using gpu::ConstDeviceArray;
using gpu::DeviceArray;
using gpu::DeviceBuffer;

// The head's loss has so many logits at a time. With more rows, the head and its gradient are read less often.
constexpr int64_t kLossRows = 2048, kLossColumns = 8192;

class CudaOps : public Ops, private GradientProducts {
 public:
  CudaOps(const Context& context, std::shared_ptr<const Weights> weights)
      : GradientProducts(context, std::move(weights)), delta_(call_, operands_), experts_(call_) {}

  DeviceMemory Allocate(int64_t count) override {
    DeviceMemory memory = call_.rows()->Allocate(count);
    gpu::FillBytes(stream_, memory.all().on_gpu().data, 0, Bytes(count));
    rounded_.Clear();  // the memory may have been others' rows
    return memory;
  }
  void Zero(DeviceMatrix<float> x) override { gpu::ZeroRows(stream_, Written(x)); }
  void Copy(DeviceMatrix<const float> from, DeviceMatrix<float> to) override {
    gpu::CopyRows(stream_, from.on_gpu(), Written(to));
  }
  void ToHost(DeviceMatrix<const float> from, std::span<float> host) override {
    gpu::CopyToHost(stream_, host.data(), from.on_gpu().data, static_cast<int64_t>(host.size_bytes()));
  }
  void FromHost(std::span<const float> host, DeviceMatrix<float> to) override {
    gpu::CopyToDevice(stream_, Written(to).data, host.data(), static_cast<int64_t>(host.size_bytes()));
    gpu::Synchronize(stream_);
  }
  DeviceMatrix<const float> Here(const Rows& rows, DeviceMemory& copy) override;
  Rows AsRows(DeviceMatrix<const float> here) const override { return {here, call_.rows()}; }

  void Begin(const LayerCall& call) override;
  void Embed(DeviceMatrix<float> h) override { call_.Embed(Written(h)); }
  void Rope(int64_t layer, Rotated which, DeviceMatrix<float> x) override { Rotate(layer, which, x, /*back=*/false); }
  void RopeGradient(int64_t layer, Rotated which, DeviceMatrix<float> dx) override {
    Rotate(layer, which, dx, /*back=*/true);
  }
  void PlaceInCache(AttentionActivations&) override {}  // Begin() refuses a call with a cache
  void Attention(const AttentionActivations& a) override;
  void AttentionGradient(const AttentionActivations& a, DeviceMatrix<const float> dout, DeviceMatrix<float> dq,
                         DeviceMatrix<float> dk, DeviceMatrix<float> dv) override;

  void AttentionSinkGradient(const AttentionActivations& a, DeviceMatrix<const float>,
                             DeviceMatrix<float> dsinks) override {
    gpu::AddSinkGradient(stream_, operands_.Vector(a.sinks).data, a.log_sums.on_gpu(),
                         deltas_.Floats(stream_, a.q.rows * config_.heads), Written(dsinks).data);
  }

  void GatedDelta(const DeltaActivations& a, const DeltaOperands& operands) override;
  void GatedDeltaGradient(const DeltaActivations& a, const DeltaOperands& operands, DeviceMatrix<const float> dout,
                          DeviceMatrix<float> dmixed, const DeltaActivations& gradients,
                          const DeltaOperandGradients& of_operands) override;
  void DeltaNorm(DeviceMatrix<float> x, const Operand& weight) override {
    gpu::NormRows(stream_, DeltaNormOf(weight), x.on_gpu(), Written(x));
  }
  void DeltaNormGradient(DeviceMatrix<const float> x, const Operand& weight, DeviceMatrix<const float> dy,
                         DeviceMatrix<float> dx, DeviceMatrix<float> dweight) override {
    GroupsGradient(DeltaNormOf(weight), x, dy, false, dx, dweight);
  }
  void SplitGates(DeviceMatrix<const float> both, DeviceMatrix<float> q, DeviceMatrix<float> gate) override {
    gpu::SplitHeads(stream_, both.on_gpu(), config_.head_dim, Written(q), Written(gate));
  }
  void JoinGates(DeviceMatrix<const float> q, DeviceMatrix<const float> gate, DeviceMatrix<float> both) override {
    gpu::JoinHeads(stream_, q.on_gpu(), gate.on_gpu(), config_.head_dim, Out(both));
  }
  void SigmoidGate(DeviceMatrix<const float> gate, DeviceMatrix<float> x) override {
    gpu::SigmoidGate(stream_, gate.on_gpu(), Out(x));
  }
  void SigmoidGateGradient(DeviceMatrix<const float> gate, DeviceMatrix<const float> x, DeviceMatrix<float> dy,
                           DeviceMatrix<float> dgate) override {
    gpu::SigmoidGateGradient(stream_, gate.on_gpu(), x.on_gpu(), Out(dy), Written(dgate));
  }

  ExpertRouting RouteToExperts(DeviceMatrix<const float> logits, int64_t active, bool normalised) override {
    return experts_.Route(logits.on_gpu(), active, normalised);
  }
  // All rows are rounded at once.
  void GatherSlots(const ExpertRouting& routing, DeviceMatrix<const float> from, DeviceMatrix<float> to) override {
    Gather(routing.token_of, from, to);
    if (Narrows({to.cols})) rounded_.Of(stream_, to.on_gpu(), dtype_);
  }
  void SumOverExperts(const ExpertRouting& routing, bool weighted, DeviceMatrix<const float> x,
                      DeviceMatrix<float> y) override {
    experts_.Sum(routing, weighted, x.on_gpu(), Written(y));
  }
  void ExpertWeightGradient(const ExpertRouting& routing, DeviceMatrix<const float> activation, DeviceMatrix<float> g,
                            std::span<float> dweights) override {
    experts_.WeightGradient(routing, activation.on_gpu(), Written(g), dweights);
  }
  // A product with a matrix of one row.
  void ExpertBiasWeightGradient(const TensorView& b, DeviceMatrix<const float> dy, std::span<float> dweights) override {
    const MatrixView<float> sums(sums_of_rows_.Floats(stream_, dy.rows), dy.rows, 1);
    Multiply({.m = dy.rows, .n = 1, .k = dy.cols}, Take(dy, false),
             {{operands_.Vector(b).data, DType::kFloat32}, dy.cols}, sums);
    std::vector<float> host(dy.rows);
    gpu::CopyToHost(stream_, host.data(), sums.data, Bytes(dy.rows));
    for (int64_t slot = 0; slot < dy.rows; ++slot) dweights[slot] += host[slot];
  }
  void ScaleByExpertWeights(const ExpertRouting& routing, DeviceMatrix<float> x) override {
    gpu::ScaleEachRow(stream_, {experts_.WeightsOf(routing)}, Out(x));
  }
  void SigmoidGateRows(DeviceMatrix<const float> gate, DeviceMatrix<float> x) override {
    gpu::ScaleEachRow(stream_, SigmoidsOf(gate), Out(x));
  }
  void SigmoidGateRowsGradient(DeviceMatrix<const float> gate, DeviceMatrix<const float> y, DeviceMatrix<float> dy,
                               DeviceMatrix<float> dgate) override {
    Check(dgate.dense(), "gates of rows on the GPU are dense");
    gpu::ScaleEachRowGradient(stream_, SigmoidsOf(gate), y.on_gpu(), Written(dy), Written(dgate).data);
  }
  void RouteToExpertsGradient(const ExpertRouting& routing, bool normalised, std::span<const float> dweights,
                              DeviceMatrix<float> logits) override {
    experts_.RouteGradient(routing, normalised, dweights, Written(logits));
  }

  void MatMul(DeviceMatrix<const float> x, const Operand& w, const Operand& bias, bool accumulate,
              DeviceMatrix<float> y) override;
  void MatMulRight(DeviceMatrix<const float> x, const Operand& b, bool accumulate, DeviceMatrix<float> y) override;
  void MatMulInputGradient(DeviceMatrix<const float> dy, const Operand& w, bool accumulate,
                           DeviceMatrix<float> dx) override;
  void MatMulWeightGradient(DeviceMatrix<const float> dy, DeviceMatrix<const float> x, DeviceMatrix<float> dw) override;
  void BiasGradient(DeviceMatrix<const float> dy, DeviceMatrix<float> db) override {
    gpu::AddColumnSums(stream_, dy.on_gpu(), Written(db));
  }

  void Norm(DeviceMatrix<const float> x, const NormOperands& norm, DeviceMatrix<float> out) override {
    if (norm.weight.empty()) return Copy(x, out);
    gpu::NormRows(stream_, NormOf(norm), x.on_gpu(), Out(out));
  }
  void RmsNormHeads(DeviceMatrix<float> x, const Operand& weight) override {
    gpu::NormRows(stream_, HeadNormOf(weight), x.on_gpu(), Written(x));
  }
  void NormGradient(DeviceMatrix<const float> x, const NormOperands& norm, DeviceMatrix<const float> dy,
                    bool accumulate, DeviceMatrix<float> dx, const NormGradients& gradients) override {
    if (norm.weight.empty()) return accumulate ? AddTo(dy, dx) : Copy(dy, dx);
    if (!gradients.bias.empty()) BiasGradient(dy, gradients.bias);  // before dx, which may replace dy
    GroupsGradient(NormOf(norm), x, dy, accumulate, dx, gradients.weight);
  }
  void RmsNormHeadsGradient(DeviceMatrix<const float> x, const Operand& weight, DeviceMatrix<const float> dy,
                            DeviceMatrix<float> dx, DeviceMatrix<float> dweight) override {
    GroupsGradient(HeadNormOf(weight), x, dy, false, dx, dweight);
  }

  void GatedUnit(DeviceMatrix<float> gate, DeviceMatrix<const float> up) override {
    const gpu::WrittenRows out = Out(gate);
    if (spec_.clamped.limit > 0) return gpu::ClampedGateRows(stream_, spec_.clamped, out, up.on_gpu());
    gpu::GateRows(stream_, spec_.activation, {.gate = out.rows, .up = up.on_gpu()}, out.rows, out.rounded);
  }
  void GatedUnitGradient(DeviceMatrix<const float> gate, DeviceMatrix<const float> up, DeviceMatrix<float> dgate,
                         DeviceMatrix<float> dup) override {
    if (spec_.clamped.limit > 0)
      return gpu::ClampedGateRowsGradient(stream_, spec_.clamped, gate.on_gpu(), up.on_gpu(), Out(dgate), Out(dup));
    gpu::GateRowsGradient(stream_, spec_.activation, gate.on_gpu(), up.on_gpu(), Out(dgate), Out(dup));
  }
  void AddTo(DeviceMatrix<const float> x, DeviceMatrix<float> y) override {
    gpu::AddRows(stream_, x.on_gpu(), Written(y));
  }
  void AddRow(const Operand& b, DeviceMatrix<float> y) override {
    const DeviceVector row = operands_.Vector(b);
    if (row.data == nullptr) return;
    gpu::AddRows(stream_, {}, Written(y), row.data);
  }
  void Scale(float factor, DeviceMatrix<float> x) override { gpu::ScaleRows(stream_, factor, Written(x)); }
  void ApplyDropout(const Dropout& dropout, DeviceMatrix<const float> x, DeviceMatrix<float> out) override {
    Check(dropout.probability >= 0 && dropout.probability < 1, "a dropout of {} is not in [0, 1)", dropout.probability);
    gpu::DropRows(stream_, {dropout.key, dropout.Threshold(), dropout.Scale()}, x.on_gpu(), Written(out));
  }
  void Gather(std::span<const int64_t> rows, DeviceMatrix<const float> from, DeviceMatrix<float> to) override {
    gpu::GatherRows(stream_, Indices(rows), from.on_gpu(), Written(to));
  }
  void Scatter(std::span<const int64_t> rows, DeviceMatrix<const float> from, DeviceMatrix<float> to) override {
    gpu::ScatterRows(stream_, Indices(rows), from.on_gpu(), Written(to));
  }

  void HeadLossGradient(const HeadRows& rows, std::span<const float> scales, std::span<float> losses,
                        DeviceMatrix<float> dx, DeviceMatrix<float> dw) override;
  void LogProbs(const HeadRows& rows, std::span<float> log_probs) override;

  void AdamWStep(const AdamW& settings, DeviceMatrix<const float> gradient, DeviceMatrix<float> values,
                 DeviceMatrix<float> first, DeviceMatrix<float> second) override;
  double SumOfSquares(DeviceMatrix<const float> values) override {
    return SumOf([&](double* scratch, double* sum) {
      gpu::SumSquares(stream_, values.on_gpu().data, values.rows * values.cols, scratch, sum);
    });
  }
  double SumOfAbsoluteProducts(const Operand& w, DeviceMatrix<const float> gradient) override;

 private:
  static constexpr int64_t Bytes(int64_t floats) { return floats * static_cast<int64_t>(sizeof(float)); }

  void Rotate(int64_t layer, Rotated which, DeviceMatrix<float> x, bool back) {
    gpu::RopeTable table = call_.rope(layer);
    if (table.cosine == nullptr) return;
    if (which == Rotated::kKeys) table.query_scale = nullptr;
    Check(x.dense(), "RoPE on the GPU takes dense rows, not rows {} apart", x.stride);
    const gpu::WrittenRows out = Out(x);
    const DeviceArray rows{out.rows.data, DType::kFloat32};
    gpu::RopeAndStore(stream_, {.qkv = rows,
                                .table = table,
                                .back = back,
                                .positions = call_.step().rotations,
                                .tokens = x.rows,
                                .heads = static_cast<int>(x.cols / config_.head_dim),
                                .head_dim = static_cast<int>(config_.head_dim),
                                .q = rows,
                                .rounded = out.rounded});
  }
  // The norm of queries or keys: of each head, or of all together.
  gpu::Norm HeadNormOf(const Operand& weight) {
    const DeviceVector vector = operands_.Vector(weight);
    return {.weight = vector.data,
            .eps = call_.eps(),
            .offset = vector.offset_added ? 0 : spec_.norm_offset,
            .n = spec_.qk_norm_whole ? 0 : config_.head_dim};
  }
  gpu::Norm DeltaNormOf(const Operand& weight) {
    return {.weight = operands_.Vector(weight).data, .eps = call_.eps(), .n = spec_.delta.value_dim};
  }
  static gpu::RowScales SigmoidsOf(DeviceMatrix<const float> gate) {
    Check(gate.cols == 1 && gate.dense(), "gates of rows are ({}, {}), expected one column", gate.rows, gate.cols);
    return {gate.on_gpu().data, /*sigmoid=*/true};
  }
  gpu::Norm NormOf(const NormOperands& norm) {
    const DeviceVector vector = operands_.Vector(norm.weight);
    return {.weight = vector.data,
            .eps = call_.eps(),
            .centred = spec_.layer_norm,
            .bias = operands_.Vector(norm.bias).data,
            .offset = vector.offset_added ? 0 : spec_.norm_offset};
  }
  void GroupsGradient(const gpu::Norm& norm, DeviceMatrix<const float> x, DeviceMatrix<const float> dy, bool accumulate,
                      DeviceMatrix<float> dx, DeviceMatrix<float> dweight) {
    const int64_t groups = x.rows * (norm.n == 0 ? 1 : x.cols / norm.n);
    float* const scales = dweight.empty() ? nullptr : norm_scales_.Floats(stream_, (norm.centred ? 2 : 1) * groups);
    gpu::NormRowsGradient(stream_, norm, x.on_gpu(), dy.on_gpu(), accumulate, Out(dx), Written(dweight), scales);
  }

  gpu::AttentionShape ShapeOf(const AttentionActivations& a) {
    gpu::AttentionShape shape = call_.ShapeOf(a.layer);
    shape.sinks = operands_.Vector(a.sinks).data;
    return shape;
  }
  // Dense rows in the type that attention reads.
  ConstDeviceArray ForAttention(DeviceMatrix<const float> x) {
    Check(x.dense(), "attention on the GPU reads dense rows, not rows {} apart", x.stride);
    return Take(x.on_gpu(), dtype_ != DType::kFloat32).array;
  }

  // Copies indices to the device. They are valid until the next call.
  const int32_t* Indices(std::span<const int64_t> rows) {
    const std::vector<int32_t> narrow(rows.begin(), rows.end());
    return Upload(std::span<const int32_t>(narrow), indices_);
  }
  template <typename T>
  const T* Upload(std::span<const T> host, DeviceBuffer<T>& buffer) {
    T* const there = buffer.Reserve(stream_, std::max<int64_t>(1, std::ssize(host)), kActivations);
    gpu::CopyToDevice(stream_, there, host.data(), static_cast<int64_t>(host.size_bytes()));
    return there;
  }

  template <typename Call>
  double SumOf(const Call& call) {
    double* const scratch = sums_.Reserve(stream_, gpu::kSumScratch + 1, kActivations);
    call(scratch, scratch + gpu::kSumScratch);
    double sum = 0;
    gpu::CopyToHost(stream_, &sum, scratch + gpu::kSumScratch, sizeof(sum));
    return sum;
  }

  struct LossPass;

  DeltaGradients delta_;
  ExpertGradientOps experts_;
  Scratch deltas_, norm_scales_, sums_of_rows_, logits_, teacher_logits_, dlogits_;
  DeviceBuffer<int32_t> indices_, targets_;
  DeviceBuffer<float> scales_, losses_;
  DeviceBuffer<double> sums_;
  DeviceBuffer<gpu::LossState> states_;
};

DeviceMatrix<const float> CudaOps::Here(const Rows& rows, DeviceMemory& copy) {
  if (!rows.on_host()) {
    Check(rows.device() == call_.rows(), "rows of GPU {} or of another model for gradients on GPU {}", rows.gpu(),
          stream_.device);
    return rows.there();
  }
  const MatrixView<const float> from = rows.host();
  copy = call_.rows()->Allocate(from.rows * from.cols);
  const MatrixView<float> to = copy.matrix(from.rows, from.cols).on_gpu();
  for (int64_t i = 0; i < from.rows; ++i) gpu::CopyToDevice(stream_, to.row(i), from.row(i), Bytes(from.cols));
  gpu::Synchronize(stream_);
  return copy.matrix(from.rows, from.cols);
}

void CudaOps::Begin(const LayerCall& call) {
  Check(call.continued.empty(), "these operations of a GPU continue no cache");
  for (int64_t s = 0; s < call.batch.sequences(); ++s)
    Check(call.batch.parents[s] < 0, "sequence {} of the batch continues another: gradients are of whole sequences", s);
  rounded_.Clear();  // between batches others may write
  call_.Begin(call);
}

void CudaOps::Attention(const AttentionActivations& a) {
  const ConstDeviceArray q = ForAttention(a.q), keys = ForAttention(a.k), values = ForAttention(a.v);
  Check(a.out.dense() && a.log_sums.dense(), "attention on the GPU writes dense rows");
  const MatrixView<float> to = Written(a.out);
  const bool wide = dtype_ == DType::kFloat32;
  const DeviceArray out = wide ? DeviceArray{to.data, dtype_} : rounded_.For(stream_, to, dtype_);
  call_.Attend({a.layer, q, keys, values, a.k.rows, out, a.log_sums.on_gpu().data, operands_.Vector(a.sinks).data});
  if (!wide) gpu::CopyRows(stream_, {out, to.rows, to.cols}, to);  // a.out becomes the same numbers
}

void CudaOps::AttentionGradient(const AttentionActivations& a, DeviceMatrix<const float> dout, DeviceMatrix<float> dq,
                                DeviceMatrix<float> dk, DeviceMatrix<float> dv) {
  for (const DeviceMatrix<float>& view : {dq, dk, dv})
    Check(view.dense(), "attention on the GPU writes dense rows, not rows {} apart", view.stride);
  gpu::AttendGradient(stream_, {.shape = ShapeOf(a),
                                .q = ForAttention(a.q),
                                .out = ForAttention(a.out),
                                .dout = ForAttention(dout),
                                .keys = ForAttention(a.k),
                                .values = ForAttention(a.v),
                                .log_sums = a.log_sums.on_gpu().data,
                                .sequences = call_.step().sequences,
                                .sequence_count = call_.step().sequence_count,
                                .longest = call_.step().longest,
                                .tokens = call_.step().count,
                                .deltas = deltas_.Floats(stream_, call_.step().count * config_.heads),
                                .dq = dq.on_gpu().data,
                                .dkeys = dk.on_gpu().data,
                                .dvalues = dv.on_gpu().data});
  for (const DeviceMatrix<float>& view : {dq, dk, dv}) Written(view);
}

void CudaOps::GatedDelta(const DeltaActivations& a, const DeltaOperands& operands) {
  delta_.Forward(a, operands);
  for (const DeviceMatrix<float>& view : {a.mixed, a.out}) Written(view);
}

void CudaOps::GatedDeltaGradient(const DeltaActivations& a, const DeltaOperands& operands,
                                 DeviceMatrix<const float> dout, DeviceMatrix<float> dmixed,
                                 const DeltaActivations& gradients, const DeltaOperandGradients& of_operands) {
  delta_.Backward(a, operands, dout, dmixed, gradients, of_operands);
  for (const DeviceMatrix<float>& view : {dmixed, gradients.channels, gradients.a, gradients.b}) Written(view);
}

void CudaOps::MatMul(DeviceMatrix<const float> x, const Operand& w, const Operand& bias, bool accumulate,
                     DeviceMatrix<float> y) {
  const bool narrow = Narrows({x.cols, ColsOf(w)});
  Multiply({.m = x.rows, .n = y.cols, .k = x.cols, .accumulate = accumulate}, Take(x, narrow), Take(w, narrow), y);
  AddRow(bias, y);
}

void CudaOps::MatMulRight(DeviceMatrix<const float> x, const Operand& b, bool accumulate, DeviceMatrix<float> y) {
  Multiply({.m = x.rows, .n = y.cols, .k = x.cols, .accumulate = accumulate, .w_transposed = true}, Take(x, false),
           Take(b, false), y);
}

void CudaOps::MatMulInputGradient(DeviceMatrix<const float> dy, const Operand& w, bool accumulate,
                                  DeviceMatrix<float> dx) {
  const bool narrow = Narrows({dy.cols, ColsOf(w)});
  Multiply({.m = dy.rows, .n = dx.cols, .k = dy.cols, .accumulate = accumulate, .w_transposed = true}, Take(dy, narrow),
           Take(w, narrow), dx);
}

void CudaOps::MatMulWeightGradient(DeviceMatrix<const float> dy, DeviceMatrix<const float> x, DeviceMatrix<float> dw) {
  const bool narrow = Narrows({dy.cols, x.cols});
  Multiply({.m = dy.cols, .n = x.cols, .k = x.rows, .accumulate = true, .x_transposed = true, .w_transposed = true},
           Take(dy, narrow), Take(x, narrow), dw);
}

// One call's rows, a block of them at a time, over the vocabulary in chunks.
struct CudaOps::LossPass {
  LossPass(CudaOps& ops, const HeadRows& rows)
      : ops(ops),
        rows(rows),
        vocab(ops.config_.vocab),
        narrow(ops.Narrows({ops.config_.hidden})),
        teacher_w({ops.call_.device()->head().parts[0].array, ops.config_.hidden}) {
    if (gpu::TakesBlocks(teacher_w.array.dtype)) teacher_w.quantised_rows = vocab;
    for (const int32_t target : rows.targets)
      Check(target >= 0 && target < vocab, "target {} is outside the vocabulary of {}", target, vocab);
    targets = ops.Upload(rows.targets, ops.targets_);
    losses = ops.losses_.Reserve(ops.stream_, std::max<int64_t>(1, rows.x.rows), kActivations);
    states = ops.states_.Reserve(ops.stream_, std::min(kLossRows, rows.x.rows), kActivations);
  }

  void Begin(int64_t first_row) {
    first = first_row;
    count = std::min(kLossRows, rows.x.rows - first);
    w = ops.Take(rows.head, narrow);  // asked for again with every block of rows, so that its copy stays
    x = ops.Take(rows.x.Rows(first, count), narrow);
    if (!rows.teacher.empty()) teacher = ops.Take(rows.teacher.Rows(first, count), narrow);
  }
  int64_t Columns(int64_t from) const { return std::min(kLossColumns, vocab - from); }
  gpu::LossTerms Terms() const {
    return {targets + first, rows.cross_entropy, rows.divergence, scales != nullptr ? scales + first : nullptr};
  }

  const float* Logits(const Side& x, const Side& w, int64_t from, Scratch& scratch) const {
    const int64_t cols = Columns(from);
    const MatrixView<float> logits(scratch.Floats(ops.stream_, count * cols), count, cols);
    ops.Multiply({.m = count, .n = cols, .k = ops.config_.hidden}, x, w.From(from), logits);
    return logits.data;
  }
  gpu::LossChunk Chunk(int64_t from) const {
    const float* const taught = !rows.teacher.empty() ? Logits(teacher, teacher_w, from, ops.teacher_logits_) : nullptr;
    return {.logits = Logits(x, w, from, ops.logits_),
            .teacher = taught,
            .tokens = count,
            .cols = Columns(from),
            .first = from,
            .vocab = vocab,
            .soft_cap = ops.spec_.logit_cap};
  }
  void Losses() const {
    for (int64_t from = 0; from < vocab; from += kLossColumns)
      gpu::UpdateLoss(ops.stream_, Chunk(from), Terms(), states, losses + first);
  }
  void Download(std::span<float> to) const {
    gpu::CopyToHost(ops.stream_, to.data(), losses, static_cast<int64_t>(to.size_bytes()));
  }

  CudaOps& ops;
  const HeadRows& rows;
  int64_t vocab;
  bool narrow;
  Side w, teacher_w, x, teacher;
  const int32_t* targets;
  const float* scales = nullptr;  // for gradients
  float* losses;
  gpu::LossState* states;
  int64_t first = 0, count = 0;  // the block of rows
};

void CudaOps::HeadLossGradient(const HeadRows& rows, std::span<const float> scales, std::span<float> losses,
                               DeviceMatrix<float> dx, DeviceMatrix<float> dw) {
  LossPass pass(*this, rows);
  pass.scales = Upload(scales, scales_);
  const DType type = pass.narrow ? dtype_ : DType::kFloat32;
  for (int64_t first = 0; first < rows.x.rows; first += kLossRows) {
    pass.Begin(first);
    pass.Losses();
    for (int64_t from = 0; from < pass.vocab && !dx.empty(); from += kLossColumns) {
      const int64_t cols = pass.Columns(from), stride = (cols + kAligned - 1) / kAligned * kAligned;
      const DeviceArray dlogits = dlogits_.Get(stream_, pass.count * stride, type);
      gpu::LossGradient(stream_, pass.Chunk(from), pass.Terms(), pass.states, dlogits, stride);
      const Side d{dlogits, stride};
      Multiply({.m = pass.count, .n = config_.hidden, .k = cols, .accumulate = from > 0, .w_transposed = true}, d,
               pass.w.From(from), dx.Rows(first, pass.count));
      if (dw.empty()) continue;
      Multiply({.m = cols,
                .n = config_.hidden,
                .k = pass.count,
                .accumulate = true,
                .x_transposed = true,
                .w_transposed = true},
               d, pass.x, dw.Rows(from, cols));
    }
  }
  pass.Download(losses);
}

void CudaOps::LogProbs(const HeadRows& rows, std::span<float> log_probs) {
  HeadRows plain = rows;
  plain.cross_entropy = 1;
  plain.divergence = 0;
  plain.teacher = {};
  LossPass pass(*this, plain);
  for (int64_t first = 0; first < rows.x.rows; first += kLossRows) {
    pass.Begin(first);
    pass.Losses();
  }
  pass.Download(log_probs);
  for (float& loss : log_probs) loss = -loss;
}

void CudaOps::AdamWStep(const AdamW& settings, DeviceMatrix<const float> gradient, DeviceMatrix<float> values,
                        DeviceMatrix<float> first, DeviceMatrix<float> second) {
  const auto size = [](const DeviceMatrix<const float>& x) { return x.rows * x.cols; };
  Check(size(gradient) == size(values) && size(first) == size(values) && size(second) == size(values),
        "a step of AdamW with {} gradients, {} and {} moments for {} values", size(gradient), size(first), size(second),
        size(values));
  gpu::StepAdamW(stream_, FactorsOf(settings), gradient.on_gpu().data, size(values), Written(values).data,
                 first.on_gpu().data, second.on_gpu().data);
}

double CudaOps::SumOfAbsoluteProducts(const Operand& w, DeviceMatrix<const float> gradient) {
  const bool vector = gradient.rows == 1;
  ConstDeviceArray values;
  float offset = 0;
  if (vector) {
    const DeviceVector there = operands_.Vector(w);
    values = {there.data, DType::kFloat32};
    offset = there.offset_added ? -spec_.norm_offset : 0;
  } else if (w.is_trained()) {
    Check(w.trained().dense(), "a trained tensor with rows {} apart, expected {}", w.trained().stride,
          w.trained().cols);
    values = {w.trained().on_gpu().data, DType::kFloat32};
  } else {
    const StoredMatrix stored = operands_.Matrix(w.stored());
    values = stored.array;
    if (gpu::TakesBlocks(values.dtype))
      values =
          call_.device()->Expanded({values, stored.matrix_rows, stored.first, w.stored().rows()}, w.stored().cols());
  }
  return SumOf([&](double* scratch, double* sum) {
    gpu::SumAbsoluteProducts(stream_, values, offset, gradient.on_gpu(), scratch, sum);
  });
}

}  // namespace

std::unique_ptr<Ops> MakeCudaOps(const Context& context, std::shared_ptr<const Weights> weights) {
  Check(gpu::WhyUnavailable().empty(), "CUDA: {}", gpu::WhyUnavailable());
  return std::make_unique<CudaOps>(context, std::move(weights));
}

}  // namespace shiftrt
