// SPDX-License-Identifier: Apache-2.0
// Texts of FinetuneSettings::text that the original model writes ("own:PROMPTS").
#pragma once

#include <vector>

#include "include/shiftrt/finetune.h"
#include "models/model.h"
#include "runtime/context.h"
#include "train/own_answers.h"

namespace shiftrt {

// Throws UsageError if the original model is not there, and Error for prompts that cannot be read.
void CheckOwnTexts(const Model& model, const FinetuneSettings& settings);

// Has the original model answer the prompts of each of its own texts, in the order of the list. There are as many
// answers as the training learns from once: with a budget in seconds, as many as a third of it has time for, and
// otherwise as many as its tokens, steps or samples take. The length must be one that the model takes.
std::vector<OwnAnswers> AnswerOwnTexts(const Model& model, const FinetuneSettings& settings, const Context& context,
                                       const FinetuneObserver& observer);

}  // namespace shiftrt
