// SPDX-License-Identifier: Apache-2.0
// Copies in 16 bits that products read: made once, and never of what rows were before.
#include "engine/cuda/rounded.h"

#include <gtest/gtest.h>

#include <functional>
#include <random>

#include "engine/backend.h"
#include "engine/ops.h"
#include "kernels/emulated/machine.h"
#include "tests/cuda/models.h"

namespace shiftrt {
namespace {

constexpr int64_t kTokens = 11, kLargest = 61 * 192;

class Rounded : public testing::Test {
 protected:
  Rounded() { batch_.Add(std::vector<int32_t>(kTokens, 3)); }

  void Fill(DeviceMatrix<float> x) {
    std::vector<float> values(x.rows * x.cols);
    for (float& value : values) value = normal_(random_);
    ops_->FromHost(values, x);
  }
  // All memory is asked for first, because copies are dropped when more of it is.
  DeviceMatrix<float> New(int64_t rows, int64_t cols) {
    memory_.push_back(ops_->Allocate(rows * cols));
    const DeviceMatrix<float> made = memory_.back().matrix(rows, cols);
    Fill(made);
    return made;
  }
  // The values of x that a product reads.
  std::vector<float> Seen(DeviceMatrix<const float> x) {
    const DeviceMatrix<float> out = product_.Part(0, x.rows, 8);
    ops_->MatMul(x, weight_.Part(0, 8, x.cols), {}, false, out);
    std::vector<float> host(out.rows * out.cols);
    ops_->ToHost(out, host);
    return host;
  }
  int64_t Launches(const std::function<void()>& call) {
    const int64_t before = emu::Launches();
    call();
    return emu::Launches() - before;
  }

