// SPDX-License-Identifier: Apache-2.0
// The safetensors format: 8 bytes of little-endian header length, a JSON header, then the tensors' bytes.
// Rules as in the reference reader (huggingface/safetensors, `SafeTensors::deserialize`).
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/files.h"
#include "runtime/tensor.h"

namespace shiftrt {

// A tensor as a file stores it, of any type.
struct RawTensor {
  std::string type;  // as the header spells it: "I32", "F8_E4M3"
  std::vector<int64_t> shape;
  std::span<const std::byte> bytes;
};
RawTensor RawOf(const TensorView& tensor);
// The type of its elements; empty if it is not in DType.
std::optional<DType> PlainTypeOf(const RawTensor& tensor);

// A mapped file and the views into it. Every number in the header is checked before it is used: header at most 100 MB
// and starting with '{', no duplicate names, known dtypes, shape products without overflow, ranges contiguous, disjoint
// and covering the data exactly, range length equal to dtype x shape. Throws Error naming file and tensor.
// Tensors of integer and other types not in DType are checked the same way and listed separately.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::filesystem::path& path);
  const std::map<std::string, TensorView, std::less<>>& tensors() const { return tensors_; }
  const std::map<std::string, std::string, std::less<>>& metadata() const { return metadata_; }
  // Tensors whose type is not in DType.
  const std::map<std::string, RawTensor, std::less<>>& others() const { return others_; }
  const std::filesystem::path& path() const { return file_.path(); }

  // Checks the header of a file in memory (called by the fuzzer) and returns views into it. Errors call the file
  // `name`. `metadata` and `others` may be null.
  static std::map<std::string, TensorView, std::less<>> Parse(
      std::span<const std::byte> bytes, const std::string& name,
      std::map<std::string, std::string, std::less<>>* metadata,
      std::map<std::string, RawTensor, std::less<>>* others = nullptr);

 private:
  MappedFile file_;
  std::map<std::string, TensorView, std::less<>> tensors_;
  std::map<std::string, std::string, std::less<>> metadata_;
  std::map<std::string, RawTensor, std::less<>> others_;
};

struct NamedTensor {
  std::string name;
  TensorView tensor;
  bool in_file = false;  // its memory is that of AllocateInFile(), whose pages are released once they were read
};

// 64-bit hash, as 16 hexadecimal digits, of `text` and of the names and bytes of `tensors`, whose order does not count.
// A file of shiftrt's own keeps it in its metadata, so that damage is found when the file is read.
std::string ChecksumOf(std::string text, std::vector<NamedTensor> tensors);
std::string ChecksumOf(std::string text, const std::map<std::string, TensorView, std::less<>>& tensors);

// The bytes that precede the data: header length and header, padded so that the data starts at a multiple of 64. Reads
// only the names, dtypes and shapes of `tensors`; the data must follow in the same order.
std::string SafetensorsHeader(const std::vector<NamedTensor>& tensors,
                              const std::map<std::string, std::string>& metadata);

// Writes header and data into `file`, which the caller commits.
void WriteSafetensors(AtomicFile& file, const std::vector<NamedTensor>& tensors,
                      const std::map<std::string, std::string>& metadata = {});
// Writes atomically, tensors in the order given, data aligned to 64 bytes from the file's start.
void WriteSafetensors(const std::filesystem::path& path, const std::vector<NamedTensor>& tensors,
                      const std::map<std::string, std::string>& metadata = {});

}  // namespace shiftrt
