// SPDX-License-Identifier: Apache-2.0
// Hugging Face checkpoints with quantised matrices: what they expand to, against the numbers of the libraries that
// write them, and every way in which they are not as their configuration says.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "models/gguf.h"
#include "models/model.h"
#include "models/plan_checkpoint.h"
#include "models/shapes.h"
#include "runtime/elements.h"
#include "tests/models/quantised_checkpoint.h"

namespace shiftrt {
namespace {

std::vector<std::string> Cases() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(TestDirectory() / "goldens/quantised"))
    names.push_back(entry.path().stem().string());
  std::sort(names.begin(), names.end());
  return names;
}

std::string BytesOf(const TensorView& tensor) {
  return {static_cast<const char*>(tensor.data), static_cast<size_t>(tensor.bytes())};
}

class QuantisedGolden : public testing::TestWithParam<std::string> {};

TEST_P(QuantisedGolden, ExpandsToTheReferencesBits) {
  const QuantisedCheckpoint checkpoint(GetParam());
  checkpoint.Write();
  const auto weights = LoadWeights(checkpoint.path(), {.dtype = WeightType::kExpanded});
  const TensorView& up = weights->blocks[0].up;
  ASSERT_EQ(up.dtype, checkpoint.expected.dtype == "F16" ? DType::kFloat16 : DType::kBFloat16);
  EXPECT_EQ(up.shape, checkpoint.expected.shape);
  EXPECT_EQ(BytesOf(up), checkpoint.expected.bytes);
  EXPECT_EQ(weights->blocks[0].gate.dtype, up.dtype);                    // it is not quantised
  const auto gate = weights->stored.find(weights->blocks[0].gate.data);  // it may have been copied to another address
  EXPECT_TRUE(gate == weights->stored.end() || !gate->second.packed);
}

// Only MXFP4 stays in its blocks.
TEST_P(QuantisedGolden, OtherFormsThanMxFp4AreExpandedInAnyCase) {
  const QuantisedCheckpoint checkpoint(GetParam());
  checkpoint.Write();
  const auto as_stored = LoadWeights(checkpoint.path());
  const TensorView& up = as_stored->blocks[0].up;
  if (GetParam() != "mxfp4") {
    EXPECT_EQ(BytesOf(up), checkpoint.expected.bytes);
    return;
  }
  ASSERT_EQ(up.dtype, DType::kMXFP4);
  ForEachWidenedRow(up, [&](int64_t row, const std::vector<float>& values) {
    for (int64_t i = 0; i < std::ssize(values); ++i) {
      BFloat16 expected;
      std::memcpy(&expected, checkpoint.expected.bytes.data() + 2 * (row * std::ssize(values) + i), 2);
      ASSERT_EQ(values[i], static_cast<float>(expected)) << row << " " << i;  // a zero loses its sign
    }
  });
}

// With --dtype float32 no number is rounded to 16 bits.
TEST_P(QuantisedGolden, RoundsFromFloat32) {
  const QuantisedCheckpoint checkpoint(GetParam());
  checkpoint.Write();
  const auto weights = LoadWeights(checkpoint.path(), {.dtype = WeightType::kFloat32, .check_finite = true});
  const auto* const values = static_cast<const float*>(weights->blocks[0].up.data);
  const bool half = checkpoint.expected.dtype == "F16";
  for (int64_t i = 0; i < QuantisedCheckpoint::kRows * QuantisedCheckpoint::kColumns; ++i) {
    uint16_t bits = 0;
    std::memcpy(&bits, checkpoint.expected.bytes.data() + 2 * i, sizeof(bits));
    ASSERT_EQ(half ? Float16(values[i]).bits : BFloat16(values[i]).bits, bits) << "element " << i;
  }
}

// The shapes alone, and the shares of processes, read no data of the file.
TEST_P(QuantisedGolden, HasTheShapesOfAModelThatIsNotQuantised) {
  const QuantisedCheckpoint checkpoint(GetParam());
  checkpoint.Write();
  const ModelShapes shapes = ShapesOfModel(checkpoint.path());
  EXPECT_EQ(shapes.weights->blocks[0].up.shape, checkpoint.expected.shape);
  const auto outline = LoadWeights(checkpoint.path(), {.outline = true});
  const auto whole = LoadWeights(checkpoint.path());
  EXPECT_EQ(outline->Fingerprint(), whole->Fingerprint());
  EXPECT_EQ(shapes.stored.at(QuantisationOf(*whole)), outline->stored.at(outline->blocks[0].up.data).bytes());
}

