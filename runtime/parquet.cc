// SPDX-License-Identifier: Apache-2.0
#include "runtime/parquet.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "runtime/check.h"
#include "runtime/files.h"
#include "runtime/parquet/column.h"

namespace shiftrt {

namespace {

using Json = nlohmann::json;
using namespace parquet;  // NOLINT: the parts of this reader

constexpr uint64_t kMaxFooter = uint64_t{1} << 26;
constexpr uint64_t kBytesPerField = 128;  // approximate bytes in memory per field of a row

// Assembles rows from the values of columns: definition levels say how deep a value exists, repetition levels at which
// list an entry continues (Melnik et al., Dremel, 2010).
class Assembler {
 public:
  Assembler(std::vector<Column>& columns, const std::vector<SchemaNode>& leaves, Allowance& allowance,
            const std::string& where)
      : columns_(columns), leaves_(leaves), allowance_(allowance), where_(where) {}

  Json Value(const SchemaNode& node) {
    if (node.repetition == Repetition::kRepeated) return Items(node, node);
    if (node.repetition == Repetition::kOptional && !IsThere(node)) return SkipNull(node), Json();
    return Content(node);
  }

  void CheckEnd(const SchemaNode& node) const {
    for (int i = node.first_leaf; i < node.first_leaf + node.leaves; ++i)
      Check(Ended(i) || columns_[i].repetition[columns_[i].entry] == 0, "{}: damaged: {} continues its row", where_,
            leaves_[i].path);
  }
  bool Ended(int leaf) const { return columns_[leaf].entry == columns_[leaf].definition.size(); }

 private:
  // True if the next entry has a value at `node`. All columns below must agree.
  bool IsThere(const SchemaNode& node) const {
    const bool there = Definition(node.first_leaf) >= node.max_definition;
    for (int i = node.first_leaf; i < node.first_leaf + node.leaves; ++i)
      Check((Definition(i) >= node.max_definition) == there, "{}: damaged: columns of {} disagree", where_, node.path);
    return there;
  }

  int Definition(int leaf) const {
    Check(!Ended(leaf), "{}: damaged: {} has too few values", where_, leaves_[leaf].path);
    return columns_[leaf].definition[columns_[leaf].entry];
  }

  void SkipNull(const SchemaNode& node) {
    for (int i = node.first_leaf; i < node.first_leaf + node.leaves; ++i) ++columns_[i].entry;
  }

  Json Content(const SchemaNode& node) {
    if (node.leaf) {
      Column& column = columns_[node.first_leaf];
      Check(Definition(node.first_leaf) == node.max_definition, "{}: damaged: {} has no value here", where_, node.path);
      ++column.entry;
      return std::move(column.values[column.value++]);
    }
    if (node.list) return ListOf(node);
    allowance_.Take((node.children.size() + 1) * kBytesPerField, where_);
    Json object = Json::object();
    for (const SchemaNode& child : node.children) object[child.name] = Value(child);
    return object;
  }

  // The repeated child of a LIST stands for its own only child, but in files of old writers it is the element itself
  // (parquet-format, LogicalTypes.md, "Backward-compatibility rules").
  Json ListOf(const SchemaNode& list) {
    const SchemaNode& repeated = list.children[0];
    const bool element = repeated.leaf || repeated.children.size() != 1 || repeated.name == "array" ||
                         repeated.name == list.name + "_tuple";
    return Items(repeated, element ? repeated : repeated.children[0]);
  }

  // All repetitions of `repeated`; `item` is what each of them holds.
  Json Items(const SchemaNode& repeated, const SchemaNode& item) {
    allowance_.Take(kBytesPerField, where_);
    Json items = Json::array();
    if (!IsThere(repeated)) return SkipNull(repeated), items;
    do items.push_back(&item == &repeated ? Content(item) : Value(item));
    while (Continues(repeated));
    return items;
  }

  bool Continues(const SchemaNode& repeated) const {
    const auto next = [&](int leaf) {
      return !Ended(leaf) && columns_[leaf].repetition[columns_[leaf].entry] == repeated.max_repetition;
    };
    const bool continues = next(repeated.first_leaf);
    for (int i = repeated.first_leaf; i < repeated.first_leaf + repeated.leaves; ++i)
      Check(next(i) == continues, "{}: damaged: columns of {} disagree", where_, repeated.path);
    return continues;
  }

