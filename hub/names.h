// SPDX-License-Identifier: Apache-2.0
// Short names for models of the hub, which the command line accepts.
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

// The repository that a model's name means: a known name, "org/name" or "org/name@revision". No value for any other
// name, nor for the name of a GGUF file.
std::optional<Repository> RepositoryOfModel(std::string_view name);

}  // namespace shiftrt
