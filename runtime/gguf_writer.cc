// SPDX-License-Identifier: Apache-2.0
#include "runtime/gguf_writer.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "runtime/check.h"

namespace shiftrt {

namespace {

constexpr uint64_t kAlignment = 32;  // general.alignment where a file does not say

uint64_t Aligned(uint64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

template <typename T>
void Append(std::string& out, T value) {
  char bytes[sizeof(T)];
  std::memcpy(bytes, &value, sizeof(T));
  out.append(bytes, sizeof(T));
}

void AppendText(std::string& out, std::string_view text) {
  Append(out, uint64_t{text.size()});
  out += text;
}

template <typename T>
void EncodePlain(const float* values, int64_t count, std::byte* out, bool& finite) {
  for (int64_t i = 0; i < count; ++i) {
    const T value(values[i]);
    finite = finite && std::isfinite(static_cast<float>(value));
    std::memcpy(out + i * static_cast<int64_t>(sizeof(T)), &value, sizeof(T));
  }
}

// Rounds to the nearest integer, halves away from zero.
float RoundHalfAway(float value) {
  const float magnitude = std::abs(value), whole = std::floor(magnitude);
  return std::copysign(whole + std::floor(2 * (magnitude - whole)), value);
}

void EncodeQ8(const float* values, std::byte* out, bool& finite) {
  float largest = 0;
  for (int i = 0; i < 32; ++i) {
    largest = std::max(largest, std::abs(values[i]));
    finite = finite && std::isfinite(values[i]);
  }
  const float scale = largest / 127, inverse = std::isfinite(1 / scale) ? 1 / scale : 0;
  const Float16 stored(scale);
  finite = finite && std::isfinite(static_cast<float>(stored));
  if (!finite) return;
  std::memcpy(out, &stored, sizeof(stored));
  for (int i = 0; i < 32; ++i)
    out[2 + i] = static_cast<std::byte>(static_cast<int8_t>(RoundHalfAway(values[i] * inverse)));
}

}  // namespace

template <typename T>
void GgufWriter::Add(std::string_view key, GgufKind kind, T value) {
  AppendText(values_, key);
  Append(values_, static_cast<uint32_t>(kind));
  Append(values_, value);
  ++value_count_;
}

void GgufWriter::AddInteger(std::string_view key, int64_t value) {
  Check(value >= 0 && value <= UINT32_MAX, "GGUF: {} is {}, expected 0 to {}", key, value, UINT32_MAX);
  Add(key, GgufKind::kUint32, static_cast<uint32_t>(value));
}
void GgufWriter::AddNumber(std::string_view key, double value) {
  Add(key, GgufKind::kFloat32, static_cast<float>(value));
}
void GgufWriter::AddFlag(std::string_view key, bool value) {
  Add(key, GgufKind::kBool, static_cast<uint8_t>(value ? 1 : 0));
}
void GgufWriter::AddText(std::string_view key, std::string_view value) {
  Add(key, GgufKind::kString, uint64_t{value.size()});
  values_ += value;
}

void GgufWriter::BeginArray(std::string_view key, GgufKind kind, size_t count) {
  Add(key, GgufKind::kArray, static_cast<uint32_t>(kind));
  Append(values_, uint64_t{count});
}
void GgufWriter::AddFlags(std::string_view key, const std::vector<bool>& values) {
  BeginArray(key, GgufKind::kBool, values.size());
  for (const bool value : values) Append(values_, static_cast<uint8_t>(value ? 1 : 0));
}
void GgufWriter::AddIntegers(std::string_view key, const std::vector<int32_t>& values) {
  BeginArray(key, GgufKind::kInt32, values.size());
  for (const int32_t value : values) Append(values_, value);
}
void GgufWriter::AddNumbers(std::string_view key, const std::vector<float>& values) {
  BeginArray(key, GgufKind::kFloat32, values.size());
  for (const float value : values) Append(values_, value);
}
void GgufWriter::AddTexts(std::string_view key, const std::vector<std::string>& values) {
  BeginArray(key, GgufKind::kString, values.size());
  for (const std::string& value : values) AppendText(values_, value);
}

void GgufWriter::AddCopy(std::string_view key, const GgufValue& value) {
  if (value.array) {
    BeginArray(key, value.kind, value.count);
  } else {
    AppendText(values_, key);
    Append(values_, static_cast<uint32_t>(value.kind));
    ++value_count_;
  }
  values_.append(reinterpret_cast<const char*>(value.bytes.data()), value.bytes.size());
}

void GgufWriter::AddTensor(const std::string& name, const std::vector<int64_t>& shape, BlockType type) {
  const BlockTraits& traits = TraitsOf(type);
  AppendText(tensors_, name);
  Append(tensors_, static_cast<uint32_t>(shape.size()));
  int64_t elements = 1;
  for (auto side = shape.rbegin(); side != shape.rend(); ++side) {
    Append(tensors_, static_cast<uint64_t>(*side));
    elements *= *side;
  }
  Append(tensors_, traits.code);
  Append(tensors_, data_);
  data_ = Aligned(data_ + static_cast<uint64_t>(elements / traits.elements * traits.bytes));
  ++tensor_count_;
}

std::string GgufWriter::header() const {
  std::string out = "GGUF";
  Append(out, uint32_t{3});
  Append(out, tensor_count_);
  Append(out, value_count_);
  out += values_;
  out += tensors_;
  out.resize(Aligned(out.size()));
  return out;
}

std::string GgufWriter::Padding(int64_t bytes) {
  return std::string(Aligned(static_cast<uint64_t>(bytes)) - static_cast<uint64_t>(bytes), '\0');
}

bool CanEncode(BlockType type, int64_t row) {
  return PlainType(type).has_value() || (type == BlockType::kQ8_0 && row % TraitsOf(type).elements == 0);
}

void EncodeBlocks(BlockType type, const float* values, int64_t count, std::byte* out, bool& finite) {
  const BlockTraits& traits = TraitsOf(type);
  switch (type) {
    case BlockType::kF32: return EncodePlain<float>(values, count, out, finite);
    case BlockType::kF16: return EncodePlain<Float16>(values, count, out, finite);
    case BlockType::kBF16: return EncodePlain<BFloat16>(values, count, out, finite);
    case BlockType::kQ8_0:
      for (int64_t i = 0; i < count / traits.elements; ++i)
        EncodeQ8(values + i * traits.elements, out + i * traits.bytes, finite);
      return;
    default: Fail("GGUF: blocks of type {} cannot be written", traits.name);
  }
}

}  // namespace shiftrt
