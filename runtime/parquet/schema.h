// SPDX-License-Identifier: Apache-2.0
// The schema of a Parquet file: a tree whose leaves are its columns.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/parquet/thrift.h"

namespace shiftrt::parquet {

enum class Repetition { kRequired, kOptional, kRepeated };

// The numbers of the types are those of parquet.thrift.
enum PhysicalType { kBoolean, kInt32, kInt64, kInt96, kFloat, kDouble, kByteArray, kFixedLenByteArray };

struct SchemaNode {
  std::string name, path;  // "a.list.element"
  Repetition repetition = Repetition::kRequired;
  int max_definition = 0, max_repetition = 0;  // levels of values at this node
  int64_t type = -1;                           // the physical type of a leaf
  bool is_unsigned = false;                    // integers
  bool list = false;                           // a LIST: its repeated child holds the elements
  bool leaf = false;
  int first_leaf = 0, leaves = 0;  // the columns below, in their order
  std::string unsupported;         // why values cannot be read, "" if they can
  std::vector<SchemaNode> children;
};

// Builds the tree from the list of schema elements and returns its root. Throws Error for a tree that is damaged or
// nested too deep.
SchemaNode ReadSchema(const std::vector<Thrift>& elements);

}  // namespace shiftrt::parquet
