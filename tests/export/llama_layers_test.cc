// SPDX-License-Identifier: Apache-2.0
// Exports of the format hf as layers of a Llama (models/llama_layers.h): they come back as the plan, and as the Llama
// that other programs read they compute the same.
#include "models/llama_layers.h"

#include "models/adapted.h"
#include "models/hf_lra.h"
#include "tests/export/fixture.h"
#include "tests/models/checkpoint_files.h"
#include "tests/models/mlp_units.h"

namespace shiftrt {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFamilies[] = {"llama2", "llama_bias", "llama_linear", "mistral", "qwen1.5", "qwen2_tied"};

class LlamaLayersExport : public ExportTest {
 protected:
  // An adapter on the normed stream; rank as in Adapter().
  static std::shared_ptr<const Lra> Normed(const Model& model, int64_t rank, uint64_t seed) {
    const auto plain = Adapter(model, rank, seed);
    Lra lra{plain->a.Clone(), plain->p.Clone(), plain->q.Clone(), plain->b.Clone(),
            RandomMatrix(1, model.weights->config.hidden, seed + 3)};
    for (float& weight : lra.norm.span()) weight += 1;
    return std::make_shared<const Lra>(std::move(lra));
  }
  // Layer 1 is an adapter, and of layer 2 the attention runs, behind which another adapter stands.
  static DepthPlan WithAdapters(const Model& model, int64_t rank) {
    DepthPlan plan = Pruned(model, {1});
    plan.stages.insert(plan.stages.begin() + 1, AdapterStage{{1}, Normed(model, rank, 1)});
    plan.stages[2] = BlockStage{2, Halves::kAttention};
    plan.stages.insert(plan.stages.begin() + 3, AdapterStage{{{2, Halves::kMlp}}, Normed(model, rank, 9)});
    return plan;
  }
  // The directory as a program reads it that does not know the mark.
  Model AsLlama() const {
    Json config = ReadJson("config.json");
    config.erase("shiftrt");
    const fs::path copy = directory_.path() / "plain";
    fs::remove_all(copy);
    fs::copy(out_, copy);
    WriteText(copy / "config.json", config.dump());
    return OpenModel(copy.string());
  }
  static void ExpectNear(const Matrix<float>& found, const Matrix<float>& expected) {
    ASSERT_EQ(found.size(), expected.size());
    float largest = 0, apart = 0;
    for (int64_t i = 0; i < found.size(); ++i) {
      largest = std::max(largest, std::abs(expected.data()[i]));
      apart = std::max(apart, std::abs(found.data()[i] - expected.data()[i]));
    }
    EXPECT_LE(apart, 1e-5f * largest);
  }
  // Writes the plan and expects its bits from what is read, and its values from the Llama.
  Model ExpectComesBack(const Model& model, const DepthPlan& plan) {
    Write("hf", model, plan);
    Model opened = OpenModel(out_.string());
    const Matrix<float> expected = Logits(model, plan);
    ExpectSame(Logits(opened, opened.plan), expected);
    const Model llama = AsLlama();
    EXPECT_EQ(llama.weights->config.family, "llama");
    EXPECT_EQ(llama.plan, DepthPlan::Original(llama.weights->config.layers));
    if (model.weights->embedding.dtype == DType::kFloat32) ExpectNear(Logits(llama, llama.plan), expected);
    EXPECT_EQ(opened.weights->config.family, model.weights->config.family);
    EXPECT_EQ(opened.plan.stages.size(), plan.stages.size());
    EXPECT_EQ(opened.plan.Parameters(*opened.weights), plan.Parameters(*model.weights));
    return opened;
  }
};

TEST_F(LlamaLayersExport, HalfBlocksComeBackBitForBit) {
  const std::vector<std::vector<Halves>> cases = {
      {Halves::kBoth, Halves::kAttention}, {Halves::kMlp, Halves::kBoth}, {Halves::kMlp, Halves::kAttention}};
  for (const char* name : kFamilies) {
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      for (const std::vector<Halves>& halves : cases) {
        SCOPED_TRACE(fmt::format("{} {} {}", name, Name(dtype), Name(halves[0])));
        const Model model = Golden(name, dtype);
        DepthPlan plan = Pruned(model, {0});
        ASSERT_GE(plan.blocks(), 2);
        for (size_t i = 0; i < halves.size(); ++i) plan.stages[i] = BlockStage{plan.stages[i].block().layer, halves[i]};
        const Model opened = ExpectComesBack(model, plan);
        for (size_t i = 0; i < plan.stages.size(); ++i)
          EXPECT_EQ(opened.plan.stages[i].block().halves, plan.stages[i].block().halves);
        EXPECT_EQ(opened.removed, std::vector<int64_t>{0});
        fs::remove_all(out_);
      }
    }
  }
}

