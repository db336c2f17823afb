// SPDX-License-Identifier: Apache-2.0
// GGUF files for tests. Written here and not by a writer of the program, which would refuse or repair much of what the
// tests need.
#pragma once

#include <cstring>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "runtime/gguf.h"

namespace shiftrt {

// The statements of a file's header; by default they are true.
struct GgufHeader {
  std::string magic = "GGUF";
  uint32_t version = 3;
  std::optional<uint64_t> tensor_count = {}, value_count = {};
  uint64_t alignment = 32;  // alignment of the data; not written unless it is added
};

class GgufBytes {
 public:
  explicit GgufBytes(GgufHeader header = {}) : header_(std::move(header)) {}

  template <typename T>
  static std::string Raw(T value) {
    std::string bytes(sizeof(T), '\0');
    std::memcpy(bytes.data(), &value, sizeof(T));
    return bytes;
  }
  static std::string String(std::string_view text) { return Raw(uint64_t{text.size()}) + std::string(text); }

  // A value of any type number, its bytes as they are.
  GgufBytes& AddRaw(std::string_view key, uint32_t kind, const std::string& bytes) {
    values_ += String(key) + Raw(kind) + bytes;
    ++values_added_;
    return *this;
  }
  GgufBytes& AddArrayRaw(std::string_view key, uint32_t kind, uint64_t count, const std::string& bytes) {
    return AddRaw(key, 9, Raw(kind) + Raw(count) + bytes);
  }
  GgufBytes& Add(std::string_view key, std::string_view text) { return AddRaw(key, 8, String(text)); }
  GgufBytes& Add(std::string_view key, const char* text) { return Add(key, std::string_view(text)); }
  template <typename T>
  requires std::is_arithmetic_v<T> GgufBytes& Add(std::string_view key, T value) {
    return AddRaw(key, KindOf<T>(), Raw(value));
  }
  template <typename T>
  requires std::is_arithmetic_v<T> GgufBytes& Add(std::string_view key, const std::vector<T>& values) {
    std::string bytes;
    for (const T value : values) bytes += Raw(value);
    return AddArrayRaw(key, KindOf<T>(), values.size(), bytes);
  }
  GgufBytes& Add(std::string_view key, const std::vector<std::string>& texts) {
    std::string bytes;
    for (const std::string& text : texts) bytes += String(text);
    return AddArrayRaw(key, 8, texts.size(), bytes);
  }

  // `shape` with the outermost side first. Without an offset the tensor follows the one before, aligned.
  GgufBytes& AddTensor(const std::string& name, const std::vector<uint64_t>& shape, uint32_t code,
                       const std::string& bytes, std::optional<uint64_t> offset = {}) {
    data_.resize(Padded(data_.size()));
    tensors_ += String(name) + Raw(static_cast<uint32_t>(shape.size()));
    for (auto side = shape.rbegin(); side != shape.rend(); ++side) tensors_ += Raw(*side);
    tensors_ += Raw(code) + Raw(offset.value_or(data_.size()));
    data_ += bytes;
    ++tensors_added_;
    return *this;
  }

  std::string Bytes() const {
    std::string out = header_.magic + Raw(header_.version) + Raw(header_.tensor_count.value_or(tensors_added_)) +
                      Raw(header_.value_count.value_or(values_added_)) + values_ + tensors_;
    out.resize(Padded(out.size()));
    return out + data_;
  }

 private:
  size_t Padded(size_t size) const { return (size + header_.alignment - 1) / header_.alignment * header_.alignment; }
  template <typename T>
  static constexpr uint32_t KindOf() {
    if (std::is_same_v<T, bool>) return 7;
    if (std::is_same_v<T, float>) return 6;
    if (std::is_same_v<T, double>) return 12;
    constexpr uint32_t kSigned = std::is_signed_v<T> ? 1 : 0;
    return sizeof(T) == 8 ? 10 + kSigned : sizeof(T) == 4 ? 4 + kSigned : sizeof(T) == 2 ? 2 + kSigned : kSigned;
  }

  GgufHeader header_;
  std::string values_, tensors_, data_;
  uint64_t values_added_ = 0, tensors_added_ = 0;
};

}  // namespace shiftrt
