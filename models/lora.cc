// SPDX-License-Identifier: Apache-2.0
#include "models/lora.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "models/config_reader.h"
#include "models/families.h"
#include "models/hf_tensors.h"
#include "models/lora_scaling.h"
#include "models/lora_tables.h"
#include "models/own_tensors.h"
#include "runtime/elements.h"
#include "runtime/json.h"
#include "runtime/parallel.h"
#include "runtime/safetensors.h"

namespace shiftrt {

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr const char *kPrefix = "base_model.model.model.layers.", *kWeight = ".weight";
constexpr const char *kA = ".lora_A.weight", *kB = ".lora_B.weight";

// Settings of PEFT that do not change the result of an adapter: where factors are applied (which the tensors and
// shiftrt.json say too), how they were trained, and how they were initialised.
constexpr const char* kHarmless[] = {"peft_type",
                                     "peft_version",
                                     "base_model_name_or_path",
                                     "revision",
                                     "task_type",
                                     "auto_mapping",
                                     "r",
                                     "inference_mode",
                                     "lora_alpha",
                                     "target_modules",
                                     "layers_pattern",
                                     "exclude_modules",
                                     "lora_dropout",
                                     "init_lora_weights",
                                     "layers_to_transform",
                                     "qalora_group_size",
                                     "megatron_core",
                                     "runtime_config",
                                     "rank_pattern",
                                     "alpha_pattern",
                                     "use_rslora",
                                     "modules_to_save"};
constexpr std::string_view kRoot = "base_model.model.";
constexpr const char *kEmbedding = "model.embed_tokens", *kHead = "lm_head";

// The name of the module, such as "self_attn.q_proj".
std::string ModuleOf(const BlockTensor& row) {
  const std::string name = row.name;
  return name.substr(0, name.size() - std::string(kWeight).size());
}

// The name that the family's checkpoints give it in a block of this configuration, which PEFT uses ("mlp.c_fc" for
// "mlp.up_proj" in StarCoder 2); ours for a projection that they join with others.
std::string ModuleOf(const ModelConfig& config, const BlockTensor& row) {
  for (const CheckpointTensor& stored : CheckpointTensors(config)) {
    const std::string name = stored.name;
    if (stored.parts.size() == 1 && stored.parts.front() == &row)
      return name.substr(0, name.size() - std::string(kWeight).size());
  }
  return ModuleOf(row);
}

// For messages, such as "layer 3, self_attn.q_proj".
std::string Describe(const LoraFactors& factors) {
  return fmt::format("layer {}, {}", factors.layer, ModuleOf(*factors.tensor));
}

// The block that the factors belong to: its stage in the plan, and how many blocks come before it.
struct FactorPlace {
  size_t stage = 0;
  int64_t block = 0;
};
FactorPlace PlaceOf(const DepthPlan& plan, const LoraFactors& factors) {
  FactorPlace place;
  for (; place.stage < plan.stages.size(); ++place.stage) {
    const BlockStage* const block = plan.stages[place.stage].Visit(
        [](const BlockStage& b) { return &b; }, [](const AdapterStage&) -> const BlockStage* { return nullptr; });
    if (block == nullptr) continue;
    if (block->layer == factors.layer && Reads(block->halves, *factors.tensor)) return place;
    ++place.block;
  }
  Fail("LoRA factors for {}, which this depth plan does not run", Describe(factors));
}

// W + scale b a in float32.
Matrix<float> Changed(const TensorView& weight, const LoraFactors& factors, float scale) {
  const int64_t rows = weight.rows(), cols = weight.cols(), rank = factors.a.rows();
  Check(factors.a.cols() == cols && factors.b.rows() == rows && factors.b.cols() == rank,
        "LoRA factors for {} are ({}, {}) and ({}, {}), for a weight of ({}, {})", Describe(factors), factors.a.rows(),
        factors.a.cols(), factors.b.rows(), factors.b.cols(), rows, cols);
  Matrix<float> changed(rows, cols);
  ParallelFor(Cores(), rows, 16, [&](int64_t begin, int64_t end) {
    std::vector<float> from(cols);
    for (int64_t i = begin; i < end; ++i) {
      float* const out = changed.row(i);
      std::fill_n(out, cols, 0.0f);
      for (int64_t r = 0; r < rank; ++r) {
        const float b = factors.b(i, r);
        const float* const a = factors.a.row(r);
        for (int64_t j = 0; j < cols; ++j) out[j] += b * a[j];
      }
      WidenRow(weight, i, from.data());
      for (int64_t j = 0; j < cols; ++j) out[j] = from[j] + scale * out[j];
    }
  });
  return changed;
}

TensorView WholeMatrix(const Matrix<float>& m) { return {m.data(), DType::kFloat32, {m.rows(), m.cols()}}; }

// PEFT's target_modules: the last part of each name if every block of the plan has factors for it, otherwise all full
// names, which PEFT accepts too.
Json TargetModules(const std::map<std::string, std::vector<int64_t>>& blocks_of, int64_t blocks) {
  Json names = Json::array();
  const bool everywhere = std::all_of(blocks_of.begin(), blocks_of.end(),
                                      [&](const auto& module) { return std::ssize(module.second) == blocks; });
  for (const auto& [module, where] : blocks_of) {
    if (everywhere) {
      names.push_back(module.substr(module.rfind('.') + 1));
    } else {
      for (const int64_t block : where) names.push_back(fmt::format("model.layers.{}.{}", block, module));
    }
  }
  return names;
}

// Throws Error for a setting that would change what the factors compute.
void RefuseSettings(const Json& config, const std::string& file) {
  for (const auto& [key, value] : config.items()) {
    const bool harmless = std::find(std::begin(kHarmless), std::end(kHarmless), key) != std::end(kHarmless);
    const bool unset = value.is_null() || value == false || value == 0 || value == "none" ||
                       (value.is_structured() && value.empty()) ||
                       (value.is_string() && value.get_ref<const std::string&>().empty());
    Check(harmless || unset, "{}: {} is {}, which is not supported; merge the adapter with peft", file, key,
          Shown(value));
  }
  // Other initialisations also change the base model, so their factors are relative to a different base.
  const Json start = config.value("init_lora_weights", Json(true));
  Check(start.is_boolean() || start == "gaussian" || start == "orthogonal" || start == "eva",
        "{}: init_lora_weights is {}, which changes the base model too; merge the adapter with peft", file,
        Shown(start));
}

// The modules that the adapter replaces as a whole. Only the embedding table and the head are supported.
std::vector<std::string> SavedModules(const Json& config, const std::string& file) {
  const Json modules = config.value("modules_to_save", Json());
  if (modules.is_null()) return {};
  std::vector<std::string> saved;
  Check(modules.is_array(), "{}: modules_to_save is {}, expected a list", file, Shown(modules));
  for (const Json& module : modules) {
    const std::string name = module.is_string() ? module.get<std::string>() : "";
    Check(name == kHead || name == "embed_tokens" || name == kEmbedding,
          "{}: modules_to_save has {}, which is not supported (embed_tokens and lm_head are); merge the adapter with "
          "peft",
          file, Shown(module));
    saved.push_back(name);
  }
  return saved;
}

// Reads the factors in a file, by block and row of the table.
class FactorReader {
 public:
  FactorReader(const fs::path& file, const Weights& weights, const DepthPlan& plan, const LoraScaling& scaling)
      : file_(file), weights_(weights), config_(weights.config), plan_(plan), scaling_(scaling) {}

