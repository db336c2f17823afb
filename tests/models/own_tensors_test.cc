// SPDX-License-Identifier: Apache-2.0
// Saved models whose plans have tensors, a head or LoRA factors of their own.
#include "tests/models/adapted_fixture.h"

namespace shiftrt {
namespace {

// Nothing is saved but what differs, and it comes back with one copy of the rest.
TEST_F(Adapted, TensorsOfThePlansOwnComeBack) {
  for (const bool tied : {false, true}) {
    SCOPED_TRACE(tied);
    const Model model = With(Make("other", 3, DType::kFloat32, tied), {});
    const Model tuned = With(model, Tuned(model));
    Save(tuned);
    EXPECT_EQ(ReadSaved()["version"], 3);
    const SafetensorsFile own(saved_ / "own.safetensors");
    std::vector<std::string> names;
    for (const auto& [name, tensor] : own.tensors()) names.push_back(name);
    EXPECT_EQ(names, (std::vector<std::string>{"lm_head.weight", "model.layers.2.mlp.down_proj.weight",
                                               "model.layers.2.post_attention_layernorm.weight", "model.norm.weight"}));
    const Model opened = OpenAdapted(saved_, {});
    EXPECT_EQ(Logits(opened), Logits(tuned));
    EXPECT_EQ(opened.plan.Fingerprint(), tuned.plan.Fingerprint());
    EXPECT_EQ(opened.plan.Parameters(*opened.weights), tuned.plan.Parameters(*model.weights));
    EXPECT_FALSE(opened.plan.TiedHead(*opened.weights));
    EXPECT_EQ(opened.plan.stages[2].block().own->up.data, opened.weights->blocks[2].up.data) << "one copy of the rest";
    EXPECT_EQ(OpenSavedPlan(saved_, *model.weights).Fingerprint(), tuned.plan.Fingerprint());

    Save(tuned, /*with_weights=*/true);
    const Model whole = OpenAdapted(saved_, {});
    EXPECT_FALSE(whole.weights->config.tied_head);
    EXPECT_EQ(whole.plan.stages[2], Stage(BlockStage{1})) << "the checkpoint has its tensors";
    EXPECT_EQ(Logits(whole), Logits(tuned));
    fs::remove_all(saved_);
  }
  Save(Corrected());
  EXPECT_FALSE(fs::exists(saved_ / "own.safetensors"));
}

TEST_F(Adapted, AHeadOfItsOwnAlone) {
  const Model model = Make("other", 3, DType::kFloat32, /*tied=*/true);
  const auto output = std::make_shared<OwnOutput>(*model.weights, DepthPlan());
  output->Replace(&OutputWeights::head, RandomMatrix(24, kHidden, 13).span());
  const Model tuned = With(model, {DepthPlan::Original(3).stages, OwnOutput::Share(output)});
  Save(tuned);
  EXPECT_EQ(ReadSaved()["output"], Json::array({"lm_head.weight"}));
  const Model opened = OpenAdapted(saved_, {});
  EXPECT_EQ(Logits(opened), Logits(tuned));
  EXPECT_EQ(opened.plan.output->final_norm.data, opened.weights->final_norm.data);
}

TEST_F(Adapted, OwnTensorsHaveTheTypeAskedFor) {
  const Model model = Make("other", 3, DType::kBFloat16);
  const Model tuned = With(model, Tuned(model));
  Save(tuned);
  const SafetensorsFile own(saved_ / "own.safetensors");
  for (const auto& [name, tensor] : own.tensors()) EXPECT_EQ(tensor.dtype, DType::kBFloat16) << name;
  EXPECT_EQ(Logits(OpenAdapted(saved_, {})), Logits(tuned));
  const Model wide = OpenAdapted(saved_, {.dtype = WeightType::kFloat32});
  const auto expect_widened = [](const TensorView& found, const TensorView& expected) {
    ASSERT_EQ(found.dtype, DType::kFloat32);
    for (int64_t i = 0; i < expected.elements(); ++i)
      EXPECT_EQ(static_cast<const float*>(found.data)[i],
                static_cast<float>(static_cast<const BFloat16*>(expected.data)[i]));
  };
  expect_widened(wide.plan.output->head, tuned.plan.output->head);
  expect_widened(wide.plan.stages[2].block().own->down, tuned.plan.stages[2].block().own->down);
}

TEST_F(Adapted, FactorsAreMergedWhenTheyAreOpened) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    const Model model = Make("other", 3, dtype);
    const Model tuned = With(model, Tuned(model)),
                merged = With(model, MergeLora(*model.weights, tuned.plan, Factors()));
    const Lora lora = Factors();
    ASSERT_NE(Logits(merged), Logits(tuned));
    for (const bool with_weights : {false, true}) {
      SaveAdapted(tuned, tuned.plan, Provenance(), with_weights, saved_, &lora);
      EXPECT_EQ(ReadSaved()["version"], 3);
      const Model opened = OpenAdapted(saved_, {});
      EXPECT_EQ(Logits(opened), Logits(merged));
      EXPECT_EQ(opened.lora->rank, 2);
      EXPECT_EQ(opened.lora->factors.size(), 3u);
      EXPECT_EQ(Logits(OpenAdapted(saved_, {.merge_lora = false})), Logits(tuned));
      // Its tensors alone are not the model.
      const bool marked =
          with_weights && Refusal([&] { LoadWeights(saved_); }).find("ShiftrtForCausalLM") != std::string::npos;
      EXPECT_EQ(marked, with_weights);
    }
    // Asked for in float32, what is merged is not rounded.
    Model wide = model;
    wide.weights = LoadWeights(model.directory, {.dtype = WeightType::kFloat32});
    wide.plan = MergeLora(*wide.weights, DepthPlan::Original(3), lora);
    SaveAdapted(model, DepthPlan::Original(3), Provenance(), false, saved_, &lora);
    EXPECT_EQ(Logits(OpenAdapted(saved_, {.dtype = WeightType::kFloat32})), Logits(wide));
  }
}

