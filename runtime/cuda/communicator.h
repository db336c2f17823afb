// SPDX-License-Identifier: Apache-2.0
// Sums over several GPUs of this process. communicator.cc uses NCCL; no_nccl.cc serves a build without it;
// kernels/emulated/communicator.cc adds in plain loops.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "runtime/cuda/cuda.h"

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

}  // namespace shiftrt::gpu
