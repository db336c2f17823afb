// SPDX-License-Identifier: Apache-2.0
// Binds training: the settings by name, and the course of a training.
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "python/native/common.h"

namespace shiftrt::python {

namespace {

// Reads a value of the settings of a training.
using Setter = std::function<void(FinetuneSettings& settings, nb::handle value)>;

template <typename Object, typename T>
Setter Into(T Object::*member) {
  using Value = std::conditional_t<std::is_same_v<T, TextName>, std::string, T>;
  return [member](FinetuneSettings& settings, nb::handle value) {
    if constexpr (std::is_same_v<Object, LoraOptions>) {
      settings.lora.*member = nb::cast<Value>(value);
    } else {
      settings.*member = nb::cast<Value>(value);
    }
  };
}
// A word that a parser reads.
template <typename T>
Setter Parsed(T FinetuneSettings::*member, T (*parse)(const std::string&)) {
  return [=](FinetuneSettings& settings, nb::handle value) { settings.*member = parse(nb::cast<std::string>(value)); };
}

const std::map<std::string, Setter>& FinetuneSetters() {
  using S = FinetuneSettings;
  static const std::map<std::string, Setter> table = {
      {"method", Parsed(&S::method, ParseMethod)},
      {"targets", Into(&LoraOptions::targets)},
      {"rank", Into(&LoraOptions::rank)},
      {"alpha", Into(&LoraOptions::alpha)},
      {"dropout", Into(&LoraOptions::dropout)},
      {"layers", Into(&S::layers)},
      {"head", Into(&S::head)},
      {"adapters", Into(&S::adapters)},
      {"loss", Parsed(&S::loss, ParseTrainingLoss)},
      {"replacement", Parsed(&S::replacement, ParseReplacement)},
      {"keep_correction", Into(&S::keep_correction)},
      {"text", Into(&S::text)},
      {"answers", Into(&S::answers)},
      {"samples", Into(&S::samples)},
      {"length", Into(&S::length)},
      {"validation", Into(&S::validation)},
      {"validation_text", Into(&S::validation_text)},
      {"divide", Into(&S::divide)},
      {"train_on_inputs", Into(&S::train_on_inputs)},
      {"epochs", Into(&S::epochs)},
      {"steps", Into(&S::steps)},
      {"batch", Into(&S::batch)},
      {"pass_tokens", Into(&S::pass_tokens)},
      {"rate", Into(&S::rate)},
      {"decay", Parsed(&S::decay, ParseDecay)},
      {"warmup", Into(&S::warmup)},
      {"weight_decay", Into(&S::weight_decay)},
      {"clip", Into(&S::clip)},
      {"validate_every", Into(&S::validate_every)},
      {"keep_best", Into(&S::keep_best)},
      {"budget", Parsed(&S::budget, ParseTrainingBudget)},
      {"seed", Into(&S::seed)},
      {"checkpoint", Into(&S::checkpoint)},
      {"checkpoint_seconds", Into(&S::checkpoint_seconds)},
  };
  return table;
}

FinetuneSettings FinetuneSettingsOf(const LanguageModel& model, const nb::dict& values, bool recovery) {
  FinetuneSettings settings = recovery ? RecoverySettings() : FinetuneSettings();
  if (recovery) settings.adapters = model.Adapters() > 0;
  std::vector<std::string> given;
  for (const auto& [key, value] : values) {
    const auto name = nb::cast<std::string>(key);
    const auto found = FinetuneSetters().find(name);
    if (found == FinetuneSetters().end()) {
      std::string known;
      for (const auto& [field, setter] : FinetuneSetters()) known += (known.empty() ? "" : ", ") + field;
      throw UsageError(name, "a training has no such setting; it has " + known);
    }
    try {
      found->second(settings, value);
      given.push_back(name);
    } catch (const nb::cast_error&) {
      throw UsageError(name,
                       "a " + nb::cast<std::string>(nb::str(value.type().attr("__name__"))) + " cannot be its value");
    }
  }
  for (const std::string& name : given)
    CheckGiven(settings.method,
               name == "rank" || name == "alpha" || name == "dropout" || name == "targets" ? "lora." + name : name);
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
