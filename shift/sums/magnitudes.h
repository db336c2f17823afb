// SPDX-License-Identifier: Apache-2.0
// By how much the size of the residual stream changes between two depths: what LinearPatch and Prune&Comp measure.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <span>
#include <vector>

#include "shift/sums/pass.h"

namespace shiftrt {

// From the stream before block `begin` to the stream before block `end`; the number of layers stands for the
// stream after the last block.
struct StreamSpan {
  int64_t begin = 0, end = 0;
};

// Computes for each span and channel k the mean over sequences of (sum over tokens of |h_end,k|) / (sum over tokens of
// |h_begin,k|). Rows of a GPU are copied to the host.
class MagnitudeProbe : public Probe {
 public:
  // Maps one row (hidden) to other coordinates, in place. It is called from several threads.
  using Transform = std::function<void(std::span<double> row)>;

  // `transform`, where given, is applied to every row before its absolute values are added up.
  MagnitudeProbe(const Context& context, std::vector<StreamSpan> spans, int64_t hidden, Transform transform = nullptr);
  // (hidden) of spans[index]. Throws Error without a single sequence.
  std::vector<double> Ratios(size_t index) const;

  void Begin(Collector& collector, int64_t begin, int64_t end) override;
  std::vector<Tap> Taps() override;
  // Throws Error, naming layer and channel, where the stream before a span is 0 or not finite in a whole sequence.
  void Complete(int64_t batches) override;
  void End() override { devices_.clear(); }

 private:
  struct Means {
    Matrix<double> sums;  // sums of ratios over sequences: one row per span
    int64_t sequences = 0;

    Means Clone() const { return {sums.Clone(), sequences}; }
  };
  using Sizes = std::map<int64_t, Matrix<double>>;  // by depth: of the current batch, one row per sequence

  void Take(Sizes& sizes, int64_t depth, const Rows& rows, const Batch& batch);

  Context context_;
  std::vector<StreamSpan> spans_;
  int64_t hidden_;
  Transform transform_;
  Means completed_, running_;
  std::deque<Sizes> devices_;
};

}  // namespace shiftrt
