// SPDX-License-Identifier: Apache-2.0
// LoRA factors: merged as the formula says, and in PEFT's format as they went in.
#include "models/lora.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "models/lora_tables.h"
#include "runtime/elements.h"
#include "runtime/random.h"
#include "tests/models/checkpoint_files.h"

namespace shiftrt {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr int64_t kRank = 3;

const BlockTensor& Row(TensorView BlockWeights::*member) {
  for (const BlockTensor& row : BlockTensors())
    if (row.member == member) return row;
  throw Error("no such row");
}

Matrix<float> RandomMatrix(int64_t rows, int64_t cols, uint64_t seed) {
  Random random(seed);
  Matrix<float> m(rows, cols);
  for (float& x : m.span()) x = static_cast<float>(random.Uniform() - 0.5);
  return m;
}

LoraFactors Factors(const ModelConfig& config, int64_t layer, TensorView BlockWeights::*member) {
  const BlockTensor& row = Row(member);
  const std::vector<int64_t> shape = row.Shape(config);
  return {layer, &row, RandomMatrix(kRank, shape[1], layer + 1), RandomMatrix(shape[0], kRank, layer + 2)};
}

std::vector<double> Values(const TensorView& tensor) {
  std::vector<double> values(tensor.elements());
  WithElements(tensor, [&](const auto* data) {
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(data[i]);
  });
  return values;
}

class LoraFiles : public testing::Test {
 protected:
  void SetUp() override { weights_ = GoldenWeights("qwen2_tied"); }

  // Removes block 1; factors for the others.
  DepthPlan Pruned() const { return DepthPlan::Pruned(weights_->config.layers, std::vector<int64_t>{1}); }
  Lora Everywhere(const DepthPlan& plan) const {
    Lora lora{.rank = kRank, .alpha = 4.5, .factors = {}};
    for (const int64_t layer : plan.KeptLayers())
      for (const auto member : {&BlockWeights::q, &BlockWeights::v, &BlockWeights::down})
        lora.factors.push_back(Factors(weights_->config, layer, member));
    return lora;
  }
  void Write(const Lora& lora, const DepthPlan& plan, const std::string& base = "") const {
    AtomicDirectory out(directory_.path());
    WriteLora(lora, weights_->config, plan, base, out);
    out.Commit();
  }
  fs::path File(const char* name) const { return directory_.path() / kLoraDirectory / name; }
  Lora Read(const DepthPlan& plan) const { return ReadLora(directory_.path() / kLoraDirectory, *weights_, plan); }
  Json Config() const { return Json::parse(ReadFile(File(kLoraConfig))); }
  void ExpectConfigRefused(const Json& config, const std::string& word) const {
    WriteText(File(kLoraConfig), config.dump());
    const std::string what = Refusal([&] { Read(Pruned()); });
    EXPECT_NE(what.find(File(kLoraConfig).string()), std::string::npos) << what;
    EXPECT_NE(what.find(word), std::string::npos) << word << " in: " << what;
  }

  // Writes an adapter of these tensors, of rank kRank and alpha 2 kRank.
  void WriteTables(const std::vector<std::pair<std::string, const Matrix<float>*>>& tensors,
                   const Json& settings = Json::object()) const {
    Json config = {{"peft_type", "LORA"}, {"r", kRank}, {"lora_alpha", 2 * kRank}};
    config.update(settings);
    fs::create_directories(directory_.path() / kLoraDirectory);
    WriteText(File(kLoraConfig), config.dump());
    std::vector<NamedTensor> named;
    for (const auto& [name, matrix] : tensors)
      named.push_back({name, {matrix->data(), DType::kFloat32, {matrix->rows(), matrix->cols()}}});
    AtomicFile out(File(kLoraTensors));
    WriteSafetensors(out, named, {});
    out.Commit();
  }

