// SPDX-License-Identifier: Apache-2.0
#include "runtime/gguf.h"

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstring>
#include <system_error>

#include "runtime/check.h"

namespace shiftrt {

namespace {

namespace fs = std::filesystem;

constexpr std::string_view kMagic = "GGUF";
constexpr uint64_t kDefaultAlignment = 32;
constexpr uint32_t kMaxSides = 4;
constexpr uint64_t kMaxKey = 65535, kMaxTensorName = 64;  // bytes, as in the specification

struct KindTraits {
  const char* name;
  uint64_t bytes;  // 0: not of a fixed size
};
constexpr KindTraits kKinds[] = {{"uint8", 1},  {"int8", 1},    {"uint16", 2}, {"int16", 2},  {"uint32", 4},
                                 {"int32", 4},  {"float32", 4}, {"bool", 1},   {"string", 0}, {"array", 0},
                                 {"uint64", 8}, {"int64", 8},   {"float64", 8}};

const KindTraits& Traits(GgufKind kind) { return kKinds[static_cast<size_t>(kind)]; }

template <typename T>
T Load(const std::byte* data) {
  T value;
  std::memcpy(&value, data, sizeof(T));
  return value;
}

// Reads a file from its beginning. Every read either succeeds or throws.
class Cursor {
 public:
  Cursor(std::span<const std::byte> bytes, const std::string& name) : bytes_(bytes), name_(name) {}

  size_t at() const { return at_; }
  std::span<const std::byte> Take(uint64_t count, const std::string& what) {
    Check(count <= bytes_.size() - at_, "{}: truncated: {} needs {} bytes at byte {} of {}", name_, what, count, at_,
          bytes_.size());
    const auto taken = bytes_.subspan(at_, count);
    at_ += count;
    return taken;
  }
  template <typename T>
  T Number(const std::string& what) {
    return Load<T>(Take(sizeof(T), what).data());
  }
  std::string_view String(const std::string& what) {
    const auto length = Number<uint64_t>(what);
    const auto text = Take(length, what);
    return {reinterpret_cast<const char*>(text.data()), text.size()};
  }
  // A key or the name of a tensor. It must be printable, because messages contain it.
  std::string Name(const std::string& what, uint64_t limit) {
    const std::string_view text = String(what);
    Check(!text.empty() && text.size() <= limit, "{}: {} has {} bytes, expected 1 to {}", name_, what, text.size(),
          limit);
    for (const char c : text)
      Check(c >= ' ' && c <= '~', "{}: {} has the byte {}, expected printable ASCII", name_, what,
            static_cast<int>(static_cast<uint8_t>(c)));
    return std::string(text);
  }
  GgufKind Kind(const std::string& what) {
    const auto code = Number<uint32_t>(what);
    Check(code < std::size(kKinds), "{}: {} is of the type {}, expected 0 to {}", name_, what, code,
          std::size(kKinds) - 1);
    return static_cast<GgufKind>(code);
  }
  std::span<const std::byte> Since(size_t begin) const { return bytes_.subspan(begin, at_ - begin); }

