// SPDX-License-Identifier: Apache-2.0
#include "shift/sums/magnitudes.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "runtime/check.h"
#include "runtime/parallel.h"

namespace shiftrt {

MagnitudeProbe::MagnitudeProbe(const Context& context, std::vector<StreamSpan> spans, int64_t hidden,
                               Transform transform)
    : context_(context),
      spans_(std::move(spans)),
      hidden_(hidden),
      transform_(std::move(transform)),
      completed_{Matrix<double>::Zeros(std::ssize(spans_), hidden), 0},
      running_(completed_.Clone()) {}

std::vector<double> MagnitudeProbe::Ratios(size_t index) const {
  Check(completed_.sequences > 0, "ratios of magnitudes without a single sequence");
  std::vector<double> ratios(hidden_);
  for (int64_t k = 0; k < hidden_; ++k)
    ratios[k] = completed_.sums(static_cast<int64_t>(index), k) / static_cast<double>(completed_.sequences);
  return ratios;
}

void MagnitudeProbe::Begin(Collector&, int64_t, int64_t) {
  running_ = completed_.Clone();
  devices_.clear();
}

std::vector<Tap> MagnitudeProbe::Taps() {
  Sizes& sizes = devices_.emplace_back();
  std::set<int64_t> depths;
  for (const StreamSpan& span : spans_) depths.insert({span.begin, span.end});
  std::vector<Tap> taps;
  taps.reserve(depths.size());
  for (const int64_t depth : depths)
    taps.push_back({depth, TapPoint::kInput,
                    [this, &sizes, depth](const Rows& rows, const Batch& batch) { Take(sizes, depth, rows, batch); }});
  return taps;
}

void MagnitudeProbe::Take(Sizes& sizes, int64_t depth, const Rows& rows, const Batch& batch) {
  const HostRows host = rows.ToHost();
  const MatrixView<const float> h = host.view();
  Matrix<double>& size = sizes[depth] = Matrix<double>::Zeros(batch.sequences(), hidden_);
  ParallelFor(context_, batch.sequences(), 1, [&](int64_t begin, int64_t end) {
    std::vector<double> row(hidden_);
    for (int64_t s = begin; s < end; ++s)
      for (int64_t t = batch.offsets[s]; t < batch.offsets[s + 1]; ++t) {
        std::copy_n(h.row(t), hidden_, row.begin());
        if (transform_) transform_(row);
        for (int64_t k = 0; k < hidden_; ++k) size(s, k) += std::abs(row[k]);
      }
  });
  for (size_t i = 0; i < spans_.size(); ++i) {
    if (spans_[i].end != depth) continue;
    const Matrix<double>& before = sizes.at(spans_[i].begin);
    for (int64_t s = 0; s < batch.sequences(); ++s)
      for (int64_t k = 0; k < hidden_; ++k) running_.sums(static_cast<int64_t>(i), k) += size(s, k) / before(s, k);
  }
  if (depth == spans_.front().end) running_.sequences += batch.sequences();
}

void MagnitudeProbe::Complete(int64_t) {
  for (int64_t i = 0; i < running_.sums.rows(); ++i)
    for (int64_t k = 0; k < hidden_; ++k)
      Check(std::isfinite(running_.sums(i, k)),
            "channel {} of the stream before layer {} or {} is zero in a whole calibration sample, or not finite: "
            "the ratio of their magnitudes is not defined",
            k, spans_[i].begin, spans_[i].end);
  completed_ = running_.Clone();
}

}  // namespace shiftrt
