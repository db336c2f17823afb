// SPDX-License-Identifier: Apache-2.0
// The files that time GPU kernels share what is declared here.
#pragma once

#include <algorithm>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "bench/gpu_bench.h"
#include "kernels/cuda/grid.h"
#include "runtime/random.h"

namespace shiftrt {

inline constexpr const char* kBench = "the bench";
inline constexpr int64_t kTokens = 4096;  // the length of a prompt

inline double AsDouble(int64_t count) { return static_cast<double>(count); }

// Random values on the device: repeats a pattern that is drawn on the host.
template <typename T>
gpu::DeviceBuffer<T> RandomOnDevice(gpu::Stream stream, int64_t count) {
  constexpr int64_t kPattern = 1 << 20;
  Random random(1);
  std::vector<T> pattern(std::min(count, kPattern));
  for (T& x : pattern) x = T(static_cast<float>(random.Normal()));
  gpu::DeviceBuffer<T> out(stream, count, kBench);
  for (int64_t at = 0; at < count; at += kPattern)
    gpu::CopyToDevice(stream, out.data() + at, pattern.data(),
                      std::min(kPattern, count - at) * static_cast<int64_t>(sizeof(T)));
  return out;
}

// Successive pieces of an array that is larger than any cache, so that each is read from memory, like weights in
// decoding.
template <typename T>
class Pieces {
 public:
  Pieces(gpu::Stream stream, int64_t piece)
      : piece_(piece),
        count_(std::max<int64_t>(2, kColdBytes / (piece * static_cast<int64_t>(sizeof(T))))),
        all_(RandomOnDevice<T>(stream, piece * count_)) {}
  gpu::DeviceArray Next() {
    at_ = (at_ + 1) % count_;
    return {all_.data() + at_ * piece_, DTypeOf<T>::value};
  }

 private:
  static constexpr int64_t kColdBytes = int64_t{512} << 20;
  int64_t piece_, count_;
  gpu::DeviceBuffer<T> all_;
  int64_t at_ = 0;
};

template <typename T>
gpu::DeviceArray Array(const gpu::DeviceBuffer<T>& buffer) {
  return {buffer.data(), DTypeOf<T>::value};
}

// Times kernels and collects the results.
class KernelBench {
 public:
  KernelBench(gpu::Stream stream, int multiprocessors, const GpuKernelShape& shape, const GpuLimits& limits,
              Progress& progress)
      : stream(stream), multiprocessors(multiprocessors), shape(shape), limits_(limits), progress_(progress) {}
  void Time(const char* room, const std::string& name, double bytes, double flops, const std::function<void()>& body) {
    Add({.room = room, .name = name, .bytes = bytes, .flops = flops, .floor = flops / limits_.matrix_peak}, body);
  }
  // `flops` are float64 FLOP.
  void TimeDouble(const char* room, const std::string& name, double bytes, double flops,
                  const std::function<void()>& body) {
    Add({.room = room, .name = name, .bytes = bytes, .flops = flops, .floor = flops / limits_.double_peak}, body);
  }

  const gpu::Stream stream;
  const int multiprocessors;
  const GpuKernelShape shape;
  std::vector<GpuKernelTime> times;

 private:
  void Add(GpuKernelTime time, const std::function<void()>& body);

  GpuLimits limits_;
  Progress& progress_;
};

// The groups of bench/gpu_mixer_bench.cc. A model that lacks the layers has no rows.
void BenchDelta(KernelBench& bench);
void BenchExperts(KernelBench& bench);

}  // namespace shiftrt