 private:
  std::span<const std::byte> bytes_;
  const std::string& name_;
  size_t at_ = 0;
};

GgufValue ReadValue(Cursor& cursor, const std::string& what, const std::string& name) {
  GgufValue value{cursor.Kind(what), false, 1, {}};
  if (value.kind == GgufKind::kArray) {
    value = {cursor.Kind(what), true, 0, {}};
    Check(value.kind != GgufKind::kArray, "{}: {} is an array of arrays, which is not supported", name, what);
    value.count = cursor.Number<uint64_t>(what);
  }
  const size_t begin = cursor.at();
  if (value.kind == GgufKind::kString) {
    // Each string takes at least 8 bytes, so the count cannot exceed the size of the file.
    for (uint64_t i = 0; i < value.count; ++i) cursor.String(what);
  } else {
    uint64_t bytes = 0;
    Check(!__builtin_mul_overflow(value.count, Traits(value.kind).bytes, &bytes),
          "{}: {} has {} elements, more than any file can hold", name, what, value.count);
    cursor.Take(bytes, what);
  }
  value.bytes = cursor.Since(begin);
  if (value.kind == GgufKind::kBool)
    for (const std::byte byte : value.bytes)
      Check(byte <= std::byte{1}, "{}: {} holds {}, expected a bool: 0 or 1", name, what, static_cast<int>(byte));
  return value;
}

// A row of the table of tensors; the offset is from the beginning of the data.
struct Entry {
  std::string name;
  GgufTensor tensor;
  uint64_t offset;
};

Entry ReadEntry(Cursor& cursor, uint64_t number, const std::string& file) {
  Entry entry{cursor.Name(fmt::format("the name of tensor {}", number), kMaxTensorName), {}, 0};
  GgufTensor& tensor = entry.tensor;
  const std::string what = "tensor " + entry.name;
  const auto sides = cursor.Number<uint32_t>(what);
  Check(sides >= 1 && sides <= kMaxSides, "{}: {} has {} sides, expected 1 to {}", file, what, sides, kMaxSides);
  uint64_t elements = 1;
  for (uint32_t i = 0; i < sides; ++i) {
    const auto side = cursor.Number<uint64_t>(what);
    Check(side <= INT64_MAX && !__builtin_mul_overflow(elements, side, &elements) && elements <= INT64_MAX,
          "{}: {} has a side of {}: its elements cannot be counted in 63 bits", file, what, side);
    tensor.shape.insert(tensor.shape.begin(), static_cast<int64_t>(side));
  }
  const auto code = cursor.Number<uint32_t>(what);
  tensor.type = FindBlockType(code);
  Check(tensor.type != nullptr, "{}: {} is of the type {}, which is not known", file, what, code);
  Check(tensor.shape.back() % tensor.type->elements == 0,
        "{}: {} is of type {} and has rows of {} elements, expected a multiple of {}", file, what, tensor.type->name,
        tensor.shape.back(), tensor.type->elements);
  Check(!__builtin_mul_overflow(static_cast<int64_t>(elements) / tensor.type->elements, tensor.type->bytes,
                                &tensor.bytes),
        "{}: {} has {} elements: its bytes cannot be counted in 63 bits", file, what, elements);
  entry.offset = cursor.Number<uint64_t>(what);
  return entry;
}

// Sets the tensors' positions in `data`, where they must be aligned and disjoint.
void Place(std::vector<Entry>& entries, std::span<const std::byte> data, uint64_t alignment, const std::string& file) {
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return std::pair(a.offset, a.tensor.bytes) < std::pair(b.offset, b.tensor.bytes);
  });
  uint64_t end = 0;
  const Entry* before = nullptr;
  for (Entry& entry : entries) {
    const auto bytes = static_cast<uint64_t>(entry.tensor.bytes);
    Check(entry.offset % alignment == 0, "{}: tensor {} starts at byte {} of the data, expected a multiple of {}", file,
          entry.name, entry.offset, alignment);
    Check(entry.offset <= data.size() && bytes <= data.size() - entry.offset,
          "{}: tensor {} has {} bytes from byte {} of the data on, which has {} (truncated file?)", file, entry.name,
          bytes, entry.offset, data.size());
    Check(before == nullptr || entry.offset >= end, "{}: tensors {} and {} overlap", file,
          before != nullptr ? before->name : "", entry.name);
    entry.tensor.data = data.data() + entry.offset;
    end = entry.offset + bytes;
    before = &entry;
  }
}

template <typename T>
int64_t ToInteger(const std::byte* data, const std::string& name, std::string_view key) {
  const T value = Load<T>(data);
  if constexpr (std::is_same_v<T, uint64_t>)
    Check(value <= INT64_MAX, "{}: {} holds {}, more than 63 bits", name, key, value);
  return static_cast<int64_t>(value);
}

bool IsInteger(GgufKind kind) {
  switch (kind) {
    case GgufKind::kFloat32:
    case GgufKind::kFloat64:
    case GgufKind::kBool:
    case GgufKind::kString:
    case GgufKind::kArray: return false;
    default: return true;
  }
}

int64_t IntegerAt(const GgufValue& value, uint64_t i, const std::string& name, std::string_view key) {
  const std::byte* const data = value.bytes.data() + i * Traits(value.kind).bytes;
  switch (value.kind) {
    case GgufKind::kUint8: return ToInteger<uint8_t>(data, name, key);
    case GgufKind::kInt8: return ToInteger<int8_t>(data, name, key);
    case GgufKind::kUint16: return ToInteger<uint16_t>(data, name, key);
    case GgufKind::kInt16: return ToInteger<int16_t>(data, name, key);
    case GgufKind::kUint32: return ToInteger<uint32_t>(data, name, key);
    case GgufKind::kInt32: return ToInteger<int32_t>(data, name, key);
    case GgufKind::kUint64: return ToInteger<uint64_t>(data, name, key);
    default: return ToInteger<int64_t>(data, name, key);
  }
}

double ShortestDecimal(float value) {
  std::array<char, 64> text = {};
  const auto end = std::to_chars(text.data(), text.data() + text.size(), value).ptr;
  double decimal = value;
  std::from_chars(text.data(), end, decimal);
  return decimal;
}

