// SPDX-License-Identifier: Apache-2.0
// The rates from which times are computed: the peaks of datasheets, or rates that were measured (bench/rates.h).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/dtype.h"

namespace shiftrt {

// Times that are computed from the peaks of a datasheet are lower bounds, which no program reaches.
struct Hardware {
  std::string name;  // as --hardware takes it
  std::string device;
  std::string source;  // the data sheet or measurement that gives the figures
  bool gpu = false;
  bool measured = false;
  // FLOP per second of products with the model's weights of 16 bits and of 32 bits, of ridge sums in float64, and of
  // decompositions in float64.
  double narrow_products = 0, float_products = 0, sums = 0, fits = 0;
  double bandwidth = 0;  // bytes per second that can be read from its memory
  int64_t memory = 0;    // bytes

  double Products(DType weights) const { return weights == DType::kFloat32 ? float_products : narrow_products; }
};

const std::vector<Hardware>& HardwareTable();
// Throws UsageError, with the field "hardware", listing the names known.
const Hardware& FindHardware(const std::string& name);

}  // namespace shiftrt
