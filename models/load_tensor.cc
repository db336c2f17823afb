// SPDX-License-Identifier: Apache-2.0
// Converts a tensor in a file to one in memory.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <mutex>

#include "models/checkpoint.h"
#include "models/packed_tensor.h"
#include "runtime/check.h"
#include "runtime/elements.h"
#include "runtime/host_memory.h"
#include "runtime/parallel.h"

namespace shiftrt {

namespace {

constexpr int64_t kPiece = 256;  // elements decoded at a time: a whole number of blocks of every type

// The position in the file of row i of the model.
int64_t InFile(const FileTensor& tensor, int64_t row) { return tensor.order ? (*tensor.order)[row] : row; }

// The rows of a tensor in its file.
struct FileRows {
  int64_t count, elements, bytes;

  explicit FileRows(const FileTensor& tensor) {
    // A plain vector counts as a column, so that its elements can be reordered. A vector in blocks is one row.
    const bool vector = tensor.shape.size() == 1, column = vector && PlainType(tensor.type);
    elements = column ? 1 : tensor.shape.back();
    count = elements > 0 ? tensor.elements() / elements : 0;
    bytes = elements / TraitsOf(tensor.type).elements * TraitsOf(tensor.type).bytes;
  }
};

// As ForEachPiece. All rows of a range of columns come before the next range, because layouts that are packed down the
// columns have neighbouring rows side by side.
template <typename Use>
void ForEachPackedPiece(const FileTensor& tensor, const Use& use) {
  const PackedTensor& packed = *tensor.packed;
  const PackedReader reader(packed);
  const int64_t ranges = (packed.columns + kPiece - 1) / kPiece;
  ParallelFor(Cores(), ranges * packed.rows, 16, [&](int64_t begin, int64_t end) {
    std::array<float, kPiece> values;
    for (int64_t piece = begin; piece < end; ++piece) {
      const int64_t row = piece % packed.rows, at = piece / packed.rows * kPiece;
      const int64_t count = std::min(kPiece, packed.columns - at);
      reader.Read(InFile(tensor, row), at, count, values.data());
      if (!use(row * packed.columns + at, values.data(), count)) return;
    }
  });
}

// Applies what the file's elements need: FileTensor::map and offset.
void Adjust(const FileTensor& tensor, std::span<float> values) {
  if (tensor.map != nullptr) std::ranges::transform(values, values.begin(), tensor.map);
  if (tensor.offset == 0) return;
  for (float& value : values) value += tensor.offset;
}

// Row `row` of the file, in the order in which it has the columns. Neighbours among transposed rows share cache lines.
void ReadRow(const FileTensor& tensor, const FileRows& rows, int64_t row, float* out) {
  const BlockTraits& type = TraitsOf(tensor.type);
  if (tensor.transposed == 0) return type.decode(tensor.data + row * rows.bytes, rows.elements / type.elements, out);
  const int64_t of_matrix = rows.count / tensor.transposed, before = row / of_matrix * of_matrix * rows.elements;
  for (int64_t i = 0; i < rows.elements; ++i)
    type.decode(tensor.data + (before + i * of_matrix + row % of_matrix) * type.bytes, 1, out + i);
}

// As ForEachPiece, of rows that are not stored in one piece, or whose columns are in another order.
template <typename Use>
void ForEachReorderedRow(const FileTensor& tensor, const Use& use) {
  const FileRows rows(tensor);
  ParallelFor(Cores(), rows.count, 16, [&](int64_t begin, int64_t end) {
    std::vector<float> in_file(rows.elements), values(rows.elements);
    for (int64_t row = begin; row < end; ++row) {
      ReadRow(tensor, rows, InFile(tensor, row), in_file.data());
      for (int64_t i = 0; i < rows.elements; ++i) values[i] = in_file[tensor.columns ? (*tensor.columns)[i] : i];
      Adjust(tensor, values);
      if (!use(row * rows.elements, values.data(), rows.elements)) return;
    }
  });
}

// Calls use(first, values, count) for all elements of `tensor` in the order of the model, in pieces of float32, from
// several threads. If use returns false, its thread skips the rest of its range.
template <typename Use>
void ForEachPiece(const FileTensor& tensor, const Use& use) {
  if (tensor.packed) return ForEachPackedPiece(tensor, use);
  if (tensor.columns || tensor.transposed > 0) return ForEachReorderedRow(tensor, use);
  const FileRows rows(tensor);
  const BlockTraits& type = TraitsOf(tensor.type);
  // A short row is one piece. If rows need no reordering, they are handled as one long row.
  const bool ordered = tensor.order == nullptr;
  const int64_t length = ordered ? rows.count * rows.elements : rows.elements;
  const int64_t per_row = (length + kPiece - 1) / kPiece, pieces = ordered ? per_row : per_row * rows.count;
  ParallelFor(Cores(), pieces, 16, [&](int64_t begin, int64_t end) {
    std::array<float, kPiece> values;
    for (int64_t piece = begin; piece < end; ++piece) {
      const int64_t row = piece / per_row, at = piece % per_row * kPiece, count = std::min(kPiece, length - at);
      const std::byte* const data = tensor.data + InFile(tensor, row) * rows.bytes + at / type.elements * type.bytes;
      type.decode(data, count / type.elements, values.data());
      Adjust(tensor, std::span(values.data(), static_cast<size_t>(count)));
      if (!use(row * length + at, values.data(), count)) return;
    }
  });
}

// Finds the bad element with the lowest index.
class FirstBad {
 public:
  void Report(int64_t index, float value) {
    const std::scoped_lock lock(joining_);
    if (index < index_) {
      index_ = index;
      value_ = value;
    }
  }
  bool any() const { return index_ < std::numeric_limits<int64_t>::max(); }
  int64_t index() const { return index_; }
  float value() const { return value_; }

