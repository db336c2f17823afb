// SPDX-License-Identifier: Apache-2.0
#include "estimate/hardware.h"

#include "runtime/check.h"

namespace shiftrt {

namespace {

constexpr double kTera = 1e12, kGiga = 1e9;
constexpr int64_t kGB = 1'000'000'000;

}  // namespace

// NVIDIA gives the peaks of tensor cores on H100 and H200 with sparsity: they are halved here.
const std::vector<Hardware>& HardwareTable() {
  static const char* const kFromNvidia = "NVIDIA's datasheet: bfloat16 and float64 tensor cores, float32, memory";
  static const std::vector<Hardware> table = {
      {.name = "epyc-9654",
       .device = "AMD EPYC 9654, one socket",
       .source = "AMD's product page: 96 cores, 2.4 GHz, 12 channels of DDR5-4800, of 64 GB each. 32 and 16 FLOP per "
                 "core and cycle in float32 and float64 (two FMA units of 256 bits)",
       .narrow_products = 96 * 2.4 * kGiga * 32,
       .float_products = 96 * 2.4 * kGiga * 32,
       .sums = 96 * 2.4 * kGiga * 16,
       .fits = 96 * 2.4 * kGiga * 16,
       .bandwidth = 460.8 * kGiga,
       .memory = 768 * kGB},
      {.name = "a100",
       .device = "NVIDIA A100 SXM, 80 GB",
       .source = kFromNvidia,
       .gpu = true,
       .narrow_products = 312 * kTera,
       .float_products = 19.5 * kTera,
       .sums = 19.5 * kTera,
       .fits = 19.5 * kTera,
       .bandwidth = 2039 * kGiga,
       .memory = 80 * kGB},
      {.name = "h100",
       .device = "NVIDIA H100 SXM, 80 GB",
       .source = kFromNvidia,
       .gpu = true,
       .narrow_products = 989.5 * kTera,
       .float_products = 67 * kTera,
       .sums = 67 * kTera,
       .fits = 67 * kTera,
       .bandwidth = 3350 * kGiga,
       .memory = 80 * kGB},
      {.name = "h200",
       .device = "NVIDIA H200 SXM, 141 GB",
       .source = kFromNvidia,
       .gpu = true,
       .narrow_products = 989.5 * kTera,
       .float_products = 67 * kTera,
       .sums = 67 * kTera,
       .fits = 67 * kTera,
       .bandwidth = 4800 * kGiga,
       .memory = 141 * kGB},
  };
  return table;
}

const Hardware& FindHardware(const std::string& name) {
  std::string known;
  for (const Hardware& hardware : HardwareTable()) {
    if (name == hardware.name) return hardware;
    known += fmt::format(", {}", hardware.name);
  }
  FailUsage(Field("hardware"), "unknown hardware \"{}\"; known: here{}", name, known);
}

}  // namespace shiftrt
