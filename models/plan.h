// SPDX-License-Identifier: Apache-2.0
// A depth plan says which blocks run and which adapters stand between them. Pruned, corrected and merged models are
// plans over the same weights; nothing else in the program knows that a model is pruned.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "include/shiftrt/blocks.h"
#include "runtime/tensor.h"

namespace shiftrt {

// A linear residual adapter, h += h A + b or h += (h P) Q + b (row vectors, float32). With the weight of a norm, the
// products read norm(h), which is the norm that the model's blocks have, with its epsilon and offset.
struct Lra {
  Matrix<float> a;          // (d, d), or empty
  Matrix<float> p, q;       // (d, r), (r, d), or empty
  Matrix<float> b;          // (1, d)
  Matrix<float> norm = {};  // (1, d), or empty: the products read h

  bool normed() const { return !norm.empty(); }
  bool low_rank() const { return a.empty(); }
  bool bias_alone() const { return low_rank() && rank() == 0; }
  int64_t hidden() const { return b.cols(); }
  int64_t rank() const { return low_rank() ? p.cols() : hidden(); }
  int64_t parameters() const { return a.size() + p.size() + q.size() + b.size() + norm.size(); }
};

struct BlockWeights;
struct Weights;

// The parts that cover these places (ascending, each once). If both halves of a block are among them, the part is the
// block.
std::vector<BlockPart> PartsAt(std::span<const int64_t> places);
std::vector<BlockPart> PartsBetween(int64_t begin, int64_t end);
std::vector<BlockPart> WholeBlocks(std::span<const int64_t> layers);
std::vector<int64_t> LayersOf(std::span<const BlockPart> parts);

struct BlockStage {
  int64_t layer = 0;
  Halves halves = Halves::kBoth;
  // Tensors of its own, of the same shapes but for the number of units of the MLP; null: the model's.
  std::shared_ptr<const BlockWeights> own = nullptr;

  bool operator==(const BlockStage&) const = default;  // the same tensors, not equal ones
};

struct AdapterStage {
  std::vector<BlockPart> parts;  // the removed blocks and halves that it replaces, in the order of depth
  std::shared_ptr<const Lra> lra;

  bool operator==(const AdapterStage&) const = default;  // the same adapter, not an equal one
};

// Combines the cases of a visit into one function object.
template <typename... Cases>
struct Overloaded : Cases... {
  using Cases::operator()...;
};
template <typename... Cases>
Overloaded(Cases...) -> Overloaded<Cases...>;

// One step of a plan: a value of one of the kinds above. Visit() compiles only if it has a case for every kind, so the
// compiler finds all code that a new kind concerns.
class Stage {
  using Kind = std::variant<BlockStage, AdapterStage>;

 public:
  Stage(BlockStage block) : kind_(std::move(block)) {}        // NOLINT(google-explicit-constructor): a block is a stage
  Stage(AdapterStage adapter) : kind_(std::move(adapter)) {}  // NOLINT(google-explicit-constructor)

  // Calls the one of `cases` that takes a stage of this kind. There is one case per kind, and all return the same type.
  template <typename... Cases>
  requires(sizeof...(Cases) == std::variant_size_v<Kind>) decltype(auto) Visit(Cases&&... cases) const {
    return std::visit(Overloaded{std::forward<Cases>(cases)...}, kind_);
  }
  // The stage as a value of its kind, for callers that know the kind. Throws Error if it is another.
  const BlockStage& block() const;
  const AdapterStage& adapter() const;

  // The parts by which reports name the correction at this stage: the parts that an adapter replaces, or the part that
  // a block with tensors of its own runs. Empty for a block with the model's tensors.
  std::vector<BlockPart> CorrectedParts() const;
  // The stage without its correction: a block with the model's tensors, or nothing for an adapter.
  std::optional<Stage> Uncorrected() const;

  bool operator==(const Stage&) const = default;