 private:
  std::mutex joining_;
  int64_t index_ = std::numeric_limits<int64_t>::max();
  float value_ = 0;
};

void CheckFinite(const std::string& where, const FileTensor& tensor) {
  FirstBad bad;
  ForEachPiece(tensor, [&](int64_t first, const float* values, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      if (std::isfinite(values[i])) continue;
      bad.Report(first + i, values[i]);
      return false;
    }
    return true;
  });
  if (bad.any()) Fail("{}: element {} is {}", where, bad.index(), bad.value());
}

// Copies the tensor to elements of type T, which must be able to hold every finite one.
template <typename T>
TensorView Converted(const std::string& where, const FileTensor& tensor, Weights& weights) {
  auto copy = std::make_shared<Buffer<T>>(tensor.elements());
  FirstBad bad;
  ForEachPiece(tensor, [&](int64_t first, const float* values, int64_t count) {
    T* const out = copy->data() + first;
    bool fits = true;
    for (int64_t i = 0; i < count; ++i) {
      out[i] = T(values[i]);
      fits = fits && (std::isfinite(static_cast<float>(out[i])) || !std::isfinite(values[i]));
    }
    for (int64_t i = 0; !fits && i < count; ++i) {
      if (std::isfinite(static_cast<float>(out[i])) || !std::isfinite(values[i])) continue;
      bad.Report(first + i, values[i]);
      break;
    }
    return fits;
  });
  if (bad.any())
    Fail("{}: element {} is {}, too large for {}", where, bad.index(), bad.value(), Name(DTypeOf<T>::value));
  for (const std::span<const std::byte> bytes : tensor.Stored()) ReleasePages(bytes);
  weights.storage.push_back(copy);
  weights.stored[copy->data()] = tensor;
  return {copy->data(), DTypeOf<T>::value, tensor.shape};
}

// A copy of quantised rows in the order of the model.
TensorView Reordered(const FileTensor& tensor, DType type, Weights& weights) {
  const FileRows rows(tensor);
  auto copy = std::make_shared<Buffer<std::byte>>(tensor.bytes());
  for (int64_t i = 0; i < rows.count; ++i)
    std::memcpy(copy->data() + i * rows.bytes, tensor.data + InFile(tensor, i) * rows.bytes,
                static_cast<size_t>(rows.bytes));
  weights.storage.push_back(copy);
  weights.stored[copy->data()] = tensor;
  return {copy->data(), type, tensor.shape};
}

// A copy in blocks of MXFP4, which are the exponent and 16 bytes, whose low halves have the codes of the first 16
// elements. The file has the codes of neighbours in each byte, and the exponents apart.
TensorView InMxBlocks(const FileTensor& tensor, Weights& weights) {
  const PackedTensor& packed = *tensor.packed;
  const PackedReader reader(packed);  // it has looked at the exponents
  constexpr int64_t kBytes = 17, kHalf = 16;
  const int64_t groups = packed.grid_columns();
  auto copy = std::make_shared<Buffer<std::byte>>(packed.rows * groups * kBytes);
  ParallelFor(Cores(), packed.rows, 16, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t in_file = InFile(tensor, row);
      for (int64_t group = 0; group < groups; ++group) {
        std::byte* const block = copy->data() + (row * groups + group) * kBytes;
        const std::byte* const codes = packed.codes.data + (in_file * groups + group) * kHalf;
        block[0] = packed.scales.tensor.bytes[in_file * groups + group];
        for (int64_t i = 0; i < kHalf; ++i) {
          const auto code = [&](int64_t at) { return codes[at / 2] >> (at % 2 * 4) & std::byte{15}; };
          block[1 + i] = code(i) | code(i + kHalf) << 4;
        }
      }
    }
  });
  for (const std::span<const std::byte> bytes : tensor.Stored()) ReleasePages(bytes);
  weights.storage.push_back(copy);
  weights.stored[copy->data()] = tensor;
  return {copy->data(), DType::kMXFP4, tensor.shape};
}

