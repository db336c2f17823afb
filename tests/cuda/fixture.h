// SPDX-License-Identifier: Apache-2.0
// The parts that the tests of the GPU kernels share. The same tests run on the emulator and on a GPU.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "kernels/cuda/grid.h"
#include "runtime/cuda/switches.h"
#include "tests/kernels/exact.h"

namespace shiftrt::gpu {

using test::UnitOf;
using test::worst_share;

// A test of kernels for compute capability 9.0 alone runs, is skipped, or fails before it starts.
enum class Fate { kRuns, kSkips, kFails };
// `takes`: the device takes the kernel. Compute capability 9.0 takes all of them unless a switch is off, so that a
// device which refuses one is a failure and not a test to be skipped.
constexpr Fate FateOnHopper(bool takes, bool switched_on, int major, int minor) {
  if (!switched_on || major != 9 || minor != 0) return Fate::kSkips;
  return takes ? Fate::kRuns : Fate::kFails;
}

class CudaTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!WhyUnavailable().empty()) GTEST_SKIP() << WhyUnavailable();
    owner_ = std::make_unique<StreamOwner>(0);
    stream_ = owner_->get();
    worst_share = 0;
  }
  // For SetUp(), after that of this class.
  void RequireHopper(bool takes, bool switched_on) {
    const DeviceInfo device = QueryDevice(0);
    switch (FateOnHopper(takes, switched_on, device.major, device.minor)) {
      case Fate::kRuns: return;
      case Fate::kSkips:
        GTEST_SKIP()
            << "the GPU has another compute capability than 9.0, or an environment variable turns the kernel off";
      case Fate::kFails: FAIL() << "compute capability 9.0 does not take its kernel";
    }
  }
  void TearDown() override {
    if (worst_share > 0) RecordProperty("worst_error_over_tolerance", std::to_string(worst_share));
  }
  std::unique_ptr<StreamOwner> owner_;
  Stream stream_;
};

// The emulator takes only cases of at most `most` elements, because each of its threads takes its turn on the CPU.
inline bool TooLarge([[maybe_unused]] int64_t elements, [[maybe_unused]] int64_t most) {
#ifdef SHIFTRT_EMULATED
  return elements > most;
#else
  return false;
#endif
}

template <typename T>
double Exact(T x) {
  return static_cast<double>(static_cast<float>(x));
}

template <typename T>
constexpr double kUnit = UnitOf(DTypeOf<T>::value);

// An array on the device, and the exact values of its elements.
template <typename T>
struct Input {
  Input(Stream stream, const std::vector<double>& wanted) {
    std::vector<T> stored;
    for (const double x : wanted) {
      stored.push_back(T(static_cast<float>(x)));
      values.push_back(Exact(stored.back()));
    }
    buffer = DeviceBuffer<T>(stream, std::span<const T>(stored), "a test");
  }
  static Input Normal(Stream stream, int64_t count, uint64_t seed, double scale = 1) {
    return {stream, test::Drawn(count, seed, scale)};
  }
  T* data() const { return buffer.data(); }
  ConstDeviceArray array() const { return {buffer.data(), DTypeOf<T>::value}; }
  double operator[](int64_t i) const { return values[i]; }

  std::vector<double> values;
  DeviceBuffer<T> buffer;
};

// An array on the device that is filled with NaN, to be written by a kernel.
template <typename T>
struct Output {
  Output(Stream stream, int64_t count) : stream(stream), buffer(stream, count, "a test") {
    FillBytes(stream, buffer.data(), 0xff, count * static_cast<int64_t>(sizeof(T)));
  }
  T* data() const { return buffer.data(); }
  DeviceArray array() const { return {buffer.data(), DTypeOf<T>::value}; }
  std::vector<T> Raw() const { return Fetch(stream, buffer); }
  std::vector<double> Values() const {
    std::vector<double> values;
    for (const T x : Raw()) values.push_back(Exact(x));
    return values;
  }
  static std::vector<T> Fetch(Stream stream, const DeviceBuffer<T>& buffer) {
    std::vector<T> raw(buffer.size());
    CopyToHost(stream, raw.data(), buffer.data(), buffer.size() * static_cast<int64_t>(sizeof(T)));
    return raw;
  }

  Stream stream;
  DeviceBuffer<T> buffer;
};

// Reads a float32 array that a kernel has changed in place.
inline std::vector<double> Now(Stream stream, const Input<float>& input) {
  const std::vector<float> raw = Output<float>::Fetch(stream, input.buffer);
  return {raw.begin(), raw.end()};
}

// Expects these values, each rounded to bfloat16.
inline void ExpectRoundings(const std::vector<double>& values, const Output<BFloat16>& rounded) {
  const std::vector<BFloat16> found = rounded.Raw();
  ASSERT_EQ(found.size(), values.size());
  for (size_t i = 0; i < values.size(); ++i)
    ASSERT_EQ(found[i].bits, BFloat16(static_cast<float>(values[i])).bits) << i;
}

template <typename Body>
void ForEveryType(Body&& body) {
  {
    SCOPED_TRACE("float32");
    body(float());
  }
  {
    SCOPED_TRACE("float16");
    body(Float16());
  }
  SCOPED_TRACE("bfloat16");
  body(BFloat16());
}

}  // namespace shiftrt::gpu
