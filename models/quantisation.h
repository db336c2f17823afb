// SPDX-License-Identifier: Apache-2.0
// How the matrices of a Hugging Face checkpoint are quantised, as quantization_config in its config.json says.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace shiftrt {

// The tensors that hold a quantised matrix.
enum class PackedLayout : uint8_t {
  kScaled,   // weight (8 bits per number), weight_scale_inv or weight_scale
  kGptq,     // qweight, packed along the inputs; qzeros, scales, g_idx
  kAwq,      // qweight, packed along the outputs in AWQ's order; qzeros, scales
  kWords,    // weight_packed (32-bit words), weight_scale, weight_zero_point, weight_shape, weight_g_idx
  kFloat4,   // weight_packed (bytes), weight_scale, weight_global_scale
  kMxBlocks  // weight_blocks, weight_scales
};

// The matrices (rows, columns) of one group of settings. A checkpoint may have several such groups.
struct QuantisedForm {
  PackedLayout layout = PackedLayout::kScaled;
  std::string name = {};  // "GPTQ, 4 bits, groups of 128"
  int bits = 8;           // per number
  bool floating = false;  // the numbers are floating-point ones, not integers
  // Numbers with one scale: so many rows and columns of the matrix. 0: all.
  int64_t block_rows = 1, block_columns = 0;
  const char* scales = ".weight_scale";  // the tensor of the scales in the layout kScaled
  bool power_scales = false;             // the scales are bytes: exponents of two, plus 127
  bool zero_points = false;              // each scale has a zero point
  bool zeros_less_one = false;           // zero points are stored less 1
  bool ordered = false;                  // a tensor says for each column to which group it belongs
};

// The forms of the quantised matrices; none for a model that is not quantised.
struct Quantisation {
  std::vector<QuantisedForm> forms;

  bool any() const { return !forms.empty(); }
  // The names of the forms: "GPTQ, 4 bits, groups of 128". Empty for a model that is not quantised.
  std::string Name() const;
};

// Reads the value of quantization_config, which errors call `name`. Throws Error for a method, a format or a setting
// that is not supported: each by name.
Quantisation ParseQuantisation(const nlohmann::json& settings, const std::string& name);

}  // namespace shiftrt