  // Reads all that the file has. `saved`: the modules that the adapter replaces as a whole.
  Lora Read(const std::vector<std::string>& saved) {
    for (const auto& [name, tensor] : file_.others()) Fail("{}: tensor {} is {}", path(), name, tensor.type);
    Lora lora;
    lora.embedding = Table(kEmbedding);
    lora.head = Table(kHead);
    // Without a copy of its own, a tied head is the tensor that the adapter replaces.
    if (config_.tied_head && saved.empty() && lora.embedding.whole.size() + lora.head.whole.size() > 0)
      JoinTables(lora);
    lora.factors = Blocks(lora);
    return lora;
  }

 private:
  std::vector<LoraFactors> Blocks(Lora& lora) {
    std::vector<LoraFactors> factors;
    std::vector<double> scales;
    int64_t index = 0;
    for (const BlockStage* block : plan_.Blocks()) {
      for (const BlockTensor& row : BlockTensors()) {
        if (row.kind != BlockTensor::Kind::kMatrix || !Reads(block->halves, row)) continue;
        const ModelConfig of_block = ConfigOfBlock(config_, block->layer, MlpUnits(TensorsOf(weights_, *block)));
        const std::string module = fmt::format("{}{}.{}", kPrefix, index, ModuleOf(of_block, row));
        if (!Has(module)) continue;
        const std::vector<int64_t> shape = row.Shape(of_block);
        const std::string name = module.substr(kRoot.size());
        const int64_t rank = scaling_.RankOf(name);
        Matrix<float> a = Take(module + kA, rank, shape[1]), b = Take(module + kB, shape[0], rank);
        factors.push_back({block->layer, &row, std::move(a), std::move(b)});
        scales.push_back(scaling_.ScaleOf(name));
        lora.rank = std::max(lora.rank, rank);
      }
      ++index;
    }
    for (const auto& [name, tensor] : file_.tensors())
      if (!used_.contains(name)) FailUnused(name, index);
    Check(!factors.empty() || !lora.embedding.empty() || !lora.head.empty(), "{}: no factors", path());
    MakeAlike(lora, factors, scales);
    return factors;
  }

