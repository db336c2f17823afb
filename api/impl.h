// SPDX-License-Identifier: Apache-2.0
// The objects that the handles of the public interface refer to.
#pragma once

#include <memory>
#include <vector>

#include "eval/dataset.h"
#include "include/shiftrt/evaluate.h"
#include "include/shiftrt/model.h"
#include "include/shiftrt/progress.h"
#include "include/shiftrt/resources.h"
#include "models/model.h"
#include "runtime/context.h"
#include "runtime/linalg/large.h"
#include "runtime/progress.h"
#include "tokenizers/chat_template.h"
#include "types/suites.h"

namespace shiftrt {

struct Suites::Impl {
  SuiteSettings settings = {};
  Bos bos = Bos::kAuto;
  std::vector<Dataset> datasets = {};
};

struct LanguageModel::Impl {
  Model model;  // its plan has the LoRA factors merged
  // The plan without model.lora, of a model that was just trained with LoRA. Save() writes it with the factors.
  std::optional<DepthPlan> without_lora = std::nullopt;
};

// A handle of the same weights and tokenizer with another plan, which was made as `provenance` says.
LanguageModel WithPlan(const Model& model, const DepthPlan& plan, Provenance provenance);

// Throws UsageError unless both run over the same weights, as models that are measured together do.
void RequireSharedWeights(const LanguageModel& first, const LanguageModel& other);

// The context that was prepared, or a new one. Throws UsageError for a number of threads or bytes below 0, for GPUs
// that this machine or this build lacks, and for several GPUs without a library that lets them communicate. Processes
// that share the work all make this call: those of one host divide its cores and its memory, unless `resources` say
// what each may take, and all use the instruction set that the oldest CPU among them has.
Context MakeContext(const Resources& resources);

// The settings as models/weights.h takes them.
LoadOptions Loading(const OpenSettings& settings);
// Opens the model for a program that may be one of several processes. Throws Error if they open different models.
Model OpenModel(const std::string& name, const OpenSettings& settings);

// Throws Error naming the places looked at if the model has no chat template.
std::unique_ptr<ChatTemplate> RequireChatTemplate(const Model& model);

// A caller's progress interface, which may be null. Everything that goes through it can be interrupted.
class ProgressOf : public Progress {
 public:
  explicit ProgressOf(Progress* callers) : callers_(callers), solves_(*this) {}
  void Begin(std::string_view phase, int64_t total) override {
    if (callers_ != nullptr) callers_->Begin(phase, total);
  }
  void Advance(int64_t count) override {
    CheckInterrupted();
    if (callers_ != nullptr) callers_->Advance(count);
  }
  void Within(std::string_view what, double share) override {
    if (callers_ != nullptr) callers_->Within(what, share);
  }
  void End() override {
    if (callers_ != nullptr) callers_->End();
  }

 private:
  Progress* callers_;
  linalg::ReportsSolves solves_;
};

}  // namespace shiftrt
