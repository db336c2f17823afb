// SPDX-License-Identifier: Apache-2.0
#include "runtime/parquet/thrift.h"

#include "runtime/check.h"

namespace shiftrt::parquet {

namespace {

enum Type { kTrue = 1, kFalse, kByte, kInt16, kInt32, kInt64, kDouble, kBinary, kList, kSet, kMap, kStruct };

constexpr int kMaxDepth = 16;
constexpr int64_t kMaxValues = 1 << 22;

int64_t FromZigzag(uint64_t value) { return static_cast<int64_t>(value >> 1) ^ -static_cast<int64_t>(value & 1); }

}  // namespace

Bytes ByteReader::Take(uint64_t count) {
  Check(count <= bytes_.size(), "{}: damaged: {} bytes expected, {} are left", where_, count, bytes_.size());
  const Bytes taken = bytes_.first(count);
  bytes_ = bytes_.subspan(count);
  return taken;
}

uint64_t ByteReader::Varint() {
  uint64_t value = 0;
  for (int shift = 0; shift < 64; shift += 7) {
    const uint8_t byte = Byte();
    Check(shift < 63 || byte <= 1, "{}: damaged: an integer beyond 64 bits", where_);
    value |= uint64_t{byte & 0x7Fu} << shift;
    if (byte < 0x80) return value;
  }
  Fail("{}: damaged: an integer beyond 64 bits", where_);
}

uint32_t ByteReader::Word() {
  uint32_t word = 0;
  const Bytes bytes = Take(4);
  for (int i = 0; i < 4; ++i) word |= std::to_integer<uint32_t>(bytes[i]) << (8 * i);
  return word;
}

Thrift Thrift::ReadStruct(ByteReader& in) {
  int64_t budget = kMaxValues;
  return ReadFields(in, 0, budget);
}

Thrift Thrift::ReadFields(ByteReader& in, int depth, int64_t& budget) {
  Check(depth < kMaxDepth, "{}: damaged: structs are nested more than {} levels deep", in.where(), kMaxDepth);
  Thrift result;
  result.kind_ = Kind::kStruct;
  int64_t id = 0;
  while (const uint8_t header = in.Byte()) {
    id = header >> 4 != 0 ? id + (header >> 4) : FromZigzag(in.Varint());
    Check(id > 0 && id < 32768, "{}: damaged: a field with the number {}", in.where(), id);
    const int type = header & 15;
    Thrift value;
    if (type == kTrue || type == kFalse) {  // in a struct, the type is the value
      Check(--budget >= 0, "{}: damaged: more than {} values", in.where(), kMaxValues);
      value.kind_ = Kind::kInteger;
      value.integer_ = type == kTrue ? 1 : 0;
    } else {
      value = ReadValue(in, type, depth, budget);
    }
    if (value.kind_ != Kind::kNothing) result.fields_[static_cast<int>(id)] = std::move(value);
  }
  return result;
}

Thrift Thrift::ReadValue(ByteReader& in, int type, int depth, int64_t& budget) {
  Check(--budget >= 0, "{}: damaged: more than {} values", in.where(), kMaxValues);
  Thrift value;
  switch (type) {
    case kTrue:
    case kFalse:
    case kByte: {
      const int64_t byte = in.Byte();
      value.kind_ = Kind::kInteger;
      value.integer_ = byte < 128 ? byte : byte - 256;
      return value;
    }
    case kInt16:
    case kInt32:
    case kInt64:
      value.kind_ = Kind::kInteger;
      value.integer_ = FromZigzag(in.Varint());
      return value;
    case kDouble: in.Take(8); return value;
    case kBinary: {
      const Bytes bytes = in.Take(in.Varint());
      value.kind_ = Kind::kText;
      value.text_.assign(reinterpret_cast<const char*>(bytes.data()), bytes.size());
      return value;
    }
    case kList:
    case kSet: {
      const uint8_t header = in.Byte();
      const uint64_t size = header >> 4 != 15 ? header >> 4 : in.Varint();
      value.kind_ = Kind::kList;
      Check(depth < kMaxDepth, "{}: damaged: lists are nested more than {} levels deep", in.where(), kMaxDepth);
      for (uint64_t i = 0; i < size; ++i) value.list_.push_back(ReadValue(in, header & 15, depth + 1, budget));
      return value;
    }
    case kStruct: return ReadFields(in, depth + 1, budget);
    default: Fail("{}: damaged: a value of type {}", in.where(), type);
  }
}

const Thrift& Thrift::Field(int field, const char* what, Kind kind) const {
  const auto found = fields_.find(field);
  Check(found != fields_.end(), "damaged: {} is missing", what);
  Check(found->second.kind_ == kind, "damaged: {} is of another type", what);
  return found->second;
}

int64_t Thrift::Integer(int field, const char* what, int64_t low, int64_t high) const {
  const int64_t value = Field(field, what, Kind::kInteger).integer_;
  Check(value >= low && value <= high, "damaged: {} is {}, expected {} to {}", what, value, low, high);
  return value;
}

const std::string& Thrift::Text(int field, const char* what) const { return Field(field, what, Kind::kText).text_; }
const Thrift& Thrift::Struct(int field, const char* what) const { return Field(field, what, Kind::kStruct); }
const std::vector<Thrift>& Thrift::List(int field, const char* what) const {
  return Field(field, what, Kind::kList).list_;
}

}  // namespace shiftrt::parquet
