// SPDX-License-Identifier: Apache-2.0
#include "runtime/safetensors.h"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>

#include "runtime/host_memory.h"
#include "runtime/json.h"
#include "runtime/printable.h"

namespace shiftrt {

namespace {

using Json = nlohmann::json;

constexpr uint64_t kMaxHeader = 100'000'000;
constexpr int64_t kDataAlignment = 64;

struct StoredType {
  const char* name;
  uint64_t bytes;
  std::optional<DType> dtype;  // empty: the tensor is checked, but this project does not compute with its type
};
constexpr StoredType kStoredTypes[] = {
    {"F32", 4, DType::kFloat32},
    {"F16", 2, DType::kFloat16},
    {"BF16", 2, DType::kBFloat16},
    {"F64", 8, DType::kFloat64},
    {"I64", 8, {}},
    {"U64", 8, {}},
    {"I32", 4, {}},
    {"U32", 4, {}},
    {"I16", 2, {}},
    {"U16", 2, {}},
    {"I8", 1, {}},
    {"U8", 1, {}},
    {"BOOL", 1, {}},
    {"F8_E4M3", 1, {}},
    {"F8_E5M2", 1, {}},
    {"F8_E8M0", 1, {}},
};

const char* StoredName(DType dtype) {
  for (const StoredType& type : kStoredTypes)
    if (type.dtype == dtype) return type.name;
  return "?";
}

// Reads a JSON number that must be an integer in [0, 2^63).
int64_t ToSize(const Json& value, const std::string& name, const std::string& tensor, const char* what) {
  Check(value.is_number_unsigned() && value.get<uint64_t>() <= INT64_MAX, "{}: tensor {}: {} {} is not a size", name,
        tensor, what, Shown(value));
  return value.get<int64_t>();
}

struct HeaderEntry {
  std::string name;
  const StoredType* type;
  std::vector<int64_t> shape;
  int64_t begin, end;
};

HeaderEntry ParseEntry(const std::string& given, const Json& value, const std::string& file) {
  const std::string tensor = Printable(given);
  Check(value.is_object() && value.contains("dtype") && value.contains("shape") && value.contains("data_offsets"),
        "{}: tensor {}: expected an object with dtype, shape and data_offsets", file, tensor);
  HeaderEntry entry{given, nullptr, {}, 0, 0};
  const Json& dtype = value["dtype"];
  Check(dtype.is_string(), "{}: tensor {}: dtype is not a string", file, tensor);
  for (const StoredType& type : kStoredTypes)
    if (dtype.get_ref<const std::string&>() == type.name) entry.type = &type;
  Check(entry.type != nullptr, "{}: tensor {}: unknown dtype {}", file, tensor, Shown(dtype));

  const Json& shape = value["shape"];
  Check(shape.is_array() && shape.size() <= 16, "{}: tensor {}: shape is not a list of at most 16 sizes", file, tensor);
  uint64_t bytes = entry.type->bytes;
  for (const Json& side : shape) {
    entry.shape.push_back(ToSize(side, file, tensor, "shape"));
    Check(!__builtin_mul_overflow(bytes, static_cast<uint64_t>(entry.shape.back()), &bytes),
          "{}: tensor {}: shape {} overflows", file, tensor, Shown(shape));
  }
  const Json& offsets = value["data_offsets"];
  Check(offsets.is_array() && offsets.size() == 2, "{}: tensor {}: data_offsets is not a pair", file, tensor);
  entry.begin = ToSize(offsets[0], file, tensor, "data offset");
  entry.end = ToSize(offsets[1], file, tensor, "data offset");
  Check(entry.begin <= entry.end && static_cast<uint64_t>(entry.end - entry.begin) == bytes,
        "{}: tensor {}: data_offsets {} hold {} bytes, dtype and shape ask for {}", file, tensor, Shown(offsets),
        entry.end - entry.begin, bytes);
  return entry;
}

// Calls `use` with one piece of the tensor's bytes after another.
template <typename Use>
void ReadPieces(const NamedTensor& tensor, const Use& use) {
  constexpr size_t kPiece = size_t{1} << 24;
  std::span<const std::byte> rest(static_cast<const std::byte*>(tensor.tensor.data), tensor.tensor.bytes());
  while (!rest.empty()) {
    const std::span<const std::byte> piece = rest.first(std::min(kPiece, rest.size()));
    use(piece);
    if (tensor.in_file) ReleasePages(piece);
    rest = rest.subspan(piece.size());
  }
}

}  // namespace

std::optional<DType> PlainTypeOf(const RawTensor& tensor) {
  for (const StoredType& type : kStoredTypes)
    if (tensor.type == type.name) return type.dtype;
  return std::nullopt;
}

RawTensor RawOf(const TensorView& tensor) {
  return {StoredName(tensor.dtype),
          tensor.shape,
          {static_cast<const std::byte*>(tensor.data), static_cast<size_t>(tensor.bytes())}};
}

std::map<std::string, TensorView, std::less<>> SafetensorsFile::Parse(
    std::span<const std::byte> bytes, const std::string& name,
    std::map<std::string, std::string, std::less<>>* metadata, std::map<std::string, RawTensor, std::less<>>* others) {
  Check(bytes.size() >= 8, "{}: {} bytes are too few for a safetensors file", name, bytes.size());
  uint64_t header_size = 0;
  for (int i = 7; i >= 0; --i) header_size = header_size << 8 | static_cast<uint64_t>(bytes[i]);
  Check(header_size <= kMaxHeader, "{}: a header of {} bytes exceeds the limit of {}", name, header_size, kMaxHeader);
  Check(header_size <= bytes.size() - 8, "{}: truncated: the header has {} bytes, the file {}", name, header_size,
        bytes.size());
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()) + 8, header_size);
  Check(text.starts_with('{'), "{}: the safetensors header does not start with '{{'", name);
  const Json header = ParseJson(text, name);

  std::vector<HeaderEntry> entries;
  for (const auto& [tensor, value] : header.items()) {
    if (tensor != "__metadata__") {
      entries.push_back(ParseEntry(tensor, value, name));
      continue;
    }
    Check(value.is_object(), "{}: __metadata__ is not an object", name);
    for (const auto& [key, word] : value.items()) {
      Check(word.is_string(), "{}: __metadata__ {} is not a string", name, Printable(key));
      if (metadata != nullptr) (*metadata)[key] = word.get<std::string>();
    }
  }
  std::sort(entries.begin(), entries.end(), [](const HeaderEntry& a, const HeaderEntry& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });

  const std::span<const std::byte> data = bytes.subspan(8 + header_size);
  std::map<std::string, TensorView, std::less<>> tensors;
  int64_t covered = 0;
  for (const HeaderEntry& entry : entries) {
    Check(entry.begin == covered, "{}: tensor {} starts at byte {} of the data, expected {} (a gap or an overlap)",
          name, Printable(entry.name), entry.begin, covered);
    Check(static_cast<uint64_t>(entry.end) <= data.size(), "{}: tensor {} ends at byte {} of {} (truncated file?)",
          name, Printable(entry.name), entry.end, data.size());
    covered = entry.end;
    if (entry.type->dtype) {
      tensors[entry.name] = {data.data() + entry.begin, *entry.type->dtype, entry.shape};
    } else if (others != nullptr) {
      const std::span stored = data.subspan(entry.begin, static_cast<size_t>(entry.end - entry.begin));
      (*others)[entry.name] = {entry.type->name, entry.shape, stored};
    }
  }
  Check(static_cast<uint64_t>(covered) == data.size(), "{}: the tensors cover {} of {} data bytes", name, covered,
        data.size());
  return tensors;
}

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path) : file_(path) {
  tensors_ = Parse(file_.bytes(), path.string(), &metadata_, &others_);
}

