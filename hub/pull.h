// SPDX-License-Identifier: Apache-2.0
// Pulls a repository of the hub, or some of its files, into the cache: first makes a plan, which can be shown, then
// downloads.
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
  // pattern that ends in '/' means all files below. Without `include`: the files that a model needs (FilesOfModel), or
  // all of a data set.
  std::vector<std::string> include = {}, exclude = {};
  // If not empty, exactly these files, by their paths. The hub then need not list a repository of many thousand files.
  std::vector<std::string> files = {};
  // Compares the checksums of the files that are in the cache, not only their sizes.
  bool verify = false;
};

// Selects the files that a model needs: configuration, tokenizer, chat template, licence and model card, and its
// safetensors with their index. It leaves out other formats (.bin, .pth, ONNX, GGUF), copies under other names
// (consolidated.safetensors, original/, variants such as model.fp16.safetensors), and code. Throws Error if there are
// no safetensors, naming the formats that are there.
std::vector<RemoteFile> FilesOfModel(const std::vector<RemoteFile>& all, const std::string& repository);

// A download that PlanPull() has prepared, with what the public interface shows of it.
struct PullPlan : PulledRepository {
  Repository repository;                             // as the user named it; the cache uses this name
  std::vector<std::filesystem::path> damaged_blobs;  // those of `damaged`; Pull() fetches them again
};

// Asks the hub for the files, and compares those in the cache with what it lists. Throws Error if nothing matches, and
// if the disk is too small.
PullPlan PlanPull(HubClient& hub, const PullRequest& request);

// Downloads the missing files, and points the revision to this commit.
void Pull(HubClient& hub, const PullPlan& plan, const DownloadProgress& progress, const DownloadOptions& options = {});

}  // namespace shiftrt
