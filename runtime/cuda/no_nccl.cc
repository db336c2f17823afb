// SPDX-License-Identifier: Apache-2.0
// runtime/cuda/communicator.h in a build without NCCL.
#include "runtime/check.h"
#include "runtime/cuda/communicator.h"

namespace shiftrt::gpu {

const std::string& WhyNoCommunicator() {
  static const std::string why = "this build found no nccl.h, and has no sums over several devices";
  return why;
}

struct Communicator::Impl {};
Communicator::Communicator(std::vector<Stream>) { Fail("CUDA: {}", WhyNoCommunicator()); }
Communicator::~Communicator() = default;
void Communicator::SumToFirst(std::span<double* const>, int64_t) { Fail("CUDA: {}", WhyNoCommunicator()); }

struct PeerCommunicator::Impl {};
PeerCommunicator::PeerCommunicator(int, Processes&) { Fail("CUDA: {}", WhyNoCommunicator()); }
PeerCommunicator::~PeerCommunicator() = default;
void PeerCommunicator::Exchange(Stream, std::span<const Transfer>, std::span<const Transfer>) {
  Fail("CUDA: {}", WhyNoCommunicator());
}

}  // namespace shiftrt::gpu