  TemporaryDirectory directory_;
  std::shared_ptr<const Weights> weights_;
};

TEST(Lora, IsMergedAsTheFormulaSays) {
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    SCOPED_TRACE(Name(dtype));
    const auto weights = GoldenWeights("qwen3", dtype);
    const DepthPlan plan = DepthPlan::Original(weights->config.layers);
    Lora lora{.rank = kRank, .alpha = 7, .factors = {}};
    lora.factors.push_back(Factors(weights->config, 1, &BlockWeights::k));
    const DepthPlan merged = MergeLora(*weights, plan, lora);
    const LoraFactors& f = lora.factors.front();
    const TensorView &before = weights->blocks[1].k, &after = merged.stages[1].block().own->k;
    EXPECT_EQ(after.dtype, dtype);
    const std::vector<double> w = Values(before), found = Values(after);
    const double epsilon = dtype == DType::kFloat32 ? 0x1p-23 : dtype == DType::kFloat16 ? 0x1p-11 : 0x1p-8;
    for (int64_t i = 0; i < before.rows(); ++i) {
      for (int64_t j = 0; j < before.cols(); ++j) {
        double expected = w[i * before.cols() + j], size = std::abs(expected);
        for (int64_t r = 0; r < kRank; ++r) {
          const double term = 7.0 / kRank * f.b(i, r) * f.a(r, j);
          expected += term;
          size += std::abs(term);
        }
        // One rounding to the type; those of float32 before it are relative to the size of the terms.
        const double tolerance = epsilon * std::abs(expected) + (kRank + 3) * 0x1p-24 * size;
        ASSERT_NEAR(found[i * before.cols() + j], expected, tolerance) << i << " " << j;
      }
    }
    EXPECT_EQ(merged.stages[1].block().own->q.data, weights->blocks[1].q.data) << "the others are the model's";
    double lost = 0, change = 0;
    for (size_t i = 0; i < w.size(); ++i) {
      double delta = 0;
      const auto row = static_cast<int64_t>(i) / before.cols(), column = static_cast<int64_t>(i) % before.cols();
      for (int64_t r = 0; r < kRank; ++r) delta += 7.0 / kRank * f.b(row, r) * f.a(r, column);
      change += delta * delta;
      lost += std::pow(found[i] - w[i] - delta, 2);
    }
    EXPECT_NEAR(MergeError(*weights, plan, lora, merged), std::sqrt(lost / change),
                1e-2 * std::sqrt(lost / change) + 1e-6);
    EXPECT_EQ(merged.stages[0], plan.stages[0]);
    EXPECT_EQ(merged.Parameters(*weights), plan.Parameters(*weights));
  }
}

// Twice onto the same block: the second is added to what the first has made.
TEST(Lora, IsAddedToThePlansOwnTensors) {
  const auto weights = GoldenWeights("qwen3");
  const DepthPlan plan = DepthPlan::Original(weights->config.layers);
  Lora lora{.rank = kRank, .alpha = kRank, .factors = {}};
  lora.factors.push_back(Factors(weights->config, 0, &BlockWeights::up));
  const DepthPlan once = MergeLora(*weights, plan, lora), twice = MergeLora(*weights, once, lora);
  const std::vector<double> w = Values(weights->blocks[0].up), a = Values(once.stages[0].block().own->up),
                            b = Values(twice.stages[0].block().own->up);
  for (size_t i = 0; i < w.size(); ++i) ASSERT_NEAR(b[i] - a[i], a[i] - w[i], 1e-6);
}

