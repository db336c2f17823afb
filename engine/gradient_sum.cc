// SPDX-License-Identifier: Apache-2.0
#include "engine/gradient_sum.h"

#include <algorithm>
#include <utility>

#include "runtime/shared_items.h"

namespace shiftrt {

GradientSum::GradientSum(const Context& context, Ops& ops, DeviceMemory gradients, int64_t count)
    : context_(context),
      processes_(*context_.processes),
      ops_(ops),
      gradients_(std::move(gradients)),
      count_(count),
      channel_(processes_.NewChannel()) {}

std::span<float> GradientSum::Slice(std::vector<float>& whole, int rank) const {
  return std::span(whole).subspan(SliceBegin(rank), SliceBegin(rank + 1) - SliceBegin(rank));
}

std::vector<LossSum> GradientSum::Add(int64_t passes, const std::function<LossSum(int64_t)>& pass) {
  one_ = passes == 1 && processes_.alone();
  if (one_) return {pass(0)};
  empty_ = true;
  if (total_.count() == 0) total_ = ops_.Allocate(count_);
  if (!processes_.alone()) {
    host_.resize(count_);
    sum_.resize(Slice(host_, processes_.rank()).size());
  }
  std::vector<LossSum> losses(passes);
  processes_.InRounds(passes, [&](const Round& round) {
    if (round.mine) losses[*round.mine] = pass(*round.mine);
    EndRound(round.present);
  });
  if (!processes_.alone()) Finish();
  SharedItems(context_, passes).Share(losses);
  return losses;
}

void GradientSum::EndRound(int64_t present) {
  const bool first = std::exchange(empty_, false);
  if (processes_.alone()) {
    if (first) return ops_.Copy(gradients_.all(), total_.all());
    return ops_.AddTo(gradients_.all(), total_.all());
  }
  const int own = processes_.rank();
  if (own < present) {
    ops_.ToHost(gradients_.all(), host_);
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

// Every process gets the slices of all.
void GradientSum::Finish() {
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
  ops_.FromHost(host_, total_.all());
}

}  // namespace shiftrt
