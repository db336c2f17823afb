// What several GPUs of this process do together: cuda_communicator.cc through NCCL, no_nccl.cc in a build without it;
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
  // Of streams of different devices. Throws Error where WhyNoCommunicator() says why.
  explicit Communicator(std::vector<Stream> streams);
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;
  // Arrays of `count` elements, one a stream: the first becomes the sum of all, the others stay as they are. The
  // streams go on when their part is done.
  void SumToFirst(std::span<double* const> arrays, int64_t count);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace shiftrt::gpu