TEST(Lora, WhatDoesNotFitThePlanIsRefused) {
  const auto weights = GoldenWeights("qwen3");
  const auto refused = [&](const DepthPlan& plan, LoraFactors factors, const std::string& word) {
    Lora lora{.rank = kRank, .alpha = 1000, .factors = {}};
    lora.factors.push_back(std::move(factors));
    const std::string what = Refusal([&] { MergeLora(*weights, plan, lora); });
    EXPECT_NE(what.find(word), std::string::npos) << what;
  };
  const ModelConfig& config = weights->config;
  const DepthPlan original = DepthPlan::Original(config.layers);
  refused(DepthPlan::Pruned(config.layers, std::vector<int64_t>{1}), Factors(config, 1, &BlockWeights::q),
          "layer 1, self_attn.q_proj");
  refused({{BlockStage{0, Halves::kAttention}}}, Factors(config, 0, &BlockWeights::up), "layer 0, mlp.up_proj");
  LoraFactors wide = Factors(config, 0, &BlockWeights::q);
  wide.a = RandomMatrix(kRank, config.hidden + 1, 1);
  refused(original, std::move(wide), "for a weight of");
  LoraFactors huge = Factors(config, 0, &BlockWeights::q);
  for (float& x : huge.a.span()) x = 3e38f;
  refused(original, std::move(huge), "self_attn.q_proj.weight");
}

TEST_F(LoraFiles, ComeBackWithTheLayersOfThePlan) {
  const DepthPlan plan = Pruned();
  const Lora lora = Everywhere(plan);
  Write(lora, plan);
  const Lora back = Read(plan);
  EXPECT_EQ(back.rank, kRank);
  EXPECT_EQ(back.alpha, 4.5);
  ASSERT_EQ(back.factors.size(), lora.factors.size());
  EXPECT_EQ(MergeLora(*weights_, plan, back).Fingerprint(), MergeLora(*weights_, plan, lora).Fingerprint());
}

// The files have the names, numbered without gaps, and the settings that PEFT needs.
TEST_F(LoraFiles, AreInPeftsFormat) {
  const DepthPlan plan = Pruned();
  Write(Everywhere(plan), plan, "/models/base");
  const Json config = Config();
  EXPECT_EQ(config["peft_type"], "LORA");
  EXPECT_EQ(config["task_type"], "CAUSAL_LM");
  EXPECT_EQ(config["base_model_name_or_path"], "/models/base");
  EXPECT_EQ(config["r"], kRank);
  EXPECT_EQ(config["lora_alpha"], 4.5);
  EXPECT_EQ(config["target_modules"], Json({"down_proj", "q_proj", "v_proj"}));
  const SafetensorsFile file(File(kLoraTensors));
  EXPECT_EQ(file.tensors().size(), 6u * plan.blocks());
  const auto a = file.tensors().find("base_model.model.model.layers.1.mlp.down_proj.lora_A.weight");
  ASSERT_NE(a, file.tensors().end());
  EXPECT_EQ(a->second.shape, (std::vector<int64_t>{kRank, weights_->config.intermediate}));

  // StarCoder 2 calls the projections of the MLP c_fc and c_proj.
  weights_ = GoldenWeights("starcoder2");
  const Lora coder = Everywhere(plan);
  Write(coder, plan);
  EXPECT_EQ(Config()["target_modules"], Json({"c_proj", "q_proj", "v_proj"}));
  EXPECT_TRUE(SafetensorsFile(File(kLoraTensors))
                  .tensors()
                  .contains("base_model.model.model.layers.1.mlp.c_proj.lora_A.weight"));
  EXPECT_EQ(MergeLora(*weights_, plan, Read(plan)).Fingerprint(), MergeLora(*weights_, plan, coder).Fingerprint());
  weights_ = GoldenWeights("qwen2_tied");

  // Not on every block: each projection is named.
  Lora some{.rank = kRank, .alpha = 16, .factors = {}};
  some.factors.push_back(Factors(weights_->config, 2, &BlockWeights::q));
  Write(some, plan);
  EXPECT_EQ(Config()["target_modules"], Json({"model.layers.1.self_attn.q_proj"}));
  EXPECT_EQ(Config()["lora_alpha"].dump(), "16");
  EXPECT_TRUE(Config()["base_model_name_or_path"].is_null());
}

