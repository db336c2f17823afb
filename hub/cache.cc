// SPDX-License-Identifier: Apache-2.0
#include "hub/cache.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "runtime/files.h"
#include "runtime/json.h"
#include "runtime/printable.h"

namespace shiftrt {

namespace {

namespace fs = std::filesystem;

bool IsName(std::string_view name) {
  const auto plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_' ||
           c == '.';
  };
  return !name.empty() && name.size() <= 96 && std::all_of(name.begin(), name.end(), plain) && name.front() != '.' &&
         name.front() != '-' && name.find("--") == name.npos && name.find("..") == name.npos;
}

std::string Trimmed(std::string text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.pop_back();
  return text;
}

}  // namespace

std::string Repository::Folder() const {
  std::string folder = (type == RepositoryType::kModel ? "models--" : "datasets--") + id;
  folder.replace(folder.find('/'), 1, "--");
  return folder;
}

std::string Repository::Description() const { return revision == "main" ? id : id + "@" + revision; }

std::optional<Repository> ParseRepository(std::string_view text, RepositoryType type) {
  Repository repository;
  repository.type = type;
  if (const size_t at = text.find('@'); at != text.npos) {
    repository.revision = text.substr(at + 1);
    text = text.substr(0, at);
    if (!IsRevision(repository.revision)) return {};
  }
  const size_t slash = text.find('/');
  if (slash == text.npos || !IsName(text.substr(0, slash)) || !IsName(text.substr(slash + 1))) return {};
  repository.id = text;
  return repository;
}

bool IsRelativePath(std::string_view path) {
  if (path.empty() || path.size() > 1024 || path.find('\0') != path.npos || path.find('\\') != path.npos) return false;
  if (Printable(path, path.size()) != path) return false;  // a terminal would not show it as it is
  while (true) {
    const size_t slash = path.find('/');
    const std::string_view part = path.substr(0, slash);
    if (part.empty() || part == "." || part == ".." || part.size() > 255) return false;
    if (slash == path.npos) return true;
    path.remove_prefix(slash + 1);
  }
}

bool IsRevision(std::string_view revision) {
  return IsRelativePath(revision) && std::none_of(revision.begin(), revision.end(),
                                                  [](unsigned char c) { return c <= ' ' || c == '?' || c == '#'; });
}

fs::path FindSnapshot(const Repository& repository, const fs::path& cache) {
  const fs::path folder = cache / repository.Folder(), ref = folder / "refs" / repository.revision;
  std::error_code none;
  const std::string commit = fs::is_regular_file(ref, none) ? Trimmed(ReadFile(ref, 4096)) : repository.revision;
  if (!IsRelativePath(commit)) return "";
  const fs::path snapshot = folder / "snapshots" / commit;
  return fs::is_directory(snapshot, none) ? snapshot : "";
}

std::vector<fs::path> Snapshots(const Repository& repository, const fs::path& cache) {
  std::vector<fs::path> snapshots;
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(cache / repository.Folder() / "snapshots", none))
    snapshots.push_back(entry.path());
  std::sort(snapshots.begin(), snapshots.end());
  if (const auto at = std::find(snapshots.begin(), snapshots.end(), FindSnapshot(repository, cache));
      at != snapshots.end())
    std::rotate(snapshots.begin(), at, at + 1);
  return snapshots;
}

std::string MissingOfModel(const fs::path& directory) {
  if (!Exists(directory / "config.json")) return "config.json";
  const auto any = [&](std::initializer_list<const char*> names) {
    return std::any_of(names.begin(), names.end(), [&](const char* name) { return Exists(directory / name); });
  };
  if (!any({"tokenizer.json", "vocab.json", "tokenizer.model"})) return "tokenizer.json";
  if (Exists(directory / "model.safetensors")) return "";
  const fs::path index = directory / "model.safetensors.index.json";
  if (!Exists(index)) return "model.safetensors";
  const nlohmann::json json = ParseJson(ReadFile(index, uint64_t{1} << 28), index.string());
  const auto map = json.find("weight_map");
  if (map == json.end() || !map->is_object()) return "";  // malformed: whoever loads it says so
  for (const auto& [tensor, shard] : map->items())
    if (shard.is_string() && !Exists(directory / shard.get<std::string>())) return shard.get<std::string>();
  return "";
}

}  // namespace shiftrt
