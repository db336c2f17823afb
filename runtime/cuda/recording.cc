// SPDX-License-Identifier: Apache-2.0
#include "runtime/cuda/recording.h"

#include <mutex>

#include "runtime/cuda/switches.h"

namespace shiftrt::gpu {

namespace {

std::mutex mutex;
std::string why_refused;

}  // namespace

std::string WhyLaunchGraphRefused() {
  const std::lock_guard lock(mutex);
  return why_refused;
}

void LaunchGraph::Run(Stream stream, const std::function<void()>& body) {
  constexpr int kMostRefusals = 3;
  if (first_ || refusals_ == kMostRefusals || !SwitchedOn("SHIFTRT_CUDA_GRAPHS", true)) {
    first_ = false;
    return body();
  }
  if (recorded_ == nullptr) {
    try {
      recorded_ = Record(stream, body);
      refusals_ = 0;
    } catch (const std::exception& error) {
      // If the launches themselves are wrong, the plain run that follows throws again.
      ++refusals_;
      {
        const std::lock_guard lock(mutex);
        why_refused = error.what();
      }
      return body();
    }
  }
  Replay(stream, recorded_);
}

void LaunchGraph::Reset() noexcept {
  if (recorded_ != nullptr) Forget(recorded_);
  recorded_ = nullptr;
  refusals_ = 0;
  first_ = true;
}

}  // namespace shiftrt::gpu
