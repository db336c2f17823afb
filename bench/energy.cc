// SPDX-License-Identifier: Apache-2.0
#include "bench/energy.h"

#include <dlfcn.h>

#include <limits>

namespace shiftrt {

namespace {

// The few declarations of nvml.h that are used here; NVML's interface is stable across drivers.
using Device = void*;
using Init = int (*)();
using HandleByBusId = int (*)(const char*, Device*);
using TotalEnergy = int (*)(Device, unsigned long long*);
constexpr int kSuccess = 0;

}  // namespace

struct EnergyMeter::Library {
  Device device = nullptr;
  TotalEnergy total_energy = nullptr;  // millijoules; null if there is no counter
};

EnergyMeter::EnergyMeter(const std::string& pci_bus_id) : library_(std::make_unique<Library>()) {
  void* const handle = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);  // stays open until the process ends
  if (handle == nullptr) return;
  const auto init = reinterpret_cast<Init>(dlsym(handle, "nvmlInit_v2"));
  const auto find = reinterpret_cast<HandleByBusId>(dlsym(handle, "nvmlDeviceGetHandleByPciBusId_v2"));
  const auto total = reinterpret_cast<TotalEnergy>(dlsym(handle, "nvmlDeviceGetTotalEnergyConsumption"));
  if (init == nullptr || find == nullptr || total == nullptr || init() != kSuccess) return;
  if (find(pci_bus_id.c_str(), &library_->device) == kSuccess) library_->total_energy = total;
}

EnergyMeter::~EnergyMeter() = default;

double EnergyMeter::Joules() const {
  unsigned long long millijoules = 0;
  if (library_->total_energy == nullptr || library_->total_energy(library_->device, &millijoules) != kSuccess)
    return std::numeric_limits<double>::quiet_NaN();
  return 1e-3 * static_cast<double>(millijoules);
}

}  // namespace shiftrt