// A checkpoint that lost one of its tensors is refused by the name of that tensor. A few tensors may be absent.
TEST_P(QuantisedGolden, MissesNoTensor) {
  const std::string case_name = GetParam();
  const QuantisedCheckpoint whole(case_name);
  for (const StoredTensor& tensor : whole.tensors) {
    if (!tensor.name.starts_with(QuantisedCheckpoint::kModule)) continue;
    const std::string suffix = tensor.name.substr(std::string(QuantisedCheckpoint::kModule).size());
    QuantisedCheckpoint checkpoint(case_name);
    checkpoint.Drop(suffix);
    checkpoint.Write();
    const std::string refusal = Refusal([&] { LoadWeights(checkpoint.path()); });
    const bool may_be_absent = suffix == ".g_idx" && case_name != "gptq4_ordered";
    EXPECT_EQ(refusal.empty(), may_be_absent) << suffix;
    if (may_be_absent) continue;
    EXPECT_TRUE(refusal.starts_with(checkpoint.path().string() + ":")) << refusal;
    EXPECT_NE(refusal.find(tensor.name), std::string::npos) << refusal;
    EXPECT_NE(refusal.find("is missing"), std::string::npos) << refusal;
  }
}

// Each side of each tensor counts.
TEST_P(QuantisedGolden, RefusesOtherShapes) {
  const QuantisedCheckpoint whole(GetParam());
  for (size_t i = 0; i < whole.tensors.size(); ++i) {
    if (!whole.tensors[i].name.starts_with(QuantisedCheckpoint::kModule)) continue;
    QuantisedCheckpoint checkpoint(GetParam());
    StoredTensor& tensor = checkpoint.tensors[i];
    tensor.shape.insert(tensor.shape.begin(), 2);
    tensor.bytes += tensor.bytes;
    checkpoint.Write();
    const std::string refusal = Refusal([&] { LoadWeights(checkpoint.path()); });
    EXPECT_NE(refusal.find(tensor.name + " has shape [2"), std::string::npos) << tensor.name << ": " << refusal;
    EXPECT_NE(refusal.find("expected ["), std::string::npos) << refusal;
  }
}

TEST_P(QuantisedGolden, RefusesOtherTypes) {
  const QuantisedCheckpoint whole(GetParam());
  for (size_t i = 0; i < whole.tensors.size(); ++i) {
    if (!whole.tensors[i].name.starts_with(QuantisedCheckpoint::kModule)) continue;
    QuantisedCheckpoint checkpoint(GetParam());
    StoredTensor& tensor = checkpoint.tensors[i];
    const size_t bytes = tensor.bytes.size() * 8 /
                         (tensor.dtype == "I64"                             ? 8
                          : tensor.dtype == "I32" || tensor.dtype == "F32"  ? 4
                          : tensor.dtype == "BF16" || tensor.dtype == "F16" ? 2
                                                                            : 1);
    tensor.dtype = "U64";
    tensor.bytes.resize(bytes);
    checkpoint.Write();
    const std::string refusal = Refusal([&] { LoadWeights(checkpoint.path()); });
    EXPECT_NE(refusal.find(tensor.name + " is of type U64, expected "), std::string::npos) << refusal;
  }
}

INSTANTIATE_TEST_SUITE_P(All, QuantisedGolden, testing::ValuesIn(Cases()), [](const auto& at) { return at.param; });

std::string RefusalOf(const QuantisedCheckpoint& checkpoint) {
  checkpoint.Write();
  return Refusal([&] { LoadWeights(checkpoint.path()); });
}

void ExpectWords(const std::string& text, const std::vector<std::string>& words) {
  for (const std::string& word : words) EXPECT_NE(text.find(word), std::string::npos) << word << " in: " << text;
}

TEST(Quantised, TheFormIsNamed) {
  const std::pair<const char*, const char*> names[] = {
      {"gptq4", "GPTQ, 4 bits, groups of 32"},
      {"gptq4_whole", "GPTQ, 4 bits, one scale per row"},
      {"awq", "AWQ, 4 bits, groups of 32"},
      {"fp8_blocks", "FP8, blocks of 8 x 32"},
      {"fp8_tensor", "FP8, one scale per tensor"},
      {"fp8_rows", "FP8, one scale per row"},
      {"mxfp4", "MXFP4, groups of 32"},
      {"compressed_words4", "compressed-tensors pack-quantized, 4 bits, groups of 32"}};
  for (const auto& [name, expected] : names) {
    const QuantisedCheckpoint checkpoint(name);
    checkpoint.Write();
    const auto weights = LoadWeights(checkpoint.path());
    EXPECT_EQ(QuantisationOf(*weights), expected);
    EXPECT_NE(NoteOfQuantisation(*weights).find(expected), std::string::npos);
  }
}

