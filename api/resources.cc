// SPDX-License-Identifier: Apache-2.0
#include "include/shiftrt/resources.h"

#include <algorithm>

#include "api/impl.h"
#include "runtime/check.h"
#include "runtime/cuda/cuda.h"
#include "runtime/host_memory.h"
#include "runtime/processes.h"

namespace shiftrt {

namespace {

// Agrees with the other processes on what decides the course of the work: memory decides its division into groups.
void Divide(const Resources& resources, Context& context) {
  Processes& processes = *resources.processes;
  if (resources.threads == 0) context.threads = std::max(1, Cores() / processes.sharers());
  if (context.memory == 0) context.memory = UsableMemory(context) / processes.on_this_host();
  const int own = static_cast<int>(context.isa);
  for (const Bytes& one : processes.Gather(Packer().Put(own).Put(context.memory).Take())) {
    Unpacker in(one);
    context.isa = std::min(context.isa, static_cast<Isa>(in.Get<int>()));
    context.memory = std::min(context.memory, in.Get<int64_t>());
  }
  context.processes = resources.processes;
}

void UseGpus(const std::vector<int>& gpus, Context& context) {
  if (const std::string& why_not = gpu::WhyUnavailable(); !why_not.empty()) FailUsage(Field("gpus"), "{}", why_not);
  for (const int gpu : gpus) {
    if (gpu < 0 || gpu >= gpu::DeviceCount())
      FailUsage(Field("gpus"), "there is no GPU {}; this machine has 0 to {}", gpu, gpu::DeviceCount() - 1);
  }
  if (gpus.size() > 1 && !gpu::WhyNoCommunicator().empty()) FailUsage(Field("gpus"), "{}", gpu::WhyNoCommunicator());
  context.device = Device::kCuda;
  context.gpus = gpus;
  context.gpu_turn = std::make_shared<std::recursive_mutex>();
  context.solver = gpu::MakeSolver(gpus.front());
}

}  // namespace

Context MakeContext(const Resources& resources) {
  if (resources.prepared) return *resources.prepared;
  if (resources.threads < 0) FailUsage(Field("threads"), "{} is below 0", resources.threads);
  if (resources.calibration_memory < 0)
    FailUsage(Field("calibration_memory"), "{} bytes are below 0", resources.calibration_memory);
  Context context = Context::Default();
  if (resources.threads > 0) context.threads = resources.threads;
  context.memory = resources.calibration_memory;
  if (!resources.gpus.empty()) UseGpus(resources.gpus, context);
  if (resources.processes && !resources.processes->alone()) Divide(resources, context);
  context.products = resources.products;
  if (resources.products == Products::kBFloat16) {
    if (context.device == Device::kCuda)
      FailUsage(Field("products"), "bfloat16 is for products on a CPU; those of a GPU have a precision of their own");
    if (!HasRoundedProducts(context.isa))
      FailUsage(Field("products"),
                "products of bfloat16 numbers need AVX512-BF16 or AMX, and the instruction set here is {}",
                Name(context.isa));
  }
  return context;
}

Resources Prepare(const Resources& resources) {
  Resources prepared = resources;
  prepared.prepared = std::make_shared<const Context>(MakeContext(resources));
  return prepared;
}

int RankOf(const Processes& processes) { return processes.rank(); }
int CountOf(const Processes& processes) { return processes.size(); }
void Barrier(Processes& processes) { processes.Barrier(); }
bool ReportFailure(Processes& processes, const std::string& reason) noexcept {
  return processes.Fail(reason) && !processes.first();
}

Resources Alone(const Resources& prepared) {
  return {.prepared = std::make_shared<const Context>(MakeContext(prepared).Alone())};
}

}  // namespace shiftrt
