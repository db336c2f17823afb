// SPDX-License-Identifier: Apache-2.0
// Writes GGUF files for llama.cpp and the programs built on it.
#include "models/gguf.h"

#include <algorithm>
#include <atomic>
#include <cmath>

#include "export/gguf_tokenizer.h"
#include "export/hf_directory.h"
#include "export/model_card.h"
#include "export/read_back.h"
#include "models/block_tensors.h"
#include "models/plan_checkpoint.h"
#include "runtime/check.h"
#include "runtime/elements.h"
#include "runtime/gguf_writer.h"
#include "runtime/parallel.h"

namespace shiftrt {

namespace {

constexpr const char* kFile = "model.gguf";
constexpr int64_t kMiB = int64_t{1} << 20, kPiece = 16 * kMiB;  // bytes of float32 that are converted at a time
// Tolerance for the logits of a model whose matrices were rounded to 8 bits. Logits of a different model are further
// away.
constexpr double kQ8Tolerance = 0.25;

// A tensor to write.
struct Item {
  std::string name;
  TensorView tensor;
  BlockType type;
  int64_t interleaved_heads = 0;  // as FileTensor

  int64_t row() const { return tensor.shape.back(); }
  int64_t bytes() const { return FileTensor{nullptr, type, tensor.shape}.bytes(); }
};

// The factors by which llama.cpp divides the frequencies of Llama 3.1 and later; empty for other models.
std::vector<float> RopeFactors(ModelConfig config) {
  if (config.rope.kind != RopeKind::kLlama3) return {};
  const std::vector<float> scaled = MakeRopeFrequencies(config).inverse;
  config.rope.kind = RopeKind::kDefault;
  std::vector<float> factors = MakeRopeFrequencies(config).inverse;
  for (size_t i = 0; i < factors.size(); ++i) factors[i] /= scaled[i];
  return factors;
}

// True if reading the factors back gives the same frequencies.
bool SurvivesAsFactors(ModelConfig config) {
  const std::vector<float> expected = MakeRopeFrequencies(config).inverse;
  const auto found = FindLlama3Scaling(RopeFactors(config), config.rope.theta, config.head_dim);
  if (found) config.rope = *found;
  return found && MakeRopeFrequencies(config).inverse == expected;
}

bool IsStandardYarn(const RopeSpec& rope) {
  return rope.truncate && std::abs(rope.attention_factor - (0.1 * std::log(rope.factor) + 1)) < 1e-6;
}

std::string WhyNotGguf(const Model& model, const DepthPlan& plan) {
  const ModelConfig config = KeptWeights(*model.weights, plan).config;
  if (config.block.AnyWindow()) return "some blocks attend to a window, which llama.cpp's architectures do not";
  if (GgufArchitecture(config) == nullptr)
    return fmt::format(
        "models of family {} with these biases are not written to GGUF (llama, mistral, qwen2 and qwen3 are)",
        config.family);
  if (config.rope.kind == RopeKind::kLlama3 && !SurvivesAsFactors(config))
    return "the settings of its RoPE scaling cannot be told from the factors that GGUF stores";
  if (config.rope.kind == RopeKind::kYarn && !IsStandardYarn(config.rope))
    return "its YaRN has an attention factor, or untruncated ranges, of its own";
  return WhyNoHfDirectory(model, plan);
}

// The type that a tensor is stored in. llama.cpp requires float32 for vectors.
BlockType TypeOf(const TensorView& tensor, bool q8_0) {
  if (tensor.shape.size() == 1) return BlockType::kF32;
  if (!q8_0) return BlockTypeOf(tensor.dtype);
  return CanEncode(BlockType::kQ8_0, tensor.shape.back()) ? BlockType::kQ8_0 : BlockType::kF16;
}

// Every tensor of `weights`. `factors` are the values of rope_freqs.weight, or empty.
std::vector<Item> ItemsOf(const Weights& weights, bool q8_0, const std::vector<float>& factors) {
  const ModelConfig& config = weights.config;
  std::vector<Item> items;
  const auto add = [&](const std::string& name, const TensorView& tensor, int64_t heads) {
    items.push_back({name, tensor, TypeOf(tensor, q8_0), heads});
  };
  add(kGgufEmbedding, weights.embedding, 0);
  for (size_t layer = 0; layer < weights.blocks.size(); ++layer)
    ForEachTensor(weights.blocks[layer], [&](const BlockTensor& row, const TensorView& tensor) {
      const int64_t heads = row.output == Axis::kQueries ? config.heads : config.kv_heads;
      add(fmt::format("blk.{}.{}", layer, GgufName(row)), tensor, IsInterleavedInGguf(config, row) ? heads : 0);
    });
  add(kGgufFinalNorm, weights.final_norm, 0);
  if (!config.tied_head) add(kGgufHead, weights.head, 0);
  if (!factors.empty()) add(kGgufRopeFactors, {factors.data(), DType::kFloat32, {std::ssize(factors)}}, 0);
  return items;
}

// general.file_type: the type of most of the file.
int64_t FileType(BlockType type) {
  switch (type) {
    case BlockType::kF16: return 1;
    case BlockType::kQ8_0: return 7;
    case BlockType::kBF16: return 32;
    default: return 0;
  }
}

void AddConfig(const ModelConfig& config, GgufWriter& file) {
  const std::string a = std::string(GgufArchitecture(config)) + ".";
  file.AddInteger(a + "block_count", config.layers);
  file.AddInteger(a + "context_length", config.max_positions);
  file.AddInteger(a + "embedding_length", config.hidden);
  file.AddInteger(a + "feed_forward_length", config.intermediate);
  file.AddInteger(a + "attention.head_count", config.heads);
  file.AddInteger(a + "attention.head_count_kv", config.kv_heads);
  file.AddInteger(a + "attention.key_length", config.head_dim);
  file.AddInteger(a + "attention.value_length", config.head_dim);
  file.AddInteger(a + "rope.dimension_count", config.head_dim);
  file.AddInteger(a + "vocab_size", config.vocab);
  file.AddNumber(a + "attention.layer_norm_rms_epsilon", config.rms_eps);
  const RopeSpec& rope = config.rope;
  file.AddNumber(a + "rope.freq_base", rope.theta);
  if (rope.kind != RopeKind::kLinear && rope.kind != RopeKind::kYarn) return;
  file.AddText(a + "rope.scaling.type", rope.kind == RopeKind::kYarn ? "yarn" : "linear");
  file.AddNumber(a + "rope.scaling.factor", rope.factor);
  if (rope.kind == RopeKind::kLinear) return;
  file.AddInteger(a + "rope.scaling.original_context_length", rope.original_max_positions);
  file.AddNumber(a + "rope.scaling.yarn_beta_fast", rope.beta_fast);
  file.AddNumber(a + "rope.scaling.yarn_beta_slow", rope.beta_slow);
}

// The row of the model that is stored as row `row` of the file.
int64_t ModelRow(int64_t row, int64_t rows, int64_t heads) {
  if (heads == 0) return row;
  const int64_t head_rows = rows / heads, in_head = row % head_rows;
  return row - in_head + in_head % 2 * (head_rows / 2) + in_head / 2;
}

// Converts and writes a tensor, some rows at a time.
void WriteTensor(const ExportJob& job, const Item& item, AtomicFile& file) {
  // A vector counts as a column, so that its elements can be reordered.
  const int64_t columns = item.tensor.shape.size() == 1 ? 1 : item.row(), rows = item.tensor.elements() / columns;
  const int64_t per_piece = std::max<int64_t>(1, kPiece / (columns * static_cast<int64_t>(sizeof(float))));
  const int64_t row_bytes = FileTensor{nullptr, item.type, {columns}}.bytes();
  Buffer<std::byte> piece(std::min(per_piece, rows) * row_bytes);
  for (int64_t first = 0; first < rows; first += per_piece) {
    const int64_t count = std::min(per_piece, rows - first);
    std::atomic<bool> finite = true;
    WithElements(item.tensor, [&](const auto* data) {
      ParallelFor(job.context, count, 16, [&](int64_t begin, int64_t end) {
        std::vector<float> values(columns);
        bool good = true;
        for (int64_t i = begin; i < end; ++i) {
          const auto* const row = data + ModelRow(first + i, rows, item.interleaved_heads) * columns;
          for (int64_t j = 0; j < columns; ++j) values[j] = static_cast<float>(row[j]);
          EncodeBlocks(item.type, values.data(), columns, piece.data() + i * row_bytes, good);
        }
        if (!good) finite = false;
      });
    });
    Check(finite, "tensor {} has a number that {} cannot hold", item.name, TraitsOf(item.type).name);
    file.Write(std::span(piece.data(), static_cast<size_t>(count * row_bytes)));
  }
  file.Write(GgufWriter::Padding(item.bytes()));
}

std::vector<std::string> WriteGguf(const ExportJob& job, const std::filesystem::path& directory) {
  const Weights kept = KeptWeights(*job.model.weights, job.plan);
  const std::vector<float> factors = RopeFactors(kept.config);
  const std::vector<Item> items = ItemsOf(kept, job.options.q8_0, factors);
  const Original original = OriginalOf(job);
  std::vector<std::string> notes;

  GgufWriter writer;
  writer.AddText("general.architecture", GgufArchitecture(kept.config));
  writer.AddText("general.type", "model");
  writer.AddText("general.name",
                 fmt::format("{}, {} of {} blocks", original.name, original.kept.size(), original.layers));
  writer.AddInteger("general.file_type", FileType(TypeOf(kept.blocks.front().gate, job.options.q8_0)));
  writer.AddInteger("general.quantization_version", 2);
  AddConfig(kept.config, writer);
  if (job.model.tokenizer) {
    notes = AddGgufTokenizer(job.model, writer);
  } else {
    notes.emplace_back("The model has no tokenizer, without which llama.cpp does not load the file.");
  }
  int64_t total = 0;
  for (const Item& item : items) {
    writer.AddTensor(item.name, item.tensor.shape, item.type);
    total += item.bytes();
  }
  if (const auto odd = std::find_if(items.begin(), items.end(),
                                    [&](const Item& item) { return job.options.q8_0 && item.type == BlockType::kF16; });
      odd != items.end())
    notes.push_back(fmt::format("{} and others whose rows are not blocks of 32 are stored as F16.", odd->name));

  AtomicDirectory out(directory);
  AtomicFile& file = out.Create(kFile);
  file.Write(writer.header());
  job.progress.Begin("writing (MiB)", total / kMiB);
  int64_t written = 0;
  for (const Item& item : items) {
    WriteTensor(job, item, file);
    const int64_t before = written / kMiB;
    written += item.bytes();
    job.progress.Advance(written / kMiB - before);
  }
  job.progress.End();
  out.Create("README.md")
      .Write(ModelCard(job,
                       "For llama.cpp and the programs built on it:\n\n"
                       "```\nllama-cli -m model.gguf -p \"The capital of France is\"\n```\n",
                       notes, "gguf"));
  out.Commit();
  return notes;
}

void VerifyGguf(const ExportJob& job, const std::filesystem::path& directory) {
  const std::filesystem::path file = directory / kFile;
  if (job.model.tokenizer) VerifyGgufTokenizer(job.model, file);
  CheckSameLogits(job, OpenModel(file.string()), file, job.options.q8_0 ? kQ8Tolerance : 0);
}

}  // namespace

const ExportFormat& GgufFormat() {
  static const ExportFormat format = {
      .name = "gguf",
      .summary = "file for llama.cpp: F32, F16, BF16 or Q8_0 (--dtype); no adapters",
      .adapters = false,
      .own_tensors = true,
      .half_blocks = false,
      .q8_0 = true,
      .holds = "recipe stock",
      .why_not = WhyNotGguf,
      .write = WriteGguf,
      .verify = VerifyGguf,
  };
  return format;
}

}  // namespace shiftrt
