// SPDX-License-Identifier: Apache-2.0
// Malformed models: checkpoints, config.json, GGUF, saved plans, adapters of PEFT and directories of hf-lra.
#include <deque>

#include "engine/decoder.h"
#include "export/formats.h"
#include "models/adapted.h"
#include "models/hf_lra.h"
#include "models/own_tensors.h"
#include "runtime/random.h"
#include "tests/hostile/hostile.h"
#include "tests/models/checkpoint_files.h"
#include "tests/models/fixtures.h"
#include "tests/models/gguf_files.h"
#include "tests/models/quantised_checkpoint.h"

namespace shiftrt::hostile {
namespace {

constexpr int64_t kWidth = 8, kInner = 12;  // those of SmallConfig()

Matrix<float> Noise(int64_t rows, int64_t cols, Random& random) {
  Matrix<float> m(rows, cols);
  for (float& x : m.span()) x = static_cast<float>(random.Uniform() - 0.5);
  return m;
}

void MakeCheckpoint(const fs::path& directory) {
  WriteText(directory / "shape", SmallConfig());
  WriteRandomCheckpoint(directory / "shape", DType::kFloat32, 1, directory);
  fs::remove(directory / "shape");
}

// The little-endian bytes of a number.
std::string LittleEndian(uint64_t number) { return {reinterpret_cast<const char*>(&number), sizeof(number)}; }

// `to` in the place of the first bytes of the file.
Change Begins(const char* file, std::string to) {
  return [=](const fs::path& directory) {
    WriteText(directory / file, ReadFile(directory / file).replace(0, to.size(), to));
  };
}

const Reader kCheckpoint = {MakeCheckpoint,
                            [](const fs::path& directory) { return LoadWeights(directory)->Fingerprint(); }};

TEST(HostileModels, Safetensors) {
  static constexpr const char* kFile = "model.safetensors";
  CheckReader(kCheckpoint,
              {{"an empty file", Text(kFile, ""), {kFile}},
               {"a file that ends in its header", Cut(kFile, 0.05), {kFile, "header"}},
               {"a file that ends in its data", Cut(kFile, 0.9), {kFile, "ends at byte"}},
               {"bytes after the data", Longer(kFile, "more"), {kFile, "data"}},
               {"a header of 2^63 bytes", Begins(kFile, LittleEndian(uint64_t{1} << 63)), {kFile, "header"}},
               {"a header of no bytes", Begins(kFile, LittleEndian(0)), {kFile, "header"}},
               {"a tensor of another type", Replaced(kFile, "\"F32\"", "\"F99\""), {kFile, "F99"}},
               {"a tensor of integers", Replaced(kFile, "\"F32\"", "\"I32\""), {kFile, "I32"}},
               {"a shape of which the product overflows",
                Replaced(kFile, "\"shape\":[24,8]", "\"shape\":[4294967296,4294967296]"),
                {kFile}},
               {"a negative side", Replaced(kFile, "\"shape\":[24,8]", "\"shape\":[-4,8]"), {kFile}},
               {"a tensor of another name",
                Replaced(kFile, "layers.1.mlp.up_proj", "layers.1.mlp.op_proj"),
                {"layers.1.mlp.up_proj.weight is missing"}},
               {"the same name twice",
                Replaced(kFile, "layers.1.mlp.up_proj", "layers.0.mlp.up_proj"),
                {kFile, "layers.0.mlp.up_proj"}},
               {"no file at all", Without(kFile), {kFile}}});
}

TEST(HostileModels, Config) {
  static constexpr const char* kFile = "config.json";
  const auto set = [&](const char* pointer, const Json& value) { return Set(kFile, pointer, value); };
  CheckReader(
      kCheckpoint,
      {{"no JSON", Text(kFile, "hidden_size: 8"), {kFile, "JSON"}},
       {"a key twice", Replaced(kFile, "{", "{\"hidden_size\": 8, "), {kFile, "duplicate key hidden_size"}},
       {"a deep nest", Text(kFile, std::string(100000, '[')), {kFile, "nested"}},
       {"another width", set("/hidden_size", 16), {"[24, 8]", "[24, 16]"}},
       {"a width that heads do not divide", set("/num_attention_heads", 3), {kFile, "head"}},
       {"one layer more than there are tensors", set("/num_hidden_layers", 4), {"model.layers.3"}},
       {"one layer less than there are tensors", set("/num_hidden_layers", 2), {"model.layers.2"}},
       {"2^62 layers", set("/num_hidden_layers", int64_t{1} << 62), {kFile, "num_hidden_layers"}},
       {"a negative number", set("/vocab_size", -24), {kFile, "vocab_size"}},
       {"a number as text", set("/intermediate_size", "12"), {kFile, "intermediate_size"}},
       {"a fraction of a layer", set("/num_hidden_layers", 2.5), {kFile, "num_hidden_layers"}},
       {"a rope base of zero", set("/rope_theta", 0), {kFile, "rope_theta"}},
       {"an epsilon below zero", set("/rms_norm_eps", -1e-5), {kFile, "rms_norm_eps"}},
       {"a number that overflows", Replaced(kFile, "1e-5", "1e999"), {kFile}},
       {"another activation", set("/hidden_act", "gelu_new"), {kFile, "gelu_new"}},
       {"another family", set("/architectures", {"GPT2LMHeadModel"}), {kFile, "GPT2LMHeadModel"}},
       {"another RoPE", set("/rope_scaling", {{"type", "mrope"}, {"factor", 2.0}}), {kFile, "mrope"}},
       {"a name that a terminal obeys", set("/architectures", {"\x1b[2Jx"}), {kFile, "\\x1b[2Jx"}},
       {"a name of 10 MB", set("/architectures", {std::string(10'000'000, 'x')}), {kFile, "xxx"}},
       {"a number of 10 MB of text",
        set("/intermediate_size", std::string(10'000'000, '9')),
        {kFile, "intermediate_size is \"99", "expected a whole number"}},
       {"an epsilon of 10 MB of text", set("/rms_norm_eps", std::string(10'000'000, '9')), {kFile, "rms_norm_eps"}},
       {"a key without meaning", set("/transformers_version", "9.9"), {}}});
}

void MakeQuantised(const fs::path& directory) {
  const QuantisedCheckpoint checkpoint("gptq4_ordered");
  checkpoint.Write();
  for (const char* file : {"config.json", "model.safetensors"}) fs::copy(checkpoint.path() / file, directory / file);
}

const Reader kQuantised = {MakeQuantised, [](const fs::path& directory) {
                             return LoadWeights(directory, {.check_finite = true})->Fingerprint();
                           }};

TEST(HostileModels, Quantised) {
  static constexpr const char *kFile = "config.json", *kWeights = "model.safetensors";
  const auto set = [&](const std::string& pointer, const Json& value) {
    return Set(kFile, ("/quantization_config" + pointer).c_str(), value);
  };
  const std::string long_word(10'000'000, 'x');
  CheckReader(
      kQuantised,
      {{"settings that are a list", set("", Json::array({4})), {kFile, "quantization_config is [4]"}},
       {"no settings", set("", nullptr), {kWeights, "I32", "quantization_config"}},
       {"a method of 10 MB", set("/quant_method", long_word), {kFile, "xxx", "not supported"}},
       {"a method that a terminal obeys", set("/quant_method", "\x1b[2Jx"), {kFile, "\\x1b[2Jx"}},
       {"a format of 10 MB", set("/checkpoint_format", long_word), {kFile, "xxx", "gptq_v2"}},
       {"2^62 bits", set("/bits", int64_t{1} << 62), {kFile, "bits"}},
       {"a fraction of a bit", set("/bits", 4.5), {kFile, "bits", "4.5"}},
       {"bits as text", set("/bits", "4"), {kFile, "bits", "expected a whole number"}},
       {"more bits than the file has", set("/bits", 8), {"up_proj.qweight", "[8, 16]", "expected [16, 16]"}},
       {"groups wider than the matrix", set("/group_size", 4096), {"up_proj.qzeros", "expected [1, 2]"}},
       {"no group size", set("/group_size", nullptr), {kFile, "group_size is missing"}},
       {"an order that is no flag", set("/desc_act", "yes"), {kFile, "desc_act", "true or false"}},
       {"a file that ends in its data", Cut(kWeights, 0.9), {kWeights, "ends at byte"}},
       {"a part of another name", Replaced(kWeights, "proj.qzeros", "proj.qzeroz"), {"up_proj.qzeros is missing"}},
       {"a part of another type",
        Replaced(kWeights, "\"I32\"", "\"U32\""),
        {"up_proj.", "is of type U32, expected I32"}},
       {"a setting without meaning", set("/meta", {{"quantizer", "x"}}), {}}});
}

void MakeGguf(const fs::path& directory) { WriteText(directory / "model.gguf", GgufModel(*GoldenWeights("llama2"))); }

const Reader kGguf = {MakeGguf, [](const fs::path& directory) {
                        return LoadWeights(directory / "model.gguf", {.check_finite = true})->Fingerprint();
                      }};

TEST(HostileModels, Gguf) {
  static constexpr const char* kFile = "model.gguf";
  // A model with an embedding in Q8_0, whose first block has the scale NaN.
  const auto nan_scale = [](const fs::path& directory) {
    std::string config = SmallConfig();
    config.replace(config.find("\"hidden_size\": 8"), 16, "\"hidden_size\": 32");
    WriteText(directory / "shape", config);
    WriteRandomCheckpoint(directory / "shape", DType::kFloat32, 1, directory / "wide");
    const auto weights = LoadWeights(directory / "wide");
    GgufBytes file = GgufMetadataOf(weights->config);
    AddGgufTensors(*weights, file, "token_embd.weight");
    const auto rows = static_cast<uint64_t>(weights->config.vocab);
    std::string blocks(rows * 34, '\1');  // each has 32 numbers: a scale in float16, then bytes
    blocks[0] = '\0', blocks[1] = '\x7E';
    file.AddTensor("token_embd.weight", {rows, 32}, 8, blocks);
    WriteText(directory / kFile, file.Bytes());
  };
  CheckReader(
      kGguf,
      {{"another file", Text(kFile, std::string(100, 'x')), {kFile, "GGUF"}},
       {"an empty file", Text(kFile, ""), {kFile}},
       {"a file that ends in its metadata", Cut(kFile, 0.01), {kFile}},
       {"a file that ends in its data", Cut(kFile, 0.9), {kFile, "tensor"}},
       {"version 1", Begins(kFile, std::string("GGUF\1\0\0\0", 8)), {kFile, "version 1"}},
       {"2^63 tensors", Begins(kFile, std::string("GGUF\3\0\0\0", 8) + LittleEndian(uint64_t{1} << 63)), {kFile}},
       {"another architecture",
        Replaced(kFile, "general.architecture\x08", "general.architecturf\x08"),
        {kFile, "general.architecture"}},
       {"a setting that is not known",
        Replaced(kFile, "llama.context_length", "llama.context_lengtj"),
        {kFile, "llama.context_len"}},
       {"a tensor of another name", Replaced(kFile, "blk.0.attn_q.weight", "blk.0.attn_x.weight"), {kFile, "attn_"}},
       {"a NaN", NanAtTheEnd<float>(kFile), {kFile, "nan"}},
       {"a scale that is NaN", nan_scale, {kFile, "embed_tokens.weight", "nan"}}});
}

// A base model, and a corrected one with LoRA factors that was saved.
struct Saved {
  explicit Saved(const fs::path& directory, uint64_t seed = 5, int64_t rank = 2) {
    fs::create_directories(directory / "base");
    MakeCheckpoint(directory / "base");
    model.directory = directory / "base";
    model.weights = LoadWeights(directory / "base");
    Random random(seed);
    Lra lra;
    lra.p = Noise(kWidth, rank, random);
    lra.q = Noise(rank, kWidth, random);
    lra.b = Noise(1, kWidth, random);
    model.plan = {{BlockStage{0}, AdapterStage{{1}, std::make_shared<const Lra>(std::move(lra))}, BlockStage{2}}};
    const auto output = std::make_shared<OwnOutput>(*model.weights, DepthPlan());
    output->Replace(&OutputWeights::final_norm, Noise(1, kWidth, random).span());
    model.plan.output = OwnOutput::Share(output);
    lora = {.rank = 2, .alpha = 5, .factors = {}};
    for (const BlockTensor& row : BlockTensors())
      if (row.member == &BlockWeights::down)
        lora.factors.push_back({2, &row, Noise(2, kInner, random), Noise(kWidth, 2, random)});
  }
  void Save(const fs::path& directory) const { SaveAdapted(model, model.plan, Provenance(), false, directory, &lora); }