std::string SafetensorsHeader(const std::vector<NamedTensor>& tensors,
                              const std::map<std::string, std::string>& metadata) {
  Json header = Json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  int64_t offset = 0;
  for (const auto& [name, tensor, in_file] : tensors) {
    const int64_t end = offset + tensor.bytes();
    header[name] = {{"dtype", StoredName(tensor.dtype)}, {"shape", tensor.shape}, {"data_offsets", {offset, end}}};
    offset = end;
  }
  const std::string text = header.dump();
  const size_t padded = (8 + text.size() + kDataAlignment - 1) / kDataAlignment * kDataAlignment - 8;
  std::string out;
  for (int i = 0; i < 8; ++i) out.push_back(static_cast<char>(padded >> (8 * i)));
  out += text;
  out.resize(8 + padded, ' ');
  return out;
}

void WriteSafetensors(AtomicFile& file, const std::vector<NamedTensor>& tensors,
                      const std::map<std::string, std::string>& metadata) {
  file.Write(SafetensorsHeader(tensors, metadata));
  for (const NamedTensor& tensor : tensors)
    ReadPieces(tensor, [&](std::span<const std::byte> piece) { file.Write(piece); });
}

void WriteSafetensors(const std::filesystem::path& path, const std::vector<NamedTensor>& tensors,
                      const std::map<std::string, std::string>& metadata) {
  AtomicFile file(path);
  WriteSafetensors(file, tensors, metadata);
  file.Commit();
}

std::string ChecksumOf(std::string text, std::vector<NamedTensor> tensors) {
  std::sort(tensors.begin(), tensors.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  for (const NamedTensor& tensor : tensors) {
    PiecesHash hash;
    ReadPieces(tensor, [&](std::span<const std::byte> piece) { hash.Add(piece); });
    text += fmt::format("\n{} {}", tensor.name, hash.Hex());
  }
  return HashHex(text);
}

std::string ChecksumOf(std::string text, const std::map<std::string, TensorView, std::less<>>& tensors) {
  std::vector<NamedTensor> list;
  list.reserve(tensors.size());
  for (const auto& [name, tensor] : tensors) list.push_back({name, tensor});
  return ChecksumOf(std::move(text), std::move(list));
}

}  // namespace shiftrt