  std::vector<Column>& columns_;
  const std::vector<SchemaNode>& leaves_;
  Allowance& allowance_;
  const std::string& where_;
};

void CollectLeaves(const SchemaNode& node, std::vector<SchemaNode>& leaves) {
  if (node.leaf) leaves.push_back(node);
  for (const SchemaNode& child : node.children) CollectLeaves(child, leaves);
}

// The footer: the last 8 bytes are its length and "PAR1".
Thrift ReadFooter(Bytes file, const std::string& name) {
  const auto text = [&](Bytes bytes) {
    return std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  };
  Check(file.size() >= 12, "{}: {} bytes are no Parquet file", name, file.size());
  const std::string_view magic = text(file.last(4));
  Check(magic != "PARE", "{}: encrypted Parquet is not supported", name);
  Check(magic == "PAR1" && text(file.first(4)) == "PAR1",
        "{}: not a Parquet file, or cut short: no \"PAR1\" at both ends", name);
  const uint64_t size = ByteReader(file.last(8), name).Word();
  Check(size <= kMaxFooter && size <= file.size() - 12, "{}: damaged: a footer of {} bytes in a file of {}", name, size,
        file.size());
  ByteReader in(file.subspan(file.size() - 8 - size, size), name);
  return Thrift::ReadStruct(in);
}

}  // namespace

struct ParquetFile::Impl {
  std::string name;
  uint64_t limit = 0;
  Bytes file;
  Thrift footer;
  SchemaNode root;
  std::vector<SchemaNode> leaves;
  std::vector<std::string> columns;
  int64_t rows = 0;
  uint64_t left = 0;  // bytes of the memory for all row groups

  const std::vector<Thrift>& groups() const { return footer.List(4, "row_groups"); }

  std::vector<Json> Rows(int64_t group, const std::vector<std::string>& wanted, const std::string& where);
};

ParquetFile::ParquetFile(std::string_view bytes, const std::string& name, uint64_t limit)
    : impl_(std::make_unique<Impl>()) {
  impl_->name = name;
  impl_->limit = limit;
  impl_->left = kMaxRowGroups * limit;
  impl_->file = std::as_bytes(std::span(bytes));
  impl_->footer = ReadFooter(impl_->file, name);
  try {
    impl_->root = ReadSchema(impl_->footer.List(2, "schema"));
    impl_->rows = impl_->footer.Integer(3, "num_rows", 0, INT64_MAX);
    impl_->groups();
  } catch (const Error& error) {
    Fail("{}: {}", name, error.what());
  }
  CollectLeaves(impl_->root, impl_->leaves);
  for (const SchemaNode& child : impl_->root.children) impl_->columns.push_back(child.name);
}

ParquetFile::~ParquetFile() = default;

int64_t ParquetFile::rows() const { return impl_->rows; }
int64_t ParquetFile::row_groups() const { return static_cast<int64_t>(impl_->groups().size()); }
const std::vector<std::string>& ParquetFile::columns() const { return impl_->columns; }

std::vector<Json> ParquetFile::Impl::Rows(int64_t group, const std::vector<std::string>& wanted,
                                          const std::string& where) {
  const Thrift& row_group = groups().at(static_cast<size_t>(group));
  const std::vector<Thrift>& chunks = row_group.List(1, "the columns of a row group");
  Check(chunks.size() == leaves.size(), "damaged: {} columns, {} in the schema", chunks.size(), leaves.size());
  const int64_t count = row_group.Integer(3, "num_rows of a row group", 0, INT64_MAX);
  const uint64_t most = std::min(limit, left);
  Allowance allowance(most);
  std::vector<const SchemaNode*> fields;
  for (const SchemaNode& field : root.children)
    if (wanted.empty() || std::find(wanted.begin(), wanted.end(), field.name) != wanted.end()) fields.push_back(&field);
  std::vector<Column> decoded(leaves.size());
  for (const SchemaNode* field : fields) {
    Check(field->unsupported.empty(), "column {}: {} is not supported", field->path, field->unsupported);
    for (int i = field->first_leaf; i < field->first_leaf + field->leaves; ++i)
      decoded[i] = ReadColumn(file, leaves[i], chunks[i].Struct(3, "meta_data of a column"), allowance,
                              fmt::format("column {}", leaves[i].path));
  }
  Check(static_cast<uint64_t>(count) <= limit / kBytesPerField, "{} rows in one row group are more than is allowed",
        count);
  allowance.Take(static_cast<uint64_t>(count) * (fields.size() + 1) * kBytesPerField, where);
  Assembler assembler(decoded, leaves, allowance, where);
  std::vector<Json> rows;
  rows.reserve(static_cast<size_t>(count));
  for (int64_t row = 0; row < count; ++row) {
    Json& object = rows.emplace_back(Json::object());
    for (const SchemaNode* field : fields) {
      object[field->name] = assembler.Value(*field);
      assembler.CheckEnd(*field);
    }
  }
  for (const SchemaNode* field : fields)
    for (int i = field->first_leaf; i < field->first_leaf + field->leaves; ++i)
      Check(assembler.Ended(i), "column {}: damaged: more values than rows", leaves[i].path);
  left -= most - allowance.left();
  return rows;
}

std::vector<Json> ParquetFile::ReadRowGroup(int64_t group, const std::vector<std::string>& columns) {
  const std::string where = fmt::format("row group {}", group);
  Check(group >= 0 && group < row_groups(), "{}: there is no {}; it has {}", impl_->name, where, row_groups());
  try {
    return impl_->Rows(group, columns, "its rows");
  } catch (const Error& error) {
    Fail("{}: {}: {}", impl_->name, where, error.what());
  }
}

bool IsParquet(const std::filesystem::path& file) { return file.extension() == ".parquet"; }

}  // namespace shiftrt
