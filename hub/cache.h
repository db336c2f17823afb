// SPDX-License-Identifier: Apache-2.0
// The cache of the Hugging Face hub on this machine: its layout, and functions that look things up in it. Nothing here
// uses the network. The layout is that of Python's huggingface_hub (file_download.py):
//   models--ORG--NAME/  datasets--ORG--NAME/
//     refs/REVISION                 the commit that a branch or tag was when it was last asked for
//     blobs/ETAG                    contents: SHA-256 of an LFS file, git's hash of any other
//     snapshots/COMMIT/path/of/file links (relative) to the blobs
//   .locks/models--ORG--NAME/ETAG.lock   locked (flock) by the program that downloads that blob
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace shiftrt {

enum class RepositoryType { kModel, kDataset };

// A repository of the hub and one of its revisions: a branch, a tag or a commit.
struct Repository {
  RepositoryType type = RepositoryType::kModel;
  std::string id;  // "org/name"
  std::string revision = "main";

  std::string Folder() const;       // "models--org--name"
  std::string Description() const;  // "org/name", with the revision where it is not main
};

// Parses "org/name" or "org/name@revision". No value for any other text, or if a part would leave the cache's folder.
std::optional<Repository> ParseRepository(std::string_view text, RepositoryType type = RepositoryType::kModel);

// True if a revision can be the name of a file below refs/.
bool IsRevision(std::string_view revision);

// True if `path` is relative and stays below the directory it is joined to. Paths that a server sends are checked with
// it.
bool IsRelativePath(std::string_view path);

// The snapshot that the cache has for the revision; "" if there is none. It may lack files.
std::filesystem::path FindSnapshot(const Repository& repository, const std::filesystem::path& cache);

// All snapshots: first that of the revision, then the others by name, whatever their revision.
std::vector<std::filesystem::path> Snapshots(const Repository& repository, const std::filesystem::path& cache);

// Names, for messages, the files that a model's directory lacks: "config.json", "model.safetensors" or a shard that the
// index names, or the tokenizer. "" if the model is complete.
std::string MissingOfModel(const std::filesystem::path& directory);

}  // namespace shiftrt
