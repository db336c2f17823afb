// SPDX-License-Identifier: Apache-2.0
// Losses and gradients against PyTorch's autograd (tests/goldens/make_gradients.py), against the decoder, and against
// central differences.
#include "engine/gradients.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>

#include "engine/loss.h"
#include "engine/ops.h"
#include "kernels/elementwise.h"
#include "kernels/widen.h"
#include "models/families.h"
#include "runtime/check.h"
#include "runtime/random.h"
#include "tests/engine/golden.h"
#include "tests/models/fixtures.h"

namespace shiftrt {
namespace {

Context Threads(int threads) {
  Context context = Context::Default();
  context.threads = threads;
  return context;
}

std::filesystem::path GradientGolden(const std::string& name) { return TestDirectory() / "goldens/gradients" / name; }

std::shared_ptr<const Weights> WeightsOf(const std::filesystem::path& config) {
  const TemporaryDirectory directory;
  WriteRandomCheckpoint(config, DType::kFloat32, 1, directory.path());
  return LoadWeights(directory.path());
}

Batch Packed(const std::vector<int32_t>& tokens, const std::vector<int64_t>& lengths) {
  Batch batch;
  int64_t begin = 0;
  for (const int64_t length : lengths) {
    batch.Add(std::span(tokens).subspan(begin, length));
    begin += length;
  }
  return batch;
}

// Parameters in the memory of an engine, by name.
class Parameters {
 public:
  explicit Parameters(GradientEngine& engine) : engine_(engine) {}
  // A trained copy of a float32 tensor, a vector as (1, n).
  Parameter Add(const std::string& name, const TensorView& tensor) {
    const bool vector = tensor.shape.size() != 2;
    const int64_t rows = vector ? 1 : tensor.rows(), cols = vector ? tensor.elements() : tensor.cols();
    const auto value = engine_.Allocate(rows * cols), gradient = engine_.Allocate(rows * cols);
    engine_.ops().FromHost(Widened(tensor), value.all());
    memory_.insert(memory_.end(), {value, gradient});
    return by_name_[name] = {value.matrix(rows, cols), gradient.matrix(rows, cols)};
  }
  const std::map<std::string, Parameter>& all() const { return by_name_; }
  void ZeroGradients() const {
    for (const auto& [name, parameter] : by_name_) engine_.ops().Zero(parameter.gradient);
  }
  std::vector<float> Gradient(const std::string& name) const {
    const DeviceMatrix<float>& gradient = by_name_.at(name).gradient;
    std::vector<float> host(gradient.rows * gradient.cols);
    engine_.ops().ToHost(gradient, host);
    return host;
  }

 private:
  GradientEngine& engine_;
  std::map<std::string, Parameter> by_name_;
  std::vector<DeviceMemory> memory_;
};

// A golden with everything in it trained.
class GoldenStep {
 public:
  explicit GoldenStep(const std::string& name, const Context& context = Threads(2))
      : context_(context),
        file_(GradientGolden(name) / "golden.safetensors"),
        weights_(WeightsOf(GradientGolden(name) / "config.json")),
        engine_(context, weights_, Plan()),
        parameters_(engine_) {
    std::vector<int32_t> tokens;
    std::vector<int64_t> lengths;
    for (const float token : Values("tokens")) tokens.push_back(static_cast<int32_t>(token));
    for (const float length : Values("lengths")) lengths.push_back(static_cast<int64_t>(length));
    batch_ = Packed(tokens, lengths);
    targets_ = Values("weights");
    for (const float weight : targets_) scale_ += weight;
    scale_ = 1 / scale_;
    engine_.Set(Everything());
  }

  LossSum Run() {
    const std::vector<float> settings = Values("settings");
    Decoder teacher(context_, weights_, DepthPlan::Original(weights_->config.layers));
    const Rows rows = teacher.Forward(batch_);
    return engine_.Step(batch_, targets_, scale_,
                        {.cross_entropy = settings[1], .divergence = settings[2], .teacher = &rows});
  }

