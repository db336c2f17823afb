// SPDX-License-Identifier: Apache-2.0
// A hub, a cache and files to pull.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "hub/pull.h"
#include "runtime/files.h"
#include "tests/hub/test_hub.h"
#include "tests/temporary_directory.h"

namespace shiftrt {

// Bytes without any pattern that a mistake in their places could keep.
inline std::string Noise(size_t size, uint64_t seed) {
  std::string bytes(size, '\0');
  for (char& byte : bytes) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    byte = static_cast<char>(seed >> 56);
  }
  return bytes;
}

class Pulling : public ::testing::Test {
 protected:
  static constexpr int64_t kPiece = 64 << 10;

  Pulling() {
    settings_.endpoint = hub_.endpoint();
    settings_.cache = directory_.path() / "cache";
    settings_.token_file = directory_.path() / "token";
    settings_.retry_seconds = 0.001;
    ::setenv("no_proxy", "*", 1);
    TestRepository model;
    model.files = {
        {"config.json", R"({"model_type": "llama"})"},
        {"tokenizer.json", Noise(3000, 1)},
        {"README.md", "# A model"},
        {"model.safetensors.index.json",
         R"({"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}})"},
        {"model-00001-of-00002.safetensors", Noise(1'000'003, 2), true},
        {"model-00002-of-00002.safetensors", Noise(300'001, 3), true},
        {"consolidated.00.pth", Noise(5000, 4), true},
        {"pytorch_model.bin", Noise(5000, 5), true},
        {"onnx/model.onnx", Noise(5000, 6), true},
        {"original/tokenizer.model", Noise(500, 7)}};
    model_ = model;
    hub_.Add("models/org/model", model);
  }

  PullRequest Request(const std::string& name = "org/model") const {
    PullRequest request;
    request.repository = *ParseRepository(name);
    return request;
  }
  std::filesystem::path PullIt(const PullRequest& request) {
    HubClient hub(settings_);
    DownloadOptions options;
    options.piece_bytes = kPiece;
    const PullPlan plan = PlanPull(hub, request);
    Pull(
        hub, plan, [](auto) {}, options);
    return plan.directory;
  }
  std::filesystem::path PullIt() { return PullIt(Request()); }
  std::filesystem::path Folder() const { return settings_.cache / "models--org--model"; }
  const TestFile& File(const std::string& path) const {
    for (const TestFile& file : model_.files)
      if (file.path == path) return file;
    throw std::out_of_range(path);
  }
  void ExpectWhole(const std::filesystem::path& snapshot) const {
    for (const char* path : {"config.json", "tokenizer.json", "README.md", "model.safetensors.index.json",
                             "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"})
      EXPECT_TRUE(ReadFile(snapshot / path) == File(path).content) << path;
    EXPECT_EQ(MissingOfModel(snapshot), "");
  }
  // Bytes of the files that a model needs.
  int64_t NeededBytes() const {
    int64_t bytes = 0;
    for (size_t i = 0; i < 6; ++i) bytes += std::ssize(model_.files[i].content);
    return bytes;
  }

  TemporaryDirectory directory_;
  TestHub hub_;
  HubSettings settings_;
  TestRepository model_;
};

}  // namespace shiftrt
