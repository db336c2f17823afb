// SPDX-License-Identifier: Apache-2.0
// Short names people type for models of the hub.
#pragma once

#include <optional>
#include <span>
#include <string_view>

#include "hub/cache.h"

namespace shiftrt {

struct KnownModel {
  std::string_view name;        // "qwen2-1.5b"
  std::string_view repository;  // "Qwen/Qwen2-1.5B"
};
std::span<const KnownModel> KnownModels();

// The repository that a model's name means: a known name, "org/name" or "org/name@revision"; nothing for any other,
// nor for the name of a GGUF file.
std::optional<Repository> RepositoryOfModel(std::string_view name);

}  // namespace shiftrt