TEST(Quantised, ASavedCopyIsNotQuantised) {
  const QuantisedCheckpoint checkpoint("gptq4");
  checkpoint.Write();
  const Model model = OpenModel(checkpoint.path().string(), {});
  EXPECT_FALSE(PlanConfig(model, model.plan).contains("quantization_config"));
}

TEST(Quantised, EveryTensorCountsForTheFingerprint) {
  QuantisedCheckpoint checkpoint("gptq4_ordered");
  std::set<std::string> fingerprints;
  for (const char* suffix : {"", ".qweight", ".qzeros", ".scales"}) {
    if (*suffix != '\0') checkpoint.Part(suffix).bytes[8] ^= 1;
    checkpoint.Write();
    EXPECT_TRUE(fingerprints.insert(LoadWeights(checkpoint.path())->Fingerprint()).second) << suffix;
  }
}

TEST(Quantised, ScalesOfActivationsAreNotRead) {
  QuantisedCheckpoint checkpoint("compressed_fp8_channel");
  const std::string module = QuantisedCheckpoint::kModule;
  checkpoint.tensors.push_back({module + ".input_scale", "F32", {}, std::string(4, '\1')});
  checkpoint.tensors.push_back({"model.layers.0.self_attn.k_scale", "F32", {1}, std::string(4, '\1')});
  EXPECT_EQ(RefusalOf(checkpoint), "");
  checkpoint.tensors.push_back({module + ".unknown", "F32", {1}, std::string(4, '\1')});
  ExpectWords(RefusalOf(checkpoint), {module + ".unknown", "not one this configuration has"});
}

// Two groups of settings: each matrix has the one that its tensors fit.
TEST(Quantised, AGroupOfSettingsIsFoundByTheShapes) {
  QuantisedCheckpoint checkpoint("compressed_words4");
  nlohmann::json& groups = checkpoint.settings["config_groups"];
  groups["a"] = groups["group_0"];
  groups["a"]["weights"]["num_bits"] = 8;
  EXPECT_EQ(RefusalOf(checkpoint), "");
  EXPECT_EQ(BytesOf(LoadWeights(checkpoint.path())->blocks[0].up), checkpoint.expected.bytes);
}

// A checkpoint says that the head is tied, and quantises a head of its own.
TEST(Quantised, AStoredHeadCounts) {
  QuantisedCheckpoint checkpoint("gptq4");
  checkpoint.Write();
  EXPECT_FALSE(LoadWeights(checkpoint.path())->config.tied_head);
}

TEST(Quantised, ScalesThatAreNotFiniteAreRefused) {
  const float bad = std::numeric_limits<float>::quiet_NaN();
  QuantisedCheckpoint blocks("fp8_blocks");
  blocks.Part(".weight_scale_inv").Set(3, bad);
  ExpectWords(RefusalOf(blocks), {blocks.path().string(), "up_proj.weight_scale_inv", "element 3 is nan", "finite"});
  QuantisedCheckpoint halves("awq");
  halves.Part(".scales").Set(1, Float16(std::numeric_limits<float>::infinity()));
  ExpectWords(RefusalOf(halves), {"up_proj.scales", "element 1 is inf"});
  QuantisedCheckpoint powers("mxfp4");
  powers.Part(".weight_scales").Set(5, uint8_t{255});
  ExpectWords(RefusalOf(powers), {"up_proj.weight_scales", "element 5 is nan"});
  QuantisedCheckpoint divisor("compressed_nvfp4");
  divisor.Part(".weight_global_scale").Set(0, 0.0F);
  ExpectWords(RefusalOf(divisor), {"up_proj.weight_global_scale", "is 0"});
}

TEST(Quantised, GroupsAndShapesInTensorsAreChecked) {
  QuantisedCheckpoint ordered("gptq4_ordered");
  for (const int32_t group : {-1, 2}) {
    ordered.Part(".g_idx").Set(7, group);
    ExpectWords(RefusalOf(ordered), {"up_proj.g_idx", fmt::format("element 7 is {}", group), "from 0 to 1"});
  }
  QuantisedCheckpoint words("compressed_words4");
  words.Part(".weight_shape").Set(1, int64_t{63});
  ExpectWords(RefusalOf(words), {"up_proj.weight_shape", "[16, 63]", "expected [16, 64]"});
}

// Elements that are not a number are found where one asks for it, as in other checkpoints.
TEST(Quantised, CodesThatAreNotANumberAreFound) {
  QuantisedCheckpoint checkpoint("fp8_tensor");
  checkpoint.Part(".weight").Set(70, uint8_t{0x7f});
  EXPECT_EQ(RefusalOf(checkpoint), "");
  ExpectWords(Refusal([&] { LoadWeights(checkpoint.path(), {.check_finite = true}); }),
              {"up_proj.weight", "element 70 is nan"});
}