  // All factors of a Lora have one rank and one scale.
  void MakeAlike(Lora& lora, std::vector<LoraFactors>& factors, const std::vector<double>& scales) const {
    lora.rank = std::max<int64_t>(lora.rank, 1);
    const auto rank = static_cast<double>(lora.rank);
    bool alike = true;
    for (size_t i = 0; i < factors.size(); ++i)
      alike &= factors[i].a.rows() == lora.rank && scales[i] == scales.front();
    if (alike) {
      const bool plain = !scales.empty() && scales.front() == scaling_.alpha() / rank;  // alpha as it was written
      lora.alpha = plain ? scaling_.alpha() : scales.empty() ? 0 : scales.front() * rank;
      return;
    }
    lora.alpha = rank;
    for (size_t i = 0; i < factors.size(); ++i) {
      Matrix<float> a = Matrix<float>::Zeros(lora.rank, factors[i].a.cols()),
                    b = Matrix<float>::Zeros(factors[i].b.rows(), lora.rank);
      std::copy_n(factors[i].a.data(), factors[i].a.size(), a.data());
      for (int64_t row = 0; row < b.rows(); ++row)
        for (int64_t r = 0; r < factors[i].b.cols(); ++r)
          b(row, r) = static_cast<float>(scales[i] * static_cast<double>(factors[i].b(row, r)));
      factors[i].a = std::move(a);
      factors[i].b = std::move(b);
    }
  }

  // The change of the embedding table or the head, which this module is.
  LoraTable Table(const std::string& module) {
    LoraTable table;
    const std::string name = std::string(kRoot) + module;
    for (const char* whole : {".weight", ".base_layer.weight", ".modules_to_save.weight"})
      if (file_.tensors().contains(name + whole)) table.whole = Take(name + whole, config_.vocab, config_.hidden);
    const int64_t rank = scaling_.RankOf(module);
    if (Has(name)) {
      table.a = Take(name + kA, rank, config_.hidden);
      table.b = Take(name + kB, config_.vocab, rank);
    } else if (const std::string a = name + ".lora_embedding_A", b = name + ".lora_embedding_B";
               file_.tensors().contains(a) ||
               file_.tensors().contains(b)) {  // the factors are those of the transposed table
      table.b = Transposed(Take(a, rank, config_.vocab));
      table.a = Transposed(Take(b, config_.hidden, rank));
    }
    table.scale = scaling_.ScaleOf(module);
    return table;
  }
  static Matrix<float> Transposed(const Matrix<float>& m) {
    Matrix<float> transposed(m.cols(), m.rows());
    for (int64_t i = 0; i < m.rows(); ++i)
      for (int64_t j = 0; j < m.cols(); ++j) transposed(j, i) = m(i, j);
    return transposed;
  }
  void JoinTables(Lora& lora) const {
    const Matrix<float>&embedding = lora.embedding.whole, &head = lora.head.whole;
    Check(embedding.empty() || head.empty() ||
              std::equal(embedding.span().begin(), embedding.span().end(), head.span().begin()),
          "{}: {} and {} differ, and the head of the model is its embedding table; merge the adapter with peft", path(),
          kEmbedding, kHead);
    Check(lora.embedding.a.empty() && lora.head.a.empty(),
          "{}: factors for a tied head or embedding table with a copy of it are not supported; merge the adapter with "
          "peft",
          path());
    if (embedding.empty()) lora.embedding.whole = std::move(lora.head.whole);
    lora.head = {};
    lora.one_table = true;
  }