std::string Describe(const GgufValue& value) {
  return value.array ? fmt::format("an array of {} {}", value.count, Traits(value.kind).name)
                     : fmt::format("a {}", Traits(value.kind).name);
}

// "PREFIX-00002-of-00003.gguf"
std::string PartName(const std::string& prefix, int64_t number, int64_t count) {
  return fmt::format("{}-{:05}-of-{:05}.gguf", prefix, number, count);
}

}  // namespace

bool IsGguf(const fs::path& path) {
  std::error_code none;
  return fs::is_regular_file(path, none);
}

const GgufValue& GgufMetadata::Find(std::string_view key, bool array, const char* expected) const {
  const auto found = values_.find(key);
  Check(found != values_.end(), "{}: {} is missing from the metadata (expected {})", name_, key, expected);
  Check(found->second.array == array, "{}: {} is {}, expected {}", name_, key, Describe(found->second), expected);
  return found->second;
}

int64_t GgufMetadata::Integer(std::string_view key, int64_t low, int64_t high) const {
  const GgufValue& value = Find(key, false, "an integer");
  Check(IsInteger(value.kind), "{}: {} is {}, expected an integer", name_, key, Describe(value));
  const int64_t number = IntegerAt(value, 0, name_, key);
  Check(number >= low && number <= high, "{}: {} is {}, expected {} to {}", name_, key, number, low, high);
  return number;
}
int64_t GgufMetadata::Integer(std::string_view key, int64_t low, int64_t high, int64_t fallback) const {
  return Has(key) ? Integer(key, low, high) : fallback;
}

double GgufMetadata::Number(std::string_view key) const {
  const GgufValue& value = Find(key, false, "a float32");
  const bool single = value.kind == GgufKind::kFloat32;
  Check(single || value.kind == GgufKind::kFloat64, "{}: {} is {}, expected a float32", name_, key, Describe(value));
  const std::byte* const data = value.bytes.data();
  const double number = single ? ShortestDecimal(Load<float>(data)) : Load<double>(data);
  Check(std::isfinite(number), "{}: {} is {}, expected a finite number", name_, key, number);
  return number;
}
double GgufMetadata::Number(std::string_view key, double fallback) const { return Has(key) ? Number(key) : fallback; }

bool GgufMetadata::Flag(std::string_view key, bool fallback) const {
  if (!Has(key)) return fallback;
  const GgufValue& value = Find(key, false, "a bool");
  Check(value.kind == GgufKind::kBool, "{}: {} is {}, expected a bool", name_, key, Describe(value));
  return value.bytes[0] != std::byte{0};
}

std::string_view GgufMetadata::Text(std::string_view key) const {
  const GgufValue& value = Find(key, false, "a string");
  Check(value.kind == GgufKind::kString, "{}: {} is {}, expected a string", name_, key, Describe(value));
  const auto text = value.bytes.subspan(sizeof(uint64_t));
  return {reinterpret_cast<const char*>(text.data()), text.size()};
}
std::string_view GgufMetadata::Text(std::string_view key, std::string_view fallback) const {
  return Has(key) ? Text(key) : fallback;
}

std::vector<bool> GgufMetadata::Flags(std::string_view key) const {
  const GgufValue& value = Find(key, true, "an array of booleans");
  std::vector<bool> flags;
  if (value.kind != GgufKind::kBool) {
    for (const int64_t number : Integers(key)) flags.push_back(number != 0);
  } else {
    for (const std::byte flag : value.bytes) flags.push_back(flag != std::byte{0});
  }
  return flags;
}

std::vector<int64_t> GgufMetadata::Integers(std::string_view key) const {
  const GgufValue& value = Find(key, true, "an array of integers");
  Check(IsInteger(value.kind), "{}: {} is {}, expected an array of integers", name_, key, Describe(value));
  std::vector<int64_t> numbers;
  for (uint64_t i = 0; i < value.count; ++i) numbers.push_back(IntegerAt(value, i, name_, key));
  return numbers;
}

std::vector<float> GgufMetadata::Numbers(std::string_view key) const {
  const GgufValue& value = Find(key, true, "an array of float32");
  Check(value.kind == GgufKind::kFloat32, "{}: {} is {}, expected an array of float32", name_, key, Describe(value));
  std::vector<float> numbers(value.count);
  if (!numbers.empty()) std::memcpy(numbers.data(), value.bytes.data(), value.bytes.size());
  return numbers;
}