TEST(Quantised, ACheckpointWithoutSettingsIsRefused) {
  QuantisedCheckpoint checkpoint("gptq4");
  checkpoint.settings = nullptr;
  ExpectWords(RefusalOf(checkpoint), {"model.safetensors", "I32", "config.json has no quantization_config"});
}

// A change of one setting, and words of the refusal.
struct BadSetting {
  const char *name, *checkpoint, *pointer;
  nlohmann::json value;
  std::vector<std::string> words;
};

TEST(Quantised, OtherMethodsAndSettingsAreRefusedByName) {
  const std::string weights = "/config_groups/group_0/weights";
  const BadSetting cases[] = {
      {"bitsandbytes", "gptq4", "/quant_method", "bitsandbytes", {"bitsandbytes", "not supported", "GGUF"}},
      {"aqlm", "gptq4", "/quant_method", "aqlm", {"aqlm", "not supported", "gptq", "compressed-tensors"}},
      {"no method", "gptq4", "/quant_method", nullptr, {"without a quant_method"}},
      {"a method that is no word", "gptq4", "/quant_method", 4, {"quant_method", "expected a string"}},
      {"bits", "gptq4", "/bits", 3, {"bits is 3", "GPTQ", "2 or 4 or 8"}},
      {"negative bits", "gptq4", "/bits", -4, {"bits is -4"}},
      {"AWQ of 3 bits", "awq", "/bits", 3, {"bits is 3", "AWQ"}},
      {"group of 0", "gptq4", "/group_size", 0, {"group_size is 0"}},
      {"group of -2", "awq", "/group_size", -2, {"group_size is -2"}},
      {"huge group", "awq", "/group_size", int64_t{1} << 40, {"group_size"}},
      {"another group", "awq", "/group_size", 16, {"up_proj.qzeros", "[2, 2]", "expected [4, 2]"}},
      {"GPTQ of Marlin", "gptq4", "/checkpoint_format", "marlin", {"marlin", "gptq_v2"}},
      {"words of 64 bits", "gptq4", "/pack_dtype", "int64", {"pack_dtype", "int64"}},
      {"settings of modules", "gptq4", "/dynamic", {{"+:.*up", {{"bits", 8}}}}, {"dynamic", "+:.*up"}},
      {"AWQ of GEMV", "awq", "/version", "GEMV", {"AWQ", "gemv", "gemm is"}},
      {"FP8 of E5M2", "fp8_blocks", "/fmt", "e5m2", {"fmt", "e5m2"}},
      {"block of one side", "fp8_blocks", "/weight_block_size", {128}, {"weight_block_size", "[128]"}},
      {"block of 0", "fp8_blocks", "/weight_block_size", {0, 128}, {"weight_block_size"}},
      {"another block", "fp8_blocks", "/weight_block_size", {8, 8}, {"weight_scale_inv", "expected [2, 8]"}},
      {"sparse", "compressed_words4", "/format", "marlin-24", {"marlin-24", "not supported"}},
      {"sparsity", "compressed_words4", "/sparsity_config", {{"format", "sparse-24-bitmask"}}, {"sparsity_config"}},
      {"transforms", "compressed_words4", "/transform_config", {{"config_groups", {{"u", 1}}}}, {"transform_config"}},
      {"transforms of another type", "compressed_words4", "/transform_config", 1, {"transform_config"}},
      {"strategy", "compressed_words4", "/config_groups/group_0/weights/strategy", "token", {"strategy", "token"}},
      {"blocks without sides",
       "compressed_words4",
       "/config_groups/group_0/weights/strategy",
       "block",
       {"block_structure is missing"}},
      {"no groups", "compressed_words4", "/config_groups", nullptr, {"config_groups is missing"}},
      {"a group that is a list", "compressed_words4", "/config_groups/group_0", {"Linear"}, {"group_0"}},
      {"bits of words", "compressed_words4", "/config_groups/group_0/weights/num_bits", 3, {"num_bits is 3"}},
      {"floats in words", "compressed_words4", "/config_groups/group_0/weights/type", "float", {"type is float"}},
      {"no zero points",
       "compressed_words4",
       "/config_groups/group_0/weights/symmetric",
       false,
       {"weight_zero_point", "is missing"}},
  };
  for (const BadSetting& bad : cases) {
    SCOPED_TRACE(bad.name);
    QuantisedCheckpoint checkpoint(bad.checkpoint);
    checkpoint.settings[nlohmann::json::json_pointer(bad.pointer)] = bad.value;
    const std::string refusal = RefusalOf(checkpoint);
    EXPECT_TRUE(refusal.starts_with(checkpoint.path().string())) << refusal;
    ExpectWords(refusal, bad.words);
  }
}

}  // namespace
}  // namespace shiftrt
