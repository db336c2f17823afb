// SPDX-License-Identifier: Apache-2.0
#include "models/packed_tensor.h"

#include <array>
#include <cmath>
#include <cstring>

#include "runtime/block_types.h"
#include "runtime/check.h"

namespace shiftrt {

namespace {

// 2 to the power of a byte less 127. 255 is not a number. Source: OCP Microscaling Formats, E8M0.
float PowerScale(std::byte exponent) {
  const int power = std::to_integer<int>(exponent);
  return power == 255 ? NAN : std::ldexp(1.0F, power - 127);
}

// Element i of a tensor of scales.
float ScaleAt(const RawTensor& scales, int64_t i) {
  const std::byte* const data = scales.bytes.data();
  if (scales.type == "U8" || scales.type == "F8_E8M0") return PowerScale(data[i]);
  if (scales.type == "F8_E4M3") return Float8Values()[std::to_integer<int>(data[i])];
  const DType type = PlainTypeOf(scales).value();
  float value = 0;
  Widen(type, data + i * static_cast<int64_t>(SizeOf(type)), 1, &value);
  return value;
}

using Values = std::array<float, 256>;

template <typename ValueOf>
Values TableOf(const ValueOf& value_of) {
  Values values;
  for (int code = 0; code < 256; ++code) values[code] = value_of(code);
  return values;
}

// A sign, an exponent and a fraction in the lowest bits of `code`. Source: OCP Microscaling Formats; E4M3 has no
// infinity.
float SmallFloat(int code, int exponent_bits, int fraction_bits, int bias) {
  const int steps = 1 << fraction_bits, fraction = code % steps, exponent = code / steps % (1 << exponent_bits);
  const bool negative = (code >> (exponent_bits + fraction_bits) & 1) != 0;
  const float size = exponent == 0 ? std::ldexp(static_cast<float>(fraction), 1 - bias - fraction_bits)
                                   : std::ldexp(static_cast<float>(steps + fraction), exponent - bias - fraction_bits);
  return negative ? -size : size;
}

}  // namespace

const float* UnsignedValues() {
  static const Values values = TableOf([](int code) { return static_cast<float>(code); });
  return values.data();
}

const float* SignedBytes() {
  static const Values values = TableOf([](int code) { return static_cast<float>(static_cast<int8_t>(code)); });
  return values.data();
}

const float* CentredValues(int bits) {
  static const Values values[] = {TableOf([](int code) { return static_cast<float>(code - 2); }),
                                  TableOf([](int code) { return static_cast<float>(code - 8); }),
                                  TableOf([](int code) { return static_cast<float>(code - 128); })};
  return values[bits == 2 ? 0 : bits == 4 ? 1 : 2].data();
}

const float* Float8Values() {
  static const Values values = TableOf([](int code) { return code % 128 == 127 ? NAN : SmallFloat(code, 4, 3, 7); });
  return values.data();
}

const float* Float4Values() {
  static const Values values = TableOf([](int code) { return SmallFloat(code % 16, 2, 1, 1); });
  return values.data();
}

uint32_t PackedCodes::At(int64_t row, int64_t column) const {
  constexpr int kPlace[] = {0, 4, 1, 5, 2, 6, 3, 7};  // AWQ's places of eight codes
  const int64_t line = transposed ? column : row;
  int64_t index = transposed ? row : column;
  if (awq_order) index = index / 8 * 8 + kPlace[index % 8];
  const int64_t bit = index * bits;
  const std::byte* const begin = data + line * line_step + bit / 32 * word_step;
  const uint32_t mask = (1U << bits) - 1;
  if (added != 0) {
    uint32_t word = 0;
    std::memcpy(&word, begin, sizeof(word));
    return (word + added) >> (bit % 32) & mask;
  }
  return std::to_integer<uint32_t>(begin[bit % 32 / 8]) >> (bit % 8) & mask;
}

int64_t PackedTensor::bytes() const {
  size_t sum = 0;
  for (const PackedPart& part : parts) sum += part.tensor.bytes.size();
  return static_cast<int64_t>(sum);
}

PackedReader::PackedReader(const PackedTensor& packed)
    : packed_(packed), grid_rows_(packed.grid_rows()), grid_columns_(packed.grid_columns()) {
  ReadScales();
  ReadZeros();
  ReadGroups();
}

void PackedReader::ReadScales() {
  const RawTensor& stored = packed_.scales.tensor;
  const auto finite = [&](float value, const PackedPart& part, int64_t i) {
    Check(std::isfinite(value), "{}: tensor {}: element {} is {}, expected a finite scale", packed_.where, part.name, i,
          value);
    return value;
  };
  float divisor = 1;
  if (!packed_.divisor.name.empty()) divisor = finite(ScaleAt(packed_.divisor.tensor, 0), packed_.divisor, 0);
  Check(divisor != 0, "{}: tensor {} is 0, expected a divisor of scales", packed_.where, packed_.divisor.name);
  scales_.resize(grid_rows_ * grid_columns_);
  for (int64_t row = 0; row < grid_rows_; ++row) {
    for (int64_t column = 0; column < grid_columns_; ++column) {
      const int64_t i = packed_.scales_transposed ? column * grid_rows_ + row : row * grid_columns_ + column;
      scales_[row * grid_columns_ + column] = finite(ScaleAt(stored, i) / divisor, packed_.scales, i);
    }
  }
}

void PackedReader::ReadZeros() {
  zeros_.resize(scales_.size());
  if (packed_.zeros.data == nullptr) return;
  for (int64_t row = 0; row < grid_rows_; ++row)
    for (int64_t column = 0; column < grid_columns_; ++column)
      zeros_[row * grid_columns_ + column] = packed_.zero_values[packed_.zeros.At(row, column)];
}

void PackedReader::ReadGroups() {
  group_.resize(packed_.columns);
  const PackedPart& groups = packed_.groups;
  for (int64_t column = 0; column < packed_.columns; ++column) {
    group_[column] = static_cast<int32_t>(column / packed_.block_columns);
    if (groups.name.empty()) continue;
    std::memcpy(&group_[column], groups.tensor.bytes.data() + column * sizeof(int32_t), sizeof(int32_t));
    Check(group_[column] >= 0 && group_[column] < grid_columns_,
          "{}: tensor {}: element {} is {}, expected a group from 0 to {}", packed_.where, groups.name, column,
          group_[column], grid_columns_ - 1);
  }
}

void PackedReader::Read(int64_t row, int64_t first, int64_t count, float* out) const {
  const int64_t of_row = row / packed_.block_rows * grid_columns_;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t at = of_row + group_[first + i];
    out[i] = (packed_.values[packed_.codes.At(row, first + i)] - zeros_[at]) * scales_[at];
  }
}

}  // namespace shiftrt
