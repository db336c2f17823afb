// SPDX-License-Identifier: Apache-2.0
// runtime/cuda/communicator.h on the emulator: two loops replace NCCL.
#include "runtime/cuda/communicator.h"

#include <set>

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

}  // namespace shiftrt::gpu
