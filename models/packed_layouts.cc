// SPDX-License-Identifier: Apache-2.0
// The tensors that hold a quantised matrix, layout by layout.
//
// Sources: AutoAWQ (WQLinear_GEMM), GPTQModel (TorchLinear, and the conversion of zero points from version 1 of the
// format to version 2), compressed-tensors, transformers (integrations/finegrained_fp8.py and mxfp4.py), DeepSeek-V3
// (inference/fp8_cast_bf16.py).
#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <set>

#include "models/packed_tensor.h"
#include "runtime/check.h"

namespace shiftrt {

namespace {

using RawTensors = std::map<std::string, RawTensor>;
using Types = std::vector<std::string_view>;
using Shape = std::vector<int64_t>;

const Types kPlainTypes = {"F16", "BF16", "F32"}, kPowerTypes = {"U8", "F8_E8M0"}, kFloat8 = {"F8_E4M3"},
            kAnyScale = {"F32", "F16", "BF16", "F8_E8M0"};

// The name of a part of the matrix `weight`: that of its module, and the suffix. A tensor of all experts is no module's
// weight: its parts have its whole name, and what comes after ".weight" in the suffix.
std::string PartOf(const std::string& weight, std::string_view suffix) {
  constexpr std::string_view kWeight = ".weight";
  if (weight.ends_with(kWeight)) return weight.substr(0, weight.size() - kWeight.size()).append(suffix);
  return weight + std::string(suffix.starts_with(kWeight) ? suffix.substr(kWeight.size()) : suffix);
}

// Takes the tensors of one matrix and checks their types and shapes.
class PackedParts {
 public:
  PackedParts(const RawTensors& tensors, std::string where, std::string weight, Shape rows, const QuantisedForm& form)
      : tensors_(tensors), where_(std::move(where)), weight_(std::move(weight)), rows_(std::move(rows)), form_(form) {}

  const QuantisedForm& form() const { return form_; }
  const Shape& rows() const { return rows_; }  // the rows of a matrix, or (experts, rows)
  bool Has(const char* suffix) const { return tensors_.contains(PartOf(weight_, suffix)); }

  // Any of `shapes` will do; a message names the first.
  PackedPart Take(const char* suffix, const Types& types, const std::vector<Shape>& shapes) {
    const std::string name = PartOf(weight_, suffix);
    const auto found = tensors_.find(name);
    Check(found != tensors_.end(), "{}: tensor {} is missing, a part of a matrix stored as {}", where_, name,
          form_.name);
    const RawTensor& tensor = found->second;
    Check(std::ranges::find(types, tensor.type) != types.end(), "{}: tensor {} is of type {}, expected {} ({})", where_,
          name, tensor.type, fmt::join(types, " or "), form_.name);
    Check(std::ranges::find(shapes, tensor.shape) != shapes.end(), "{}: tensor {} has shape [{}], expected [{}] ({})",
          where_, name, fmt::join(tensor.shape, ", "), fmt::join(shapes.front(), ", "), form_.name);
    taken_.push_back({name, tensor});
    return taken_.back();
  }
  std::vector<PackedPart> taken() && { return std::move(taken_); }