TEST_F(LoraFiles, SettingsThatChangeWhatItComputesAreRefused) {
  const DepthPlan plan = Pruned();
  Write(Everywhere(plan), plan);
  const Json good = Config();
  const auto with = [&](const char* key, const Json& value) {
    Json config = good;
    config[key] = value;
    return config;
  };
  // As PEFT 0.21 writes them where they are not used.
  Json full = good;
  full.update(Json{{"use_dora", false},
                   {"use_rslora", false},
                   {"rank_pattern", Json::object()},
                   {"modules_to_save", nullptr},
                   {"lora_dropout", 0.1},
                   {"layers_to_transform", nullptr},
                   {"megatron_core", "megatron.core"},
                   {"qalora_group_size", 16},
                   {"init_lora_weights", true},
                   {"loftq_config", Json::object()}});
  WriteText(File(kLoraConfig), full.dump());
  EXPECT_EQ(Read(plan).rank, kRank);
  for (const auto& [key, value] : std::initializer_list<std::pair<const char*, Json>>{{"use_dora", true},
                                                                                      {"bias", "all"},
                                                                                      {"fan_in_fan_out", true},
                                                                                      {"modules_to_save", {"lm_head"}},
                                                                                      {"modules_to_save", {"norm"}},
                                                                                      {"rank_pattern", {{"q_proj", 0}}},
                                                                                      {"rank_pattern", {{"(q", 4}}},
                                                                                      {"alpha_pattern", 3},
                                                                                      {"init_lora_weights", "pissa"},
                                                                                      {"something_new", 1}})
    ExpectConfigRefused(with(key, value), key);
  ExpectConfigRefused(with("peft_type", "IA3"), "peft_type");
  for (const Json& rank : {Json(0), Json(-1), Json("8"), Json(1 << 20), Json(nullptr)})
    ExpectConfigRefused(with("r", rank), "r ");
  for (const Json& alpha : {Json("16"), Json(-1), Json(nullptr)})
    ExpectConfigRefused(with("lora_alpha", alpha), "lora_alpha");
  ExpectConfigRefused(Json::array(), "object");
  WriteText(File(kLoraConfig), with("r", kRank + 1).dump());
  EXPECT_NE(Refusal([&] { Read(plan); }).find("[4, "), std::string::npos);
}

// Trainers write these too; the way out is to merge them.
TEST_F(LoraFiles, WhatIsNotSupportedIsRefusedWithAdvice) {
  const DepthPlan plan = Pruned();
  const std::vector<float> values(4, 0.0f);
  for (const auto& [name, word] : std::vector<std::pair<std::string, std::string>>{
           {"base_model.model.model.layers.0.self_attn.q_proj.lora_A.default.weight", "inside peft"}}) {
    Write(Everywhere(plan), plan);
    const TensorView tensor = {values.data(), DType::kFloat32, {2, 2}};
    AtomicFile out(File(kLoraTensors));
    WriteSafetensors(out, {{name, tensor}}, {});
    out.Commit();
    const std::string what = Refusal([&] { Read(plan); });
    EXPECT_NE(what.find(word), std::string::npos) << what;
    EXPECT_NE(what.find("merge the adapter with peft"), std::string::npos) << what;
  }
  std::filesystem::rename(File(kLoraTensors), File("adapter_model.bin"));
  EXPECT_NE(Refusal([&] { Read(plan); }).find("adapter_model.bin is pickled"), std::string::npos);
}

// W + scale B A by a loop in double.
void ExpectChanged(const TensorView& before, const TensorView& after, const Matrix<float>& a, const Matrix<float>& b,
                   double scale) {
  const std::vector<double> w = Values(before), found = Values(after);
  for (int64_t i = 0; i < before.rows(); ++i) {
    for (int64_t j = 0; j < before.cols(); ++j) {
      double expected = w[i * before.cols() + j];
      for (int64_t r = 0; r < a.rows(); ++r) expected += scale * b(i, r) * a(r, j);
      ASSERT_NEAR(found[i * before.cols() + j], expected, 1e-5) << i << " " << j;
    }
  }
}

