// SPDX-License-Identifier: Apache-2.0
#include "train/finetune.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <numeric>
#include <tuple>

#include "engine/loss.h"
#include "models/own_tensors.h"
#include "tests/runtime/refusal.h"
#include "tests/shift/small_model.h"

namespace shiftrt::test {
namespace {

// Fine-tuning of a random model on a text that is easy to learn: every sequence counts up.
class FinetuneTest : public SmallModel {
 protected:
  FinetuneTest() {
    auto lra = std::make_shared<Lra>();
    Random random(5);
    lra->p = Matrix<float>(kWidth, 2);
    lra->q = Matrix<float>(2, kWidth);
    lra->b = Matrix<float>::Zeros(1, kWidth);
    for (float& x : lra->p.span()) x = static_cast<float>(0.1 * random.Normal());
    for (float& x : lra->q.span()) x = static_cast<float>(0.1 * random.Normal());
    const std::vector<AdapterStage> sites = {{{1}, lra}, {{3, 4}, nullptr}};
    model_.plan = DepthPlan::Corrected(kLayers, sites);
    const auto add = [&](TrainingText& text, int sequences) {
      for (int s = 0; s < sequences; ++s) {
        std::vector<int32_t> tokens(6 + random.Below(10));
        auto token = static_cast<int32_t>(random.Below(kVocab));
        for (int32_t& t : tokens) t = token++ % static_cast<int32_t>(kVocab);
        text.Add(tokens, 1 + random.Below(3));
      }
    };
    add(texts_.training, 24);
    add(texts_.validation, 6);
    texts_.hash = "h";
    settings_.checkpoint = directory_ / "checkpoint";
    settings_.lora.rank = 4;
    settings_.pass_tokens = 64;
  }

  TrainingResult Run(const TrainingObserver& observer = {}) const {
    return Finetune({context_, model_, texts_, settings_, schedule_, {}, observer});
  }
  TrainingResult Fresh() const {
    std::filesystem::remove(directory_ / "checkpoint");
    return Run();
  }
  // The loss of the validation text, computed by a decoder without the code of gradients.
  double Loss(const DepthPlan& plan) const {
    Decoder decoder(context_, model_.weights, plan);
    double loss = 0, targets = 0;
    for (int64_t s = 0; s < texts_.validation.sequences(); ++s) {
      const std::vector<int64_t> which = {s};
      const std::vector<TrainingBatch> batches = PackBatches(texts_.validation, which, 1);
      const std::vector<float> losses = TokenLosses(decoder, batches[0].batch, decoder.Forward(batches[0].batch));
      for (int64_t t = texts_.validation.first_targets[s]; t < batches[0].batch.size(); ++t) loss += losses[t - 1];
      targets += static_cast<double>(batches[0].targets);
    }
    return loss / targets;
  }
  // The divergence from the original model on the validation text, from all logits of both.
  double Divergence(const DepthPlan& plan) const {
    Decoder student(context_, model_.weights, plan), teacher(context_, model_.weights, DepthPlan::Original(kLayers));
    double sum = 0, targets = 0;
    for (int64_t s = 0; s < texts_.validation.sequences(); ++s) {
      const std::vector<int64_t> which = {s};
      const TrainingBatch pass = PackBatches(texts_.validation, which, 1)[0];
      for (int64_t t = texts_.validation.first_targets[s]; t < pass.batch.size(); ++t) {
        std::vector<std::vector<double>> log_probs;
        for (Decoder* decoder : {&teacher, &student}) {
          const Rows stream = decoder->Forward(pass.batch);
          std::vector<int64_t> rows(kVocab, t - 1);
          std::vector<int32_t> tokens(kVocab), likeliest(kVocab);
          std::iota(tokens.begin(), tokens.end(), 0);
          const std::vector<float> all = decoder->LogProbs(stream, rows, tokens, likeliest);
          log_probs.emplace_back(all.begin(), all.end());
        }
        for (int64_t v = 0; v < kVocab; ++v) sum += std::exp(log_probs[0][v]) * (log_probs[0][v] - log_probs[1][v]);
        ++targets;
      }
    }
    return sum / targets;
  }
  DepthPlan Merged(const TrainingResult& result) const {
    return result.lora ? MergeLora(*model_.weights, result.plan, *result.lora) : result.plan;
  }