 private:
  Kind kind_;
};

// The tensors that a block stage runs with, and those of the half that it leaves out.
const BlockWeights& TensorsOf(const Weights& weights, const BlockStage& stage);
// True if the MLP that the stage runs has another number of units than the configuration says.
bool HasOtherUnits(const Weights& weights, const BlockStage& stage);
// The name of a matrix or norm that the stage reads and that neither it nor the weights have, because the checkpoint
// has one half of the block alone; null if there is none.
const char* MissingTensor(const Weights& weights, const BlockStage& stage);

// The final norm and the head, which turn the stream after the last stage into logits.
struct OutputWeights {
  TensorView final_norm;            // (hidden)
  TensorView head;                  // (vocab, hidden)
  TensorView final_norm_bias = {};  // (hidden), or empty
  // (vocab, hidden): the embedding table in a type of fewer bits, which files have in place of the model's; the head
  // itself where the model has one table for both. A decoder looks tokens up in the model's table. Empty: the model's.
  TensorView table = {};
};

struct DepthPlan {
  std::vector<Stage> stages;
  // The plan's own final norm and head, of the same shapes as the model's; null: the model's. If only one of them is
  // the plan's own, the other is a view of the model's.
  std::shared_ptr<const OutputWeights> output = nullptr;

  // A plan with every block of a model of `layers`.
  static DepthPlan Original(int64_t layers);
  // All blocks but those in `removed` (any order), or all but these parts.
  static DepthPlan Pruned(int64_t layers, std::span<const int64_t> removed);
  static DepthPlan Pruned(int64_t layers, std::span<const BlockPart> removed);
  // All blocks but the parts of `sites` (any order), with each site's adapter in their place. A site's parts are
  // consecutive. Nothing replaces the parts of a site whose lra is null. Throws Error for a layer outside [0, layers)
  // and for a half in two sites.
  static DepthPlan Corrected(int64_t layers, std::span<const AdapterStage> sites);
  // Corrected() with one layer per site: adapters[i] replaces the layer removed[i].
  static DepthPlan Corrected(int64_t layers, std::span<const int64_t> removed,
                             std::span<const std::shared_ptr<const Lra>> adapters);

  // The stages of one kind, in order. The pointers are into this plan.
  std::vector<const BlockStage*> Blocks() const;
  std::vector<const AdapterStage*> Adapters() const;
  // KeptLayers: the layers that run, whole or half. RemovedLayers: the layers of a model of `layers` of which nothing
  // runs. Ascending.
  std::vector<int64_t> KeptLayers() const;
  std::vector<int64_t> RemovedLayers(int64_t layers) const;
  // The number of blocks of which one half runs.
  int64_t half_blocks() const;
  int64_t blocks() const;
  // The number of blocks whose attention runs, each of which has keys and values in the cache.
  int64_t attention_blocks() const;

  // The index of the stage that runs the block `layer`, or half of it. Throws Error if no stage does.
  size_t StageOf(int64_t layer) const;
  // The plan with the stage at index `stage` replaced, or left out.
  DepthPlan With(size_t stage, const std::optional<Stage>& replacement) const;
  // The plan without corrections: with every stage Uncorrected(), and with the model's output.
  DepthPlan Uncorrected() const;

  // The final norm and head that the plan runs with. `tied` says that the head is the embedding table.
  OutputWeights Output(const Weights& weights) const;
  bool TiedHead(const Weights& weights) const;

  // The number of parameters of the model that this plan runs, adapters included. A tied head counts once.
  int64_t Parameters(const Weights& weights) const;
  // The same with the active experts alone.
  int64_t ActiveParameters(const Weights& weights) const;
  // The bytes that one decoded token reads: every weight of the halves that run, of experts the active ones, adapters,
  // norms and the head, and one row of the embedding table.
  int64_t BytesPerToken(const Weights& weights) const;
  // The bytes of all weights of that model as a file has them, its adapters in float32. A tied head counts once.
  int64_t Bytes(const Weights& weights) const;
  // Identifies what the plan computes over a model: a 64-bit hash, as hex, of the layers, the halves, and the bytes of
  // adapters and of tensors that blocks or the output have of their own.
  std::string Fingerprint() const;

  bool operator==(const DepthPlan&) const = default;

 private:
  int64_t BytesOutsideBlocks(const Weights& weights) const;
};

}  // namespace shiftrt
