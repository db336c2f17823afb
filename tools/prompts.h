// SPDX-License-Identifier: Apache-2.0
// Prompts to compare models with: given ones, or those that the program has.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "shiftrt/model.h"

namespace shiftrt {

struct CommonOptions;

// The prompts that are used where none are given: in a chat, short questions and tasks in prose, arithmetic,
// translation and code; otherwise beginnings of texts, because an instruct model often ends its reply to a bare
// question at once.
std::vector<std::string> BuiltInPrompts(bool chat);

struct PromptChoice {
  std::string prompt = {};   // one prompt; "": none
  std::string prompts = {};  // a file of prompts, as ReadPrompts() takes it; "": none
  int64_t limit = 0;         // the first so many; 0: all
  bool chat = false;         // they are a user's messages
  std::string system = {};   // with `chat`: the system's message

  // The texts. Pulls a file that is known by name.
  std::vector<std::string> Texts(const CommonOptions& common) const;
  // The ids of each text. Throws Error naming the prompt for one that is empty, and for one that leaves no room for a
  // reply of `reply` tokens.
  std::vector<std::vector<int32_t>> Encode(const LanguageModel& model, std::span<const std::string> texts,
                                           int64_t reply) const;
};

}  // namespace shiftrt
