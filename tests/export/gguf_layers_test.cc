// SPDX-License-Identifier: Apache-2.0
// Exports of the format gguf whose layers differ (models/gguf_layers.h): half blocks and adapters come back.
#include "models/gguf_layers.h"

#include "export/gguf_items.h"
#include "models/gguf.h"
#include "runtime/gguf_writer.h"
#include "tests/export/fixture.h"
#include "tests/models/mlp_units.h"

namespace shiftrt {
namespace {

namespace fs = std::filesystem;

class GgufLayersExport : public ExportTest {
 protected:
  fs::path File() const { return out_ / "model.gguf"; }

  static AdapterStage Site(std::vector<BlockPart> parts, const std::shared_ptr<const Lra>& lra) {
    return AdapterStage{std::move(parts), lra};
  }
  // An adapter on the normed stream; rank as in Adapter().
  static std::shared_ptr<const Lra> Normed(const Model& model, int64_t rank, uint64_t seed) {
    const auto plain = Adapter(model, rank, seed);
    Lra lra{plain->a.Clone(), plain->p.Clone(), plain->q.Clone(), plain->b.Clone(),
            RandomMatrix(1, model.weights->config.hidden, seed + 3)};
    for (float& weight : lra.norm.span()) weight += 1;
    return std::make_shared<const Lra>(std::move(lra));
  }
  // Writes the plan, and expects that it comes back with the bits that the plan gives once its adapters are dense.
  Model ExpectComesBack(const Model& model, const DepthPlan& plan) {
    Write("gguf", model, plan);
    Model opened = OpenModel(File().string());
    ExpectSame(Logits(opened, opened.plan), Logits(model, WithDenseAdapters(context_, plan)));
    fs::remove_all(out_);
    return opened;
  }
};

TEST_F(GgufLayersExport, HalfBlocksComeBackBitForBit) {
  const std::vector<std::vector<Halves>> cases = {
      {Halves::kBoth, Halves::kAttention}, {Halves::kMlp, Halves::kBoth}, {Halves::kMlp, Halves::kAttention}};
  for (const char* name : {"llama2", "llama_bias", "llama_linear", "mistral", "qwen1.5", "qwen2_tied"}) {
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      for (const std::vector<Halves>& halves : cases) {
        SCOPED_TRACE(fmt::format("{} {} {}", name, Name(dtype), Name(halves[0])));
        const Model model = Golden(name, dtype);
        DepthPlan plan = Pruned(model, {0});
        ASSERT_GE(plan.blocks(), 2);
        for (size_t i = 0; i < halves.size(); ++i) plan.stages[i] = BlockStage{plan.stages[i].block().layer, halves[i]};
        const Model opened = ExpectComesBack(model, plan);
        EXPECT_EQ(opened.weights->config.family,
                  std::string_view(name) == "mistral" ? "llama" : model.weights->config.family);
        ASSERT_EQ(opened.plan.stages.size(), plan.stages.size());
        for (size_t i = 0; i < plan.stages.size(); ++i)
          EXPECT_EQ(opened.plan.stages[i].block().halves, plan.stages[i].block().halves);
        EXPECT_EQ(opened.removed, std::vector<int64_t>{0});
      }
    }
  }
}

TEST_F(GgufLayersExport, AdaptersComeBackWithWhatTheyReplace) {
  for (const char* name : {"llama2", "qwen2_tied"}) {
    for (const int64_t rank : {-1, 4, 0}) {
      SCOPED_TRACE(fmt::format("{} {}", name, rank));
      const Model model = Golden(name);
      DepthPlan plan = Pruned(model, {1});
      plan.stages.insert(plan.stages.begin() + 1, Site({1}, Normed(model, rank, 1)));
      plan.stages.emplace_back(Site({{2, Halves::kMlp}}, Normed(model, rank, 9)));
      plan.stages[2] = BlockStage{2, Halves::kAttention};
      if (plan.stages.size() > 4) plan.stages.erase(plan.stages.begin() + 3, plan.stages.end() - 1);
      const Model opened = ExpectComesBack(model, plan);
      ASSERT_EQ(opened.plan.Adapters().size(), 2u);
      for (size_t i = 0; i < 2; ++i) EXPECT_EQ(opened.plan.Adapters()[i]->parts, plan.Adapters()[i]->parts);
    }
  }
}

// llama.cpp takes the sizes of heads from the first layer.
TEST_F(GgufLayersExport, TheFirstLayerHasHeads) {
  const Model model = Golden("llama2");
  DepthPlan plan = Pruned(model, {});
  plan.stages[0] = BlockStage{0, Halves::kMlp};
  Write("gguf", model, plan);
  const GgufFile file(File());
  EXPECT_EQ(file.metadata().Text("general.architecture"), "deci");
  EXPECT_EQ(file.metadata().Integers("deci.attention.head_count").front(), model.weights->config.heads);
  EXPECT_EQ(file.metadata().Integers("deci.attention.head_count_kv").front(), 0);
  EXPECT_TRUE(file.tensors().contains("blk.0.attn_output.weight"));
  EXPECT_FALSE(file.tensors().contains("blk.0.attn_q.weight"));
  DepthPlan bias = Pruned(model, {0});
  bias.stages.insert(bias.stages.begin(), Site({0}, Adapter(model, 0, 3)));
  fs::remove_all(out_);
  ExpectComesBack(model, bias);
}

TEST_F(GgufLayersExport, AnAdapterIsAMatrixInThePlaceOfAnAttention) {
  const Model model = Golden("llama2");
  const ModelConfig& config = model.weights->config;
  DepthPlan plan = Pruned(model, {1});
  plan.stages.insert(plan.stages.begin() + 1, Site({1}, Normed(model, -1, 1)));
  for (const bool q8_0 : {false, true}) {
    settings_.q8_0 = q8_0;
    Write("gguf", model, plan);
    const GgufFile file(File());
    EXPECT_EQ(file.metadata().Integers("deci.attention.head_count")[1], config.heads);
    EXPECT_EQ(file.metadata().Integers("deci.attention.head_count_kv")[1], 0);
    EXPECT_EQ(file.metadata().Texts(kGgufAdapters), std::vector<std::string_view>{"1"});
    const GgufTensor& matrix = file.tensors().at("blk.1.attn_output.weight");
    EXPECT_EQ(matrix.shape, (std::vector<int64_t>{config.hidden, config.hidden}));
    EXPECT_STREQ(matrix.type->name, q8_0 ? "F16" : "F32");  // 48 is no multiple of 32
    fs::remove_all(out_);
  }
  settings_.q8_0 = false;
  Write("gguf", model, plan);
  std::string bytes = ReadFile(File());
  bytes[bytes.find(kGgufAdapters) + std::string_view(kGgufAdapters).size() + 4 + 4 + 8 + 8] = 'x';
  WriteText(directory_.path() / "changed.gguf", bytes);
  EXPECT_NE(Refusal([&] { OpenModel((directory_.path() / "changed.gguf").string()); }).find("no ascending list"),
            std::string::npos);
}

TEST_F(GgufLayersExport, LayersHaveTheSizesOfTheirBlocks) {
  const Model model = Golden("llama2");
  const ModelConfig& config = model.weights->config;
  DepthPlan plan = Pruned(model, {});
  plan.stages[1] = BlockStage{1, Halves::kMlp};
  plan.stages[2] = BlockStage{2, Halves::kAttention};
  Write("gguf", model, plan);
  const GgufFile file(File());
  const auto sizes = [&](const char* key) { return file.metadata().Integers(fmt::format("deci.{}", key)); };
  EXPECT_EQ(sizes("attention.head_count"), (std::vector<int64_t>{config.heads, 0, config.heads}));
  EXPECT_EQ(sizes("attention.head_count_kv"), (std::vector<int64_t>{config.kv_heads, 0, config.kv_heads}));
  EXPECT_EQ(sizes("feed_forward_length"),
            (std::vector<int64_t>{config.intermediate, config.intermediate, kNoMlpUnits}));
  EXPECT_FALSE(file.tensors().contains("blk.1.attn_norm.weight"));
  EXPECT_EQ(file.tensors().at("blk.2.ffn_down.weight").shape, (std::vector<int64_t>{config.hidden, kNoMlpUnits}));
}

// Blocks and halves with fewer and with more units than the model, beside an adapter.
TEST_F(GgufLayersExport, MlpsOfOtherUnitsComeBack) {
  for (const char* name : {"llama2", "llama_bias", "qwen2_tied"}) {
    for (const bool q8_0 : {false, true}) {
      SCOPED_TRACE(fmt::format("{} {}", name, q8_0));
      settings_.q8_0 = q8_0;
      const Model model = Golden(name);
      const Weights& weights = *model.weights;
      const int64_t width = weights.config.intermediate;
      DepthPlan plan = Pruned(model, {1});
      plan.stages.insert(plan.stages.begin() + 1, Site({1}, Normed(model, 4, 1)));
      plan.stages.insert(plan.stages.begin() + 2, WithUnits(weights, {1, Halves::kMlp}, 64));
      plan.stages[3] = WithUnits(weights, {2}, width + 32);
      Write("gguf", model, plan);
      std::vector<int64_t> sizes = {width, kNoMlpUnits, 64, width + 32};
      for (size_t i = sizes.size(); i < plan.stages.size(); ++i) sizes.push_back(width);
      EXPECT_EQ(GgufFile(File()).metadata().Integers("deci.feed_forward_length"), sizes);
      EXPECT_EQ(GgufFile(File()).metadata().Integers("deci.attention.head_count")[2], 0);
      const Model opened = OpenModel(File().string());
      if (!q8_0) ExpectSame(Logits(opened, opened.plan), Logits(model, WithDenseAdapters(context_, plan)));
      EXPECT_EQ(opened.weights->config.intermediate, width + 32);
      ASSERT_EQ(opened.plan.stages.size(), plan.stages.size());
      EXPECT_EQ(opened.plan.stages[2].block().halves, Halves::kMlp);
      EXPECT_EQ(MlpUnits(opened.weights->blocks[0]), width);
      EXPECT_EQ(MlpUnits(opened.weights->blocks[1]), 64);
      EXPECT_EQ(MlpUnits(opened.weights->blocks[2]), width + 32);
      fs::remove_all(out_);
    }
  }
}

// A file of whole blocks that differ in the units of their MLPs, as those of Llama-Nemotron do.
TEST_F(GgufLayersExport, ModelsWhoseBlocksDifferInUnitsAreOpened) {
  const Model model = Golden("llama2");
  DepthPlan plan = Pruned(model, {});
  for (const auto& [block, units] : {std::pair<size_t, int64_t>{0, 64}, {1, 32}})
    plan.stages[block] = WithUnits(*model.weights, plan.stages[block].block(), units);
  Write("gguf", model, plan);
  const fs::path kept = directory_.path() / "differ.gguf";
  fs::rename(File(), kept);
  fs::remove_all(out_);
  const Model opened = OpenModel(kept.string());
  ExpectSame(Logits(opened, opened.plan), Logits(model, plan));
  const int64_t layers = model.weights->config.layers, width = model.weights->config.intermediate;
  EXPECT_EQ(opened.plan, DepthPlan::Original(layers));
  EXPECT_EQ(opened.plan.Parameters(*opened.weights), plan.Parameters(*model.weights));
  EXPECT_EQ(opened.weights->config.intermediate, width);
  // It is a model like any other: pruned, it is written again, though no block has the width of the widest.
  const DepthPlan rest = DepthPlan::Pruned(layers, std::vector<int64_t>{2});
  ASSERT_EQ(rest.blocks(), 2);
  Write("gguf", opened, rest);
  const Model again = OpenModel(File().string());
  ExpectSame(Logits(again, again.plan), Logits(opened, rest));
  EXPECT_EQ(again.weights->config.intermediate, 64);
  // Its checkpoint can be saved with the weights.
  SaveAdapted(opened, rest, {}, /*with_weights=*/true, directory_.path() / "saved");
  const Model saved = OpenModel((directory_.path() / "saved").string());
  ExpectSame(Logits(saved, saved.plan), Logits(opened, rest));
}

TEST_F(GgufLayersExport, OtherFormatsRefuseMlpsOfOtherUnits) {
  const Model model = Golden("llama2");
  DepthPlan plan = Pruned(model, {1});
  plan.stages[1] = WithUnits(*model.weights, {2}, 64);
  const std::string what = WriteRefusal("mergekit", model, plan);
  EXPECT_NE(what.find("block 2 has tensors of its own"), std::string::npos) << what;
  EXPECT_NE(what.find("Formats that can: hf, hf-lra, gguf"), std::string::npos) << what;
  const Model qwen3 = Golden("qwen3");
  DepthPlan of_qwen3 = Pruned(qwen3, {1});
  of_qwen3.stages[1] = WithUnits(*qwen3.weights, of_qwen3.stages[1].block(), 64);
  EXPECT_NE(WriteRefusal("gguf", qwen3, of_qwen3).find("MLPs of other units need"), std::string::npos);
}

TEST_F(GgufLayersExport, PlansWithoutAPlaceAreRefused) {
  ExpectOnlyPartsOfALlama("gguf", "holds families llama, qwen2, mistral and not", "--recipe stock");
  const Model llama = Golden("llama2");
  DepthPlan without = Pruned(llama, {});
  for (Stage& stage : without.stages) stage = BlockStage{stage.block().layer, Halves::kMlp};
  ExpectWriteRefusal("gguf", llama, without, "no block runs its attention");
}

// A file of other sizes is refused by the key or the tensor.
TEST_F(GgufLayersExport, OtherLayersAreRefused) {
  const Model model = Golden("llama2");
  DepthPlan plan = Pruned(model, {});
  plan.stages[0] = BlockStage{0, Halves::kMlp};
  plan.stages[2] = BlockStage{2, Halves::kAttention};
  Write("gguf", model, plan);
  const std::string whole = ReadFile(File());
  const fs::path changed = directory_.path() / "changed.gguf";
  // With another number for a layer in a list of int32, which stands after its types and its length.
  const auto refused = [&](const std::string& key, int64_t layer, int32_t value, const std::string& word) {
    std::string bytes = whole;
    std::memcpy(bytes.data() + bytes.find(key) + key.size() + 4 + 4 + 8 + 4 * layer, &value, sizeof(value));
    WriteText(changed, bytes);
    const std::string what = Refusal([&] { OpenModel(changed.string()); });
    EXPECT_NE(what.find(word), std::string::npos) << word << " in: " << what;
  };
  const int32_t heads = static_cast<int32_t>(model.weights->config.heads);
  refused("deci.feed_forward_length", 1, 0, "feed_forward_length of layer 1 is 0");
  refused("deci.feed_forward_length", 1, 31, "blk.1.ffn_down.weight has shape");
  refused("deci.feed_forward_length", 0, -1, "has -1");
  refused("deci.attention.head_count", 1, heads + 1, "several sizes");
  refused("deci.attention.head_count", 2, 0, "is not one this configuration has");
  refused("deci.attention.head_count_kv", 2, 0, "is not one this configuration has");
  // A number in a matrix or in an MLP that were zero.
  const auto changed_tensor = [&](const char* name) {
    const GgufFile file(File());
    const auto* const data = reinterpret_cast<const char*>(file.tensors().at(name).data);
    const auto* const embedding = reinterpret_cast<const char*>(file.tensors().at(kGgufEmbedding).data);
    std::string bytes = whole;
    bytes[bytes.find(std::string(embedding, 64)) + static_cast<size_t>(data - embedding) + 2] = 64;
    WriteText(changed, bytes);
    return Refusal([&] { OpenModel(changed.string()); });
  };
  EXPECT_EQ(changed_tensor("blk.2.ffn_down.weight"), "");
  EXPECT_EQ(MlpUnits(OpenModel(changed.string()).weights->blocks[2]), 32);
  std::string bytes = whole;
  bytes[bytes.find("shiftrt.removed") + 15] = 6;  // float32 in place of a list
  WriteText(changed, bytes);
  EXPECT_THROW(OpenModel(changed.string()), Error);
}

TEST_F(GgufLayersExport, Q8KeepsZeros) {
  settings_.q8_0 = true;
  const Model model = Golden("qwen2_tied");
  DepthPlan plan = Pruned(model, {1});
  plan.stages[1] = BlockStage{2, Halves::kAttention};
  Write("gguf", model, plan);
  EXPECT_EQ(OpenModel(File().string()).plan.half_blocks(), 1);
  EXPECT_STREQ(GgufFile(File()).tensors().at("blk.1.ffn_down.weight").type->name, "Q8_0");
}

}  // namespace
}  // namespace shiftrt
