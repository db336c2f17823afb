// SPDX-License-Identifier: Apache-2.0
// Sources of the settings: transformers (utils/quantization_config.py), GPTQModel, AutoAWQ and compressed-tensors.
#include "models/quantisation.h"

#include <algorithm>
#include <set>
#include <tuple>

#include "models/config_reader.h"
#include "runtime/check.h"
#include "runtime/parse.h"
#include "runtime/printable.h"

namespace shiftrt {

namespace {

using Json = nlohmann::json;
using Forms = std::vector<QuantisedForm>;

constexpr int64_t kMaxBlock = 1 << 22;
constexpr int64_t kMxGroup = 32, kNvGroup = 16;  // fixed by the formats MXFP4, MXFP8 and NVFP4
constexpr const char* kAdvice = "take the model in 16 bits, or a GGUF file of it";

// "blocks of 128 x 128", "groups of 32", "one scale per row", "one scale per tensor".
std::string ScalesOf(const QuantisedForm& form) {
  if (form.block_rows == 0) return "one scale per tensor";
  if (form.block_rows > 1) return fmt::format("blocks of {} x {}", form.block_rows, form.block_columns);
  return form.block_columns > 0 ? fmt::format("groups of {}", form.block_columns) : "one scale per row";
}

QuantisedForm Named(std::string_view method, QuantisedForm form) {
  form.name = fmt::format("{}, {}", method, ScalesOf(form));
  return form;
}

// The group size under `key`: a number of columns, or 0 for whole rows, which files store as -1.
int64_t GroupSize(const ConfigReader& settings, const char* key = "group_size") {
  const int64_t size = settings.Integer(key, -1, kMaxBlock);
  Check(size != 0, "{}: {} is 0, expected -1 or the number of columns that share a scale", settings.file(), key);
  return std::max<int64_t>(size, 0);
}

int Bits(const ConfigReader& settings, const char* key, const char* method, const std::set<int64_t>& known) {
  const int64_t bits = settings.Integer(key, 1, 64);
  Check(known.contains(bits), "{}: {} is {}: {} is read with {} bits; {}", settings.file(), key, bits, method,
        fmt::join(known, " or "), kAdvice);
  return static_cast<int>(bits);
}

// Two positive numbers under `key`: the rows and the columns of a block.
std::pair<int64_t, int64_t> BlockOf(const ConfigReader& settings, const char* key) {
  Check(settings.Has(key), "{}: {} is missing", settings.file(), key);
  const Json& value = settings[key];
  const auto is_size = [](const Json& side) { return side.is_number_integer() && side >= 1 && side <= kMaxBlock; };
  Check(value.is_array() && value.size() == 2 && is_size(value[0]) && is_size(value[1]),
        "{}: {} is {}, expected the rows and the columns of a block", settings.file(), key, Shown(value));
  return {value[0].get<int64_t>(), value[1].get<int64_t>()};
}

Forms ReadFloat8(const ConfigReader& settings) {
  const std::string type = settings.Word("fmt", "e4m3");
  Check(type == "e4m3", "{}: fmt is {}, expected e4m3; {}", settings.file(), Printable(type), kAdvice);
  QuantisedForm form{.layout = PackedLayout::kScaled, .bits = 8, .floating = true, .scales = ".weight_scale_inv"};
  if (settings.Has("weight_block_size")) {
    std::tie(form.block_rows, form.block_columns) = BlockOf(settings, "weight_block_size");
    return {Named("FP8", form)};
  }
  // The shapes of the scales say whether each row has one.
  QuantisedForm whole = form;
  whole.block_rows = 0;
  return {Named("FP8", whole), Named("FP8", form)};
}

Forms ReadFbgemm(const ConfigReader& /*settings*/) {
  return {Named("FP8", {.layout = PackedLayout::kScaled, .bits = 8, .floating = true})};
}

Forms ReadGptq(const ConfigReader& settings) {
  const std::string format = settings.Word("checkpoint_format", settings.Word("format", "gptq"));
  Check(format == "gptq" || format == "gptq_v2",
        "{}: GPTQ of the format {} is not supported (gptq and gptq_v2 are); {}", settings.file(), Printable(format),
        kAdvice);
  const std::string words = settings.Word("pack_dtype", "int32");
  Check(words == "int32", "{}: pack_dtype is {}, expected int32; {}", settings.file(), Printable(words), kAdvice);
  if (settings.Has("dynamic") && settings["dynamic"].is_object())
    for (const auto& [modules, changed] : settings["dynamic"].items())  // "-:" names modules that are not quantised
      Check(modules.starts_with("-:"), "{}: dynamic: settings of their own for the modules {} are not supported; {}",
            settings.file(), Printable(modules), kAdvice);
  const int bits = Bits(settings, "bits", "GPTQ", {2, 4, 8});
  return {Named(fmt::format("GPTQ, {} bits", bits), {.layout = PackedLayout::kGptq,
                                                     .bits = bits,
                                                     .block_columns = GroupSize(settings),
                                                     .zero_points = true,
                                                     .zeros_less_one = format == "gptq",
                                                     .ordered = settings.Flag("desc_act", false)})};
}

Forms ReadAwq(const ConfigReader& settings) {
  const std::string version = AsciiLower(settings.Word("version", settings.Word("format", "gemm")));
  Check(version == "gemm", "{}: AWQ of the version {} is not supported (gemm is); {}", settings.file(),
        Printable(version), kAdvice);
  const int bits = Bits(settings, settings.Has("w_bit") ? "w_bit" : "bits", "AWQ", {4});
  const int64_t group = GroupSize(settings, settings.Has("q_group_size") ? "q_group_size" : "group_size");
  return {
      Named("AWQ, 4 bits", {.layout = PackedLayout::kAwq, .bits = bits, .block_columns = group, .zero_points = true})};
}

Forms ReadMxfp4(const ConfigReader& /*settings*/) {
  return {Named("MXFP4", {.layout = PackedLayout::kMxBlocks,
                          .bits = 4,
                          .floating = true,
                          .block_columns = kMxGroup,
                          .power_scales = true})};
}

// The numbers that share a scale, in a group of compressed-tensors.
void ReadStrategy(const ConfigReader& weights, QuantisedForm& form) {
  const int64_t group = weights.Has("group_size") ? GroupSize(weights) : 0;
  const char* const implied = !weights.Has("group_size") ? "tensor" : group > 0 ? "group" : "channel";
  const std::string strategy = weights.Word("strategy", implied);
  if (strategy == "tensor") {
    form.block_rows = 0;
  } else if (strategy == "group" || strategy == "tensor_group") {
    Check(group > 0, "{}: group_size is missing for the strategy {}", weights.file(), Printable(strategy));
    form.block_columns = group;
  } else if (strategy == "block") {
    std::tie(form.block_rows, form.block_columns) = BlockOf(weights, "block_structure");
  } else {
    Check(strategy == "channel", "{}: strategy {} is not supported (block, channel, group and tensor are); {}",
          weights.file(), Printable(strategy), kAdvice);
  }
}

// A format of compressed-tensors, and the numbers that it stores.
struct CompressedFormat {
  const char* name;
  PackedLayout layout;
  std::set<int64_t> bits;
  int64_t group = 0;  // 0: the settings say which numbers share a scale
  bool power_scales = false;
};
const CompressedFormat* FindCompressedFormat(const std::string& name) {
  static const CompressedFormat formats[] = {
      {"naive-quantized", PackedLayout::kScaled, {8}},
      {"float-quantized", PackedLayout::kScaled, {8}},
      {"int-quantized", PackedLayout::kScaled, {8}},
      {"mxfp8-quantized", PackedLayout::kScaled, {8}, kMxGroup, true},
      {"pack-quantized", PackedLayout::kWords, {2, 4, 8}},
      {"mxfp4-pack-quantized", PackedLayout::kFloat4, {4}, kMxGroup, true},
      {"nvfp4-pack-quantized", PackedLayout::kFloat4, {4}, kNvGroup},
  };
  const auto* const at = std::ranges::find(formats, name, &CompressedFormat::name);
  return at == std::end(formats) ? nullptr : at;
}

QuantisedForm ReadGroup(const ConfigReader& weights, const std::string& format) {
  const CompressedFormat* const known = FindCompressedFormat(format);
  Check(known != nullptr, "{}: compressed-tensors of the format {} is not supported; {}", weights.file(),
        Printable(format), kAdvice);
  const std::string type = weights.Word("type", "int");
  QuantisedForm form{.layout = known->layout, .power_scales = known->power_scales};
  form.bits = Bits(weights, "num_bits", known->name, known->bits);
  form.floating = type == "float";
  const bool integers = form.layout == PackedLayout::kWords;
  Check(form.layout == PackedLayout::kScaled ? form.floating || type == "int" : form.floating != integers,
        "{}: type is {}, expected {} for {}", weights.file(), Printable(type), integers ? "int" : "float", format);
  form.zero_points = !form.floating && !weights.Flag("symmetric", true);
  form.ordered = weights.Has("actorder") && weights["actorder"] == "group";
  form.block_columns = known->group;
  if (known->group == 0) ReadStrategy(weights, form);
  return Named(fmt::format("compressed-tensors {}, {} bits", format, form.bits), form);
}

// True if `value` is an object without `key`, or with this value of it.
bool HasOnly(const Json& value, const char* key, const Json& only) {
  return value.is_object() && value.value(key, only) == only;
}

Forms ReadCompressed(const ConfigReader& settings) {
  const std::string &file = settings.file(), format = settings.Word("format", "dense");
  Check(!settings.Has("sparsity_config") || HasOnly(settings["sparsity_config"], "format", "dense"),
        "{}: sparsity_config: sparse weights are not supported; {}", file, kAdvice);
  Check(!settings.Has("transform_config") || HasOnly(settings["transform_config"], "config_groups", Json::object()),
        "{}: transform_config: weights that are transformed are not supported; {}", file, kAdvice);
  if (format == "dense") return {};
  Check(settings.Has("config_groups") && settings["config_groups"].is_object(), "{}: config_groups is missing", file);
  Forms forms;
  for (const auto& [name, group] : settings["config_groups"].items()) {
    const std::string where = fmt::format("{}: config_groups: {}", file, Printable(name));
    Check(group.is_object(), "{} is {}, expected an object", where, Shown(group));
    const ConfigReader of_group(group, where);
    if (!of_group.Has("weights")) continue;  // only activations are quantised
    Check(group["weights"].is_object(), "{}: weights is not an object", where);
    forms.push_back(ReadGroup(ConfigReader(group["weights"], where), of_group.Word("format", format)));
  }
  return forms;
}

struct QuantisationMethod {
  const char* name;  // quant_method
  Forms (*read)(const ConfigReader& settings);
};
constexpr QuantisationMethod kMethods[] = {
    {"awq", ReadAwq},           {"compressed-tensors", ReadCompressed},
    {"fbgemm_fp8", ReadFbgemm}, {"fp8", ReadFloat8},
    {"gptq", ReadGptq},         {"mxfp4", ReadMxfp4},
};

}  // namespace

std::string Quantisation::Name() const {
  std::set<std::string> names;
  for (const QuantisedForm& form : forms) names.insert(form.name);
  return fmt::format("{}", fmt::join(names, "; "));
}

Quantisation ParseQuantisation(const Json& settings, const std::string& name) {
  Check(settings.is_object(), "{} is {}, expected an object", name, Shown(settings));
  const ConfigReader reader(settings, name);
  const std::string method = reader.Word("quant_method", "");
  std::vector<std::string_view> known;
  for (const QuantisationMethod& row : kMethods) {
    if (method == row.name) return {row.read(reader)};
    known.emplace_back(row.name);
  }
  Fail("{}: the quantisation method {} is not supported ({} are): {}", name,
       method.empty() ? "without a quant_method" : Printable(method), fmt::join(known, ", "), kAdvice);
}

}  // namespace shiftrt
