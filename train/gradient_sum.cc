// SPDX-License-Identifier: Apache-2.0
#include "train/gradient_sum.h"

#include <algorithm>
#include <utility>

namespace shiftrt {

GradientSum::GradientSum(TrainingArrays& arrays, Processes& processes)
    : arrays_(arrays), processes_(processes), channel_(processes.NewChannel()) {}

std::span<float> GradientSum::Slice(std::vector<float>& whole, int rank) const {
  return std::span(whole).subspan(SliceBegin(rank), SliceBegin(rank + 1) - SliceBegin(rank));
}

void GradientSum::Begin(int64_t passes) {
  one_ = passes == 1 && processes_.alone();
  if (one_) return;
  empty_ = true;
  if (total_.count() == 0) total_ = arrays_.ops.Allocate(arrays_.count);
  if (processes_.alone()) return;
  host_.resize(arrays_.count);
  sum_.resize(Slice(host_, processes_.rank()).size());
}

void GradientSum::EndRound(int64_t present) {
  if (one_) return;
  const bool first = std::exchange(empty_, false);
  if (processes_.alone()) {
    if (first) return arrays_.ops.Copy(arrays_.gradients.all(), total_.all());
    return arrays_.ops.AddTo(arrays_.gradients.all(), total_.all());
  }
  const int own = processes_.rank();
  if (own < present) {
    arrays_.ops.ToHost(arrays_.gradients.all(), host_);
    for (int rank = 0; rank < processes_.size(); ++rank)
      if (rank != own) processes_.Send(rank, channel_, Packer().Put(std::span<const float>(Slice(host_, rank))).Take());
  }
  std::vector<float> received(sum_.size());
  for (int rank = 0; rank < present; ++rank) {
    if (rank != own) {
      const Bytes message = processes_.Receive(rank, channel_);
      Unpacker(message).Get(std::span(received));
    }
    const std::span<const float> more = rank == own ? Slice(host_, own) : std::span(received);
    if (first && rank == 0) {
      std::copy(more.begin(), more.end(), sum_.begin());
    } else {
      for (size_t i = 0; i < sum_.size(); ++i) sum_[i] += more[i];
    }
  }
  processes_.Flush();
}

const DeviceMemory& GradientSum::Finish() {
  if (one_) return arrays_.gradients;
  if (processes_.alone()) return total_;
  const int own = processes_.rank();
  for (int rank = 0; rank < processes_.size(); ++rank)
    if (rank != own) processes_.Send(rank, channel_, Packer().Put(std::span<const float>(sum_)).Take());
  for (int rank = 0; rank < processes_.size(); ++rank) {
    const std::span<float> slice = Slice(host_, rank);
    if (rank == own) {
      std::copy(sum_.begin(), sum_.end(), slice.begin());
    } else {
      const Bytes message = processes_.Receive(rank, channel_);
      Unpacker(message).Get(slice);
    }
  }
  processes_.Flush();
  arrays_.ops.FromHost(host_, total_.all());
  return total_;
}

}  // namespace shiftrt