std::vector<std::string_view> GgufMetadata::Texts(std::string_view key) const {
  const GgufValue& value = Find(key, true, "an array of strings");
  Check(value.kind == GgufKind::kString, "{}: {} is {}, expected an array of strings", name_, key, Describe(value));
  std::vector<std::string_view> texts;
  const auto* at = value.bytes.data();
  for (uint64_t i = 0; i < value.count; ++i) {  // the lengths were checked when the value was read
    const auto length = Load<uint64_t>(at);
    texts.emplace_back(reinterpret_cast<const char*>(at) + sizeof(length), length);
    at += sizeof(length) + length;
  }
  return texts;
}

GgufContents GgufFile::Parse(std::span<const std::byte> bytes, const std::string& name) {
  Cursor cursor(bytes, name);
  Check(bytes.size() >= kMagic.size() && std::memcmp(bytes.data(), kMagic.data(), kMagic.size()) == 0,
        "{}: not a GGUF file: it does not begin with \"GGUF\" (a model is a GGUF file or a directory)", name);
  cursor.Take(kMagic.size(), "the magic");
  const auto version = cursor.Number<uint32_t>("the version");
  Check((version & 0xFFFF) != 0, "{}: a big-endian GGUF file, which is not supported", name);
  Check(version == 2 || version == 3, "{}: GGUF version {}, expected 2 or 3", name, version);
  const auto tensor_count = cursor.Number<uint64_t>("the number of tensors");
  const auto value_count = cursor.Number<uint64_t>("the number of metadata values");

  GgufContents contents{GgufMetadata(name), {}};
  for (uint64_t i = 0; i < value_count; ++i) {
    const std::string key = cursor.Name(fmt::format("key {} of the metadata", i), kMaxKey);
    const bool fresh = contents.metadata.values_.try_emplace(key, ReadValue(cursor, key, name)).second;
    Check(fresh, "{}: {} is twice in the metadata", name, key);
  }
  constexpr const char* kAlignment = "general.alignment";
  const auto alignment =
      static_cast<uint64_t>(contents.metadata.Integer(kAlignment, 1, int64_t{1} << 31, kDefaultAlignment));
  Check(std::has_single_bit(alignment), "{}: {} is {}, expected a power of two", name, kAlignment, alignment);

  std::vector<Entry> entries;
  for (uint64_t i = 0; i < tensor_count; ++i) entries.push_back(ReadEntry(cursor, i, name));
  const uint64_t padding = (alignment - cursor.at() % alignment) % alignment;
  // A file without tensors may end before the padding.
  const uint64_t data = std::min<uint64_t>(cursor.at() + padding, bytes.size());
  Place(entries, bytes.subspan(data), alignment, name);
  for (Entry& entry : entries) {
    const bool fresh = contents.tensors.try_emplace(entry.name, std::move(entry.tensor)).second;
    Check(fresh, "{}: tensor {} is there twice", name, entry.name);
  }
  return contents;
}

GgufFile::GgufFile(const fs::path& path) : contents_{GgufMetadata(path.string()), {}} {
  files_.emplace_back(path);
  contents_ = Parse(files_.front().bytes(), path.string());
  OpenParts();
}

void GgufFile::OpenParts() {
  const std::string first = path().string();
  const int64_t count = metadata().Integer("split.count", 0, 65535, 1);
  if (count <= 1) return;
  const int64_t number = metadata().Integer("split.no", 0, count - 1) + 1;
  const std::string ending = PartName("", number, count);
  Check(first.ends_with(ending), "{}: part {} of {} of a model, which must have a name that ends with {}", first,
        number, count, ending);
  const std::string prefix = first.substr(0, first.size() - ending.size());
  Check(number == 1, "{}: part {} of {} of a model; give the first part, {}", first, number, count,
        PartName(prefix, 1, count));
  for (int64_t part = 2; part <= count; ++part) {
    const fs::path file = PartName(prefix, part, count);
    Check(IsGguf(file), "{}: part {} of {} is missing: {}", first, part, count, file.string());
    files_.emplace_back(file);
    GgufContents more = Parse(files_.back().bytes(), file.string());
    const int64_t parts = more.metadata.Integer("split.count", 0, 65535);
    const int64_t self = more.metadata.Integer("split.no", 0, 65535) + 1;
    Check(parts == count && self == part, "{}: says that it is part {} of {}, expected part {} of {}", file.string(),
          self, parts, part, count);
    for (auto& [name, tensor] : more.tensors)
      Check(contents_.tensors.try_emplace(name, std::move(tensor)).second, "{}: tensor {} is in an earlier part too",
            file.string(), name);
  }
  const auto tensors = static_cast<int64_t>(contents_.tensors.size());
  const int64_t expected = metadata().Integer("split.tensors.count", 0, INT64_MAX, tensors);
  Check(tensors == expected, "{}: the {} parts have {} tensors, expected {} (split.tensors.count)", first, count,
        tensors, expected);
}

}  // namespace shiftrt