  Model model;
  Lora lora;
};

const Reader kSaved = {
    [](const fs::path& directory) { Saved(directory).Save(directory / "saved"); },
    [](const fs::path& directory) { return OpenAdapted(directory / "saved", {}).plan.Fingerprint(); }};

// Files of another model that was saved with the same shapes, as a program that was killed may leave them.
Change FromAnother(const char* file) {
  return [=](const fs::path& directory) {
    Saved(directory, 6).Save(directory / "other");
    fs::copy_file(directory / "other" / file, directory / "saved" / file, fs::copy_options::overwrite_existing);
  };
}

TEST(HostileModels, SavedPlan) {
  static constexpr const char *kFile = "saved/shiftrt.json", *kAdapters = "saved/adapters.safetensors",
                              *kOwn = "saved/own.safetensors", *kFactors = "saved/lora/adapter_model.safetensors",
                              *kSettings = "saved/lora/adapter_config.json";
  const auto set = [&](const char* pointer, const Json& value) { return Set(kFile, pointer, value); };
  const auto unchecked = [](const fs::path& directory) {
    Json json = Json::parse(ReadFile(directory / kFile));
    json.erase("checksums");
    WriteText(directory / kFile, json.dump());
  };
  CheckReader(kSaved,
              {{"no JSON", Text(kFile, "plan"), {kFile, "JSON"}},
               {"another version", set("/version", 9), {kFile, "version 9"}},
               {"another base", set("/fingerprint", "0123456789abcdef"), {kFile, "0123456789abcdef"}},
               {"a base that is not there", set("/base", "/nowhere"), {kFile, "/nowhere"}},
               {"another layer removed", set("/removed", {0}), {kFile, "removed"}},
               {"an adapter for another layer", set("/plan/1/adapter", {2}), {kFile, "adapter"}},
               {"a layer that the model has not", set("/plan/2/block", 3), {kFile, "block"}},
               {"an unknown stage", set("/plan/1", {{"repair", {1}}}), {kFile, "neither a block nor an adapter"}},
               {"a changed bit in an adapter", Flipped(kAdapters, 3), {kAdapters, "checksum"}},
               {"a changed bit in a tensor", Flipped(kOwn, 3), {kOwn, "checksum"}},
               {"a changed bit in a factor", Flipped(kFactors, 3), {"saved/lora", "checksum"}},
               {"another alpha", Set(kSettings, "/lora_alpha", 6), {"saved/lora", "checksum"}},
               {"another rank", Set(kSettings, "/r", 1), {kFactors, "lora_A"}},
               {"adapters of another model", FromAnother("adapters.safetensors"), {kAdapters, "checksum"}},
               {"tensors of another model", FromAnother("own.safetensors"), {kOwn, "checksum"}},
               {"factors of another model", FromAnother("lora/adapter_model.safetensors"), {"saved/lora", "checksum"}},
               {"an adapter that ends early", Cut(kAdapters, 0.8), {kAdapters}},
               {"no adapters", Without(kAdapters), {kAdapters}},
               {"checksums that are none", set("/checksums", 3), {kAdapters, "checksum"}},
               {"no checksums", unchecked, {}},
               {"another description of how it was made", set("/provenance/criterion", "none"), {}}});
}

// A directory of PEFT that another program made for the same plan.
const Reader kPeft = {[](const fs::path& directory) { Saved(directory).Save(directory / "saved"); },
                      [](const fs::path& directory) {
                        const Saved saved(directory);
                        return Checksum(ReadLora(directory / "saved/lora", *saved.model.weights, saved.model.plan));
                      }};

TEST(HostileModels, Peft) {
  static constexpr const char *kSettings = "saved/lora/adapter_config.json",
                              *kFactors = "saved/lora/adapter_model.safetensors";
  const auto set = [&](const char* pointer, const Json& value) { return Set(kSettings, pointer, value); };
  CheckReader(
      kPeft,
      {{"no JSON", Text(kSettings, "r: 2"), {kSettings, "JSON"}},
       {"no settings", Without(kSettings), {kSettings}},
       {"another kind", set("/peft_type", "IA3"), {kSettings, "IA3"}},
       {"a rank that the tensors have not", set("/r", 3), {kFactors, "lora_A", "[3, 12]"}},
       {"a rank below one", set("/r", 0), {kSettings, "r"}},
       {"a rank of 2^40", set("/r", int64_t{1} << 40), {kSettings, "r"}},
       {"an alpha below zero", set("/lora_alpha", -1), {kSettings, "lora_alpha"}},
       {"an alpha as text", set("/lora_alpha", "5"), {kSettings, "lora_alpha"}},
       {"an alpha that overflows", Replaced(kSettings, "\"lora_alpha\": 5", "\"lora_alpha\": 1e999"), {kSettings}},
       {"a pattern that is none", set("/alpha_pattern", {{"(down", 7}}), {kSettings, "alpha_pattern", "(down"}},
       {"ranks by module",
        set("/rank_pattern", {{"down_proj", 1}}),
        {kFactors, "lora_A", "expected float32, float16 or bfloat16 [1, "}},
       {"a scale as text", set("/use_rslora", "yes"), {kSettings, "use_rslora"}},
       {"DoRA", set("/use_dora", true), {kSettings, "use_dora"}},
       {"a transposed weight", set("/fan_in_fan_out", true), {kSettings, "fan_in_fan_out"}},
       {"a setting that is not known", set("/new_scaling", 2), {kSettings, "new_scaling"}},
       {"factors that end early", Cut(kFactors, 0.9), {kFactors}},
       {"no factors", Without(kFactors), {kFactors}},
       {"factors of another layer",
        Replaced(kFactors, "layers.1.", "layers.7."),
        {kFactors, "layers.1.mlp.down_proj.lora_A.weight is missing"}},
       {"another dropout", set("/lora_dropout", 0.5), {}}});
}

const Reader kHfLra = {[](const fs::path& directory) {
                         const Saved saved(directory);
                         DepthPlan plan = saved.model.plan;
                         plan.output = nullptr;
                         NoProgress quiet;
                         const Context context = Context::Default();
                         fs::create_directory(directory / "exported");
                         FindExportFormat("hf-lra").write(
                             {context, saved.model, plan, Provenance(), ExportSettings(), quiet},
                             directory / "exported");
                       },
                       [](const fs::path& directory) {
                         const Model model = OpenHfLra(directory / "exported", {});
                         return model.weights->Fingerprint() + model.plan.Fingerprint();
                       }};

TEST(HostileModels, HfLra) {
  static constexpr const char *kFile = "exported/config.json", *kTensors = "exported/model.safetensors";
  const auto set = [&](const char* pointer, const Json& value) { return Set(kFile, pointer, value); };
  CheckReader(kHfLra, {{"another format", set("/shiftrt/format", 7), {kFile, "format is 7"}},
                       {"another rank", set("/shiftrt/adapters/0/rank", 3), {"down.weight", "[2, 8]", "[3, 8]"}},
                       {"a rank below one", set("/shiftrt/adapters/0/rank", 0), {kFile, "rank is 0"}},
                       {"another kind", set("/shiftrt/adapters/0/kind", "full"), {"linear.weight is missing"}},
                       {"another place", set("/shiftrt/adapters/0/where", "before"), {"down.weight is missing"}},
                       {"a layer that is not there", set("/shiftrt/adapters/0/layer", 2), {kFile, "layer is 2"}},
                       {"layers that are not removed", set("/shiftrt/adapters/0/removed", {0}), {kFile, "removed"}},
                       {"no adapters", set("/shiftrt/adapters", Json::array()), {"is of no adapter"}},
                       {"tensors that end early", Cut(kTensors, 0.9), {kTensors}},
                       {"another description of how it was made", set("/shiftrt/provenance/criterion", "none"), {}}});
}

// Random plans come back as they were, whatever adapters and factors they have.
TEST(HostileModels, ValidPlansSurvive) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const TemporaryDirectory directory;
    const Saved saved(directory.path(), seed, 1 + static_cast<int64_t>(seed % 8));
    saved.Save(directory.path() / "saved");
    const Model opened = OpenAdapted(directory.path() / "saved", {});
    ASSERT_TRUE(opened.unmerged);
    EXPECT_EQ(opened.unmerged->Fingerprint(), saved.model.plan.Fingerprint());
    EXPECT_TRUE(SameChange(*opened.lora, saved.lora));
  }
}