TEST_F(LlamaLayersExport, AdaptersComeBackWithWhatTheyReplace) {
  for (const char* name : kFamilies) {
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      for (const int64_t rank : {-1, 4, 0}) {
        SCOPED_TRACE(fmt::format("{} {} {}", name, Name(dtype), rank));
        const Model model = Golden(name, dtype);
        if (model.weights->config.layers < 3) continue;
        const DepthPlan plan = WithAdapters(model, rank);
        const Model opened = ExpectComesBack(model, plan);
        ASSERT_EQ(opened.plan.Adapters().size(), 2u);
        for (size_t i = 0; i < 2; ++i) {
          EXPECT_EQ(opened.plan.Adapters()[i]->parts, plan.Adapters()[i]->parts);
          EXPECT_EQ(opened.plan.Adapters()[i]->lra->rank(), plan.Adapters()[i]->lra->rank());
        }
        fs::remove_all(out_);
      }
    }
  }
}

TEST_F(LlamaLayersExport, AnAdapterIsAnMlpWithAConstantGate) {
  const Model model = Golden("qwen2_tied");
  const int64_t d = model.weights->config.hidden, units = model.weights->config.intermediate;
  const DepthPlan plan = WithAdapters(model, 4);
  const std::vector<std::string> notes = Write("hf", model, plan);
  ASSERT_FALSE(notes.empty());
  EXPECT_NE(notes[0].find("2 adapters"), std::string::npos) << notes[0];
  const Json config = ReadJson("config.json");
  EXPECT_EQ(config["architectures"], Json::array({"LlamaForCausalLM"}));
  EXPECT_EQ(config["model_type"], "llama");
  EXPECT_EQ(config["attention_bias"], true);
  EXPECT_EQ(config["mlp_bias"], true);
  EXPECT_EQ(config["num_hidden_layers"], plan.blocks() + 1);  // the attention and the adapter behind it share a layer
  EXPECT_FALSE(config.contains("auto_map"));
  EXPECT_TRUE(IsLlamaLayers(out_));
  const SafetensorsFile file(out_ / "model.safetensors");
  const auto tensor = [&](const std::string& name, std::vector<int64_t> shape) {
    const TensorView& view = file.tensors().at("model.layers.1." + name);
    EXPECT_EQ(view.shape, shape) << name;
    return static_cast<const float*>(view.data);
  };
  const Lra& lra = *plan.Adapters()[0]->lra;
  EXPECT_EQ(tensor("mlp.gate_proj.bias", {units})[3], kConstantGate);
  EXPECT_EQ(tensor("mlp.gate_proj.bias", {units})[4], 0);
  EXPECT_EQ(tensor("mlp.up_proj.weight", {units, d})[1 * d + 3], lra.p(3, 1) / kConstantGate);
  EXPECT_EQ(tensor("mlp.down_proj.weight", {d, units})[3 * units + 1], lra.q(1, 3));
  EXPECT_EQ(tensor("mlp.down_proj.bias", {d})[3], lra.b(0, 3));
  EXPECT_EQ(tensor("post_attention_layernorm.weight", {d})[3], lra.norm(0, 3));
  EXPECT_EQ(tensor("self_attn.o_proj.weight", {d, d})[3], 0);
}

// Blocks and halves with fewer and with more units than the model, and an adapter of a larger rank than all.
TEST_F(LlamaLayersExport, MlpsOfOtherUnitsComeBack) {
  for (const char* name : {"llama2", "llama_bias", "qwen2_tied"}) {
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      SCOPED_TRACE(fmt::format("{} {}", name, Name(dtype)));
      const Model model = Golden(name, dtype);
      const Weights& weights = *model.weights;
      const int64_t width = weights.config.intermediate;
      DepthPlan plan = Pruned(model, {1});
      plan.stages.insert(plan.stages.begin() + 1, AdapterStage{{1}, Normed(model, width + 64, 1)});
      plan.stages.insert(plan.stages.begin() + 2, WithUnits(weights, {1, Halves::kMlp}, 64));
      plan.stages[3] = WithUnits(weights, {2}, width + 32);
      const Model opened = ExpectComesBack(model, plan);
      EXPECT_EQ(ReadJson("config.json")["intermediate_size"], width + 64);
      EXPECT_EQ(opened.weights->config.intermediate, width);
      for (const size_t stage : {0, 2, 3})
        EXPECT_EQ(MlpUnits(TensorsOf(*opened.weights, opened.plan.stages[stage].block())),
                  MlpUnits(TensorsOf(weights, plan.stages[stage].block())));
      // A directory that has changes alone refers to the export.
      const fs::path changes = directory_.path() / "changes";
      SaveAdapted(opened, opened.plan, {}, false, changes);
      const Model reopened = OpenModel(changes.string());
      ExpectSame(Logits(reopened, reopened.plan), Logits(model, plan));
      fs::remove_all(changes);
      fs::remove_all(out_);
    }
  }
}