  std::vector<float> Values(const std::string& name) const { return Widened(file_.tensors().at(name)); }
  const SafetensorsFile& file() const { return file_; }
  const Parameters& parameters() const { return parameters_; }
  GradientEngine& engine() { return engine_; }
  const Batch& batch() const { return batch_; }

  TrainedParameters Everything() {
    TrainedParameters trained;
    trained.lora.scale = Values("settings")[0];
    const auto value = [&](const std::string& name) {
      return parameters_.Add(name, file_.tensors().at("value." + name));
    };
    for (const Stage& stage : engine_.plan().stages) {
      StageParameters& of = trained.stages.emplace_back();
      stage.Visit(
          [&](const BlockStage& block) {
            of.tensors.resize(BlockTensors().size());
            of.loras.resize(BlockTensors().size());
            for (size_t row = 0; row < BlockTensors().size(); ++row) {
              const BlockTensor& tensor = BlockTensors()[row];
              const TensorView& stored = weights_->blocks[block.layer].*tensor.member;
              const std::string name = fmt::format("{}.{}", block.layer, tensor.name);
              const bool constant = tensor.kind == BlockTensor::Kind::kConstant;
              if (!stored.empty() && !constant) of.tensors[row] = parameters_.Add(name, stored);
              const bool router = tensor.member == &BlockWeights::router;
              if (tensor.kind == BlockTensor::Kind::kMatrix && !stored.empty() && !router)
                of.loras[row] = {value("lora." + name + ".a"), value("lora." + name + ".b")};
            }
            const BlockWeights& weights = weights_->blocks[block.layer];
            of.experts.resize(weights.experts.size());
            for (size_t expert = 0; expert < weights.experts.size(); ++expert)
              for (const BlockTensor& row : ExpertTensors(static_cast<int64_t>(expert)))
                if (const TensorView& tensor = row.In(weights); !tensor.empty())
                  of.experts[expert].*ExpertGradients::Of(row) =
                      parameters_.Add(fmt::format("{}.{}", block.layer, row.name), tensor).gradient;
          },
          [&](const AdapterStage& adapter) {
            const std::string name = fmt::format("adapter.{}.", adapter.parts[0].layer);
            if (adapter.lra->low_rank()) {
              of.p = value(name + "p");
              of.q = value(name + "q");
            } else {
              of.a = value(name + "a");
            }
            of.b = value(name + "b");
          });
    }
    trained.final_norm = parameters_.Add("norm", weights_->final_norm);
    if (!weights_->final_norm_bias.empty())
      trained.final_norm_bias = parameters_.Add("norm_bias", weights_->final_norm_bias);
    trained.head = parameters_.Add("head", weights_->head);
    return trained;
  }
  const ModelConfig& config() const { return weights_->config; }

 private:
  Matrix<float> Stored(const std::string& name) const {
    const TensorView& tensor = file_.tensors().at(name);
    Matrix<float> matrix(tensor.rows(), tensor.cols());
    std::ranges::copy(Widened(tensor), matrix.data());
    return matrix;
  }
  DepthPlan Plan() const {
    auto low = std::make_shared<Lra>(), full = std::make_shared<Lra>();
    low->p = Stored("value.adapter.0.p");
    low->q = Stored("value.adapter.0.q");
    low->b = Stored("value.adapter.0.b");
    full->a = Stored("value.adapter.1.a");
    full->b = Stored("value.adapter.1.b");
    return {{BlockStage{.layer = 0}, AdapterStage{{0}, low}, BlockStage{.layer = 1}, AdapterStage{{1}, full}}};
  }

