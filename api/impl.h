// SPDX-License-Identifier: Apache-2.0
// What the handles of the public face refer to.
#pragma once

#include <memory>

#include "include/shiftrt/model.h"
#include "include/shiftrt/progress.h"
#include "include/shiftrt/resources.h"
#include "models/model.h"
#include "runtime/context.h"
#include "runtime/json.h"
#include "runtime/progress.h"

namespace shiftrt {

struct LanguageModel::Impl {
  Model model;
  nlohmann::json made_by = nlohmann::json::object();  // how the plan was made; saved with the model
};

// Throws UsageError for a number of threads or bytes below 0, and for GPUs that this machine or this build lacks.
Context MakeContext(const Resources& resources);

// A caller's progress interface, which may be null. Everything that goes through it can be interrupted.
class ProgressOf : public Progress {
 public:
  explicit ProgressOf(Progress* callers) : callers_(callers) {}
  void Begin(std::string_view phase, int64_t total) override {
    if (callers_ != nullptr) callers_->Begin(phase, total);
  }
  void Advance(int64_t count) override {
    CheckInterrupted();
    if (callers_ != nullptr) callers_->Advance(count);
  }
  void End() override {
    if (callers_ != nullptr) callers_->End();
  }

 private:
  Progress* callers_;
};

}  // namespace shiftrt