  TrainingTexts texts_;
  FinetuneSettings settings_;
  Schedule schedule_ = {Decay::kLinear, 0.02, 2, 30};
};

TEST_F(FinetuneTest, EveryMethodLearnsAndItsPlanIsWhatWasTrained) {
  struct Case {
    Method method;
    bool adapters, head;
    double least;  // fall of the validation loss
  };
  const double before = Loss(model_.plan);
  for (const Case& c : {Case{Method::kLora, false, false, 0.5}, Case{Method::kLora, true, true, 0.5},
                        Case{Method::kPartial, false, false, 0.5}, Case{Method::kPartial, true, true, 0.5},
                        Case{Method::kAdapters, false, false, 0.05}}) {
    settings_.method = c.method;
    settings_.adapters = c.adapters;
    settings_.head = c.head;
    const TrainingResult result = Fresh();
    const std::string what = fmt::format("{} {} {}", Name(c.method), c.adapters, c.head);
    EXPECT_NEAR(result.history.validations.front().loss, before, 1e-4) << what;
    EXPECT_LT(result.history.validations.back().loss, before - c.least) << what;
    EXPECT_NEAR(Loss(Merged(result)), result.history.validations.back().loss, 1e-4) << what;
    EXPECT_EQ(result.plan.output != nullptr, c.head) << what;
    EXPECT_EQ(result.plan.Adapters()[0]->lra != model_.plan.Adapters()[0]->lra,
              c.adapters || c.method == Method::kAdapters)
        << what;
    EXPECT_GT(result.peak_bytes, 0);
  }
}

TEST_F(FinetuneTest, APartWithoutARateDoesNotMove) {
  settings_.adapters = settings_.head = true;
  const Lra& before = *model_.plan.Adapters()[0]->lra;
  const auto same = [](const auto& a, const auto& b) { return std::ranges::equal(a.span(), b.span()); };
  for (const bool adapters : {true, false}) {
    schedule_.adapters = adapters ? 1 : 0;
    schedule_.head = adapters ? 0 : 1;
    const TrainingResult result = Fresh();
    const Lra& after = *result.plan.Adapters()[0]->lra;
    EXPECT_NE(same(after.p, before.p), adapters);
    EXPECT_NE(same(after.b, before.b), adapters);
    const TensorView old_head = model_.plan.Output(*model_.weights).head;
    const TensorView new_head = result.plan.Output(*model_.weights).head;
    ASSERT_EQ(new_head.bytes(), old_head.bytes());
    EXPECT_EQ(std::memcmp(new_head.data, old_head.data, old_head.bytes()) == 0, adapters);
    EXPECT_LT(result.history.validations.back().loss, result.history.validations.front().loss - 0.5);
  }
}

// The losses of the two precisions differ far less than those of two steps.
TEST_F(FinetuneTest, RoundedProductsLearnAsFloat32Does) {
  if (!HasRoundedProducts(BestIsa())) GTEST_SKIP() << "this CPU has neither AVX512-BF16 nor AMX";
  context_.isa = BestIsa();
  schedule_.rate = 0.004;  // a small one, with which steps do not magnify the rounding
  for (const TrainingLoss loss : {TrainingLoss::kCrossEntropy, TrainingLoss::kBoth}) {
    settings_.loss = loss;
    context_.products = Products::kFloat32;
    const TrainingHistory exact = Fresh().history;
    context_.products = Products::kBFloat16;
    const TrainingHistory rounded = Fresh().history;
    EXPECT_NE(rounded.losses, exact.losses);
    EXPECT_LT(exact.validations.back().loss, exact.validations.front().loss - 0.1);
    for (size_t step = 0; step < exact.losses.size(); ++step)
      EXPECT_NEAR(rounded.losses[step], exact.losses[step], 0.02) << Name(loss) << " " << step;
    EXPECT_NEAR(rounded.validations.back().loss, exact.validations.back().loss, 0.02) << Name(loss);
    // A checkpoint of the one is none of the other.
    context_.products = Products::kFloat32;
    EXPECT_NE(Refusal([&] { Run(); }).find("products"), std::string::npos);
  }
}

TEST_F(FinetuneTest, StoppedItContinuesToTheSameBits) {
  settings_.lora.dropout = 0.1;
  schedule_.steps = 8;
  const TrainingResult whole = Fresh();
  std::filesystem::remove(directory_ / "checkpoint");
  EXPECT_THROW(Run([](const TrainingHistory& now, int64_t) {
                 if (now.steps() == 5) throw Interrupted();
               }),
               Interrupted);
  const TrainingResult resumed = Run();
  EXPECT_EQ(resumed.history.resumed, 5);
  EXPECT_EQ(resumed.history.losses, whole.history.losses);
  for (size_t i = 0; i < whole.lora->factors.size(); ++i) {
    const std::span<const float> a = whole.lora->factors[i].b.span(), b = resumed.lora->factors[i].b.span();
    EXPECT_TRUE(std::equal(a.begin(), a.end(), b.begin()));
  }
  schedule_.rate = 0.01;
  EXPECT_NE(Refusal([&] { Run(); }).find("its rate is \"0.02\""), std::string::npos);
}

// A poll that throws in a step leaves the state of the step before it.
TEST_F(FinetuneTest, APollStopsATrainingThatContinues) {
  schedule_.steps = 6;
  const TrainingResult whole = Fresh();
  std::filesystem::remove(directory_ / "checkpoint");
  struct Stop {};
  int64_t steps = 0;
  const auto count = [&](const TrainingHistory& now, int64_t) { steps = now.steps(); };
  const auto poll = [&] {
    if (steps == 4) throw Stop();
  };
  EXPECT_THROW(Finetune({context_, model_, texts_, settings_, schedule_, {}, count, {}, poll}), Stop);
  const TrainingResult resumed = Run();
  EXPECT_EQ(resumed.history.resumed, 4);
  EXPECT_EQ(resumed.history.losses, whole.history.losses);
}

// A checkpoint is refused by a training of which any one setting differs.
TEST_F(FinetuneTest, ACheckpointBelongsToItsSettings) {
  schedule_.steps = 2;
  Fresh();
  EXPECT_EQ(Run().history.resumed, 2);
  const std::map<std::string, std::function<void()>> changes = {
      {"text", [&] { texts_.hash = "i"; }},
      {"plan", [&] { model_.plan = DepthPlan::Original(kLayers); }},
      {"method", [&] { settings_.method = Method::kPartial; }},
      {"adapters", [&] { settings_.adapters = true; }},
      {"head", [&] { settings_.head = true; }},
      {"loss", [&] { settings_.loss = TrainingLoss::kBoth; }},
      {"rate", [&] { schedule_.rate *= 2; }},
      {"schedule", [&] { schedule_.decay = Decay::kConstant; }},
      {"warmup", [&] { schedule_.warmup += 1; }},
      {"steps", [&] { schedule_.steps = 3; }},
      {"weight_decay", [&] { settings_.weight_decay = 0.5; }},
      {"clip", [&] { settings_.clip = 2; }},
      {"batch", [&] { settings_.batch = 2; }},
      {"pass_tokens", [&] { settings_.pass_tokens = 32; }},
      {"validate_every", [&] { settings_.validate_every = 1; }},
      {"seed", [&] { settings_.seed = 1; }},
      {"keep_best", [&] { settings_.keep_best = true; }},
      {"lora.targets", [&] { settings_.lora.targets = {"q"}; }},
      {"lora.rank", [&] { settings_.lora.rank = 2; }},
      {"lora.alpha", [&] { settings_.lora.alpha = 3; }},
      {"lora.dropout", [&] { settings_.lora.dropout = 0.25; }},
  };
  for (const auto& [setting, change] : changes) {
    const auto before = std::tuple(texts_.hash, model_.plan, settings_, schedule_);
    change();
    EXPECT_NE(Refusal([&] { Run(); }).find(fmt::format("its {} is", setting)), std::string::npos) << setting;
    std::tie(texts_.hash, model_.plan, settings_, schedule_) = before;
  }
  EXPECT_EQ(Run().history.resumed, 2) << "a refusal leaves the checkpoint as it was";
}

// The division of a step's batch into passes changes nothing but rounding.
TEST_F(FinetuneTest, PassesAddUpToTheStep) {
  schedule_.steps = 3;
  settings_.pass_tokens = 1000;
  const TrainingResult whole = Fresh();
  settings_.pass_tokens = 1;
  const TrainingResult parts = Fresh();
  for (int step = 0; step < 3; ++step) {
    EXPECT_NEAR(parts.history.losses[step], whole.history.losses[step], 2e-4);
    EXPECT_NEAR(parts.history.gradient_norms[step] / whole.history.gradient_norms[step], 1, 2e-3);
  }
}

TEST_F(FinetuneTest, TheOriginalModelTeaches) {
  settings_.loss = TrainingLoss::kDivergence;
  const TrainingResult pruned = Fresh();
  EXPECT_LT(pruned.history.MeanLoss(25, 30), 0.8 * pruned.history.losses.front());
  EXPECT_GT(pruned.history.losses.front(), 0.01);
  // Validation measures the divergence too, whatever else is in the mix.
  EXPECT_LT(pruned.history.validations.back().loss, 0.8 * pruned.history.validations.front().loss);
  settings_.loss = TrainingLoss::kBoth;
  EXPECT_EQ(Fresh().history.validations.front().loss, pruned.history.validations.front().loss);
  settings_.loss = TrainingLoss::kDivergence;
  EXPECT_NEAR(pruned.history.validations.front().loss, Divergence(model_.plan), 1e-5);
  // The teacher's streams are those of the first validation.
  EXPECT_NEAR(pruned.history.validations.back().loss, Divergence(Merged(pruned)), 1e-5);
  // A model has nothing to learn from itself.
  model_.plan = DepthPlan::Original(kLayers);
  const TrainingResult itself = Fresh();
  EXPECT_NEAR(itself.history.losses.front(), 0, 1e-5);
  EXPECT_NEAR(itself.history.gradient_norms.front(), 0, 1e-4);
  model_.removed = {3};
  EXPECT_NE(Refusal([&] { Fresh(); }).find("lacks the removed layers"), std::string::npos);
}

// Blocks below the first difference run once if they are not trained, and the result has the bits of a plan whose first
// block counts as another because it has tensors of its own, which are equal.
TEST_F(FinetuneTest, BlocksThatTheTeacherHasTooRunOnce) {
  settings_.loss = TrainingLoss::kBoth;
  settings_.method = Method::kPartial;
  schedule_.steps = 6;
  for (const auto& [layers, shared] : {std::pair<const char*, size_t>{"last:1", 1}, {"first:1", 0}, {"2", 1}}) {
    settings_.layers = layers;
    model_.plan = DepthPlan::Original(kLayers);
    model_.plan.stages.erase(model_.plan.stages.begin() + 1);
    const TrainingResult once = Fresh();
    EXPECT_EQ(once.shared_blocks, shared) << layers;
    BlockStage first = model_.plan.stages.front().block();
    first.own = OwnBlock::Share(std::make_shared<OwnBlock>(*model_.weights, first));
    model_.plan.stages.front() = first;
    const TrainingResult twice = Fresh();
    EXPECT_EQ(twice.shared_blocks, 0U) << layers;
    EXPECT_EQ(once.history.losses, twice.history.losses) << layers;
    EXPECT_EQ(once.history.gradient_norms, twice.history.gradient_norms) << layers;
    for (size_t i = 0; i < once.history.validations.size(); ++i)
      EXPECT_EQ(once.history.validations[i].loss, twice.history.validations[i].loss) << layers;
  }
}

TEST_F(FinetuneTest, AReplacementComesCloserToTheStreamAfterTheRun) {
  settings_.method = Method::kReplacement;
  schedule_ = {Decay::kConstant, 0.003, 0, 60};
  for (const Halves halves : {Halves::kBoth, Halves::kMlp}) {
    settings_.replacement = {halves};
    const TrainingResult result = Fresh();
    EXPECT_LT(result.history.validations.back().loss, 0.9 * result.history.validations.front().loss) << Name(halves);
    EXPECT_TRUE(result.plan.Adapters().empty());
    ASSERT_EQ(result.plan.stages.size(), size_t{5});
    for (const size_t stage : {1, 3}) {
      EXPECT_EQ(result.plan.stages[stage].block().layer, static_cast<int64_t>(stage));
      EXPECT_EQ(result.plan.stages[stage].block().halves, halves);
      EXPECT_NE(result.plan.stages[stage].block().own, nullptr);
    }
  }
  // A run of one layer is replaced by that layer: nothing is left to learn there.
  model_.plan = DepthPlan::Pruned(kLayers, std::vector<int64_t>{2});
  settings_.replacement = {};
  schedule_.steps = 1;
  EXPECT_NEAR(Fresh().history.validations.front().loss, 0, 1e-10);
  model_.plan = DepthPlan::Original(kLayers);
  EXPECT_NE(Refusal([&] { Fresh(); }).find("no layer to replace"), std::string::npos);
}

// Training begins at the error of what stands for the run, measured here by decoders, and with the function of the
// plan.
TEST_F(FinetuneTest, AReplacementAfterACorrectionBeginsAtItsError) {
  const int64_t removed = 2;
  auto changed = std::make_shared<OwnBlock>(*model_.weights, BlockStage{removed - 1});
  std::vector<float> down(changed->weights().down.elements());
  for (size_t i = 0; i < down.size(); ++i) down[i] = 0.01f * static_cast<float>(static_cast<int>(i % 7) - 3);
  changed->Replace(&BlockWeights::down, down);
  auto lra = std::make_shared<Lra>();
  lra->a = Matrix<float>::Zeros(kWidth, kWidth);
  lra->b = Matrix<float>::Zeros(1, kWidth);
  for (int64_t i = 0; i < kWidth; ++i) {
    lra->a(i, i) = 0.1f;
    lra->b(0, i) = 0.01f * static_cast<float>(i);
  }
  const BlockStage before{.layer = removed - 1, .own = OwnBlock::Share(std::move(changed))};
  settings_.method = Method::kReplacement;
  settings_.keep_correction = true;
  schedule_ = {Decay::kConstant, 0.003, 0, 60};

  for (const bool adapter : {true, false}) {
    model_.plan = {{BlockStage{.layer = 0}, before}};
    if (adapter) model_.plan.stages.emplace_back(AdapterStage{{removed}, lra});
    for (int64_t layer = removed + 1; layer < kLayers; ++layer)
      model_.plan.stages.emplace_back(BlockStage{.layer = layer});
    KeptRows original, corrected;
    const auto keep = [](KeptRows& kept) { return [&](const Rows& rows, const Batch&) { kept.Set(rows); }; };
    Decoder first(context_, model_.weights, DepthPlan::Original(kLayers),
                  {{removed, TapPoint::kOutput, keep(original)}});
    Decoder second(context_, model_.weights, model_.plan, {{removed + 1, TapPoint::kInput, keep(corrected)}});
    double error = 0, tokens = 0;
    for (int64_t s = 0; s < texts_.validation.sequences(); ++s) {
      const std::vector<int64_t> which = {s};
      const std::vector<TrainingBatch> batches = PackBatches(texts_.validation, which, 1);
      first.Forward(batches[0].batch);
      second.Forward(batches[0].batch);
      const MatrixView<const float> a = original.rows().host(), b = corrected.rows().host();
      for (int64_t i = 0; i < a.rows; ++i)
        for (int64_t j = 0; j < a.cols; ++j) error += std::pow(static_cast<double>(a(i, j)) - b(i, j), 2);
      tokens += static_cast<double>(a.rows);
    }
    const TrainingResult result = Fresh();
    EXPECT_NEAR(result.history.validations.front().loss / (error / tokens / kWidth), 1, 1e-4) << adapter;
    EXPECT_LT(result.history.validations.back().loss, 0.9 * result.history.validations.front().loss) << adapter;
    ASSERT_EQ(result.plan.stages.size(), model_.plan.stages.size() + 1);
    EXPECT_EQ(result.plan.stages[adapter ? 3 : 2].block().layer, removed);
    EXPECT_EQ(result.plan.Adapters().size(), size_t{adapter ? 1u : 0u});

    schedule_.rate = 1e-30;  // nothing moves
    schedule_.steps = 1;
    EXPECT_NEAR(Loss(Fresh().plan), Loss(model_.plan), 1e-6);
    schedule_ = {Decay::kConstant, 0.003, 0, 60};
  }
  model_.plan = DepthPlan::Pruned(kLayers, std::vector<int64_t>{removed});
  EXPECT_NE(Refusal([&] { Fresh(); }).find("nothing stands for layers 2 to 2"), std::string::npos);
}

}  // namespace
}  // namespace shiftrt::test
