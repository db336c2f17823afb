// SPDX-License-Identifier: Apache-2.0
// The replies of variants and of the original to the same prompts, and how far the variants are from it there.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "shiftrt/fidelity.h"
#include "tools/fidelity_output.h"
#include "tools/report/page.h"

namespace shiftrt {

// A greedy reply.
struct ComparedReply {
  std::string text = {};
  std::vector<int32_t> tokens = {};  // with the token that ended it
  // The index of the first token of a variant's reply that differs from the original's; nothing if both are the same.
  std::optional<int64_t> parts_at = std::nullopt;
  // The variant's predictions of the tokens of the original's reply.
  std::optional<Fidelity> fidelity = std::nullopt;
};

// The replies of all models to one prompt, the original's first.
struct ComparedReplies {
  std::string prompt = {};
  std::vector<ComparedReply> replies = {};
};

struct ReplyComparison {
  std::vector<std::string> names = {};   // the models' names in the JSON
  std::vector<std::string> labels = {};  // the models' names for people
  std::vector<ComparedReplies> prompts = {};
  FidelityTable fidelity = {};  // the variants, over the original's replies to all prompts

  // So many replies of a model are those of the original.
  int64_t Equal(size_t model) const;
  std::string Text() const;
  std::vector<Section> Sections() const;
  nlohmann::json ToJson() const;

 private:
  PageTable Summary() const;
};

struct ReplySettings {
  int64_t max_tokens = 64;
  int64_t batch = 16;  // replies that are continued together
};

// Has every model reply to the prompts, and every variant predict the original's replies. `models`: the original, and
// variants of it that read text as it does. `ids`: the tokens of the prompts.
ReplyComparison CompareReplies(std::span<const ModelVariant> models, std::span<const std::string> prompts,
                               const std::vector<std::vector<int32_t>>& ids, const ReplySettings& settings,
                               const Resources& resources, Progress& progress);

}  // namespace shiftrt
