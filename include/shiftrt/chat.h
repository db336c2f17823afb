// SPDX-License-Identifier: Apache-2.0
/// \file
/// Conversations with instruct models, as token ids.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "shiftrt/generation.h"

namespace shiftrt {

class LanguageModel;

/// Converts a conversation to token ids, as the chat template of the model says. LanguageModel::EncodeMessage is the
/// same for a conversation that begins.
/// \param model an instruct model
/// \param messages the messages so far, at least one
/// \return token ids, up to where the model's reply begins
/// \throws Error if the model has no chat template, or if the template refuses the messages
std::vector<int32_t> EncodeChat(const LanguageModel& model, std::span<const ChatMessage> messages);

}  // namespace shiftrt
