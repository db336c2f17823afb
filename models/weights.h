// SPDX-License-Identifier: Apache-2.0
// Immutable weights: views into memory-mapped checkpoint files, loaded once and shared by all plans.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "include/shiftrt/arithmetic.h"
#include "include/shiftrt/blocks.h"
#include "models/config.h"
#include "models/row_order.h"
#include "models/split.h"
#include "runtime/block_types.h"
#include "runtime/safetensors.h"
#include "runtime/tensor.h"

namespace shiftrt {

// An expert of a mixture: (units, hidden) twice, and (hidden, units).
struct ExpertWeights {
  TensorView gate, up, down;
  TensorView gate_bias, up_bias, down_bias;
};

// One block's tensors as stored; a bias or norm that the family lacks is empty(). models/block_tensors.h has a row for
// each. A block has either an MLP or a mixture of experts (MixtureSpec).
struct BlockWeights {
  TensorView input_norm, input_norm_bias;    // (hidden), before the attention
  TensorView shared_norm, shared_norm_bias;  // (hidden), before both halves of a parallel block
  TensorView q, k, v;                        // (query_dim, hidden), with gates twice as many rows; (kv_dim, hidden)
  TensorView o;                              // (hidden, query_dim) or, of another mixer, (hidden, heads_dim)
  TensorView q_bias, k_bias, v_bias, o_bias;
  TensorView sinks;                                   // (heads): the sinks of the attention
  TensorView q_norm, k_norm;                          // (head_dim); or (query_dim) and (kv_dim), of all heads together
  TensorView attention_update_norm, mlp_update_norm;  // (hidden), of what the halves add to the stream
  TensorView post_norm, post_norm_bias;               // (hidden), before the MLP
  TensorView gate, up, down;                          // (units, hidden) twice, (hidden, units); see MlpUnits()
  TensorView gate_bias, up_bias, down_bias;
  TensorView xielu_p, xielu_n, xielu_beta, xielu_eps;  // (1) each: XieluNumbers
  // A gated delta network, with the sizes of GatedDeltaShape: (channels, hidden), (values, hidden), and
  // (value_heads, hidden) twice; (channels, 1, conv_width); (value_heads) twice; (value_dim).
  TensorView delta_qkv, delta_z, delta_b, delta_a, delta_conv, delta_a_log, delta_dt_bias, delta_norm;
  TensorView convolution_in, convolution;  // a short convolution: (3 hidden, hidden) and (hidden, 1, width)
  TensorView router, router_bias;          // (experts, hidden), (experts)
  // The shared expert of a mixture, and the row of its weight: (shared_units, hidden) twice, (hidden, shared_units),
  // and (1, hidden).
  TensorView shared_gate, shared_up, shared_down, shared_weight;
  std::vector<ExpertWeights> experts;  // their number may be less than MixtureSpec::experts

  bool IsMixture() const { return !experts.empty(); }
  // The matrices that tell the types of the MLP: those of the first expert in a mixture.
  const TensorView& AnyUp() const { return IsMixture() ? experts.front().up : up; }
  const TensorView& AnyDown() const { return IsMixture() ? experts.front().down : down; }
};

// The number of units of the block's MLP, which need not be ModelConfig::intermediate; 0 for a block without MLP, and
// for a mixture.
inline int64_t MlpUnits(const BlockWeights& block) { return block.up.empty() ? 0 : block.up.shape[0]; }

class Progress;
struct CheckpointTensor;
struct PackedTensor;

// A tensor as its file holds it.
struct FileTensor {
  const std::byte* data = nullptr;
  BlockType type = BlockType::kF32;
  std::vector<int64_t> shape;
  RowOrder order = nullptr, columns = nullptr;  // the orders of rows and columns
  float offset = 0;                             // added to each element when it is read
  float (*map)(float) = nullptr;                // applied to each element before that; null: nothing is
  // The file holds this many matrices one below the other, each transposed: (matrices, columns, rows / matrices). 0: it
  // holds none so.
  int64_t transposed = 0;

  // Not null: the file holds codes and scales (models/packed_tensor.h), and `type` is the one that they have in memory:
  // that to which they expand, or kMXFP4.
  std::shared_ptr<const PackedTensor> packed = nullptr;

  int64_t elements() const { return TensorView{nullptr, DType::kFloat32, shape}.elements(); }
  // In the file. Rows of a packed tensor have their share of its bytes.
  int64_t bytes() const;
  // "float32", "Q4_K", "GPTQ, 4 bits, groups of 128".
  const char* TypeName() const;
  // The bytes of the file; for rows of a packed tensor, those of the whole tensor.
  std::vector<std::span<const std::byte>> Stored() const;
};

struct Lra;

// Tensors in mapped files. Several threads may use it at once.
class MappedTensors {
 public:
  void Add(const FileTensor& tensor);
  // Removes the tensor that this is, or whose rows these are, and returns its bytes; none if there is no such tensor.
  std::span<const std::byte> Take(const TensorView& tensor);