 private:
  const RawTensors& tensors_;
  std::string where_, weight_;
  Shape rows_;
  const QuantisedForm& form_;
  std::vector<PackedPart> taken_;
};

// The shapes of scales with so many rows and columns. Where there is one column, or one scale, files leave out sides.
std::vector<Shape> ShapesOfScales(int64_t rows, int64_t columns) {
  std::vector<Shape> shapes = {{rows, columns}};
  if (columns == 1) shapes.push_back({rows});
  if (rows == 1 && columns == 1) shapes.push_back({});
  return shapes;
}

// 32-bit words that hold so many codes.
int64_t WordsOf(int64_t codes, int64_t bits) { return (codes * bits + 31) / 32; }

void ReadScaled(PackedParts& parts, PackedTensor& packed) {
  const QuantisedForm& form = parts.form();
  packed.codes = {.data = parts.Take(".weight", {form.floating ? "F8_E4M3" : "I8"}, {{packed.rows, packed.columns}})
                              .tensor.bytes.data(),
                  .line_step = packed.columns};
  packed.values = form.floating ? Float8Values() : SignedBytes();
  const std::vector<Shape> grid = ShapesOfScales(packed.grid_rows(), packed.grid_columns());
  const char* const scales = parts.Has(".weight_scale") ? ".weight_scale" : form.scales;
  packed.scales = parts.Take(scales, form.power_scales ? kPowerTypes : kAnyScale, grid);
  if (!form.zero_points) return;
  packed.zeros = {.data = parts.Take(".weight_zero_point", {"I8"}, grid).tensor.bytes.data(),
                  .line_step = packed.grid_columns()};
  packed.zero_values = SignedBytes();
}

// Version 1 of the format stores zero points less 1. The difference was taken from whole words, so that it borrows from
// the next zero point where one is 0.
void ReadGptq(PackedParts& parts, PackedTensor& packed) {
  const QuantisedForm& form = parts.form();
  const int64_t rows = packed.rows, columns = packed.columns, groups = packed.grid_columns(), bits = form.bits;
  const int64_t words = WordsOf(rows, bits);
  packed.codes = {.data = parts.Take(".qweight", {"I32"}, {{WordsOf(columns, bits), rows}}).tensor.bytes.data(),
                  .bits = form.bits,
                  .line_step = 4,
                  .word_step = 4 * rows};
  packed.zeros = {.data = parts.Take(".qzeros", {"I32"}, {{groups, words}}).tensor.bytes.data(),
                  .bits = form.bits,
                  .transposed = true,
                  .line_step = 4 * words,
                  .added = form.zeros_less_one ? ~0U / ((1U << bits) - 1) : 0};
  packed.values = packed.zero_values = UnsignedValues();
  packed.scales = parts.Take(".scales", kPlainTypes, {{groups, rows}});
  packed.scales_transposed = true;
  if (form.ordered || parts.Has(".g_idx")) packed.groups = parts.Take(".g_idx", {"I32"}, {{columns}});
}

void ReadAwq(PackedParts& parts, PackedTensor& packed) {
  const int64_t rows = packed.rows, columns = packed.columns, groups = packed.grid_columns();
  const int64_t words = WordsOf(rows, 4);
  packed.codes = {.data = parts.Take(".qweight", {"I32"}, {{columns, words}}).tensor.bytes.data(),
                  .bits = 4,
                  .transposed = true,
                  .line_step = 4 * words,
                  .awq_order = true};
  packed.zeros = packed.codes;
  packed.zeros.data = parts.Take(".qzeros", {"I32"}, {{groups, words}}).tensor.bytes.data();
  packed.values = packed.zero_values = UnsignedValues();
  packed.scales = parts.Take(".scales", kPlainTypes, {{groups, rows}});
  packed.scales_transposed = true;
}

// The shape that weight_shape holds has to be that of the matrix.
void CheckShape(const PackedPart& part, const PackedTensor& packed) {
  int64_t sides[2];
  std::memcpy(sides, part.tensor.bytes.data(), sizeof(sides));
  Check(sides[0] == packed.rows && sides[1] == packed.columns, "{}: tensor {} holds [{}, {}], expected [{}, {}]",
        packed.where, part.name, sides[0], sides[1], packed.rows, packed.columns);
}

void ReadWords(PackedParts& parts, PackedTensor& packed) {
  const QuantisedForm& form = parts.form();
  const int64_t rows = packed.rows, grid = packed.grid_columns(), words = WordsOf(packed.columns, form.bits);
  packed.codes = {.data = parts.Take(".weight_packed", {"I32"}, {{rows, words}}).tensor.bytes.data(),
                  .bits = form.bits,
                  .line_step = 4 * words};
  packed.values = CentredValues(form.bits);
  packed.scales = parts.Take(".weight_scale", kPlainTypes, ShapesOfScales(packed.grid_rows(), grid));
  if (form.zero_points) {
    const Shape shape = {WordsOf(packed.grid_rows(), form.bits), grid};
    packed.zeros = {.data = parts.Take(".weight_zero_point", {"I32"}, {shape}).tensor.bytes.data(),
                    .bits = form.bits,
                    .transposed = true,
                    .line_step = 4,
                    .word_step = 4 * grid};
    packed.zero_values = packed.values;
  }
  CheckShape(parts.Take(".weight_shape", {"I64"}, {{2}}), packed);
  if (form.ordered || parts.Has(".weight_g_idx"))
    packed.groups = parts.Take(".weight_g_idx", {"I32"}, {{packed.columns}});
}

void ReadFloat4(PackedParts& parts, PackedTensor& packed) {
  const bool power = parts.form().power_scales;
  const int64_t pairs = (packed.columns + 1) / 2;
  packed.codes = {.data = parts.Take(".weight_packed", {"U8"}, {{packed.rows, pairs}}).tensor.bytes.data(),
                  .bits = 4,
                  .line_step = pairs};
  packed.values = Float4Values();
  packed.scales = parts.Take(".weight_scale", power ? kPowerTypes : kFloat8, {{packed.rows, packed.grid_columns()}});
  if (!power) packed.divisor = parts.Take(".weight_global_scale", {"F32"}, {{1}, {}});
}

void ReadMxBlocks(PackedParts& parts, PackedTensor& packed) {
  const int64_t groups = packed.grid_columns(), bytes = packed.block_columns / 2;
  Shape scales = parts.rows();
  scales.push_back(groups);
  Shape blocks = scales;
  blocks.push_back(bytes);
  packed.codes = {.data = parts.Take(".weight_blocks", {"U8"}, {blocks}).tensor.bytes.data(),
                  .bits = 4,
                  .line_step = groups * bytes};
  packed.values = Float4Values();
  packed.scales = parts.Take(".weight_scales", kPowerTypes, {scales});
  packed.mx_blocks = packed.columns % packed.block_columns == 0;
}

struct LayoutRow {
  PackedLayout layout;
  const char* codes;  // the tensor that shows that a matrix has this layout
  void (*read)(PackedParts& parts, PackedTensor& packed);
};
constexpr LayoutRow kLayouts[] = {
    {PackedLayout::kScaled, ".weight", ReadScaled},
    {PackedLayout::kGptq, ".qweight", ReadGptq},
    {PackedLayout::kAwq, ".qweight", ReadAwq},
    {PackedLayout::kWords, ".weight_packed", ReadWords},
    {PackedLayout::kFloat4, ".weight_packed", ReadFloat4},
    {PackedLayout::kMxBlocks, ".weight_blocks", ReadMxBlocks},
};

PackedTensor ReadForm(const LayoutRow& layout, PackedParts parts, const std::string& where, int64_t columns) {
  const QuantisedForm& form = parts.form();
  PackedTensor packed{.type = form.name, .rows = 1, .columns = columns};
  for (const int64_t side : parts.rows()) packed.rows *= side;
  packed.where = where;
  packed.block_rows = form.block_rows > 0 ? form.block_rows : packed.rows;
  packed.block_columns = form.block_columns > 0 ? form.block_columns : packed.columns;
  layout.read(parts, packed);
  packed.parts = std::move(parts).taken();
  return packed;
}

const LayoutRow& RowOf(const QuantisedForm& form) {
  return *std::ranges::find(kLayouts, form.layout, &LayoutRow::layout);
}

}  // namespace

std::string CodesOf(const Quantisation& quantisation, const std::string& name) {
  std::set<std::string> names;
  for (const QuantisedForm& form : quantisation.forms) names.insert(PartOf(name, RowOf(form).codes));
  return fmt::format("{}", fmt::join(names, " or "));
}

bool IsOfActivations(std::string_view name) {
  constexpr std::string_view kEnds[] = {".input_scale",      ".input_zero_point", ".input_global_scale",
                                        ".activation_scale", ".output_scale",     ".q_scale",
                                        ".k_scale",          ".v_scale"};
  return std::ranges::any_of(kEnds, [&](std::string_view end) { return name.ends_with(end); });
}

std::shared_ptr<const PackedTensor> FindPacked(const Quantisation& quantisation, const RawTensors& tensors,
                                               const std::string& where, const std::string& name,
                                               const std::vector<int64_t>& shape) {
  const bool experts = shape.size() == 3;
  if (!experts && (!name.ends_with(".weight") || shape.size() != 2)) return nullptr;
  const Shape rows = experts ? Shape{shape[0], shape[2]} : Shape{shape[0]};
  std::optional<Error> first;
  for (const QuantisedForm& form : quantisation.forms) {
    const LayoutRow& layout = RowOf(form);
    if (experts && form.layout != PackedLayout::kMxBlocks) continue;
    const auto codes = tensors.find(PartOf(name, layout.codes));
    if (codes == tensors.end() || PlainTypeOf(codes->second)) continue;
    try {
      return std::make_shared<const PackedTensor>(
          ReadForm(layout, PackedParts(tensors, where, name, rows, form), where, shape[1]));
    } catch (const Error& error) {  // another group of settings may fit
      if (!first) first = error;
    }
  }
  if (first) throw Error(*first);
  return nullptr;
}

}  // namespace shiftrt