  std::string path() const { return file_.path().string(); }
  [[noreturn]] void FailUnused(const std::string& name, int64_t blocks) const {
    if (name.find(".base_layer.") != name.npos || name.find(".default.") != name.npos)
      Fail(
          "{}: tensor {} has the name that it has inside peft; merge the adapter with peft, or save it with "
          "save_pretrained",
          path(), name);
    Fail("{}: tensor {} is of no projection that a model of {} blocks runs", path(), name, blocks);
  }
  bool Has(const std::string& module) const {
    return file_.tensors().contains(module + kA) || file_.tensors().contains(module + kB);
  }
  Matrix<float> Take(const std::string& name, int64_t rows, int64_t cols) {
    used_.insert(name);
    return FloatsOf(path(), file_.tensors(), name, {rows, cols});
  }
  SafetensorsFile file_;
  const Weights& weights_;
  const ModelConfig& config_;
  const DepthPlan& plan_;
  const LoraScaling& scaling_;
  std::set<std::string> used_;
};

}  // namespace

bool SameChange(const Lora& first, const Lora& second) {
  const auto same = [](const Matrix<float>& a, const Matrix<float>& b) {
    return a.rows() == b.rows() && std::equal(a.span().begin(), a.span().end(), b.span().begin(), b.span().end());
  };
  for (const Lora* lora : {&first, &second})
    if (!lora->embedding.empty() || !lora->head.empty()) return false;  // a saved model has none
  return first.scale() == second.scale() && first.factors.size() == second.factors.size() &&
         std::all_of(first.factors.begin(), first.factors.end(), [&](const LoraFactors& one) {
           return std::any_of(second.factors.begin(), second.factors.end(), [&](const LoraFactors& other) {
             return one.layer == other.layer && one.tensor == other.tensor && same(one.a, other.a) &&
                    same(one.b, other.b);
           });
         });
}

std::string Checksum(const Lora& lora) {
  // Layers count by their order, because a model that is saved with its weights numbers them anew.
  std::set<int64_t> layers;
  for (const LoraFactors& factors : lora.factors) layers.insert(factors.layer);
  std::map<std::string, TensorView, std::less<>> tensors;
  for (const LoraFactors& factors : lora.factors) {
    const auto number = std::distance(layers.begin(), layers.find(factors.layer));
    const std::string name = fmt::format("{}.{}", number, ModuleOf(*factors.tensor));
    tensors[name + kA] = WholeMatrix(factors.a);
    tensors[name + kB] = WholeMatrix(factors.b);
  }
  return ChecksumOf(fmt::format("rank {} alpha {}", lora.rank, lora.alpha), tensors);
}

DepthPlan MergeLora(const Weights& weights, const DepthPlan& plan, const Lora& lora) {
  std::map<size_t, std::shared_ptr<OwnBlock>> blocks;  // by stage
  for (const LoraFactors& factors : lora.factors) {
    const size_t stage = PlaceOf(plan, factors).stage;
    std::shared_ptr<OwnBlock>& block = blocks[stage];
    if (!block) block = std::make_shared<OwnBlock>(weights, plan.stages[stage].block());
    const auto member = factors.tensor->member;
    const Matrix<float> changed = Changed(block->weights().*member, factors, static_cast<float>(lora.scale()));
    block->Replace(member, changed.span());
  }
  DepthPlan merged = plan;
  for (auto& [stage, block] : blocks) {
    BlockStage changed = plan.stages[stage].block();
    changed.own = OwnBlock::Share(std::move(block));
    merged.stages[stage] = std::move(changed);
  }
  if (!lora.head.empty()) {
    const auto output = std::make_shared<OwnOutput>(weights, plan);
    output->Replace(&OutputWeights::head, ChangedTable(output->weights().head, lora.head, "head").span());
    merged.output = OwnOutput::Share(output);
  }
  return merged;
}