 private:
  std::mutex mutex_;
  std::map<const std::byte*, size_t> bytes_;  // by the address of the first
};

struct Weights {
  ModelConfig config;
  TensorView embedding;  // (vocab, hidden)
  std::vector<BlockWeights> blocks;
  TensorView final_norm, final_norm_bias;            // (hidden)
  TensorView head;                                   // (vocab, hidden); the embedding if tied
  std::filesystem::path directory;                   // or the GGUF file
  std::vector<std::shared_ptr<const void>> storage;  // keeps the files and converted copies alive
  std::map<const void*, FileTensor> stored;          // by a converted copy's data: the tensor in the file
  // The tensors that stay where their files are mapped. Weights over the same files share them.
  std::shared_ptr<MappedTensors> mapped = std::make_shared<MappedTensors>();
  // The shares of a model that is split over processes, and the index of this process's share. A tensor of another
  // process has its shape and type, but its data must not be read: a tensor that would have to be converted has an
  // address without memory. Empty for a model that this process holds whole.
  std::vector<ModelShare> shares;
  size_t share = 0;
  // By block, the adapters before it, which run and are removed with it: of a model of models/as_original.h. Empty for
  // others.
  std::vector<std::vector<std::shared_ptr<const Lra>>> adapters = {};

  bool split() const { return !shares.empty(); }
  bool Has(int64_t layer) const { return !split() || shares[share].Has(layer); }
  // Throws UsageError, which names `what` (such as "--correction refit"), unless the model is whole here.
  void RequireWhole(std::string_view what) const;

  // Calls visit(name, tensor) for every tensor, in layer order; a tied head is not visited again. The names of a
  // block's tensors are those of models/block_tensors.h.
  void ForEach(const std::function<void(const std::string& name, const TensorView&)>& visit) const;
  // Visits the tensors under their whole names in the family's checkpoints. One of those may hold several tensors,
  // whose parts stand one below the other, in an order of the file. The tensors of a half that a block lacks are left
  // out.
  void ForEachStored(
      const std::function<void(const CheckpointTensor& tensor, std::span<const TensorView> parts)>& visit) const;
  // The factor by which the family multiplies embeddings: sqrt(hidden), rounded to their type as transformers does, or
  // BlockSpec::embedding_multiplier.
  float EmbeddingScale() const;
  // Identifies the model: a 64-bit hash, as hex, of the config and of a sample of every tensor's bytes in the files,
  // whatever type they were loaded in. Fast for any size.
  std::string Fingerprint() const;
};

// One of the processes that a model is split over. Each of them calls LoadWeights with its own number.
struct SplitPlace {
  int64_t processes = 1, process = 0;
  std::shared_ptr<const DepthPlan> plan = nullptr;  // the blocks among which the model is cut; null: all blocks
};

// Name and shape of every tensor of a checkpoint of this configuration, in layer order.
std::vector<std::pair<std::string, std::vector<int64_t>>> TensorShapes(const ModelConfig& config);

struct LoadOptions {
  WeightType dtype = WeightType::kAsStored;
  bool check_finite = false;  // look at every weight for NaN and infinity
  bool has_adapters = false;  // the checkpoint has tensors of adapters too, which others read: models/hf_lra.h
  // Further tensors of the checkpoint that others read.
  std::set<std::string, std::less<>> others = {};
  // The number that each block has in the names of the checkpoint's tensors: models/llama_layers.h. Empty: its own.
  std::vector<int64_t> file_layers = {};
  bool merge_lora = true;        // false: a saved model is opened without its LoRA factors
  Progress* progress = nullptr;  // told of every tensor; null: nobody
  SplitPlace split = {};         // the part of the model to load
  bool outline = false;          // load no part, only shapes and types
  // The halves of each block that the checkpoint has: models/hf_lra.h. The tensors of the others stay empty. Without an
  // entry for a block, it has both.
  std::vector<Halves> halves = {};
  // The units of each block's MLP in the checkpoint. Without an entry for a block, those that the files say, or the
  // configuration.
  std::vector<int64_t> mlp_units = {};
};

// Loads a Hugging Face directory (config.json and model.safetensors, or model.safetensors.index.json and its shards) or
// a GGUF file (models/gguf.h; of a split one the first part). Throws Error naming file and tensor for a tensor that is
// missing, duplicate, unknown, of the wrong shape or type, outside the directory, or too large for the type asked for.
// Tensors of that type stay where they are mapped; nothing is read ahead, because a plan may skip layers. Others are
// converted one by one, each by all threads, so that the memory needed is that of the converted tensors. Of a model
// that is split, only this process's part is read and converted.
std::shared_ptr<const Weights> LoadWeights(const std::filesystem::path& model, const LoadOptions& options = {});
// LoadWeights with a configuration that the caller has read.
std::shared_ptr<const Weights> LoadWeights(const std::filesystem::path& model, const ModelConfig& config,
                                           const LoadOptions& options);

// Writes a checkpoint of seeded random weights with the shapes of `config_file` into `directory` (config.json copied,
// model.safetensors in `dtype`, tensor by tensor), for benchmarks and tests. The bytes are the same on every machine;
// random_checkpoint.cc states the rule, which tests/goldens/make_models.py repeats. Values are exact in bfloat16 and
// float16.
void WriteRandomCheckpoint(const std::filesystem::path& config_file, DType dtype, uint64_t seed,
                           const std::filesystem::path& directory);

}  // namespace shiftrt
