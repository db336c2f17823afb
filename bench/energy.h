// Energy that a GPU takes, as its driver counts it.
#pragma once

#include <memory>
#include <string>

namespace shiftrt {

// Reads the energy counter of one GPU through the driver's management library (NVML), which is loaded when the first
// meter is made. The counter advances in steps of some tens of milliseconds: measure spans of a second or more.
class EnergyMeter {
 public:
  // `pci_bus_id` as in gpu::DeviceInfo. Without the library, or without a counter (before Volta), Joules() is NaN.
  explicit EnergyMeter(const std::string& pci_bus_id);
  ~EnergyMeter();
  // Since the driver was loaded.
  double Joules() const;

 private:
  struct Library;
  std::unique_ptr<Library> library_;
};

}  // namespace shiftrt
