// SPDX-License-Identifier: Apache-2.0
#include "runtime/parquet/schema.h"

#include "runtime/check.h"

namespace shiftrt::parquet {

namespace {

constexpr int kMaxDepth = 24;  // three nodes for each level of lists

enum Field { kType = 1, kRepetition = 3, kName = 4, kChildren = 5, kConverted = 6 };
enum Converted { kMap = 1, kMapKeyValue, kList, kDecimal = 5, kUint8 = 11, kUint64 = 14, kBson = 20, kInterval };

class Reader {
 public:
  explicit Reader(const std::vector<Thrift>& elements) : elements_(elements) {}

  SchemaNode Read() {
    SchemaNode root = ReadNode(nullptr, 0);
    Check(at_ == elements_.size(), "damaged: the schema has {} elements, {} are used", elements_.size(), at_);
    Check(!root.leaf, "damaged: the schema has no columns");
    return root;
  }

 private:
  SchemaNode ReadNode(const SchemaNode* parent, int depth) {
    Check(depth < kMaxDepth, "a schema nested more than {} levels deep is not supported", kMaxDepth);
    Check(at_ < elements_.size(), "damaged: the schema ends too early");
    const Thrift& element = elements_[at_++];
    SchemaNode node;
    node.name = element.Text(kName, "the name of a schema element");
    if (parent != nullptr) {
      node.path = parent->path.empty() ? node.name : parent->path + "." + node.name;
      node.repetition = static_cast<Repetition>(element.Integer(kRepetition, "repetition_type", 0, 2));
      node.max_definition = parent->max_definition + (node.repetition == Repetition::kRequired ? 0 : 1);
      node.max_repetition = parent->max_repetition + (node.repetition == Repetition::kRepeated ? 1 : 0);
    }
    const int64_t converted = element.Has(kConverted) ? element.Integer(kConverted, "converted_type", 0, 100) : -1;
    const int64_t children = element.Has(kChildren) ? element.Integer(kChildren, "num_children", 0, 1 << 20) : 0;
    node.first_leaf = leaves_;
    node.leaf = children == 0;
    if (node.leaf) {
      ReadType(element, converted, node);
      ++leaves_;
    }
    for (int64_t i = 0; i < children; ++i) node.children.push_back(ReadNode(&node, depth + 1));
    node.leaves = leaves_ - node.first_leaf;
    if (converted == kMap || converted == kMapKeyValue) node.unsupported = "a MAP";
    node.list = converted == kList;
    const bool well_formed = children == 1 && node.children[0].repetition == Repetition::kRepeated;
    if (node.list && !well_formed) node.unsupported = "a LIST without a repeated child";
    for (const SchemaNode& child : node.children)
      if (node.unsupported.empty()) node.unsupported = child.unsupported;
    return node;
  }

  static void ReadType(const Thrift& element, int64_t converted, SchemaNode& node) {
    node.type = element.Integer(kType, "the type of a column", 0, 100);
    node.is_unsigned = converted >= kUint8 && converted <= kUint64;
    if (node.type == kInt96) node.unsupported = "the type INT96";
    if (node.type == kFixedLenByteArray) node.unsupported = "the type FIXED_LEN_BYTE_ARRAY";
    if (node.type > kFixedLenByteArray) node.unsupported = "an unknown type";
    if (converted == kDecimal || converted == kBson || converted == kInterval)
      node.unsupported = converted == kDecimal ? "a DECIMAL" : converted == kBson ? "BSON" : "an INTERVAL";
  }

  const std::vector<Thrift>& elements_;
  size_t at_ = 0;
  int leaves_ = 0;
};

}  // namespace

SchemaNode ReadSchema(const std::vector<Thrift>& elements) { return Reader(elements).Read(); }

}  // namespace shiftrt::parquet
