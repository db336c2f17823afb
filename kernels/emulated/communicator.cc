// SPDX-License-Identifier: Apache-2.0
// runtime/cuda/communicator.h on the emulator: two loops and the link between the processes replace NCCL.
#include "runtime/cuda/communicator.h"

#include <algorithm>
#include <cstdlib>
#include <set>
#include <utility>

#include "kernels/emulated/machine.h"
#include "runtime/check.h"

namespace shiftrt::gpu {

const std::string& WhyNoCommunicator() {
  static const std::string nothing;
  return nothing;
}

struct Communicator::Impl {
  std::vector<Stream> streams;
};

Communicator::Communicator(std::vector<Stream> streams) : impl_(new Impl{std::move(streams)}) {
  std::set<int> devices;
  for (const Stream& stream : impl_->streams)
    Check(devices.insert(stream.device).second, "device {} twice in one communicator", stream.device);
}
Communicator::~Communicator() = default;

void Communicator::SumToFirst(std::span<double* const> arrays, int64_t count) {
  emu::MakeDeferred();
  for (size_t i = 0; i < arrays.size(); ++i) emu::CheckReach(impl_->streams[i].device, arrays[i], "a sum over devices");
  for (size_t i = 1; i < arrays.size(); ++i)
    for (int64_t j = 0; j < count; ++j) arrays[0][j] += arrays[i][j];
}

namespace {

// A fault for a test: what the first of the senders sends is put where that of the last belongs, and the other way
// round.
void SwapFirstAndLast(std::vector<Transfer>& received) {
  const auto of = [&](int rank) {
    std::vector<Transfer*> some;
    for (Transfer& one : received)
      if (one.rank == rank) some.push_back(&one);
    return some;
  };
  if (received.empty() || received.front().rank == received.back().rank) return;
  const std::vector<Transfer*> first = of(received.front().rank), last = of(received.back().rank);
  for (size_t i = 0; i < std::min(first.size(), last.size()); ++i)
    if (first[i]->count == last[i]->count) std::swap(first[i]->data, last[i]->data);
}

}  // namespace

struct PeerCommunicator::Impl {
  int device;
  Processes& processes;
  int channel;
};

PeerCommunicator::PeerCommunicator(int device, Processes& processes)
    : impl_(new Impl{device, processes, processes.NewChannel()}) {}
PeerCommunicator::~PeerCommunicator() = default;

void PeerCommunicator::Exchange(Stream stream, std::span<const Transfer> sent, std::span<const Transfer> received) {
  Check(stream.device == impl_->device, "a stream of device {} for transfers of device {}", stream.device,
        impl_->device);
  emu::MakeDeferred();
  for (const Transfer& one : sent) {
    emu::CheckReach(stream.device, one.data, "a transfer");
    impl_->processes.Send(one.rank, impl_->channel, Packer().Put(std::span<const float>(one.data, one.count)).Take());
  }
  std::vector<Transfer> into(received.begin(), received.end());
  if (std::getenv("SHIFTRT_EMULATED_WRONG_ORDER") != nullptr) SwapFirstAndLast(into);
  for (const Transfer& one : into) {
    emu::CheckReach(stream.device, one.data, "a transfer");
    const Bytes message = impl_->processes.Receive(one.rank, impl_->channel);
    Unpacker in(message);
    in.Get(std::span(one.data, one.count));
    Check(in.done(), "{} has sent more than the {} numbers that are expected", impl_->processes.Name(one.rank),
          one.count);
  }
}

}  // namespace shiftrt::gpu
