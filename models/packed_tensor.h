// SPDX-License-Identifier: Apache-2.0
// Matrices that a checkpoint stores as codes of a few bits with scales, and how they are expanded:
// (value of the code - zero point) * scale.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "models/quantisation.h"
#include "runtime/safetensors.h"

namespace shiftrt {

// Codes that stand one after the other in lines, from the lowest bit of each byte on.
struct PackedCodes {
  const std::byte* data = nullptr;
  int bits = 8;
  bool transposed = false;  // a line runs down a column of the matrix; otherwise along a row
  int64_t line_step = 0;    // bytes from one line to the next
  int64_t word_step = 4;    // bytes from a 32-bit word of a line to the next one
  bool awq_order = false;   // eight codes of a word stand in the order 0, 2, 4, 6, 1, 3, 5, 7
  uint32_t added = 0;       // added to each 32-bit word before its codes are read; then no code spans two words

  uint32_t At(int64_t row, int64_t column) const;
};

// A tensor of a file with its name.
struct PackedPart {
  std::string name;
  RawTensor tensor;
};

struct PackedTensor {
  std::string type = {};  // QuantisedForm::name
  int64_t rows = 0, columns = 0;
  PackedCodes codes = {}, zeros = {};                     // zeros.data may be null
  const float *values = nullptr, *zero_values = nullptr;  // by code
  int64_t block_rows = 1, block_columns = 1;              // the numbers with one scale
  bool scales_transposed = false;                         // scales are stored (groups of columns, rows)
  bool mx_blocks = false;  // codes and scales are those of whole blocks of BlockType::kMXFP4, and stay so in memory
  PackedPart scales = {};
  PackedPart divisor = {}, groups = {};  // the scales are divided by the first; both may be absent, without a name
  std::string where = {};                // the model, for messages
  std::vector<PackedPart> parts = {};    // everything that the file holds of the matrix

  // The rows and columns of the scales.
  int64_t grid_rows() const { return (rows + block_rows - 1) / block_rows; }
  int64_t grid_columns() const { return (columns + block_columns - 1) / block_columns; }
  int64_t bytes() const;  // in the file
};

// The values of codes.
const float* UnsignedValues();         // 0, 1, 2, ...
const float* SignedBytes();            // two's complement
const float* CentredValues(int bits);  // less half of the range
const float* Float8Values();           // E4M3
const float* Float4Values();           // E2M1

// Finds the tensors that hold the matrix `name` ("....weight") of this shape in one of the forms. Returns null if none
// of them is there. Throws Error naming the tensor for one that is missing, or has another shape or type. `where` is
// the model in messages. In the place of a tensor of all experts, (experts, columns, rows), transformers has MXFP4
// alone, whose matrices are (rows, columns); they stand one below the other in what is returned.
std::shared_ptr<const PackedTensor> FindPacked(const Quantisation& quantisation,
                                               const std::map<std::string, RawTensor>& tensors,
                                               const std::string& where, const std::string& name,
                                               const std::vector<int64_t>& shape);

// The tensors of which one shows that the matrix `name` is there in one of the forms, as "A or B".
std::string CodesOf(const Quantisation& quantisation, const std::string& name);

// True for a tensor that says how activations, or the cache of keys and values, are quantised, which is not done here.
bool IsOfActivations(std::string_view name);

// Expands rows of a packed matrix. Scales, zero points and groups are read from the file when it is made.
class PackedReader {
 public:
  // Throws Error naming the tensor for a scale that is not finite and for a group that does not exist. Keeps a
  // reference to `packed`.
  explicit PackedReader(const PackedTensor& packed);
  // Writes the elements [first, first + count) of a row to `out`.
  void Read(int64_t row, int64_t first, int64_t count, float* out) const;

 private:
  void ReadScales();
  void ReadZeros();
  void ReadGroups();

  const PackedTensor& packed_;
  int64_t grid_rows_, grid_columns_;   // the sides of the scales
  std::vector<float> scales_, zeros_;  // (grid_rows_, grid_columns_)
  std::vector<int32_t> group_;         // the group of each column
};

}  // namespace shiftrt