double MergeError(const Weights& weights, const DepthPlan& plan, const Lora& lora, const DepthPlan& merged) {
  RoundingError error;
  for (const LoraFactors& factors : lora.factors) {
    const size_t stage = PlaceOf(plan, factors).stage;
    const auto member = factors.tensor->member;
    const TensorView &before = TensorsOf(weights, plan.stages[stage].block()).*member,
                     &after = TensorsOf(weights, merged.stages[stage].block()).*member;
    error.Add(Changed(before, factors, static_cast<float>(lora.scale())).span(), before, after);
  }
  return error.share();
}

void WriteLora(const Lora& lora, const ModelConfig& model, const DepthPlan& plan, const std::string& base,
               AtomicDirectory& out) {
  std::map<std::string, std::vector<int64_t>> blocks_of;  // by module
  std::vector<NamedTensor> tensors;
  for (const LoraFactors& factors : lora.factors) {
    const int64_t block = PlaceOf(plan, factors).block;
    const std::string module = ModuleOf(ConfigOfBlock(model, factors.layer, 0), *factors.tensor);
    blocks_of[module].push_back(block);
    tensors.push_back({fmt::format("{}{}.{}{}", kPrefix, block, module, kA), WholeMatrix(factors.a)});
    tensors.push_back({fmt::format("{}{}.{}{}", kPrefix, block, module, kB), WholeMatrix(factors.b)});
  }
  const bool whole = lora.alpha == std::floor(lora.alpha) && std::abs(lora.alpha) < 1e15;
  const Json config = {
      {"peft_type", "LORA"},
      {"task_type", "CAUSAL_LM"},
      {"base_model_name_or_path", base.empty() ? Json() : Json(base)},
      {"inference_mode", true},
      {"r", lora.rank},
      {"lora_alpha", whole ? Json(static_cast<int64_t>(lora.alpha)) : Json(lora.alpha)},
      {"lora_dropout", 0.0},
      {"bias", "none"},
      {"fan_in_fan_out", false},
      {"target_modules", TargetModules(blocks_of, plan.blocks())},
  };
  const std::string directory = std::string(kLoraDirectory) + "/";
  WriteSafetensors(out.Create(directory + kLoraTensors), tensors, {{"format", "pt"}});
  out.Create(directory + kLoraConfig).Write(config.dump(2) + "\n");
}

Lora ReadLora(const fs::path& directory, const Weights& weights, const DepthPlan& plan) {
  const ModelConfig& config = weights.config;
  const std::string file = (directory / kLoraConfig).string();
  const Json json = ParseJson(ReadFile(file, kMaxConfigBytes), file);
  Check(json.is_object(), "{}: not a JSON object", file);
  const ConfigReader reader(json, file);
  Check(reader.Word("peft_type", "") == "LORA", "{}: peft_type is {}, expected \"LORA\"", file,
        Shown(json.value("peft_type", Json())));
  RefuseSettings(json, file);
  const LoraScaling scaling(json, file, config.hidden + config.intermediate);
  Check(Exists(directory / kLoraTensors) || !Exists(directory / "adapter_model.bin"),
        "{}: adapter_model.bin is pickled, which is not read; save the adapter with peft (save_pretrained), which "
        "writes {}",
        directory.string(), kLoraTensors);
  const std::vector<std::string> saved = SavedModules(json, file);
  Lora lora = FactorReader(directory / kLoraTensors, weights, plan, scaling).Read(saved);
  for (const std::string& module : saved) {
    const bool head = module == kHead;
    Check(!(head ? lora.head : lora.embedding).whole.empty(), "{}: modules_to_save has {}, and {} has no tensor of it",
          file, module, kLoraTensors);
  }
  return lora;
}

}  // namespace shiftrt
