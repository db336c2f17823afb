// SPDX-License-Identifier: Apache-2.0
#include "include/shiftrt/model.h"

#include "api/impl.h"

namespace shiftrt {

static LoadOptions ToLoadOptions(const OpenSettings& settings) {
  LoadOptions options;
  options.check_finite = settings.check_finite;
  switch (settings.weights) {
    case WeightType::kAsStored: options.dtype = LoadDType::kAuto; break;
    case WeightType::kFloat32: options.dtype = LoadDType::kFloat32; break;
    case WeightType::kFloat16: options.dtype = LoadDType::kFloat16; break;
    case WeightType::kBFloat16: options.dtype = LoadDType::kBFloat16; break;
  }
  return options;
}

LanguageModel::LanguageModel(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}

LanguageModel LanguageModel::Open(const std::string& name, const OpenSettings& settings) {
  Impl impl{OpenModel(name, ToLoadOptions(settings))};
  if (const auto& provenance = impl.model.provenance)
    impl.made_by = {{"selection", {{"criterion", provenance->criterion}}},
                    {"correction", provenance->correction},
                    {"merge", provenance->merge}};
  return LanguageModel(std::make_shared<const Impl>(std::move(impl)));
}

const std::string& LanguageModel::Name() const { return impl_->model.name; }
const std::filesystem::path& LanguageModel::Directory() const { return impl_->model.directory; }

ModelShape LanguageModel::Shape() const {
  const ModelConfig& config = impl_->model.weights->config;
  return {config.layers, config.hidden, config.vocab, config.max_positions};
}

std::vector<int64_t> LanguageModel::RemovedLayers() const { return impl_->model.plan.RemovedLayers(Shape().layers); }
int64_t LanguageModel::Parameters() const { return impl_->model.plan.Parameters(*impl_->model.weights); }
int64_t LanguageModel::BytesPerToken() const { return impl_->model.plan.BytesPerToken(*impl_->model.weights); }

std::vector<int32_t> LanguageModel::Encode(std::string_view text) const {
  return impl_->model.RequireTokenizer().EncodeWithBos(text);
}
std::string LanguageModel::Decode(std::span<const int32_t> tokens) const {
  return impl_->model.RequireTokenizer().Decode(tokens, /*skip_special=*/true);
}

LanguageModel LanguageModel::Without(std::span<const int64_t> layers) const {
  Impl impl{impl_->model};
  impl.model.plan = DepthPlan::Pruned(Shape().layers, layers);
  impl.model.lora = nullptr;
  impl.model.removed = impl.model.plan.RemovedLayers(Shape().layers);
  return LanguageModel(std::make_shared<const Impl>(std::move(impl)));
}

void LanguageModel::Save(const std::filesystem::path& directory, bool with_weights) const {
  SaveAdapted(impl_->model, impl_->model.plan, impl_->made_by, with_weights, directory);
}

}  // namespace shiftrt
