// SPDX-License-Identifier: Apache-2.0
#include "include/shiftrt/model.h"

#include "api/impl.h"
#include "include/shiftrt/chat.h"
#include "models/adapted.h"
#include "models/gguf.h"
#include "models/hf_lra.h"
#include "models/lora_tables.h"
#include "runtime/check.h"
#include "runtime/processes.h"

namespace shiftrt {

LoadOptions Loading(const OpenSettings& settings) {
  LoadOptions options;
  options.dtype = settings.weights;
  options.check_finite = settings.check_finite;
  options.merge_lora = settings.merge_lora;
  options.progress = settings.progress;
  if (settings.processes) options.split = {settings.processes->parts(), settings.processes->part()};
  return options;
}

Model OpenModel(const std::string& name, const OpenSettings& settings) {
  Model model = OpenModel(name, Loading(settings));
  if (settings.processes)
    settings.processes->CheckSame(fmt::format("model {} (fingerprint)", name), model.weights->Fingerprint());
  if (settings.lora.empty()) return model;
  if (IsLlamaLayers(model.directory))
    FailUsage(Field("lora"),
              "{} is written as layers of a Llama, whose numbers are not those of the blocks: for an adapter that was "
              "trained on these layers, remove the entry shiftrt from its config.json",
              name);
  const auto lora = std::make_shared<const Lora>(ReadLora(settings.lora, *model.weights, model.plan));
  if (model.lora && SameChange(*model.lora, *lora))
    FailUsage(Field("lora"), "{} has the adapter {} merged already: leave it out, or it would count twice", name,
              settings.lora.string());
  model.lora = lora;
  model.unmerged = std::move(model.plan);
  model.own_embedding = !lora->embedding.empty();
  model.weights = WithLoraEmbedding(model.weights, *lora);
  model.plan = MergeLora(*model.weights, *model.unmerged, *lora);
  return model;
}

LanguageModel WithPlan(const Model& model, const DepthPlan& plan, Provenance provenance) {
  LanguageModel::Impl impl{model};
  impl.model.plan = plan;
  impl.model.lora = nullptr;
  if (!model.renumbered) impl.model.removed = plan.RemovedLayers(model.weights->config.layers);
  impl.model.provenance = std::move(provenance);
  return LanguageModel(std::make_shared<const LanguageModel::Impl>(std::move(impl)));
}

void RequireSharedWeights(const LanguageModel& first, const LanguageModel& other) {
  if (first.impl().model.weights != other.impl().model.weights)
    FailUsage(Field("models"), "{} and {} do not share their weights", first.Name(), other.Name());
}

LanguageModel::LanguageModel(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}

LanguageModel LanguageModel::Open(const std::string& name, const OpenSettings& settings) {
  return LanguageModel(std::make_shared<const Impl>(Impl{OpenModel(name, settings)}));
}

const std::string& LanguageModel::Name() const { return impl_->model.name; }
const std::filesystem::path& LanguageModel::Directory() const { return impl_->model.directory; }

ModelShape LanguageModel::Shape() const {
  const ModelConfig& config = impl_->model.weights->config;
  return {config.layers, config.hidden, config.vocab, config.max_positions};
}

std::vector<int64_t> LanguageModel::RemovedLayers() const { return impl_->model.plan.RemovedLayers(Shape().layers); }
int64_t LanguageModel::Blocks() const { return impl_->model.plan.blocks(); }
int64_t LanguageModel::HalfBlocks() const { return impl_->model.plan.half_blocks(); }
int64_t LanguageModel::Adapters() const { return std::ssize(impl_->model.plan.Adapters()); }
const Provenance* LanguageModel::MadeBy() const {
  return impl_->model.provenance ? &*impl_->model.provenance : nullptr;
}
int64_t LanguageModel::Parameters() const { return impl_->model.plan.Parameters(*impl_->model.weights); }
int64_t LanguageModel::BytesPerToken() const { return impl_->model.plan.BytesPerToken(*impl_->model.weights); }
std::string LanguageModel::WeightTypeName() const {
  const Weights& weights = *impl_->model.weights;
  const bool quantised = IsQuantised(weights.blocks.front().AnyUp().dtype);
  return quantised ? QuantisationOf(weights) : shiftrt::Name(weights.embedding.dtype);
}
std::string LanguageModel::WeightsFingerprint() const { return impl_->model.weights->Fingerprint(); }
std::string LanguageModel::PlanFingerprint() const { return impl_->model.plan.Fingerprint(); }

std::vector<int32_t> LanguageModel::Encode(std::string_view text) const {
  return impl_->model.RequireTokenizer().EncodeWithBos(text);
}
std::vector<int32_t> LanguageModel::EncodeMessage(std::string_view message, std::string_view system) const {
  std::vector<ChatMessage> messages;
  if (!system.empty()) messages.push_back({"system", std::string(system)});
  messages.push_back({"user", std::string(message)});
  return EncodeChat(*this, messages);
}
std::vector<int32_t> EncodeChat(const LanguageModel& model, std::span<const ChatMessage> messages) {
  const Model& opened = model.impl().model;
  return opened.RequireTokenizer().Encode(RequireChatTemplate(opened)->Render(messages));
}
std::string LanguageModel::Decode(std::span<const int32_t> tokens, bool special) const {
  return impl_->model.RequireTokenizer().Decode(tokens, /*skip_special=*/!special);
}

LanguageModel LanguageModel::Without(std::span<const BlockPart> parts) const {
  return WithPlan(impl_->model, DepthPlan::Pruned(Shape().layers, parts), {});
}
LanguageModel LanguageModel::Without(std::span<const int64_t> layers) const { return Without(WholeBlocks(layers)); }

bool LanguageModel::HasSaved(const std::filesystem::path& directory) const {
  return IsSavedFrom(directory, *impl_->model.weights);
}

LanguageModel LanguageModel::WithSaved(const std::filesystem::path& directory) const {
  return WithPlan(impl_->model, OpenSavedPlan(directory, *impl_->model.weights), {});
}

LanguageModel LanguageModel::MadeAs(Provenance made) const {
  Impl impl = *impl_;
  impl.model.provenance = std::move(made);
  return LanguageModel(std::make_shared<const Impl>(std::move(impl)));
}

void LanguageModel::Save(const std::filesystem::path& directory, bool with_weights, bool merge_lora) const {
  const Model& model = impl_->model;
  if (model.own_embedding && !with_weights)
    FailUsage(Field("with_weights"), "the LoRA adapter has changed the embedding table of {}: save it with its weights",
              model.name);
  const Provenance made = model.provenance.value_or(Provenance());
  if (impl_->without_lora && !merge_lora) {
    SaveAdapted(model, *impl_->without_lora, made, with_weights, directory, model.lora.get());
  } else {
    SaveAdapted(model, model.plan, made, with_weights, directory);
  }
}

bool LanguageModel::RecordIn(const std::filesystem::path& directory, const Provenance& made) const {
  return ReplaceProvenance(directory, impl_->model.provenance.value_or(Provenance()), made);
}

}  // namespace shiftrt
