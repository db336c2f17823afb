// SPDX-License-Identifier: Apache-2.0
#include "tools/gpus.h"

#include <algorithm>
#include <charconv>
#include <numeric>
#include <string_view>
#include <thread>

#include "runtime/check.h"
#include "runtime/cuda/cuda.h"
#include "runtime/host_memory.h"
#include "runtime/words.h"
#include "tools/table.h"

namespace shiftrt {

namespace {

[[noreturn]] void FailDevice(std::string_view device) {
  FailUsage("--device {}: expected auto, cpu, cuda, cuda:N, cuda:N,M,... or cuda:all", device);
}

// The GPUs that `device` names, "cuda:" and indices; none where that is "all". One process `alone` takes no GPU twice.
std::vector<int> ParseGpus(std::string_view device, bool alone) {
  constexpr std::string_view kPrefix = "cuda:";
  if (!device.starts_with(kPrefix)) FailDevice(device);
  std::string_view rest = device.substr(kPrefix.size());
  if (rest == "all") return {};
  std::vector<int> gpus;
  while (true) {
    int gpu = 0;
    const char* const stop = rest.data() + std::min(rest.find(','), rest.size());
    const auto [end, error] = std::from_chars(rest.data(), stop, gpu);
    if (error != std::errc() || end != stop || gpu < 0) FailDevice(device);
    if (alone && std::find(gpus.begin(), gpus.end(), gpu) != gpus.end())
      FailUsage("--device {}: GPU {} is named twice", device, gpu);
    gpus.push_back(gpu);
    if (stop == rest.data() + rest.size()) return gpus;
    rest.remove_prefix(stop + 1 - rest.data());
  }
}

// Throws UsageError for those that this machine lacks.
std::vector<int> FindGpus(const std::string& device, bool alone) {
  const int count = gpu::DeviceCount();
  const bool unnamed = device == "auto" || device == "cuda";
  std::vector<int> gpus = unnamed ? std::vector<int>() : ParseGpus(device, alone);
  if (gpus.empty()) {
    gpus.resize(unnamed && alone ? 1 : count);
    std::iota(gpus.begin(), gpus.end(), 0);
  }
  for (int gpu : gpus)
    if (gpu >= count) FailUsage("--device {}: there is no GPU {}; this machine has 0 to {}", device, gpu, count - 1);
  return gpus;
}

void CheckTogether(const std::string& device, const std::vector<int>& gpus) {
  if (gpus.size() > 1 && !gpu::WhyNoCommunicator().empty())
    FailUsage("--device {}: {}; name one GPU", device, gpu::WhyNoCommunicator());
}

// That of this process. A launcher may have shown each process GPUs of its own, whose indices then begin at 0 for all:
// the addresses on the bus tell them apart.
int OwnGpu(const std::string& device, const std::vector<int>& gpus, Processes& processes) {
  std::string named = processes.host(processes.rank());
  for (const int gpu : gpus) named += " " + gpu::PciBusId(gpu);
  const auto all = processes.Gather(Packer().PutText(named).Take());
  size_t before = 0, count = 0;
  for (int rank = 0; rank < processes.size(); ++rank) {
    if (Unpacker(all[rank]).GetText() != named) continue;
    ++count;
    if (rank < processes.rank()) ++before;
  }
  if (count > gpus.size())
    FailUsage(
        "--device {}: {} processes on {} for {}: start as many as there are GPUs, name a GPU once for each of "
        "its processes (cuda:0,0), or give --device cpu",
        device, count, processes.host(processes.rank()), Counted(std::ssize(gpus), "GPU"));
  return gpus[before];
}

}  // namespace

std::vector<int> ChooseGpus(const std::string& device, Processes& processes) {
  std::vector<int> gpus;
  const std::string& why_not = device == "cpu" ? device : gpu::WhyUnavailable();
  if (why_not.empty()) {
    gpus = FindGpus(device, processes.alone());
  } else if (device != "auto" && device != "cpu") {
    if (device != "cuda") ParseGpus(device, processes.alone());
    FailUsage("--device {}: {}; use --device cpu or leave it out", device, why_not);
  }
  if (processes.alone()) {
    CheckTogether(device, gpus);
    return gpus;
  }
  processes.CheckSame("device", gpus.empty() ? "a CPU" : "GPUs");
  if (gpus.empty()) return gpus;
  gpus = {OwnGpu(device, gpus, processes)};
  const gpu::DeviceInfo info = gpu::QueryDevice(gpus.front());
  processes.CheckSame("kind of GPU", fmt::format("{} {}.{}", info.name, info.major, info.minor));
  return gpus;
}

std::string DeviceLines() {
  std::string lines = fmt::format("cpu: {} threads, {} of memory free\n", std::thread::hardware_concurrency(),
                                  Scaled(static_cast<double>(AvailableMemory()), "B"));
  const std::string& why_not = gpu::WhyUnavailable();
  if (!why_not.empty()) return lines + fmt::format("no GPU: {}\n", why_not);
  for (int gpu = 0; gpu < gpu::DeviceCount(); ++gpu) {
    try {
      const gpu::DeviceInfo info = gpu::QueryDevice(gpu);
      lines += fmt::format("cuda:{}: {}, compute capability {}.{}, {} of {} of memory free\n", gpu, info.name,
                           info.major, info.minor, Scaled(static_cast<double>(info.free_bytes), "B"),
                           Scaled(static_cast<double>(info.memory_bytes), "B"));
    } catch (const Error& error) {  // an old GPU among others
      lines += fmt::format("cuda:{}: {}\n", gpu, error.what());
    }
  }
  return lines;
}

}  // namespace shiftrt
