// SPDX-License-Identifier: Apache-2.0
// The energy consumption of a GPU, as counted by its driver.
#pragma once

#include <memory>
#include <string>

namespace shiftrt {

// Reads the energy counter of one GPU through the driver's management library (NVML), which is loaded when the first
// meter is created. The counter advances in steps of some tens of milliseconds, so measure intervals of at least a
// second.
class EnergyMeter {
 public:
  // `pci_bus_id` as in gpu::DeviceInfo. Without the library, or without a counter (before Volta), Joules() is NaN.
  explicit EnergyMeter(const std::string& pci_bus_id);
  ~EnergyMeter();
  // Energy since the driver was loaded.
  double Joules() const;

 private:
  struct Library;
  std::unique_ptr<Library> library_;
};

}  // namespace shiftrt
