// SPDX-License-Identifier: Apache-2.0
// Names the quantisation of a model. Source: llama_ftype in llama.h of llama.cpp.
#include <set>

#include "models/gguf.h"
#include "models/weights.h"
#include "runtime/check.h"

namespace shiftrt {

namespace {

struct FileType {
  int64_t code;  // the value of general.file_type
  const char* name;
};
constexpr FileType kQuantised[] = {{2, "Q4_0"},    {3, "Q4_1"},    {7, "Q8_0"},    {8, "Q5_0"},     {9, "Q5_1"},
                                   {10, "Q2_K"},   {11, "Q3_K_S"}, {12, "Q3_K_M"}, {13, "Q3_K_L"},  {14, "Q4_K_S"},
                                   {15, "Q4_K_M"}, {16, "Q5_K_S"}, {17, "Q5_K_M"}, {18, "Q6_K"},    {19, "IQ2_XXS"},
                                   {20, "IQ2_XS"}, {21, "Q2_K_S"}, {22, "IQ3_XS"}, {23, "IQ3_XXS"}, {24, "IQ1_S"},
                                   {25, "IQ4_NL"}, {26, "IQ3_S"},  {27, "IQ3_M"},  {28, "IQ2_S"},   {29, "IQ2_M"},
                                   {30, "IQ4_XS"}, {31, "IQ1_M"},  {36, "TQ1_0"},  {37, "TQ2_0"},   {38, "MXFP4_MOE"}};

}  // namespace

std::string QuantisationOf(const std::filesystem::path& model) {
  if (!IsGguf(model)) return "";
  const GgufFile file(model);
  std::set<std::string> types;
  for (const auto& [name, tensor] : file.tensors())
    if (!PlainType(static_cast<BlockType>(tensor.type->code))) types.insert(tensor.type->name);
  if (types.empty()) return "";
  const int64_t code = file.metadata().Integer("general.file_type", 0, INT32_MAX, 0);
  for (const FileType& type : kQuantised)
    if (type.code == code) return type.name;
  return fmt::format("{}", fmt::join(types, ", "));
}

std::string QuantisationOf(const Weights& weights) {
  std::set<std::string> types;
  for (const auto& [data, tensor] : weights.stored)
    if (tensor.packed) types.insert(tensor.TypeName());
  return types.empty() ? QuantisationOf(weights.directory) : fmt::format("{}", fmt::join(types, "; "));
}

std::string NoteOfQuantisation(const Weights& weights) {
  const std::string quantisation = QuantisationOf(weights);
  if (quantisation.empty()) return "";
  std::string note = fmt::format(
      "The weights were dequantised from {}, and are not those of the model that was quantised.", quantisation);
  const auto type_of = [&](const TensorView& table) {
    const auto stored = weights.stored.find(table.data);
    return std::string(stored != weights.stored.end() ? stored->second.TypeName() : Name(table.dtype));
  };
  const std::string embedding = type_of(weights.embedding), head = type_of(weights.head);
  if (!weights.config.tied_head && embedding != head)
    note += fmt::format(
        " The original's file has the embedding table in {} and the head in {}: they are two tensors here, even if the "
        "model had one for both.",
        embedding, head);
  return note;
}

}  // namespace shiftrt
