// SPDX-License-Identifier: Apache-2.0
#include "hub/pull.h"

#include <fnmatch.h>

#include <algorithm>
#include <mutex>
#include <utility>

#include "hub/digest.h"
#include "hub/partial_file.h"
#include "runtime/check.h"
#include "runtime/files.h"

namespace shiftrt {

namespace {

namespace fs = std::filesystem;

// The text that huggingface_hub writes too, which makes backup programs skip the cache (bford.info/cachedir).
constexpr const char* kCacheTag =
    "Signature: 8a477f597d28d172789f06886806bc55\n# This file marks the directory as a cache of downloads.\n";

bool Matches(const std::string& path, const std::vector<std::string>& patterns) {
  return std::any_of(patterns.begin(), patterns.end(), [&](const std::string& pattern) {
    return ::fnmatch((pattern.ends_with('/') ? pattern + "*" : pattern).c_str(), path.c_str(), 0) == 0;
  });
}

std::vector<RemoteFile> Matching(const std::vector<RemoteFile>& all, const std::vector<std::string>& patterns) {
  std::vector<RemoteFile> files;
  for (const RemoteFile& file : all)
    if (Matches(file.path, patterns)) files.push_back(file);
  return files;
}

// Up to three names of files, for an error message.
std::string Some(const std::vector<RemoteFile>& files) {
  std::vector<std::string> names;
  for (size_t i = 0; i < std::min<size_t>(files.size(), 3); ++i) names.push_back(files[i].path);
  return fmt::format("{}{}", fmt::join(names, ", "), files.size() > 3 ? ", ..." : "");
}

// For messages, such as "3.09 GB".
std::string Bytes(int64_t bytes) {
  double value = static_cast<double>(bytes);
  const char* unit = "B";
  for (const char* larger : {"kB", "MB", "GB", "TB"}) {
    if (value < 999.5) break;  // "{:.3g}" writes 999.5 and more as 1e+03
    value /= 1000, unit = larger;
  }
  return fmt::format("{:.3g} {}", value, unit);
}

// The checksum of a blob in the cache, of the kind that the hub lists for it.
std::string ChecksumOf(const std::string& listed, const fs::path& blob) {
  const MappedFile content(blob);
  Digest digest(listed, std::ssize(content.bytes()));
  constexpr size_t kPiece = size_t{1} << 24;
  for (std::span<const std::byte> left = content.bytes(); !left.empty();
       left = left.subspan(std::min(left.size(), kPiece))) {
    CheckInterrupted();
    digest.Update(left.first(std::min(left.size(), kPiece)));
  }
  return digest.Hex();
}

// Why a blob in the cache is not the file that the hub lists; "" if it is, as far as was looked.
std::string WhyDamaged(const RemoteFile& file, const fs::path& blob, bool verify) {
  std::error_code error;
  Check(fs::is_regular_file(blob, error), "{}: not a regular file, in the place of {}: remove it", blob.string(),
        file.path);
  const auto size = static_cast<int64_t>(fs::file_size(blob, error));
  if (size != file.size) {
    Check(ChecksumOf(file.checksum, blob) != file.checksum,
          "{}: the hub lists {} bytes, but the {} bytes in the cache have the checksum that it lists; the listing is "
          "wrong, and nothing was changed",
          file.path, file.size, size);
    return fmt::format("the cache has {} bytes of it, the hub lists {}", size, file.size);
  }
  return !verify || ChecksumOf(file.checksum, blob) == file.checksum ? "" : "its checksum in the cache is wrong";
}

// The bytes of a file that are not on disk yet.
int64_t Missing(const RemoteFile& file, const fs::path& blobs) {
  std::error_code none;
  const fs::path blob = blobs / file.checksum;
  if (fs::exists(blob, none)) return 0;
  return file.size - ReadPieces(blob, file.size, DownloadOptions().piece_bytes).Present();
}

void CheckSpace(const PullPlan& plan, const fs::path& cache) {
  fs::path place = cache;
  std::error_code error;
  while (!fs::exists(place, error) && place.has_relative_path()) place = place.parent_path();
  const fs::space_info space = fs::space(place, error);
  if (error || plan.missing_bytes <= static_cast<int64_t>(space.available)) return;
  Fail("{}: {} are to come, and {} has {} left: make room, or put the cache elsewhere with HF_HUB_CACHE=DIR", plan.name,
       Bytes(plan.missing_bytes), cache.string(), Bytes(static_cast<int64_t>(space.available)));
}

}  // namespace

std::vector<RemoteFile> FilesOfModel(const std::vector<RemoteFile>& all, const std::string& repository) {
  static const std::vector<std::string> needed = {"config.json",
                                                  "generation_config.json",
                                                  "tokenizer*",
                                                  "special_tokens_map.json",
                                                  "added_tokens.json",
                                                  "vocab.json",
                                                  "merges.txt",
                                                  "chat_template*",
                                                  "LICENSE*",
                                                  "LICENCE*",
                                                  "NOTICE*",
                                                  "USE_POLICY*",
                                                  "README.md",
                                                  "shiftrt.json",
                                                  "adapters.safetensors",
                                                  "own.safetensors",
                                                  "own.gguf"};
  static const std::vector<std::string> weights = {"model.safetensors", "model.safetensors.index.json",
                                                   "model-[0-9]*-of-[0-9]*.safetensors"};
  std::vector<RemoteFile> top;
  for (const RemoteFile& file : all)
    if (file.path.find('/') == file.path.npos) top.push_back(file);
  std::vector<RemoteFile> files = Matching(top, needed);
  for (const RemoteFile& file : all)
    if (file.path.starts_with("additional_chat_templates/") && file.path.ends_with(".jinja")) files.push_back(file);
  std::vector<RemoteFile> tensors = Matching(top, weights);
  const auto whole = std::find_if(tensors.begin(), tensors.end(),
                                  [](const RemoteFile& file) { return file.path == "model.safetensors"; });
  if (whole != tensors.end()) tensors = {*whole};  // shards next to it are a copy
  const bool own = !Matching(top, {"shiftrt.json"}).empty();
  if (tensors.empty() && !own) {
    const std::vector<RemoteFile> gguf = Matching(all, {"*.gguf"});
    const std::vector<RemoteFile> pickled = Matching(all, {"*.bin", "*.pth", "*.pt"});
    if (!gguf.empty())
      Fail("{}: there are GGUF files and no safetensors: choose one with --include: {}", repository, Some(gguf));
    if (!pickled.empty())
      Fail(
          "{}: its weights are pickled Python objects ({}), which are not read. Often a pull request of the repository "
          "has them as safetensors: look there, and name it with --revision refs/pr/NUMBER",
          repository, Some(pickled));
    Fail("{}: there is no model.safetensors and no model-*.safetensors in it; it has {}", repository,
         all.empty() ? "no files" : Some(all));
  }
  files.insert(files.end(), tensors.begin(), tensors.end());
  if (own)
    for (const RemoteFile& factors : Matching(all, {"lora/adapter_*"})) files.push_back(factors);
  return files;
}

namespace {

// The files that the request selects, and their commit.
Listing Choose(HubClient& hub, const PullRequest& request) {
  const std::string name = request.repository.Description();
  if (!request.files.empty()) {
    Listing chosen{request.repository.id, "", {}};
    Repository at = request.repository;
    for (const std::string& path : request.files) {
      Listing one = hub.Look(at, path);
      chosen.commit = at.revision = one.commit;  // the others of the same commit, whatever happens meanwhile
      chosen.files.push_back(std::move(one.files.front()));
    }
    return chosen;
  }
  Listing listing = hub.List(request.repository);
  std::vector<RemoteFile> files = !request.include.empty() ? Matching(listing.files, request.include)
                                  : request.repository.type == RepositoryType::kModel
                                      ? FilesOfModel(listing.files, name)
                                      : listing.files;
  Check(!files.empty(), "{}: no file matches {}; it has {}", name, fmt::join(request.include, ", "),
        listing.files.empty() ? "no files" : Some(listing.files));
  std::erase_if(files, [&](const RemoteFile& file) { return Matches(file.path, request.exclude); });
  Check(!files.empty(), "{}: --exclude {} leaves no file", name, fmt::join(request.exclude, ", "));
  Repository at = request.repository;
  at.revision = listing.commit;
  // A mirror may list names only: then each file is asked for.
  for (RemoteFile& file : files)
    if (file.size < 0 || !IsChecksum(file.checksum)) file = hub.Look(at, file.path).files.front();
  listing.files = std::move(files);
  return listing;
}

}  // namespace

PullPlan PlanPull(HubClient& hub, const PullRequest& request) {
  Listing chosen = Choose(hub, request);
  PullPlan plan;
  plan.repository = request.repository;
  plan.name = request.repository.Description();
  plan.commit = chosen.commit;
  plan.files = std::move(chosen.files);
  if (chosen.id != request.repository.id) plan.renamed_to = chosen.id;
  std::stable_sort(plan.files.begin(), plan.files.end(),
                   [](const RemoteFile& a, const RemoteFile& b) { return a.size < b.size; });
  const fs::path cache = hub.settings().cache, folder = cache / plan.repository.Folder();
  plan.directory = folder / "snapshots" / plan.commit;
  for (const RemoteFile& file : plan.files) {
    plan.bytes += file.size;
    const fs::path blob = folder / "blobs" / file.checksum;
    const std::string why = Exists(blob) ? WhyDamaged(file, blob, request.verify) : "";
    if (!why.empty()) {
      plan.damaged.push_back(fmt::format("{}: {}", file.path, why));
      plan.damaged_blobs.push_back(blob);
    }
    plan.missing_bytes += why.empty() ? Missing(file, folder / "blobs") : file.size;
  }
  CheckSpace(plan, cache);
  return plan;
}

void Pull(HubClient& hub, const PullPlan& plan, const DownloadProgress& progress, const DownloadOptions& options) {
  const fs::path cache = hub.settings().cache;
  for (const fs::path& blob : plan.damaged_blobs) fs::remove(blob);
  Download(hub, plan.repository, plan.commit, plan.files, progress, options);
  // Two threads would write the same temporary file, whose name has the number of the process.
  static std::mutex small_files;
  const std::lock_guard lock(small_files);
  std::error_code none;
  if (!fs::exists(cache / "CACHEDIR.TAG", none)) WriteFile(cache / "CACHEDIR.TAG", kCacheTag);
  if (plan.repository.revision != plan.commit) {
    const fs::path ref = cache / plan.repository.Folder() / "refs" / plan.repository.revision;
    fs::create_directories(ref.parent_path(), none);
    if (!fs::exists(ref, none) || ReadFile(ref, 4096) != plan.commit) WriteFile(ref, plan.commit);
  }
}

}  // namespace shiftrt
