// SPDX-License-Identifier: Apache-2.0
// Writes GGUF files for llama.cpp and the programs built on it.
#include "models/gguf.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "export/gguf_items.h"
#include "export/gguf_tokenizer.h"
#include "export/hf_directory.h"
#include "export/model_card.h"
#include "export/read_back.h"
#include "kernels/widen.h"
#include "models/block_tensors.h"
#include "models/plan_checkpoint.h"
#include "runtime/check.h"
#include "runtime/elements.h"
#include "runtime/gguf_writer.h"
#include "runtime/parallel.h"
#include "types/provenance.h"

namespace shiftrt {

namespace {

constexpr const char* kFile = "model.gguf";
constexpr int64_t kMiB = int64_t{1} << 20, kPiece = 16 * kMiB;  // bytes of float32 that are converted at a time
std::string WhyNoModelInGguf(const ModelConfig& config) {
  if (GgufArchitectureOf(config) != nullptr) return "";
  return fmt::format("models of family {} are not written to GGUF", config.family);
}

// Returns why half blocks and adapters of such a model have no place.
std::string WhyNoPartsInGguf(const ModelConfig& config) {
  const GgufArchitecture& by_layer = *FindGgufArchitecture(kGgufByLayer);
  if (HoldsFamily(by_layer, config)) return WhyNoGguf(config, by_layer);
  std::vector<std::string_view> held;
  for (const char* architecture : by_layer.families) held.emplace_back(FindFamily(architecture)->name);
  return fmt::format(
      "half blocks, adapters and MLPs of other units need llama.cpp's architecture {}, which holds families {} and not "
      "{}; --recipe stock "
      "makes a model with none of them",
      by_layer.name, fmt::join(held, ", "), config.family);
}

std::string WhyNotGguf(const Model& model, const DepthPlan& plan) {
  const ModelConfig config = KeptWeights(*model.weights, plan).config;
  if (NeedsLayers(*model.weights, plan)) {
    if (std::string why = WhyNoPartsInGguf(config); !why.empty()) return why;
    if (plan.attention_blocks() == 0) return "no block runs its attention, which llama.cpp's architecture deci needs";
  } else if (std::string why = WhyNoGguf(config, *GgufArchitectureOf(config)); !why.empty()) {
    return why;
  }
  return WhyNoHfDirectory(model, plan);
}

// general.file_type: the type of most of the file. Q3_K, Q4_K and Q5_K stand for the mixtures of middle size, such as
// Q4_K_M.
int64_t FileType(BlockType type) {
  switch (type) {
    case BlockType::kF16: return 1;
    case BlockType::kQ8_0: return 7;
    case BlockType::kBF16: return 32;
    case BlockType::kQ4_0: return 2;
    case BlockType::kQ4_1: return 3;
    case BlockType::kQ5_0: return 8;
    case BlockType::kQ5_1: return 9;
    case BlockType::kQ2_K: return 10;
    case BlockType::kQ3_K: return 12;
    case BlockType::kQ4_K: return 15;
    case BlockType::kQ5_K: return 17;
    case BlockType::kQ6_K: return 18;
    case BlockType::kIQ4_NL: return 25;
    case BlockType::kIQ4_XS: return 30;
    case BlockType::kMXFP4: return 38;
    default: return 0;
  }
}

struct StoredRow {
  const std::byte* data;
  DType type;
};
// The rows of a tensor as the file has them. A vector counts as a column, so that its elements can be reordered.
std::vector<StoredRow> RowsInFile(const GgufItem& item, int64_t columns) {
  std::vector<StoredRow> rows;
  for (const TensorView& part : item.parts)
    for (int64_t i = 0; i < part.elements() / columns; ++i)
      rows.push_back({static_cast<const std::byte*>(part.data) + i * BytesOf(part.dtype, columns), part.dtype});
  if (item.model_rows == nullptr) return rows;
  std::vector<StoredRow> ordered;
  ordered.reserve(rows.size());
  for (const int64_t row : *item.model_rows) ordered.push_back(rows[row]);
  return ordered;
}

// Converts and writes a tensor, some rows at a time.
void WriteTensor(const ExportJob& job, const GgufItem& item, AtomicFile& file) {
  const TensorView& first_part = item.parts.front();
  const int64_t columns = first_part.shape.size() == 1 ? 1 : first_part.shape.back();
  const std::vector<StoredRow> stored = RowsInFile(item, columns);
  const int64_t rows = std::ssize(stored);
  const int64_t per_piece = std::max<int64_t>(1, kPiece / (columns * static_cast<int64_t>(sizeof(float))));
  const int64_t row_bytes = FileTensor{nullptr, item.type, {columns}}.bytes();
  Buffer<std::byte> piece(std::min(per_piece, rows) * row_bytes);
  for (int64_t first = 0; first < rows; first += per_piece) {
    const int64_t count = std::min(per_piece, rows - first);
    std::atomic<bool> finite = true;
    ParallelFor(job.context, count, 16, [&](int64_t begin, int64_t end) {
      std::vector<float> values(columns);
      bool good = true;
      for (int64_t i = begin; i < end; ++i) {
        const auto [row, type] = stored[first + i];
        std::byte* const out = piece.data() + i * row_bytes;
        if (IsQuantised(type) && BlockTypeOf(type) == item.type && !item.model_columns) {  // as they came
          std::memcpy(out, row, static_cast<size_t>(row_bytes));
          continue;
        }
        Widen(type, row, columns, values.data());
        if (item.model_columns) {
          const std::vector<float> in_model = values;
          for (int64_t j = 0; j < columns; ++j) values[j] = in_model[(*item.model_columns)[j]];
        }
        if (item.map != nullptr) std::ranges::transform(values, values.begin(), item.map);
        for (int64_t j = 0; item.offset != 0 && j < columns; ++j) values[j] += item.offset;
        EncodeBlocks(item.type, values.data(), columns, out, good);
      }
      if (!good) finite = false;
    });
    Check(finite, "tensor {} has a number that {} cannot hold", item.name, TraitsOf(item.type).name);
    file.Write(std::span(piece.data(), static_cast<size_t>(count * row_bytes)));
  }
  file.Write(GgufWriter::Padding(item.bytes()));
}

// Writes the numbers of the blocks, which are lists of the metadata.
void AddNumbers(const Weights& kept, GgufWriter& writer) {
  for (const BlockTensor& row : BlockTensors()) {
    if (!row.IsNumber() || row.Shape(kept.config).empty()) continue;
    std::vector<float> numbers;
    for (const BlockWeights& block : kept.blocks) numbers.push_back(Widened(row.In(block)).front());
    writer.AddNumbers(GgufName(row), numbers);
  }
}

// Writes what a reader cannot see in the layers, and notes how the plan is written.
void AddPlan(const ExportJob& job, const Original& original, GgufWriter& writer, std::vector<std::string>& notes) {
  std::vector<std::string> replaced;
  bool low_rank = false;
  for (const AdapterStage* adapter : job.plan.Adapters()) {
    replaced.push_back(Names(adapter->parts, " "));
    low_rank = low_rank || (adapter->lra->low_rank() && !adapter->lra->bias_alone());
  }
  if (!replaced.empty()) writer.AddTexts(kGgufAdapters, replaced);
  writer.AddIntegers(kGgufRemoved, {original.removed.begin(), original.removed.end()});
  writer.AddText(kGgufProvenance, ProvenanceJson(Essentials(job.provenance)).dump());
  notes.emplace_back(
      "The architecture is llama.cpp's deci, whose layers may lack their attention or their MLP; a program that reads "
      "GGUF by itself may not know it.");
  if (low_rank)
    notes.emplace_back("The factors of each adapter are multiplied out, because a layer of deci has one matrix.");
}

std::vector<std::string> WriteGguf(const ExportJob& job, const std::filesystem::path& directory) {
  const Weights kept = KeptWeights(*job.model.weights, job.plan);
  const RopeFactors factors = GgufRopeFactors(kept.config);
  const DepthPlan plan = WithDenseAdapters(job.context, job.plan);
  const GgufFileLayers layers(*job.model.weights, plan);
  const std::vector<GgufItem> items = GgufItems(kept, layers, job.settings.q8_0, factors);
  const Original original = OriginalOf(job);

  GgufWriter writer;
  std::vector<std::string> notes = AddGgufConfig(kept.config, layers.architecture(), layers.sizes(), writer);
  AddNumbers(kept, writer);
  writer.AddText("general.type", "model");
  writer.AddText("general.name",
                 fmt::format("{}, {} of {} blocks", original.name, original.kept.size(), original.layers));
  if (const std::string quantisation = DequantisedFrom(job, /*blocks=*/true); !quantisation.empty()) {
    writer.AddText("general.description", "dequantised from " + quantisation);
    notes.push_back(NoteOfQuantisation(*job.model.weights));
  }
  writer.AddInteger("general.file_type", FileType(GgufTypeOf(kept.blocks.front().AnyUp(), job.settings.q8_0)));
  writer.AddInteger("general.quantization_version", 2);
  if (NeedsLayers(*job.model.weights, job.plan)) AddPlan(job, original, writer, notes);
  if (job.model.tokenizer) {
    for (std::string& note : AddGgufTokenizer(job.model, writer)) notes.push_back(std::move(note));
  } else {
    notes.emplace_back("The model has no tokenizer, without which llama.cpp does not load the file.");
  }
  int64_t total = 0;
  for (const GgufItem& item : items) {
    writer.AddTensor(item.name, item.shape, item.type);
    total += item.bytes();
  }
  if (const auto odd =
          std::find_if(items.begin(), items.end(),
                       [&](const GgufItem& item) { return job.settings.q8_0 && item.type == BlockType::kF16; });
      odd != items.end())
    notes.push_back(fmt::format("{} and others whose rows are not blocks of 32 are stored as F16.", odd->name));

  AtomicDirectory out(directory);
  AtomicFile& file = out.Create(kFile);
  file.Write(writer.header());
  job.progress.Begin("writing (MiB)", total / kMiB);
  int64_t written = 0;
  for (const GgufItem& item : items) {
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

std::string LosesInGguf(const DepthPlan& plan) {
  const std::vector<const AdapterStage*> adapters = plan.Adapters();
  const bool low_rank = std::any_of(adapters.begin(), adapters.end(), [](const AdapterStage* adapter) {
    return adapter->lra->low_rank() && !adapter->lra->bias_alone();
  });
  return low_rank ? "the factors of the adapters, which are multiplied out" : "";
}

// Decays, which the file has as exponentials, come back with the error of their rounding. Matrices whose columns are in
// another order there come back without their blocks.
double ToleranceOf(const ExportJob& job) {
  constexpr double kExponentials = 1e-2;
  if (job.settings.q8_0) return kRoundedTolerance;
  if (!job.model.weights->config.block.gated_delta) return 0;
  const std::vector<const BlockStage*> blocks = job.plan.Blocks();
  const bool quantised = std::any_of(blocks.begin(), blocks.end(), [&](const BlockStage* block) {
    return IsQuantised(TensorsOf(*job.model.weights, *block).o.dtype);
  });
  return quantised ? kRoundedTolerance : kExponentials;
}

void VerifyGguf(const ExportJob& job, const std::filesystem::path& directory) {
  const std::filesystem::path file = directory / kFile;
  if (job.model.tokenizer) VerifyGgufTokenizer(job.model, file);
  const DepthPlan plan = WithDenseAdapters(job.context, job.plan);
  const ExportJob dense = {job.context, job.model, plan, job.provenance, job.settings, job.progress};
  CheckSameLogits(dense, OpenModel(file.string()), file, ToleranceOf(job));
}

}  // namespace

const ExportFormat& GgufFormat() {
  static const ExportFormat format = {
      .name = "gguf",
      .summary =
          "file for llama.cpp: F32, F16, BF16 or Q8_0 (--dtype); half blocks, MLPs of any width and adapters on the "
          "normed stream "
          "(--recipe portable) for Llama, Mistral and Qwen 2",
      .normed_adapters = true,
      .own_tensors = true,
      .half_blocks = true,
      .other_units = true,
      .q8_0 = true,
      .opened_by = "llama.cpp and the programs built on it, and llama-quantize",
      .holds = "recipe stock",
      .why_no_model = WhyNoModelInGguf,
      .why_no_parts = WhyNoPartsInGguf,
      .why_not = WhyNotGguf,
      .write = WriteGguf,
      .verify = VerifyGguf,
      .loses = LosesInGguf,
  };
  return format;
}

}  // namespace shiftrt
