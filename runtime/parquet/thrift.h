// SPDX-License-Identifier: Apache-2.0
// Thrift's compact protocol, in which Parquet writes its headers (thrift/doc/specs/thrift-compact-protocol.md).
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace shiftrt::parquet {

using Bytes = std::span<const std::byte>;

// Reads bytes from the front. Throws Error, naming `where`, for a read past the end.
class ByteReader {
 public:
  ByteReader(Bytes bytes, std::string where) : bytes_(bytes), where_(std::move(where)) {}

  Bytes Take(uint64_t count);
  uint8_t Byte() { return static_cast<uint8_t>(Take(1)[0]); }
  uint64_t Varint();  // little-endian groups of 7 bits
  uint32_t Word();    // 4 bytes, little-endian
  size_t left() const { return bytes_.size(); }
  Bytes rest() const { return bytes_; }
  const std::string& where() const { return where_; }

 private:
  Bytes bytes_;
  std::string where_;
};

// A value: a struct, a list, a text or an integer (bools are 0 and 1; floating-point numbers are skipped).
class Thrift {
 public:
  // Reads one struct. Throws Error for what is malformed, nested too deep, or has more than some millions of values.
  static Thrift ReadStruct(ByteReader& in);

  bool Has(int field) const { return fields_.contains(field); }
  // The integer in a field of a struct. Throws Error naming `what` if it is missing, and for a value of another type or
  // range.
  int64_t Integer(int field, const char* what, int64_t low, int64_t high) const;
  const std::string& Text(int field, const char* what) const;
  const Thrift& Struct(int field, const char* what) const;
  const std::vector<Thrift>& List(int field, const char* what) const;
  // The elements of a list of texts.
  const std::string& text() const { return text_; }

 private:
  enum class Kind { kNothing, kInteger, kText, kList, kStruct };
  static Thrift ReadValue(ByteReader& in, int type, int depth, int64_t& budget);
  static Thrift ReadFields(ByteReader& in, int depth, int64_t& budget);
  const Thrift& Field(int field, const char* what, Kind kind) const;

  Kind kind_ = Kind::kNothing;
  int64_t integer_ = 0;
  std::string text_;
  std::vector<Thrift> list_;
  std::map<int, Thrift> fields_;
};

}  // namespace shiftrt::parquet
