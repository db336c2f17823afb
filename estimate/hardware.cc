// SPDX-License-Identifier: Apache-2.0
#include "estimate/hardware.h"

#include <string_view>

#include "runtime/check.h"
#include "runtime/parse.h"

namespace shiftrt {

namespace {

constexpr double kTera = 1e12, kGiga = 1e9;
constexpr int64_t kGB = 1'000'000'000;

// The assumed shares. Decompositions of symmetric matrices are bound by memory and by what cannot run in parallel.
constexpr Efficiency kOfGpu = {.model = 0.45, .sums = 0.7, .fits = 0.05, .memory = 0.8, .links = 0.7};
constexpr Efficiency kOfCpu = {.model = 0.55, .sums = 0.7, .fits = 0.25, .memory = 0.8, .links = 0.7};

struct NamedShare {
  std::string_view name;
  double Efficiency::*share;
};
constexpr NamedShare kShares[] = {{"model", &Efficiency::model},
                                  {"sums", &Efficiency::sums},
                                  {"fits", &Efficiency::fits},
                                  {"memory", &Efficiency::memory},
                                  {"links", &Efficiency::links}};

}  // namespace

// Datasheets give NVLink's bandwidth for both directions together, and tensor cores' peaks with sparsity on H100 and
// H200: both are halved here.
const std::vector<Hardware>& HardwareTable() {
  static const std::vector<Hardware> table = {
      {.name = "cpu",
       .device = "AMD EPYC 9654, one socket",
       .source =
           "AMD's product page: 96 cores, 2.4 GHz, 12 channels of DDR5-4800. 32 and 16 FLOP per core and cycle in "
           "float32 and float64 (two FMA units of 256 bits). Assumed: 64 GB per channel, two sockets per host, "
           "200 Gb/s of network per socket",
       .gpu = false,
       .narrow_peak = 96 * 2.4 * kGiga * 32,
       .float_peak = 96 * 2.4 * kGiga * 32,
       .double_peak = 96 * 2.4 * kGiga * 16,
       .bandwidth = 460.8 * kGiga,
       .memory = 768 * kGB,
       .per_host = 2,
       .host_link = 100 * kGiga,
       .network_link = 25 * kGiga,
       .efficiency = kOfCpu},
      {.name = "a100",
       .device = "NVIDIA A100 SXM, 80 GB",
       .source = "NVIDIA A100 datasheet (bfloat16 and float64 tensor cores, float32, HBM2e, NVLink); DGX A100: 8 GPUs, "
                 "200 Gb/s of network per GPU",
       .gpu = true,
       .narrow_peak = 312 * kTera,
       .float_peak = 19.5 * kTera,
       .double_peak = 19.5 * kTera,
       .bandwidth = 2039 * kGiga,
       .memory = 80 * kGB,
       .per_host = 8,
       .host_link = 300 * kGiga,
       .network_link = 25 * kGiga,
       .efficiency = kOfGpu},
      {.name = "h100",
       .device = "NVIDIA H100 SXM, 80 GB",
       .source = "NVIDIA H100 datasheet (bfloat16 and float64 tensor cores, float32, HBM3, NVLink); DGX H100: 8 GPUs, "
                 "400 Gb/s of network per GPU",
       .gpu = true,
       .narrow_peak = 989.5 * kTera,
       .float_peak = 67 * kTera,
       .double_peak = 67 * kTera,
       .bandwidth = 3350 * kGiga,
       .memory = 80 * kGB,
       .per_host = 8,
       .host_link = 450 * kGiga,
       .network_link = 50 * kGiga,
       .efficiency = kOfGpu},
      {.name = "h200",
       .device = "NVIDIA H200 SXM, 141 GB",
       .source = "NVIDIA H200 datasheet (bfloat16 and float64 tensor cores, float32, HBM3e, NVLink); DGX H200: 8 GPUs, "
                 "400 Gb/s of network per GPU",
       .gpu = true,
       .narrow_peak = 989.5 * kTera,
       .float_peak = 67 * kTera,
       .double_peak = 67 * kTera,
       .bandwidth = 4800 * kGiga,
       .memory = 141 * kGB,
       .per_host = 8,
       .host_link = 450 * kGiga,
       .network_link = 50 * kGiga,
       .efficiency = kOfGpu},
  };
  return table;
}

const Hardware& FindHardware(const std::string& name) {
  std::string known;
  for (const Hardware& hardware : HardwareTable()) {
    if (name == hardware.name) return hardware;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", hardware.name);
  }
  FailUsage(Field("hardware"), "unknown hardware \"{}\"; known: {}", name, known);
}

Efficiency ParseEfficiency(const std::string& text, Efficiency efficiency) {
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string_view part = std::string_view(text).substr(begin, end - begin);
    begin = end + 1;
    const size_t equals = std::min(part.find('='), part.size());
    double share = 0;
    const bool valid = equals < part.size() && ParseNumber(part.substr(equals + 1), &share) && share > 0 && share <= 1;
    bool found = false;
    for (const NamedShare& known : kShares) {
      if (part.substr(0, equals) != known.name) continue;
      found = true;
      efficiency.*known.share = share;
    }
    if (!found || !valid)
      FailUsage(Field("efficiency"),
                "\"{}\": expected model, sums, fits, memory or links, and a share above 0 and at most 1, as in "
                "model=0.5,links=0.9",
                part);
  }
  return efficiency;
}

}  // namespace shiftrt
