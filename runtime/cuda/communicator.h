// SPDX-License-Identifier: Apache-2.0
// Sums over several GPUs of this process, and transfers between GPUs of several processes. communicator.cc uses NCCL;
// no_nccl.cc serves a build without it; kernels/emulated/communicator.cc adds in plain loops, and sends over the link
// of the processes.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "runtime/cuda/cuda.h"
#include "runtime/processes.h"

namespace shiftrt::gpu {

// Use from one thread.
class Communicator {
 public:
  // `streams` are of different devices. Throws Error if NCCL is not available; WhyNoCommunicator() says why.
  explicit Communicator(std::vector<Stream> streams);
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;
  // `arrays` holds one array of `count` elements per stream. The first becomes the sum of all; the others are
  // unchanged. The call is asynchronous: later work of a stream runs after that stream's part of the sum.
  void SumToFirst(std::span<double* const> arrays, int64_t count);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// An array that goes to the GPU of another process, or comes from it.
struct Transfer {
  int rank = 0;  // the rank of the other process
  float* data = nullptr;
  int64_t count = 0;
};

// Between GPUs of several processes, one of each. Use from one thread.
class PeerCommunicator {
 public:
  // All processes make one, each for a GPU of its own, and make the same number of calls. Throws Error if NCCL is not
  // available; WhyNoCommunicator() says why.
  PeerCommunicator(int device, Processes& processes);
  ~PeerCommunicator();
  PeerCommunicator(const PeerCommunicator&) = delete;
  PeerCommunicator& operator=(const PeerCommunicator&) = delete;
  // All at the same time. Those from one process to another arrive in their order, and must be as long as the receiver
  // says. The call is asynchronous: later work of the stream, which is of this device, runs after the transfers.
  void Exchange(Stream stream, std::span<const Transfer> sent, std::span<const Transfer> received);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace shiftrt::gpu