// Random tensors of every type and shape, by random names.
TEST(HostileModels, ValidSafetensorsSurvive) {
  const TemporaryDirectory directory;
  for (uint64_t seed = 0; seed < 50; ++seed) {
    Random random(seed);
    std::deque<std::string> data;
    std::vector<NamedTensor> tensors;
    for (int64_t i = random.Below(6); i >= 0; --i) {
      const DType dtype =
          std::array{DType::kFloat32, DType::kFloat16, DType::kBFloat16, DType::kFloat64}[random.Below(4)];
      std::vector<int64_t> shape;
      for (int64_t sides = random.Below(4); sides > 0; --sides) shape.push_back(random.Below(5));
      TensorView view = {nullptr, dtype, shape};
      std::string& bytes = data.emplace_back(view.bytes(), '\0');
      for (char& byte : bytes) byte = static_cast<char>(random.Next());
      view.data = bytes.data();
      tensors.push_back({fmt::format("t{}\xC3\xA9\"\\{}", i, random.Below(1000)), view});
    }
    WriteSafetensors(directory.path() / "file", tensors, {{"key", "value \x01"}});
    const SafetensorsFile file(directory.path() / "file");
    ASSERT_EQ(file.tensors().size(), tensors.size());
    EXPECT_EQ(file.metadata().at("key"), "value \x01");
    for (const auto& [name, tensor, in_file] : tensors) {
      const TensorView& found = file.tensors().at(name);
      EXPECT_EQ(found.shape, tensor.shape);
      EXPECT_EQ(found.dtype, tensor.dtype);
      EXPECT_EQ(std::memcmp(found.data, tensor.data, tensor.bytes()), 0);
    }
  }
}

}  // namespace
}  // namespace shiftrt::hostile