TEST_F(LlamaLayersExport, AnExportIsAModelToExport) {
  const Model model = Golden("qwen2_tied", DType::kBFloat16);
  const DepthPlan plan = WithAdapters(model, 4);
  Write("hf", model, plan);
  const Json config = ReadJson("config.json");
  const Model first = OpenModel(out_.string());
  provenance_ = *first.provenance;
  for (const char* format : {"hf", "hf-lra", "gguf"}) {
    SCOPED_TRACE(format);
    out_ = directory_.path() / (std::string("again-") + format);
    Write(format, first, first.plan);
    if (std::string_view(format) == "hf") {
      EXPECT_EQ(ReadJson("config.json"), config);
    }
    const fs::path file = std::string_view(format) == "gguf" ? out_ / "model.gguf" : out_;
    const Model second = OpenModel(file.string());
    EXPECT_EQ(second.plan.Adapters().size(), 2u);
    if (std::string_view(format) != "gguf") ExpectSame(Logits(second, second.plan), Logits(model, plan));
  }
  out_ = directory_.path() / "pruned";
  DepthPlan whole = DepthPlan::Original(1);
  Write("hf", first, whole);
  EXPECT_EQ(ReadJson("config.json")["architectures"], Json::array({"Qwen2ForCausalLM"}));
  EXPECT_FALSE(ReadJson("config.json").contains("shiftrt"));
  EXPECT_FALSE(ReadJson("config.json").contains("mlp_bias"));
}

// A training by another program fills the places that were empty, so that the layers are the plan no longer.
TEST_F(LlamaLayersExport, ChangedLayersAreRefused) {
  const Model model = Golden("qwen2_tied");
  Write("hf", model, WithAdapters(model, 4));
  const std::vector<StoredTensor> good = ReadTensors(out_ / "model.safetensors");
  const auto refused = [&](const std::string& name, size_t element, const std::string& word) {
    std::vector<StoredTensor> tensors = good;
    for (StoredTensor& tensor : tensors)
      if (tensor.name == "model.layers." + name) {
        const float one = 1;
        tensor.bytes.replace(element * sizeof(float), sizeof(float), reinterpret_cast<const char*>(&one),
                             sizeof(float));
      }
    WriteText(out_ / "model.safetensors", SafetensorsBytes(tensors));
    const std::string what = Refusal([&] { OpenModel(out_.string()); });
    EXPECT_NE(what.find("tensor model.layers." + name), std::string::npos) << what;
    EXPECT_NE(what.find(word), std::string::npos) << what;
    EXPECT_NE(what.find("opens as a Llama"), std::string::npos) << what;
  };
  const size_t units = model.weights->config.intermediate;
  refused("1.self_attn.o_proj.weight", 7, "holds 1 where zeros");
  refused("1.self_attn.o_proj.bias", 7, "holds 1 where zeros");
  refused("0.self_attn.o_proj.bias", 7, "holds 1 where zeros");
  refused("0.mlp.up_proj.bias", 7, "holds 1 where zeros");
  refused("1.mlp.gate_proj.weight", 7, "holds 1 where zeros");
  refused("1.mlp.gate_proj.bias", 2, "holds 1, expected 32");
  refused("1.mlp.down_proj.weight", units + 4, "holds 1 where zeros");
  WriteText(out_ / "model.safetensors", SafetensorsBytes(good));
  Json config = ReadJson("config.json");
  const auto spoilt = [&](const char* pointer, const Json& value, const std::string& word) {
    Json changed = config;
    changed[Json::json_pointer(pointer)] = value;
    WriteText(out_ / "config.json", changed.dump());
    const std::string what = Refusal([&] { OpenModel(out_.string()); });
    EXPECT_NE(what.find(word), std::string::npos) << word << " in: " << what;
  };
  spoilt("/num_hidden_layers", 2, "describes 3");
  spoilt("/shiftrt/as_llama", 3, "expected an object with replaced and added");
  spoilt("/shiftrt/as_llama/added", {3}, "expected keys");
  spoilt("/shiftrt/adapters/0/rank", 9000, "rank 9000 in an MLP");
  spoilt("/shiftrt/adapters/0/norm", 3, "norm is 3");
  spoilt("/shiftrt/mlp_units", {3}, "no list of");
}

TEST_F(LlamaLayersExport, PlansWithoutAPlaceAreRefused) {
  ExpectOnlyPartsOfALlama("hf", "holds families llama, mistral and qwen2 and not", "Formats that can: hf-lra");
}

TEST_F(LlamaLayersExport, TheFormatSaysWhatTheZerosCost) {
  const Model model = Golden("llama2");
  const ExportFormat& hf = FindExportFormat("hf");
  EXPECT_EQ(hf.loses(Pruned(model, {1})), "");
  EXPECT_EQ(hf.loses(WithAdapters(model, 4)), "time and memory: zeros fill 1 of the places of attentions and MLPs");
}

}  // namespace
}  // namespace shiftrt
