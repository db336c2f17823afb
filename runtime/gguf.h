// SPDX-License-Identifier: Apache-2.0
// The GGUF container, versions 2 and 3: metadata, a table of tensors, then the tensors' bytes. Nothing here knows what
// the metadata means; models/gguf.h and tokenizers/gguf.h do. Source: the page gguf.md in ggml-org/ggml.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/block_types.h"
#include "runtime/files.h"

namespace shiftrt {

// True if `path` is a GGUF file rather than a directory with a model: every regular file counts as one.
bool IsGguf(const std::filesystem::path& path);

// The types of values, with the numbers that files use.
enum class GgufKind : uint32_t {
  kUint8,
  kInt8,
  kUint16,
  kInt16,
  kUint32,
  kInt32,
  kFloat32,
  kBool,
  kString,
  kArray,
  kUint64,
  kInt64,
  kFloat64,
};

// A value that was checked. Its bytes are in the file.
struct GgufValue {
  GgufKind kind;                     // never kArray
  bool array;                        // true: an array of `kind`
  uint64_t count;                    // number of elements; 1 unless it is an array
  std::span<const std::byte> bytes;  // strings with their lengths
};

// The metadata by key. Each access checks the type and throws Error naming file, key, what is there and what was
// expected. Strings are views into the file.
class GgufMetadata {
 public:
  explicit GgufMetadata(std::string name) : name_(std::move(name)) {}

  const std::string& name() const { return name_; }  // the name of the file in errors
  const std::map<std::string, GgufValue, std::less<>>& values() const { return values_; }
  bool Has(std::string_view key) const { return values_.contains(key); }

  // A number of any integer type, between `low` and `high`. Throws Error if the key is missing, unless there is a
  // default.
  int64_t Integer(std::string_view key, int64_t low, int64_t high) const;
  int64_t Integer(std::string_view key, int64_t low, int64_t high, int64_t fallback) const;
  // A floating-point number. A float32 is given as the shortest decimal number that rounds to it: 1e-5, not
  // 9.99999974737875e-6.
  double Number(std::string_view key) const;
  double Number(std::string_view key, double fallback) const;
  bool Flag(std::string_view key, bool fallback) const;
  std::string_view Text(std::string_view key) const;
  std::string_view Text(std::string_view key, std::string_view fallback) const;
  // Arrays of booleans or integers, where 0 is false; of any integer type, of float32 or float64, and of strings.
  std::vector<bool> Flags(std::string_view key) const;
  std::vector<int64_t> Integers(std::string_view key) const;
  std::vector<float> Numbers(std::string_view key) const;
  std::vector<std::string_view> Texts(std::string_view key) const;

 private:
  friend class GgufFile;
  const GgufValue& Find(std::string_view key, bool array, const char* expected) const;

  std::string name_;
  std::map<std::string, GgufValue, std::less<>> values_;
};

struct GgufTensor {
  const std::byte* data;
  const BlockTraits* type;
  std::vector<int64_t> shape;  // the outermost side first; files have the opposite order
  int64_t bytes;
};
using GgufTensors = std::map<std::string, GgufTensor, std::less<>>;

struct GgufContents {
  GgufMetadata metadata;
  GgufTensors tensors;
};

// A mapped file, or all files of a split model, and the views into them. Every number is checked before it is used:
// counts, lengths and sizes against the size of the file, with arithmetic that cannot overflow; types, booleans and the
// alignment (a power of two); names and keys, which must be unique; tensors, which have 1 to 4 sides, consist of whole
// blocks, and are aligned, inside the file and disjoint. Arrays of arrays are refused. Throws Error naming the file,
// the key or tensor, what was found and what was expected.
class GgufFile {
 public:
  // Opens a file. For a model in parts (NAME-00001-of-00003.gguf), `path` is the first; the others are opened with it.
  // A part that is missing, that belongs to another model, or that repeats a tensor is an error.
  explicit GgufFile(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return files_.front().path(); }
  const GgufMetadata& metadata() const { return contents_.metadata; }  // the metadata of the first part
  const GgufContents& contents() const { return contents_; }
  const GgufTensors& tensors() const { return contents_.tensors; }

  // Checks a file in memory (called by the fuzzer) and returns views into it. Errors call the file `name`.
  static GgufContents Parse(std::span<const std::byte> bytes, const std::string& name);

 private:
  void OpenParts();

  std::vector<MappedFile> files_;
  GgufContents contents_;
};

}  // namespace shiftrt
