// SPDX-License-Identifier: Apache-2.0
// The resources of a computation: the device, the number of threads, and the instruction set of the CPU kernels.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string_view>
#include <vector>

#include "include/shiftrt/arithmetic.h"

namespace shiftrt {

// Instruction sets with kernels of their own, each a superset of the one before.
enum class Isa { kPortable, kAvx2, kAvx512, kAvx512BFloat16, kAmx };
constexpr Isa kIsas[] = {Isa::kPortable, Isa::kAvx2, Isa::kAvx512, Isa::kAvx512BFloat16, Isa::kAmx};

const char* Name(Isa isa);
// The best instruction set that this CPU and operating system support. kAvx2 means AVX2 + FMA + F16C, kAvx512 adds F,
// BW, VL and DQ, kAvx512BFloat16 adds AVX512-BF16, and kAmx adds tiles of bfloat16, for which the function asks the
// operating system's permission.
Isa BestIsa();
// "portable", "avx2", "avx512", "avx512bf16" or "amx". Throws UsageError for another word or for a set this CPU lacks.
Isa ParseIsa(std::string_view name);

// Returns whether an instruction set has products of operands that are rounded to bfloat16 (kernels/matmul.h).
constexpr bool HasRoundedProducts(Isa isa) { return isa >= Isa::kAvx512BFloat16; }

// The number of cores that this process may use by its CPU affinity, at least 1.
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
  // Precision of products on a CPU. kAuto means kFloat32 here, and kBFloat16 needs HasRoundedProducts(isa).
  Products products = Products::kAuto;
  int64_t memory = 0;            // bytes of the host that sums or kept activations may take; 0: what is free
  Device device = Device::kCpu;  // runs decoders and their collectors (engine/collector.h)
  std::vector<int> gpus = {0};   // indices of GPUs; those after the first only share calibration passes
  // Solves large float64 problems on the first of `gpus` (runtime/linalg/solver.h). May be null: then the CPU does.
  std::shared_ptr<linalg::Solver> solver = nullptr;
  // Weights in the memory of GPUs (runtime/device_copies.h), shared by all who use copies of this context. Never null.
  std::shared_ptr<DeviceCopies> device_copies = MakeDeviceCopies();
  // The processes that share this work (runtime/processes.h), usually this one alone. Never null.
  std::shared_ptr<Processes> processes = OneProcess();
  // Held by the thread that uses a GPU through this context or a copy of it. Null on a CPU.
  std::shared_ptr<std::recursive_mutex> gpu_turn = nullptr;

  // A context with Cores() threads and the best instruction set; the environment variable SHIFTRT_ISA selects a lower
  // one.
  static Context Default();
  // A copy with only one of the GPUs, counted from 0.
  Context WithGpu(int64_t which) const;
  // A copy for work that this process does without the others.
  Context Alone() const;
  // A copy with kAuto replaced by the precision that suffices where a result is a score, a sum over a text, or a
  // gradient: kBFloat16 on a CPU that has rounded products.
  Context ReducedPrecision() const;
  // Waits until no other thread uses a GPU through this context or a copy of it, and keeps others waiting while the
  // result lives. Its decoders, operations and solver share a stream, and a stream that is being recorded as a launch
  // graph records what any thread submits. On a CPU, the call does not wait.
  [[nodiscard]] std::unique_lock<std::recursive_mutex> TakeTurn() const;
};

}  // namespace shiftrt
