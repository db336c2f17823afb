// SPDX-License-Identifier: Apache-2.0
#include "runtime/context.h"

#include <sched.h>
#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include <algorithm>
#include <cstdlib>
#include <string>
#include <thread>

#include "runtime/words.h"

namespace shiftrt {

namespace {

constexpr Words<Isa, 5> kIsaWords = {{"portable", "avx2", "avx512", "avx512bf16", "amx"}};
constexpr Words<Products, 3> kProducts = {{"auto", "float32", "bfloat16"}};

}  // namespace

const char* Name(Isa isa) { return kIsaWords.Of(isa); }

const char* Name(Products products) { return kProducts.Of(products); }

Products ParseProducts(const std::string& name) {
  return kProducts.Parse(name, "products", "unknown precision \"{}\"");
}

#if defined(__x86_64__)
// Some compilers lack F16C in __builtin_cpu_supports.
static bool HasF16c() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}

// CPUID leaf 7 and the control register for extended states say what the CPU has and the kernel saves. A process must
// also ask for the 8 KiB per thread that tiles take: Linux's Documentation/arch/x86/xstate.rst.
static bool HasAmx() {
  constexpr unsigned kBFloat16 = 1u << 22, kTile = 1u << 24, kXsaveInUse = 1u << 27, kTileStates = 3u << 17;
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid(1, &a, &b, &c, &d) == 0 || (c & kXsaveInUse) == 0) return false;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0 || (d & kBFloat16) == 0 || (d & kTile) == 0) return false;
  unsigned low = 0, high = 0;
  __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (low & kTileStates) == kTileStates && syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}
#endif

Isa BestIsa() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && HasF16c();
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  // Every such CPU has the integer products of AVX512-VNNI, too.
  const bool avx512bf16 = avx512 && __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vnni");
  static const bool amx = HasAmx();
  if (avx2 && avx512bf16 && amx) return Isa::kAmx;
  if (avx2 && avx512bf16) return Isa::kAvx512BFloat16;
  if (avx2 && avx512) return Isa::kAvx512;
  if (avx2) return Isa::kAvx2;
#endif
  return Isa::kPortable;
}

Isa ParseIsa(std::string_view name) {
  const std::optional<Isa> isa = kIsaWords.Find(name);
  if (!isa) FailUsage("unknown instruction set \"{}\"; known: {}", name, fmt::join(kIsaWords.words, ", "));
  if (*isa > BestIsa()) FailUsage("this CPU does not run {}; its best is {}", name, Name(BestIsa()));
  return *isa;
}

int Cores() {
  cpu_set_t set;
  // The call fails if the set is too small for the machine's CPUs.
  const int cores = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set)
                                                                : static_cast<int>(std::thread::hardware_concurrency());
  return std::max(1, cores);
}

Context Context::Default() {
  Context context;
  context.threads = Cores();
  context.isa = BestIsa();
  if (const char* wanted = std::getenv("SHIFTRT_ISA")) context.isa = ParseIsa(wanted);
  return context;
}

Context Context::WithGpu(int64_t which) const {
  Context context = *this;
  context.gpus = {gpus.at(which)};
  if (which > 0) context.solver = nullptr;  // the solver is on the first GPU
  return context;
}

Context Context::Alone() const {
  Context context = *this;
  context.processes = OneProcess();
  return context;
}

Context Context::ReducedPrecision() const {
  Context context = *this;
  if (products == Products::kAuto && device == Device::kCpu)
    context.products = HasRoundedProducts(isa) ? Products::kBFloat16 : Products::kFloat32;
  return context;
}

std::unique_lock<std::recursive_mutex> Context::TakeTurn() const {
  return gpu_turn != nullptr ? std::unique_lock(*gpu_turn) : std::unique_lock<std::recursive_mutex>();
}

}  // namespace shiftrt
