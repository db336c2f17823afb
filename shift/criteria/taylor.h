// SPDX-License-Identifier: Apache-2.0
// First-order Taylor scores of blocks: how much the loss would change, to first order, without their weights.
#pragma once

#include "shift/criteria/criteria.h"
#include "shift/sums/pass.h"

namespace shiftrt {

// Keeps the stream before every block, of so much of the text as was asked for. From these, each block in turn is
// passed backwards over all batches, from the last block to the first, so that one block has gradients at a time.
class TaylorProbe : public Probe {
 public:
  TaylorProbe(const CriterionInput& input, Progress& progress);
  // Asks for scores from whole samples of about so many tokens. Throws UsageError where the streams of these take more
  // memory than UsableMemory.
  void Want(int64_t tokens);
  // One score per unit: sum over the elements w of its projections and of its norms of the stream of
  // |w dL/dw|, where L is the mean cross entropy of the text.
  std::vector<double> Scores(int64_t tokens, Unit unit);

  int64_t batches(int64_t) const override { return std::ssize(batches_); }
  void Begin(Collector& collector, int64_t begin, int64_t end) override;
  std::vector<Tap> Taps() override;
  void Complete(int64_t) override { completed_ = received_; }

 private:
  void Take(int64_t layer, const Rows& h);
  MatrixView<float> Stream(int64_t layer, const Batch& batch, int64_t first) const {
    return streams_[layer].view().Rows(first, batch.size());
  }

  const CriterionInput& input_;
  Progress& progress_;
  int64_t layers_;
  std::vector<Batch> batches_;          // the longest text asked for
  std::vector<Matrix<float>> streams_;  // (tokens, hidden) before each layer, and after the last
  struct Received {
    int64_t batches = 0, rows = 0;
  };
  std::vector<Received> received_, completed_;  // one entry per layer
};

}  // namespace shiftrt