// PEFT's scales: alpha / sqrt(rank) with use_rslora, and ranks and alphas by patterns of the modules' names.
TEST_F(LoraFiles, RanksAndScalesAreThoseOfTheModule) {
  const DepthPlan plan = DepthPlan::Original(weights_->config.layers);
  Lora lora{.rank = kRank, .alpha = 6, .factors = {}};
  lora.factors.push_back(Factors(weights_->config, 0, &BlockWeights::q));
  lora.factors.push_back(Factors(weights_->config, 1, &BlockWeights::q));
  lora.factors.push_back(Factors(weights_->config, 1, &BlockWeights::down));
  Write(lora, plan);
  const Json good = Config();
  const double root = std::sqrt(static_cast<double>(kRank));
  struct Case {
    Json settings;
    double scales[3];
  };
  for (const auto& [settings, scales] : std::vector<Case>{
           {{{"use_rslora", true}}, {6 / root, 6 / root, 6 / root}},
           {{{"alpha_pattern", {{"q_proj", 9}}}}, {3, 3, 2}},
           {{{"alpha_pattern", {{"layers.1.*", 0}}}}, {2, 0, 0}},
           {{{"alpha_pattern", {{"proj", 9}}}}, {2, 2, 2}},  // a whole part of the name, from a point on
           {{{"rank_pattern", {{".*_proj", kRank}}}, {"r", 1}, {"alpha_pattern", {{".*q_proj", 12}}}}, {4, 4, 2}},
           {{{"alpha_pattern", {{"model.layers.0.self_attn.q_proj", 3}}}, {"use_rslora", true}},
            {3 / root, 6 / root, 6 / root}}}) {
    SCOPED_TRACE(settings.dump());
    Json config = good;
    config.update(settings);
    WriteText(File(kLoraConfig), config.dump());
    const DepthPlan merged = MergeLora(*weights_, plan, Read(plan));
    for (size_t i = 0; i < lora.factors.size(); ++i) {
      const LoraFactors& f = lora.factors[i];
      ExpectChanged(weights_->blocks[f.layer].*f.tensor->member,
                    (*merged.stages[f.layer].block().own).*f.tensor->member, f.a, f.b, scales[i]);
    }
  }
  ExpectConfigRefused({{"peft_type", "LORA"},
                       {"r", kRank},
                       {"lora_alpha", 1},
                       {"alpha_pattern", {{"q_proj", 1}, {"self_attn.q_proj", 2}}}},
                      "two patterns");
}

TEST_F(LoraFiles, FactorsOfDifferentRanksAreMergedAlike) {
  const DepthPlan plan = DepthPlan::Original(weights_->config.layers);
  const std::vector<int64_t> shape = Row(&BlockWeights::k).Shape(weights_->config);
  const Matrix<float> a = RandomMatrix(1, shape[1], 1), b = RandomMatrix(shape[0], 1, 2);
  const LoraFactors wide = Factors(weights_->config, 0, &BlockWeights::q);
  const std::string layer = "base_model.model.model.layers.0.self_attn.";
  WriteTables({{layer + "k_proj.lora_A.weight", &a},
               {layer + "k_proj.lora_B.weight", &b},
               {layer + "q_proj.lora_A.weight", &wide.a},
               {layer + "q_proj.lora_B.weight", &wide.b}},
              {{"rank_pattern", {{"k_proj", 1}}}, {"alpha_pattern", {{"k_proj", 5}}}});
  const Lora lora = Read(plan);
  EXPECT_EQ(lora.rank, kRank);
  const DepthPlan merged = MergeLora(*weights_, plan, lora);
  const BlockWeights& own = *merged.stages[0].block().own;
  ExpectChanged(weights_->blocks[0].k, own.k, a, b, 5);
  ExpectChanged(weights_->blocks[0].q, own.q, wide.a, wide.b, 2);
}