TEST_F(Adapted, HostileOwnTensors) {
  const Model tuned = With(base_, Tuned(base_));
  Save(tuned);
  good_ = ReadSaved();
  for (const Json& names : {Json("mlp.down_proj.weight"), Json::array(), Json({"mlp.down_proj"}), Json({1}),
                            Json({"self_attn.q_proj.bias"}), Json({"mlp.down_proj.weight", "mlp.down_proj.weight"})})
    ExpectJsonRefused("/plan/2/own", names, "own");
  for (const Json& names : {Json("lm_head.weight"), Json::array(), Json({"embed"})})
    ExpectJsonRefused("/output", names, "output");
  ExpectJsonRefused("/version", 2, "version 2");
  Json json = good_;
  json["plan"][2]["own"] = {"mlp.up_proj.weight"};
  WriteText(saved_ / kAdaptedFile, json.dump());
  ExpectRefused("own.safetensors", "up_proj.weight is missing");
  json = good_;
  json.erase("output");
  WriteText(saved_ / kAdaptedFile, json.dump());
  ExpectRefused("own.safetensors", "4 tensors, but the plan has 2");
  WriteText(saved_ / kAdaptedFile, good_.dump());
  ExpectSpoiltTensorsRefused("own.safetensors");
}

TEST_F(Adapted, HostileFactors) {
  const Model tuned = With(base_, Tuned(base_));
  const Lora lora = Factors();
  SaveAdapted(tuned, tuned.plan, Provenance(), false, saved_, &lora);
  good_ = ReadSaved();
  EXPECT_EQ(good_["plan"][2]["lora"], Json({"mlp.down_proj.weight", "self_attn.q_proj.weight"}));
  for (const Json& names : {Json("mlp.down_proj.weight"), Json::array(), Json({"input_layernorm.weight"})})
    ExpectJsonRefused("/plan/2/lora", names, "lora");
  ExpectJsonRefused("/version", 2, "version 2");
  ExpectJsonRefused("/plan/1/lora", {"mlp.down_proj.weight"}, "more than adapter");
  Json json = good_;
  json["plan"][2]["lora"].erase(0);
  WriteText(saved_ / kAdaptedFile, json.dump());
  ExpectRefused("lora/adapter_model.safetensors", "factors for 3 tensors");
  WriteText(saved_ / kAdaptedFile, good_.dump());
  ExpectSpoiltTensorsRefused("lora/adapter_model.safetensors");
}

}  // namespace
}  // namespace shiftrt
