// SPDX-License-Identifier: Apache-2.0
/// \file
/// The types of numbers: of weights in memory, and of the operands of products.
#pragma once

#include <cstdint>
#include <string>

namespace shiftrt {

/// The type that the weights have in memory.
enum class WeightType : uint8_t {
  kAsStored,  ///< as in the files, which are mapped into memory and not copied. A GPU converts quantised weights of
              ///< some types to bfloat16 (docs/gpu.md)
  kExpanded,  ///< as in the files, and quantised weights converted to bfloat16
  kFloat32,   ///< converted to 32-bit floats
  kFloat16,   ///< converted to IEEE 16-bit floats
  kBFloat16,  ///< converted to bfloat16
};

/// Says how precise the operands of products with weights are on a CPU. The sums are float32 in any case. Products of
/// bfloat16 numbers need AVX512-BF16 or AMX, and take about half the time of float32's there, or less. A GPU's products
/// do not depend on it (docs/gpu.md).
enum class Products : uint8_t {
  kAuto,     ///< "auto": bfloat16 where the CPU has instructions for it and the result is a score of layers, a sum over
             ///< calibration text or a gradient (ScoreLayers(), Repair(), RunSweep()'s fits, Finetune()); otherwise
             ///< float32
  kFloat32,  ///< "float32": activations are not rounded, and weights are as stored
  kBFloat16,  ///< "bfloat16": activations, gradients and weights are rounded to bfloat16 before they are multiplied;
              ///< more than 24 rows of activations that meet quantised weights have 8 bits within each 32 elements
              ///< instead
};
/// \param products one of them
/// \return its word
const char* Name(Products products);
/// \param name "auto", "float32" or "bfloat16"
/// \return the precision
/// \throws UsageError for another word
Products ParseProducts(const std::string& name);

}  // namespace shiftrt