// As in PEFT, a tied head is changed only where the adapter says so.
TEST_F(LoraFiles, TheHeadAndTheEmbeddingTableCanHaveFactors) {
  const ModelConfig& config = weights_->config;
  const DepthPlan plan = DepthPlan::Original(config.layers);
  const Matrix<float> a = RandomMatrix(kRank, config.hidden, 1), b = RandomMatrix(config.vocab, kRank, 2);
  WriteTables({{"base_model.model.lm_head.lora_A.weight", &a}, {"base_model.model.lm_head.lora_B.weight", &b}});
  const Lora head = Read(plan);
  EXPECT_EQ(WithLoraEmbedding(weights_, head), weights_);
  const DepthPlan merged = MergeLora(*weights_, plan, head);
  EXPECT_FALSE(merged.TiedHead(*weights_));
  ExpectChanged(weights_->head, merged.Output(*weights_).head, a, b, 2);

  Matrix<float> down(kRank, config.vocab), up(config.hidden, kRank);  // PEFT has the factors of the transposed table
  for (int64_t r = 0; r < kRank; ++r) {
    for (int64_t i = 0; i < config.vocab; ++i) down(r, i) = b(i, r);
    for (int64_t j = 0; j < config.hidden; ++j) up(j, r) = a(r, j);
  }
  const std::string name = "base_model.model.model.embed_tokens.lora_embedding_";
  WriteTables({{name + "A", &down}, {name + "B", &up}});
  const Lora embedding = Read(plan);
  const auto changed = WithLoraEmbedding(weights_, embedding);
  ExpectChanged(weights_->embedding, changed->embedding, a, b, 2);
  EXPECT_FALSE(plan.TiedHead(*changed));
  EXPECT_EQ(changed->head.data, weights_->embedding.data);
  EXPECT_EQ(MergeLora(*changed, plan, embedding).output, nullptr);
}

TEST_F(LoraFiles, TheHeadAndTheEmbeddingTableCanBeReplaced) {
  const ModelConfig& config = weights_->config;
  const DepthPlan plan = DepthPlan::Original(config.layers);
  const Matrix<float> table = RandomMatrix(config.vocab, config.hidden, 1),
                      other = RandomMatrix(config.vocab, config.hidden, 2);
  const std::string embedding = "base_model.model.model.embed_tokens.weight", head = "base_model.model.lm_head.weight";
  const auto same = [](const TensorView& found, const Matrix<float>& expected) {
    const std::vector<double> values = Values(found);
    return std::equal(values.begin(), values.end(), expected.span().begin(), expected.span().end());
  };
  WriteTables({{embedding, &table}, {head, &other}}, {{"modules_to_save", {"embed_tokens", "lm_head"}}});
  const Lora both = Read(plan);
  const auto changed = WithLoraEmbedding(weights_, both);
  EXPECT_TRUE(same(changed->embedding, table));
  EXPECT_TRUE(same(MergeLora(*changed, plan, both).Output(*changed).head, other));
  EXPECT_NE(changed->Fingerprint(), weights_->Fingerprint());

  // Without modules_to_save the tensor of a tied head is the table.
  WriteTables({{embedding, &table}});
  const Lora tied = Read(plan);
  const auto one = WithLoraEmbedding(weights_, tied);
  EXPECT_TRUE(MergeLora(*one, plan, tied).TiedHead(*one));
  EXPECT_TRUE(same(plan.Output(*one).head, table));
  WriteTables({{embedding, &table}, {head, &other}});
  EXPECT_NE(Refusal([&] { Read(plan); }).find("merge the adapter with peft"), std::string::npos);
  const Matrix<float> longer = RandomMatrix(config.vocab + 1, config.hidden, 1);
  WriteTables({{embedding, &longer}});
  EXPECT_NE(Refusal([&] { Read(plan); }).find(fmt::format("expected float32, float16 or bfloat16 [{}", config.vocab)),
            std::string::npos);
}

TEST_F(LoraFiles, AreOfTheModelThatTheyAreReadFor) {
  const DepthPlan plan = Pruned();
  Write(Everywhere(DepthPlan::Original(weights_->config.layers)), DepthPlan::Original(weights_->config.layers));
  const std::string what = Refusal([&] { Read(plan); });
  EXPECT_NE(what.find("of no projection that a model of 2 blocks runs"), std::string::npos) << what;
}

}  // namespace
}  // namespace shiftrt
