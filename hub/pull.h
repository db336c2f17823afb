// SPDX-License-Identifier: Apache-2.0
// Pulls a repository of the hub, or some of its files, into the cache: first what that would be, then the download.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "hub/client.h"
#include "hub/download.h"

namespace shiftrt {

struct PullRequest {
  Repository repository;
  // Patterns of the files to pull, as huggingface_hub's allow_patterns and ignore_patterns: `*` matches '/' too, and a
  // pattern that ends in '/' means all below. Without `include`: what a model needs (FilesOfModel), or all of a data
  // set.
  std::vector<std::string> include = {}, exclude = {};
  // These files and no others, by their paths. The hub then need not list a repository of many thousand files.
  std::vector<std::string> files = {};
};

// Of the files of a model's repository, those that it needs: configuration, tokenizer, chat template, licence and model
// card, and its safetensors with their index. Not: other formats (.bin, .pth, ONNX, GGUF), copies under other names
// (consolidated.safetensors, original/, variants such as model.fp16.safetensors), and code. Throws Error where there
// are no safetensors, saying what there is instead.
std::vector<RemoteFile> FilesOfModel(const std::vector<RemoteFile>& all, const std::string& repository);

struct PullPlan {
  Repository repository;  // as it was asked for: under this name it is kept
  std::string commit;
  std::filesystem::path snapshot;        // where the files will be
  std::vector<RemoteFile> files;         // the smallest first
  int64_t bytes = 0, missing_bytes = 0;  // of all files; of what is still to come
  std::string renamed_to;                // what the hub calls the repository now, where that is another name
};

// Asks the hub what there is to pull. Throws Error where nothing matches, and where the disk is too small.
PullPlan PlanPull(HubClient& hub, const PullRequest& request);

// Downloads what is missing, and makes the revision mean this commit. Returns the snapshot.
std::filesystem::path Pull(HubClient& hub, const PullPlan& plan, const DownloadProgress& progress,
                           const DownloadOptions& options = {});

}  // namespace shiftrt
