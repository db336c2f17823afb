// SPDX-License-Identifier: Apache-2.0
// Values as the bytes of a message between processes.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "runtime/processes.h"
#include "runtime/tensor.h"

namespace shiftrt {

// A structure lists the members that a message has with a function in its namespace, which may be its friend:
//   auto FieldsOf(T& value) { return std::tie(value.first, value.second); }
// A type without one is copied as its bytes.
template <typename T>
concept HasFields = requires(T& value) {
  FieldsOf(value);
};

template <typename T>
void Write(Packer& out, const T& value) {
  if constexpr (HasFields<T>) {
    std::apply([&](const auto&... fields) { (Write(out, fields), ...); }, FieldsOf(const_cast<T&>(value)));
  } else {
    out.Put(value);
  }
}
inline void Write(Packer& out, const std::string& text) { out.PutText(text); }
template <typename T>
void Write(Packer& out, const Matrix<T>& matrix) {
  out.Put(matrix.rows()).Put(matrix.cols()).Put(std::span<const T>(matrix.data(), matrix.size()));
}
template <typename T>
void Write(Packer& out, const std::shared_ptr<const T>& value) {
  Write(out, *value);
}
template <typename T>
void Write(Packer& out, const std::vector<T>& values) {
  if constexpr (std::is_trivially_copyable_v<T> && !HasFields<T>) {
    out.PutAll(values);
  } else {
    out.Put(static_cast<int64_t>(values.size()));
    for (const T& value : values) Write(out, value);
  }
}

template <typename T>
void Read(Unpacker& in, T& value) {
  if constexpr (HasFields<T>) {
    std::apply([&](auto&... fields) { (Read(in, fields), ...); }, FieldsOf(value));
  } else {
    value = in.Get<T>();
  }
}
inline void Read(Unpacker& in, std::string& text) { text = in.GetText(); }
template <typename T>
void Read(Unpacker& in, Matrix<T>& matrix) {
  const auto rows = in.Get<int64_t>(), cols = in.Get<int64_t>();
  in.CheckRoom(rows, cols, sizeof(T));
  matrix = Matrix<T>(rows, cols);
  in.Get(std::span<T>(matrix.data(), matrix.size()));
}
template <typename T>
void Read(Unpacker& in, std::shared_ptr<const T>& value) {
  auto made = std::make_shared<T>();
  Read(in, *made);
  value = std::move(made);
}
template <typename T>
void Read(Unpacker& in, std::vector<T>& values) {
  if constexpr (std::is_trivially_copyable_v<T> && !HasFields<T>) {
    values = in.GetAll<T>();
  } else {
    values.resize(in.Count(1));
    for (T& value : values) Read(in, value);
  }
}

}  // namespace shiftrt