  Context context_;
  SafetensorsFile file_;
  std::shared_ptr<const Weights> weights_;
  GradientEngine engine_;
  Parameters parameters_;
  Batch batch_;
  TargetWeights targets_;
  double scale_ = 0;
};

// The name of a parameter's gradient in the golden: that of its tensor in the family's checkpoint.
std::string GoldenName(const ModelConfig& config, const std::string& name) {
  if (name == "norm") return FinalNormName(config);
  if (name == "norm_bias") return "model.norm.bias";
  if (name == "head") return "lm_head.weight";
  if (name.starts_with("lora") || name.starts_with("adapter")) return name;
  for (const CheckpointTensor& stored : CheckpointTensors(ConfigOfBlock(config, name[0] - '0', 0)))
    if (!stored.together && stored.parts.front()->name == name.substr(2))
      return fmt::format("model.layers.{}.{}", name[0], stored.name);
  return "model.layers." + name;  // the golden has the experts one by one
}

const std::vector<std::string> kGoldens = {
    "llama",   "qwen2",     "qwen3",       "gemma2",   "gemma3",     "ministral3", "olmo2",   "olmo3",     "smollm3",
    "granite", "seed_oss",  "exaone4",     "ernie4_5", "starcoder2", "nemotron",   "cohere2", "qwen3_moe", "olmoe",
    "qwen3_5", "qwen2_moe", "qwen3_5_moe", "gpt_oss",  "hunyuan",    "apertus",    "lfm2"};

TEST(Gradients, LossAndEveryGradientAreThoseOfPyTorch) {
  for (const std::string& model : kGoldens) {
    GoldenStep golden(model);
    const LossSum loss = golden.Run();
    const double expected_loss = golden.Values("loss")[0];
    EXPECT_NEAR(loss.loss, expected_loss, 1e-5 * expected_loss) << model;
    size_t compared = 0;
    for (const auto& [name, parameter] : golden.parameters().all()) {
      const std::vector<float> expected = golden.Values("gradient." + GoldenName(golden.config(), name));
      const std::vector<float> gradient = golden.parameters().Gradient(name);
      ASSERT_EQ(gradient.size(), expected.size()) << model << " " << name;
      double error = 0, norm = 0;
      for (size_t i = 0; i < expected.size(); ++i) {
        error += std::pow(static_cast<double>(gradient[i]) - expected[i], 2);
        norm += std::pow(static_cast<double>(expected[i]), 2);
      }
      EXPECT_GT(norm, 0) << model << " " << name;
      const double of_float32 = golden.Values("error." + GoldenName(golden.config(), name))[0];
      // Gradients of queries and keys are differences that nearly cancel. The attention computes its probabilities a
      // second time from the logarithms of their sums, so that the two sides are rounded apart, which PyTorch's softmax
      // avoids: in PyTorch the same formulas are up to ten times further from float64.
      EXPECT_LE(std::sqrt(error / norm), std::max(1e-5, 8 * of_float32)) << model << " " << name;
      ++compared;
    }
    const auto in_golden = std::ranges::count_if(
        golden.file().tensors(), [](const auto& tensor) { return tensor.first.starts_with("gradient."); });
    EXPECT_EQ(compared, in_golden) << model;
  }
}

TEST(Gradients, AreTheSameBitsWithAnyNumberOfThreads) {
  for (const std::string& model : kGoldens) {
    GoldenStep one(model, Threads(1)), three(model, Threads(3));
    EXPECT_EQ(one.Run().loss, three.Run().loss) << model;
    for (const auto& [name, parameter] : one.parameters().all())
      EXPECT_EQ(one.parameters().Gradient(name), three.parameters().Gradient(name)) << model << " " << name;
  }
}

// All activations kept, those of the last block alone, and none.
TEST(Gradients, AreTheSameBitsWhereActivationsAreKept) {
  for (const std::string& model : kGoldens) {
    GoldenStep none(model);
    const double loss = none.Run().loss;
    EXPECT_EQ(none.engine().KeptBlocks(), 0) << model;
    const int64_t bytes = none.engine().PeakBytes();
    GoldenStep both(model);  // first with none, then with all
    both.Run();
    both.engine().KeepActivations(int64_t{1} << 30);
    both.Run();
    const int64_t of_a_block = (both.engine().PeakBytes() - bytes) / 2;
    GoldenStep all(model);
    all.engine().KeepActivations(int64_t{1} << 30);
    EXPECT_EQ(all.Run().loss, loss) << model;
    EXPECT_EQ(all.engine().KeptBlocks(), 2) << model;
    EXPECT_LE(all.engine().PeakBytes(), bytes + of_a_block) << "the scratch has no activations then";
    for (const int64_t room : {of_a_block - 1, of_a_block, 2 * of_a_block - 1}) {
      GoldenStep some(model);
      some.engine().KeepActivations(room);
      EXPECT_EQ(some.Run().loss, loss) << model;
      // The blocks of Qwen 3.5 and LFM2 have different mixers, and those of Qwen 2 MoE different MLPs, which take
      // different memory.
      if (!model.starts_with("qwen3_5") && model != "qwen2_moe" && model != "lfm2") {
        EXPECT_EQ(some.engine().KeptBlocks(), room < of_a_block ? 0 : 1) << model;
      }
      EXPECT_LE(some.engine().PeakBytes(), bytes + room) << model;
      for (const auto& [name, parameter] : none.parameters().all()) {
        EXPECT_EQ(all.parameters().Gradient(name), none.parameters().Gradient(name)) << model << " " << name;
        EXPECT_EQ(some.parameters().Gradient(name), none.parameters().Gradient(name)) << model << " " << name;
      }
    }
  }
}

TEST(Gradients, Add) {
  GoldenStep twice("llama"), once("llama");
  twice.Run();
  twice.Run();
  once.Run();
  const auto two = twice.parameters().Gradient("1.mlp.down_proj.weight"),
             one = once.parameters().Gradient("1.mlp.down_proj.weight");
  for (size_t i = 0; i < one.size(); ++i) EXPECT_NEAR(two[i], 2 * one[i], 1e-6 * std::abs(one[i]) + 1e-9);
}

// Whatever is trained elsewhere, a parameter gets the same gradient, and nothing else gets one.
TEST(Gradients, OfAFewParametersAreThoseOfAll) {
  for (const std::string& model : kGoldens) {
    GoldenStep all(model), one(model);
    all.Run();
    const TrainedParameters everything = one.Everything();
    const Parameters& parameters = one.parameters();
    for (const auto& [name, parameter] : parameters.all()) {
      TrainedParameters trained = everything;
      const DeviceMatrix<float> wanted = parameter.gradient;
      const auto keep = [&](Parameter& p) {
        if (!p.gradient.StartsAt(wanted)) p.gradient = {};
      };
      for (StageParameters& stage : trained.stages) {
        for (Parameter& p : stage.tensors) keep(p);
        for (LoraParameters& lora : stage.loras) keep(lora.a), keep(lora.b);
        for (Parameter* p : {&stage.a, &stage.p, &stage.q, &stage.b}) keep(*p);
      }
      keep(trained.final_norm);
      keep(trained.head);
      one.engine().Set(trained);
      parameters.ZeroGradients();
      one.Run();
      EXPECT_EQ(parameters.Gradient(name), all.parameters().Gradient(name)) << model << " " << name;
    }
  }
}

// ---- against the decoder

TEST(Gradients, TheStreamHasTheBitsOfTheDecoder) {
  for (const auto& entry : std::filesystem::directory_iterator(TestDirectory() / "goldens/models")) {
    const auto weights = WeightsOf(entry.path() / "config.json");
    const int64_t layers = weights->config.layers;
    const int64_t hidden = weights->config.hidden;
    const auto adapter = layers > 2 ? test::NormedAdapter(hidden, 3) : test::SmallAdapter(hidden, 3, 1);
    Random random(5);
    const auto fill = [&](int64_t rows, int64_t cols) {
      Matrix<float> matrix(rows, cols);
      for (float& x : matrix.span()) x = static_cast<float>(random.Normal()) / 8;
      return matrix;
    };
    DepthPlan plan{{BlockStage{.layer = 0}, AdapterStage{{0}, adapter}, BlockStage{.layer = 1, .halves = Halves::kMlp},
                    BlockStage{.layer = layers - 1}}};
    const Matrix<float> norm = fill(1, hidden), head = fill(weights->config.vocab, hidden);
    plan.output = std::make_shared<OutputWeights>(OutputWeights{
        {norm.data(), DType::kFloat32, {norm.cols()}}, {head.data(), DType::kFloat32, {head.rows(), head.cols()}}});
    const Context context = Threads(2);
    Decoder decoder(context, weights, plan);
    GradientEngine engine(context, weights, plan);
    Batch batch;
    for (const int64_t length : {11, 1, 70}) {
      std::vector<int32_t> tokens(length);
      for (int32_t& token : tokens) token = static_cast<int32_t>(random.Below(weights->config.vocab));
      batch.Add(tokens);
    }
    const Matrix<float> h(batch.size(), weights->config.hidden);
    Embed(context, batch.tokens, weights->embedding, h.view(), weights->EmbeddingScale());
    for (size_t stage = 0; stage < plan.stages.size(); ++stage) engine.Forward(stage, batch, h.view());
    const Rows rows = decoder.Forward(batch);
    EXPECT_EQ(std::memcmp(h.data(), rows.host().data, sizeof(float) * h.size()), 0) << entry.path();
    EXPECT_NEAR(engine.Loss(batch, {}).loss, SummedLoss(decoder, batch, rows), 1e-5) << entry.path();
  }
}

// ---- against central differences

// Blocks of tensors of their own, halves as stages of their own, biases, dropout, adapters on the normed stream.
TEST(Gradients, AreCentralDifferences) {
  const auto weights = GoldenWeights("llama_bias");
  auto own = std::make_shared<BlockWeights>(weights->blocks[1]);
  Random random(3);
  const int64_t hidden = weights->config.hidden;
  DepthPlan plan{{BlockStage{.layer = 0, .halves = Halves::kAttention}, BlockStage{.layer = 0, .halves = Halves::kMlp},
                  AdapterStage{{0}, test::NormedAdapter(hidden, 3)}, BlockStage{.layer = 1, .own = own},
                  AdapterStage{{2}, test::NormedAdapter(hidden, 0)}, BlockStage{.layer = 2, .halves = Halves::kMlp}}};
  GradientEngine engine(Threads(2), weights, plan);
  Parameters parameters(engine);
  TrainedParameters trained;
  trained.lora = {.scale = 2, .dropout = 0.3f, .seed = 11, .step = 5};
  for (const Stage& stage : plan.stages) {
    StageParameters& of = trained.stages.emplace_back();
    if (const auto parts = stage.CorrectedParts(); !parts.empty() && parts.front().layer != 1) {
      const Lra& lra = *stage.adapter().lra;
      for (const auto& [to, m] : {std::pair(&of.a, &lra.a), {&of.p, &lra.p}, {&of.q, &lra.q}, {&of.b, &lra.b}})
        if (!m->empty())
          *to = parameters.Add(fmt::format("{}.{}x{}", trained.stages.size(), m->rows(), m->cols()),
                               {m->data(), DType::kFloat32, {m->rows(), m->cols()}});
      continue;
    }
    of.tensors.resize(BlockTensors().size());
    of.loras.resize(BlockTensors().size());
    const BlockStage& block = stage.block();
    ForEachTensor(TensorsOf(*weights, block), block.halves, [&](const BlockTensor& row, const TensorView& tensor) {
      const auto r = static_cast<size_t>(&row - BlockTensors().data());
      const std::string name = fmt::format("{}.{}", trained.stages.size(), row.name);
      of.tensors[r] = parameters.Add(name, tensor);
      if (row.kind != BlockTensor::Kind::kMatrix) return;
      const auto factor = [&](const char* which, int64_t rows, int64_t cols) {
        std::vector<float> values(rows * cols);
        for (float& x : values) x = static_cast<float>(random.Normal()) / 8;
        return parameters.Add(name + which, {values.data(), DType::kFloat32, {rows, cols}});
      };
      of.loras[r] = {factor(".a", 3, tensor.cols()), factor(".b", tensor.rows(), 3)};
    });
  }
  engine.Set(trained);
  std::vector<int32_t> tokens(30);
  for (int32_t& token : tokens) token = static_cast<int32_t>(random.Below(weights->config.vocab));
  const Batch batch = Packed(tokens, {17, 2, 11});
  engine.Step(batch, {}, 1);
  for (const auto& [name, parameter] : parameters.all()) {
    const std::vector<float> gradient = parameters.Gradient(name);
    double norm = 0;
    for (const float g : gradient) norm += static_cast<double>(g) * g;
    norm = std::sqrt(norm);
    ASSERT_GT(norm, 0) << name;
    // Along the gradient, so far that the loss changes by far more than its rounding.
    auto* const value = const_cast<float*>(parameter.value.host().data);
    const std::vector<float> before(value, value + gradient.size());
    const double step = 0.02 / norm;
    double loss[2];
    for (const int side : {0, 1}) {
      for (size_t i = 0; i < gradient.size(); ++i)
        value[i] = static_cast<float>(before[i] + (side == 0 ? -step : step) * gradient[i]);
      loss[side] = engine.Step(batch, {}, 0).loss;
    }
    std::ranges::copy(before, value);
    EXPECT_NEAR((loss[1] - loss[0]) / (2 * step), norm * norm, 0.02 * norm * norm) << name;
  }

  // Activations that were kept are those that are computed again.
  const auto gradients = [&](int64_t bytes) {
    engine.KeepActivations(bytes);
    parameters.ZeroGradients();
    engine.Step(batch, {}, 1);
    std::map<std::string, std::vector<float>> all;
    for (const auto& entry : parameters.all()) all[entry.first] = parameters.Gradient(entry.first);
    return all;
  };
  const auto computed_again = gradients(0);
  EXPECT_EQ(gradients(int64_t{1} << 30), computed_again);
}

// ---- dropout

TEST(Gradients, DropoutFollowsFromSeedAndStepAndIsNotInMeasuredLosses) {
  GoldenStep golden("llama");
  TrainedParameters trained = golden.Everything();
  const auto loss = [&](uint64_t seed, uint64_t step, float dropout) {
    trained.lora = {.scale = 1.5, .dropout = dropout, .seed = seed, .step = step};
    golden.engine().Set(trained);
    return golden.engine().Step(golden.batch(), {}, 0).loss;
  };
  const double first = loss(1, 1, 0.5);
  EXPECT_EQ(loss(1, 1, 0.5), first);
  EXPECT_NE(loss(1, 2, 0.5), first);
  EXPECT_NE(loss(2, 1, 0.5), first);
  const double measured = golden.engine().Loss(golden.batch(), {}).loss;
  EXPECT_NEAR(measured, loss(1, 1, 0), 1e-4);
}

// ---- memory

// The formula of docs/training.md, in floats per token and rounded up to 64 bytes per array.
int64_t ExpectedBytes(const ModelConfig& c, int64_t tokens, int64_t streams, int64_t arrays) {
  const int64_t d = c.hidden, q = c.query_dim(), k = c.kv_dim(), i = c.intermediate;
  const int64_t kept = 3 * d + 2 * q + 2 * k + c.heads;
  return 4 * (tokens * ((streams + 1) * d + kept + std::max(d + 4 * i, 2 * q + 2 * k)) + 15 * arrays);
}

TEST(Gradients, PeakIsHeldToTheFormula) {
  const auto weights = GoldenWeights("llama_wide_heads");
  const ModelConfig& config = weights->config;
  const DepthPlan plan = DepthPlan::Original(config.layers);
  for (const int64_t lowest : {0, 1, 2}) {
    GradientEngine engine(Threads(2), weights, plan);
    Parameters parameters(engine);
    TrainedParameters trained;
    trained.stages.resize(config.layers);
    StageParameters& of = trained.stages[lowest];
    of.tensors.resize(BlockTensors().size());
    of.tensors[0] = parameters.Add("norm", weights->blocks[lowest].input_norm);
    engine.Set(trained);
    Batch batch;
    std::vector<int32_t> tokens(57, 3);
    batch.Add(tokens);
    engine.Step(batch, {}, 1);
    const int64_t expected = ExpectedBytes(config, 57, config.layers - lowest + 1, 14);
    EXPECT_LE(engine.PeakBytes(), expected) << lowest;
    EXPECT_GE(engine.PeakBytes(), expected - 4 * 15 * 14) << lowest;
    engine.Step(batch, {}, 1);
    batch.Add(tokens);
    engine.Step(batch, {}, 1);
    EXPECT_LE(engine.PeakBytes(), ExpectedBytes(config, 114, config.layers - lowest + 1, 14)) << lowest;

    // Each block that is kept takes d + 2 q + 2 k + h + 2 i floats per token.
    const int64_t without = engine.PeakBytes();
    engine.KeepActivations(int64_t{1} << 30);
    engine.Step(batch, {}, 1);
    const int64_t a_token =
        config.hidden + 2 * config.query_dim() + 2 * config.kv_dim() + config.heads + 2 * config.intermediate;
    const int64_t kept = 4 * 114 * a_token * (config.layers - lowest);
    EXPECT_GE(engine.PeakBytes(), without + kept) << lowest;
    EXPECT_LE(engine.PeakBytes(), without + kept + 4 * 15 * 10 * config.layers) << lowest;
  }
}

// ---- errors

template <typename Call>
std::string ErrorOf(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(Gradients, ALossThatIsNotFiniteNamesTheTensor) {
  const auto weights = GoldenWeights("llama2");
  auto own = std::make_shared<BlockWeights>(weights->blocks[1]);
  std::vector<float> down = Widened(own->down);
  down[7] = NAN;
  own->down.data = down.data();
  const DepthPlan plan{{BlockStage{.layer = 0}, BlockStage{.layer = 1, .own = own}, BlockStage{.layer = 2}}};
  GradientEngine engine(Threads(2), weights, plan);
  const Batch batch = Packed({1, 2, 3, 4}, {4});
  for (const std::string& error :
       {ErrorOf([&] { engine.Step(batch, {}, 1); }), ErrorOf([&] { engine.Loss(batch, {}); })}) {
    EXPECT_NE(error.find("block 1, mlp.down_proj.weight contains NaN"), std::string::npos) << error;
    EXPECT_NE(error.find("loss of a batch is nan"), std::string::npos) << error;
  }
  std::fill(down.begin(), down.end(), 3e38f);
  const std::string error = ErrorOf([&] { engine.Step(batch, {}, 1); });
  EXPECT_NE(error.find("the stream overflows in block 1, whose tensors are finite"), std::string::npos) << error;

  // The caller owns the trained values: it knows the rate of their training.
  const std::vector<float> trained(down.size(), NAN);
  std::vector<float> gradient(down.size(), 0);
  TrainedParameters parameters;
  parameters.stages.resize(3);
  parameters.stages[1].tensors.resize(BlockTensors().size());
  for (size_t row = 0; row < BlockTensors().size(); ++row)
    if (BlockTensors()[row].member == &BlockWeights::down) {
      const int64_t rows = own->down.rows(), cols = own->down.cols();
      parameters.stages[1].tensors[row] = {MatrixView<const float>(trained.data(), rows, cols),
                                           MatrixView<float>(gradient.data(), rows, cols)};
    }
  engine.Set(parameters);
  EXPECT_TRUE(std::isnan(engine.Step(batch, {}, 1).loss));
  EXPECT_EQ(std::count(gradient.begin(), gradient.end(), 0.0f), std::ssize(gradient));
}

// The place of a tensor in BlockTensors().
size_t RowOf(std::string_view name) {
  const auto rows = BlockTensors();
  const auto found = std::find_if(rows.begin(), rows.end(), [&](const BlockTensor& row) { return row.name == name; });
  Check(found != rows.end(), "no tensor of a block is called {}", name);
  return found - rows.begin();
}

TEST(Gradients, AGpuRefusesFamiliesOfWhichItHasNone) {
  for (const auto& [name, what] : {std::pair("apertus", "the activation xIELU, which no kernel computes"),
                                   {"lfm2", "short convolutions, which no kernel computes"}}) {
    const auto weights = GoldenWeights(name);
    Context context = Threads(1);
    context.device = Device::kCuda;
    try {
      GradientEngine(context, weights, DepthPlan::Original(weights->config.layers));
      FAIL() << name;
    } catch (const Error& error) {
      const std::string expected = fmt::format("{} has {} on a GPU; run it with --device cpu", name, what);
      EXPECT_NE(std::string(error.what()).find(expected), std::string::npos) << error.what();
    }
  }
}

TEST(Gradients, ParametersThatDoNotFitAreRefusedByName) {
  GoldenStep golden("llama");
  const TrainedParameters good = golden.Everything();
  const size_t q = RowOf("self_attn.q_proj.weight"), k = RowOf("self_attn.k_proj.weight"),
               bias = RowOf("self_attn.q_proj.bias");
  const auto error = [&](const std::function<void(TrainedParameters&)>& change) {
    TrainedParameters bad = good;
    change(bad);
    return ErrorOf([&] { golden.engine().Set(bad); });
  };
  EXPECT_EQ(error([&](TrainedParameters& p) { p.stages[0].tensors[q].gradient.rows = 15; }),
            "stage 0 of the plan: a gradient of (15, 16) for self_attn.q_proj.weight, expected (16, 16)");
  EXPECT_EQ(error([&](TrainedParameters& p) { p.stages[2].tensors[bias] = p.stages[2].tensors[0]; }),
            "stage 2 of the plan has no self_attn.q_proj.bias that could be trained");
  EXPECT_EQ(error([](TrainedParameters& p) { p.stages[1].p = p.stages[1].q; }),
            "stage 1 of the plan: a value of (3, 16) for adapter's matrix P, expected (16, 3)");
  EXPECT_EQ(error([](TrainedParameters& p) { p.stages[1].tensors = p.stages[0].tensors; }),
            "stage 1 of the plan is an adapter and has no tensors of a block");
  EXPECT_EQ(error([&](TrainedParameters& p) { p.stages[0].loras[q].b = p.stages[0].loras[k].b; }),
            "stage 0 of the plan: a value of (8, 2) for factor b of self_attn.q_proj.weight, expected (16, 2)");
  EXPECT_EQ(error([](TrainedParameters& p) { p.stages.pop_back(); }), "parameters of 3 stages for a plan of 4");
  EXPECT_EQ(error([](TrainedParameters& p) { p.head.value.rows = 36; }),
            "a trained head of (36, 16) with rows 16 apart, expected (37, 16)");
  EXPECT_EQ(error([](TrainedParameters& p) { p.lora.dropout = 1; }), "a dropout of 1 is not in [0, 1)");

  Batch continued = golden.batch();
  continued.Add(std::vector<int32_t>{1, 2}, 0);
  EXPECT_EQ(ErrorOf([&] { golden.engine().Step(continued, {}, 1); }),
            "sequence 4 of the batch continues another: gradients are of whole sequences");
  EXPECT_EQ(ErrorOf([&] {
              golden.engine().Step(golden.batch(), {1, 1}, 1);
            }),
            "weights of 2 targets for a batch of 18 tokens");
  EXPECT_EQ(ErrorOf([&] { golden.engine().Step(golden.batch(), TargetWeights(18, 1), 1); }),
            "the first token of sequence 0 has the weight 1 as a target, but nothing predicts it: expected 0");
  EXPECT_EQ(ErrorOf([&] { golden.engine().Step(golden.batch(), {}, 1, {.divergence = 1}); }),
            "a divergence needs the teacher's stream of (18, 16)");
}

TEST(Ops, SumOfAbsoluteProductsTakesStoredAndTrainedWeights) {
  const auto weights = GoldenWeights("llama2", DType::kBFloat16);
  for (const int threads : {1, 3}) {
    const auto ops = MakeOps(Threads(threads), weights);
    const TensorView& w = weights->blocks[0].down;
    const std::vector<float> values = Widened(w);
    Matrix<float> gradient(w.rows(), w.cols());
    double expected = 0;
    for (int64_t i = 0; i < gradient.size(); ++i) {
      gradient.data()[i] = static_cast<float>(i % 13) - 6;
      expected += std::abs(static_cast<double>(values[i]) * gradient.data()[i]);
    }
    EXPECT_NEAR(ops->SumOfAbsoluteProducts(w, gradient.view()), expected, 1e-12 * expected);
    const MatrixView<const float> trained(values.data(), w.rows(), w.cols());
    EXPECT_EQ(ops->SumOfAbsoluteProducts(DeviceMatrix<const float>(trained), gradient.view()),
              ops->SumOfAbsoluteProducts(w, gradient.view()));
  }
}

}  // namespace
}  // namespace shiftrt
