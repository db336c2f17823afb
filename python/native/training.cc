// SPDX-License-Identifier: Apache-2.0
// Binds training: the settings by name, and the course of a training.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "python/native/common.h"

namespace shiftrt::python {

namespace {

FinetuneSettings FinetuneSettingsOf(const LanguageModel& model, const nb::dict& values, bool recovery) {
  FinetuneSettings settings = recovery ? RecoverySettings() : FinetuneSettings();
  if (recovery) settings.adapters = model.Adapters() > 0;
  SetAll(values, settings);
  for (const auto& [key, value] : values) CheckGiven(settings.method, nb::cast<std::string>(key));
  return settings;
}

using Validations = std::vector<std::pair<int64_t, double>>;  // steps done, and the loss on held-out text
// A trained model, what was trained in words, losses and norms of the gradient of the steps, validations, tokens,
// trained parameters, seconds, and the share of the changes that rounding has taken.
using Trained = std::tuple<LanguageModel, std::string, std::vector<double>, std::vector<double>, Validations, int64_t,
                           int64_t, double, double>;

// The loss on held-out text that was measured after the last step.
std::optional<double> LastValidation(const TrainingHistory& history) {
  if (history.validations.empty() || history.validations.back().step != history.steps()) return std::nullopt;
  return history.validations.back().loss;
}

// `step` is called with the steps done, all steps, the last loss, norm of the gradient and validation; or it is None.
Trained FinetuneModel(const LanguageModel& model, const nb::dict& values, bool recovery, const Resources& resources,
                      const nb::object& step) {
  const FinetuneSettings settings = FinetuneSettingsOf(model, values, recovery);
  FinetuneObserver observer;
  observer.poll = [] {
    const nb::gil_scoped_acquire acquire;
    HandleSignals();
  };
  observer.step = [&](const TrainingHistory& history, int64_t steps) {
    const nb::gil_scoped_acquire acquire;
    if (!step.is_none() && history.steps() > 0)
      step(history.steps(), steps, history.losses.back(), history.gradient_norms.back(), LastValidation(history));
  };
  return Released([&]() -> Trained {
    FinetunedModel tuned = Finetune(model, settings, resources, observer);
    TrainingHistory& history = tuned.history;
    Validations validations;
    validations.reserve(history.validations.size());
    for (const TrainingHistory::Validation& validation : history.validations)
      validations.emplace_back(validation.step, validation.loss);
    return {std::move(tuned.model), tuned.outline.trained, std::move(history.losses), std::move(history.gradient_norms),
            std::move(validations), history.tokens,        tuned.parameters,          history.seconds,
            tuned.rounding};
  });
}

}  // namespace

void AddTraining(nb::module_& module) {
  module.def("finetune", &FinetuneModel, "model"_a, "settings"_a, "recovery"_a, "resources"_a, "step"_a.none(),
             "Trains a model further.");
  module.def(
      "check_budget", [](const std::string& budget) { ParseTrainingBudget(budget); }, "budget"_a,
      "Raises UsageError for what is no time and no number of tokens.");
}

}  // namespace shiftrt::python