  std::shared_ptr<const Weights> weights_ = MakeWeights(kQwen2, DType::kBFloat16);
  std::unique_ptr<Ops> ops_ = MakeOps(On(Device::kCuda), weights_);
  Batch batch_;
  std::mt19937 random_{7};
  std::normal_distribution<float> normal_;
  std::vector<DeviceMemory> memory_;
  DeviceMatrix<float> weight_ = New(8, 512), product_ = New(512, 8), other_ = New(1, kLargest);
};

TEST_F(Rounded, OnceUntilTheyAreWritten) {
  const gpu::Stream stream;
  const MatrixView<float> x = New(6, 16).on_gpu();
  RoundedCopies copies;
  const auto of = [&](MatrixView<const float> rows) {
    return Launches([&] { copies.Of(stream, rows, DType::kBFloat16); });
  };
  EXPECT_EQ(of(x.Rows(0, 3)), 1);
  EXPECT_EQ(of(x.Rows(0, 3)), 0);
  EXPECT_EQ(of(x.Rows(3, 3)), 1);
  EXPECT_EQ(of(x.Rows(1, 2)), 0) << "a part of a copy";
  EXPECT_EQ(of(x.Rows(2, 2)), 1) << "rows of two copies";
  copies.Written(x.Rows(2, 1));
  EXPECT_EQ(of(x.Rows(0, 2)), 1) << "of whose copy another row was written";
  copies.Written(x.Rows(2, 1));
  EXPECT_EQ(of(x.Rows(0, 2)), 0) << "which end where the written row begins";
  EXPECT_EQ(of(x.Rows(3, 3)), 0) << "which begin where the written row ends";
  EXPECT_EQ(of(x.Rows(0, 3)), 1);
  copies.Written(x.Cols(4, 1));  // from one row to the next, and so all between
  EXPECT_EQ(of(x.Rows(0, 2)), 1);
  copies.Clear();
  EXPECT_EQ(of(x.Rows(0, 2)), 1);
}

TEST_F(Rounded, TheOneAskedForLeastRecentlyMakesRoom) {
  const gpu::Stream stream;
  const MatrixView<float> x = New(RoundedCopies::kCopies + 1, 16).on_gpu();
  RoundedCopies copies;
  const auto of = [&](int64_t row) { return Launches([&] { copies.Of(stream, x.Rows(row, 1), DType::kBFloat16); }); };
  for (int64_t row = 0; row < RoundedCopies::kCopies; ++row) EXPECT_EQ(of(row), 1);
  EXPECT_EQ(of(0), 0);
  EXPECT_EQ(of(RoundedCopies::kCopies), 1);  // in the place of row 1
  EXPECT_EQ(of(0), 0);
  EXPECT_EQ(of(1), 1);
}

// Every operation that writes, on rows of which a product has a copy.
TEST_F(Rounded, AProductReadsWhatTheLastOperationWrote) {
  const int64_t hidden = weights_->config.hidden, queries = weights_->config.query_dim(),
                keys = weights_->config.kv_dim(), vocab = weights_->config.vocab, heads = weights_->config.heads;
  const DeviceMatrix<float> h = New(kTokens, hidden), h2 = New(kTokens, hidden), h3 = New(kTokens, hidden),
                            h4 = New(kTokens, hidden), q = New(kTokens, queries), q2 = New(kTokens, queries),
                            k = New(kTokens, keys), v = New(kTokens, keys), dk = New(kTokens, keys),
                            dv = New(kTokens, keys), log_sums = New(kTokens, heads), square = New(hidden, hidden),
                            row = New(1, hidden), head = New(vocab, hidden), both = New(kTokens, 2 * queries),
                            logits = New(kTokens, 8), gate = New(kTokens, 1), dgate = New(kTokens, 1);
  const std::vector<int32_t> targets(kTokens, 5);
  const std::vector<int64_t> some = {4, 0, 7};
  const std::vector<float> scales(kTokens, 1.0f);
  std::vector<float> losses(kTokens), dweights(kTokens);
  const Operand norm(weights_->final_norm);
  const HeadRows rows{weights_->embedding, h2, targets};
  ops_->Begin({.batch = batch_});
  // The softmax's sums, which gradients read.
  ops_->Attention({0, 0, q, k, v, q2, log_sums});
  const ExpertRouting routing = ops_->RouteToExperts(logits, 1, false);

  struct Write {
    const char* name;
    DeviceMatrix<float> to;
    std::function<void()> call;
  };
  const Write writes[] = {
      {"Zero", h, [&] { ops_->Zero(h); }},
      {"Copy", h, [&] { ops_->Copy(h2, h); }},
      {"FromHost", row, [&] { ops_->FromHost(std::vector<float>(hidden, 2.0f), row); }},
      {"Embed", h, [&] { ops_->Embed(h); }},
      {"Rope", q, [&] { ops_->Rope(0, Rotated::kQueries, q); }},
      {"RopeGradient", q, [&] { ops_->RopeGradient(0, Rotated::kQueries, q); }},
      {"Attention", q2,
       [&] {
         ops_->Attention({0, 0, q, k, v, q2, log_sums});
       }},
      // Gradient and output of the attention are its queries, so that all copies have a place.
      {"AttentionGradient, queries", q2,
       [&] {
         ops_->AttentionGradient({0, 0, q, k, v, q, log_sums}, q, q2, dk, dv);
       }},
      {"AttentionGradient, keys", dk,
       [&] {
         ops_->AttentionGradient({0, 0, q, k, v, q, log_sums}, q, q2, dk, dv);
       }},
      {"AttentionGradient, values", dv,
       [&] {
         ops_->AttentionGradient({0, 0, q, k, v, q, log_sums}, q, q2, dk, dv);
       }},
      {"MatMul", h, [&] { ops_->MatMul(h2, square, {}, false, h); }},
      {"MatMul with a bias", h, [&] { ops_->MatMul(h2, square, row, true, h); }},
      {"MatMulRight", h, [&] { ops_->MatMulRight(h2, square, true, h); }},
      {"MatMulInputGradient", h, [&] { ops_->MatMulInputGradient(h2, square, false, h); }},
      {"MatMulWeightGradient", square, [&] { ops_->MatMulWeightGradient(h2, h3, square); }},
      {"BiasGradient", row, [&] { ops_->BiasGradient(h2, row); }},
      {"Norm", h, [&] { ops_->Norm(h2, {norm}, h); }},
      {"RmsNormHeads", q, [&] { ops_->RmsNormHeads(q, row.Part(0, 1, 64)); }},
      {"NormGradient", h, [&] { ops_->NormGradient(h2, {norm}, h3, true, h, {}); }},
      {"NormGradient of the weight", row, [&] { ops_->NormGradient(h2, {norm}, h3, false, h4, {row}); }},
      {"RmsNormHeadsGradient", q, [&] { ops_->RmsNormHeadsGradient(q2, row.Part(0, 1, 64), q2, q, {}); }},
      {"GatedUnit", h, [&] { ops_->GatedUnit(h, h2); }},
      {"GatedUnitGradient of the gate", h, [&] { ops_->GatedUnitGradient(h2, h3, h, h4); }},
      {"GatedUnitGradient of the other", h, [&] { ops_->GatedUnitGradient(h2, h3, h4, h); }},
      {"AddTo", h, [&] { ops_->AddTo(h2, h); }},
      {"AddRow", h, [&] { ops_->AddRow(row, h); }},
      {"Scale", h, [&] { ops_->Scale(3, h); }},
      {"ApplyDropout", h,
       [&] {
         ops_->ApplyDropout({9, 0.5f}, h2, h);
       }},
      {"Gather", h.Rows(0, 3), [&] { ops_->Gather(some, h2, h.Rows(0, 3)); }},
      {"Scatter", h, [&] { ops_->Scatter(some, h2.Rows(0, 3), h); }},
      {"DeltaNorm", h, [&] { ops_->DeltaNorm(h, row); }},
      {"DeltaNormGradient", h, [&] { ops_->DeltaNormGradient(h2, row, h3, h, {}); }},
      {"SplitGates, queries", q, [&] { ops_->SplitGates(both, q, q2); }},
      {"SplitGates, gates", q, [&] { ops_->SplitGates(both, q2, q); }},
      {"JoinGates", both, [&] { ops_->JoinGates(q, q2, both); }},
      {"SigmoidGate", h, [&] { ops_->SigmoidGate(h2, h); }},
      {"SigmoidGateGradient", h, [&] { ops_->SigmoidGateGradient(h2, h3, h, h4); }},
      {"SigmoidGateGradient of the gate", h, [&] { ops_->SigmoidGateGradient(h2, h3, h4, h); }},
      {"SigmoidGateRows", h, [&] { ops_->SigmoidGateRows(gate, h); }},
      {"SigmoidGateRowsGradient", h, [&] { ops_->SigmoidGateRowsGradient(gate, h2, h, dgate); }},
      {"GatherSlots", h, [&] { ops_->GatherSlots(routing, h2, h); }},
      {"SumOverExperts", h, [&] { ops_->SumOverExperts(routing, true, h2, h); }},
      {"ExpertWeightGradient", h, [&] { ops_->ExpertWeightGradient(routing, h2, h, dweights); }},
      {"ScaleByExpertWeights", h, [&] { ops_->ScaleByExpertWeights(routing, h); }},
      {"RouteToExpertsGradient", logits, [&] { ops_->RouteToExpertsGradient(routing, false, dweights, logits); }},
      {"HeadLossGradient", h, [&] { ops_->HeadLossGradient(rows, scales, losses, h, {}); }},
      {"HeadLossGradient of the head", head, [&] { ops_->HeadLossGradient(rows, scales, losses, h, head); }},
      {"AdamWStep", h,
       [&] {
         ops_->Zero(h4);  // a second moment is not negative
         ops_->AdamWStep({.rate = 0.1f}, h2, h, h3, h4);
       }},
  };
  for (const Write& write : writes) {
    for (const DeviceMatrix<float>& x : {h, h2, h3, h4, q, q2, k, v, logits}) Fill(x);
    const DeviceMatrix<float> copied = other_.Part(0, write.to.rows, write.to.cols);
    const std::vector<float> before = Seen(write.to);
    write.call();
    const std::vector<float> found = Seen(write.to);
    ops_->Copy(write.to, copied);
    EXPECT_EQ(found, Seen(copied)) << write.name;
    EXPECT_NE(found, before) << write.name << " wrote nothing";
  }
}

}  // namespace
}  // namespace shiftrt
