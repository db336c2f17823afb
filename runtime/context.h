// SPDX-License-Identifier: Apache-2.0
// Where work runs: on which device, with how many threads, and which instruction set the CPU bodies use.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

namespace shiftrt {

// Instruction sets with a body of their own, each a superset of the one before.
enum class Isa { kPortable, kAvx2, kAvx512, kAmx };
constexpr Isa kIsas[] = {Isa::kPortable, Isa::kAvx2, Isa::kAvx512, Isa::kAmx};

const char* Name(Isa isa);
// What this CPU and operating system run: kAvx2 means AVX2 + FMA + F16C, kAvx512 means F, BW, VL and DQ besides,
// kAmx means tiles of bfloat16 besides, for which it asks the operating system's permission.
Isa BestIsa();
// "portable", "avx2", "avx512" or "amx". Throws UsageError for another word or for a set this CPU lacks.
Isa ParseIsa(std::string_view name);

// How many cores this process may use, at least 1: those of its CPU affinity.
int Cores();

enum class Device { kCpu, kCuda };

namespace linalg {
class Solver;
}
class DeviceCopies;
std::shared_ptr<DeviceCopies> MakeDeviceCopies();
class Processes;
std::shared_ptr<Processes> OneProcess();

struct Context {
  int threads = 1;
  Isa isa = Isa::kPortable;
  int64_t memory = 0;            // bytes of the host that sums or kept activations may take; 0: what is free
  Device device = Device::kCpu;  // of decoders, and of what they tally (engine/tally.h)
  std::vector<int> gpus = {0};   // of kCuda, by index: the first; the others take their share of a calibration pass
  // Takes large float64 problems (runtime/linalg/solver.h), for a device other than the CPU: on the first of `gpus`.
  // May be null.
  std::shared_ptr<linalg::Solver> solver = nullptr;
  // Weights in the memory of GPUs (runtime/device_copies.h), shared by all that work with copies of this context. Never
  // null.
  std::shared_ptr<DeviceCopies> device_copies = MakeDeviceCopies();
  // Those that share this work (runtime/processes.h), often this one alone. Never null.
  std::shared_ptr<Processes> processes = OneProcess();

  // Cores() threads and the best instruction set; the environment variable SHIFTRT_ISA lowers the latter.
  static Context Default();
  // The same with one of the GPUs alone, counted from 0.
  Context WithGpu(int64_t which) const;
  // The same for work that this process does by itself.
  Context Alone() const;
};

}  // namespace shiftrt
