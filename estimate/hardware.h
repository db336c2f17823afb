// SPDX-License-Identifier: Apache-2.0
// Devices that times are computed for.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/dtype.h"

namespace shiftrt {

// The share of a peak that a kind of work is assumed to reach. Nothing follows from them but times.
struct Efficiency {
  double model = 1;   // products with the model's weights, of the products' peak
  double sums = 1;    // ridge sums, of the float64 peak
  double fits = 1;    // decompositions and what follows, of the float64 peak
  double memory = 1;  // of the memory's bandwidth
  double links = 1;   // of the links' bandwidth
};

struct Hardware {
  const char* name;  // as --hardware takes it
  const char* device;
  const char* source;  // of the figures
  bool gpu;
  double narrow_peak;     // FLOP per second of products with 16-bit weights, as the program computes them
  double float_peak;      // the same with float32 weights
  double double_peak;     // of products in float64
  double bandwidth;       // of its memory, bytes per second
  int64_t memory;         // bytes
  int64_t per_host;       // devices of one host
  double host_link;       // bytes per second from one device to another on the same host, one way
  double network_link;    // the same to another host
  Efficiency efficiency;  // assumed where nothing else is said

  double Peak(DType weights) const { return weights == DType::kFloat32 ? float_peak : narrow_peak; }
};

const std::vector<Hardware>& HardwareTable();
// Throws UsageError, with the field "hardware", listing the names known.
const Hardware& FindHardware(const std::string& name);

// "model=0.5,links=0.9": the others stay as in `efficiency`. Throws UsageError, with the field "efficiency", for
// another name and for a share that is not above 0 and at most 1.
Efficiency ParseEfficiency(const std::string& text, Efficiency efficiency);

}  // namespace shiftrt
