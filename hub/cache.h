// SPDX-License-Identifier: Apache-2.0
// The cache of the Hugging Face hub on this machine: its layout, and looking things up in it. Nothing here uses the
// network. The layout is that of Python's huggingface_hub (file_download.py):
//   models--ORG--NAME/  datasets--ORG--NAME/
//     refs/REVISION                 the commit that a branch or tag was when it was last asked for
//     blobs/ETAG                    contents: SHA-256 of an LFS file, git's hash of any other
//     snapshots/COMMIT/path/of/file links (relative) to the blobs
//   .locks/models--ORG--NAME/ETAG.lock   held (flock) by whoever downloads that blob
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace shiftrt {

enum class RepositoryType { kModel, kDataset };

// A repository of the hub, and which of its revisions: a branch, a tag or a commit.
struct Repository {
  RepositoryType type = RepositoryType::kModel;
  std::string id;  // "org/name"
  std::string revision = "main";

  std::string Folder() const;       // "models--org--name"
  std::string Description() const;  // "org/name", with the revision where it is not main
};

// "org/name" or "org/name@revision"; nothing for any other text, or where a part would leave the cache's folder.
std::optional<Repository> ParseRepository(std::string_view text, RepositoryType type = RepositoryType::kModel);

// Whether a revision can be the name of a file below refs/.
bool IsRevision(std::string_view revision);

// Whether `path` is relative and stays below the directory it is joined to, whatever a server says.
bool IsRelativePath(std::string_view path);

// The snapshot of the revision as the cache knows it; "" where it is not there. It may lack files.
std::filesystem::path FindSnapshot(const Repository& repository, const std::filesystem::path& cache);

// All snapshots: that of the revision first, the others, which may be of any revision, by name.
std::vector<std::filesystem::path> Snapshots(const Repository& repository, const std::filesystem::path& cache);

// What a model's directory lacks to be loaded, for people: "config.json", "model.safetensors" or a shard that the index
// names, or a tokenizer's files where there are none of them; "" where it is whole.
std::string MissingOfModel(const std::filesystem::path& directory);

}  // namespace shiftrt