// A unique address without memory, for a tensor that another process holds. It must not be read.
TensorView Elsewhere(const FileTensor& tensor, DType type, Weights& weights) {
  TensorView view{nullptr, type, tensor.shape};
  std::shared_ptr<const void> address = ReserveAddresses(view.bytes());
  view.data = address.get();
  weights.stored[view.data] = tensor;
  weights.storage.push_back(std::move(address));
  return view;
}

}  // namespace

DType MemoryType(const FileTensor& tensor, WeightType dtype) {
  switch (dtype) {
    case WeightType::kFloat32: return DType::kFloat32;
    case WeightType::kFloat16: return DType::kFloat16;
    case WeightType::kBFloat16: return DType::kBFloat16;
    case WeightType::kExpanded: return ExpandedType(DTypeOfBlocks(tensor.type));
    case WeightType::kAsStored: break;
  }
  // Vectors are read element by element.
  const DType stored = DTypeOfBlocks(tensor.type);
  return tensor.shape.size() == 2 && tensor.offset == 0 && !tensor.columns ? stored : ExpandedType(stored);
}

TensorView LoadTensor(const std::string& where, const FileTensor& tensor, bool here, const LoadOptions& options,
                      Weights& weights) {
  if (here && options.check_finite) CheckFinite(where, tensor);
  const DType type = MemoryType(tensor, options.dtype);
  // Quantised blocks are read byte by byte, at any address.
  const bool aligned = IsQuantised(type) || reinterpret_cast<uintptr_t>(tensor.data) % SizeOf(type) == 0;
  const bool same = DTypeOfBlocks(tensor.type) == type && tensor.offset == 0 && tensor.map == nullptr &&
                    !tensor.packed && tensor.transposed == 0;
  if (same && tensor.order == nullptr && tensor.columns == nullptr && aligned) {
    weights.mapped->Add(tensor);
    return {tensor.data, type, tensor.shape};
  }
  if (!here) return Elsewhere(tensor, type, weights);
  if (IsQuantised(type)) return tensor.packed ? InMxBlocks(tensor, weights) : Reordered(tensor, type, weights);
  return WithType(type, [&]<typename T>(std::type_identity<T>) { return Converted<T>(where, tensor, weights); });
}

}  // namespace shiftrt
