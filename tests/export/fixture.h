// SPDX-License-Identifier: Apache-2.0
// Small models to export, and what an export needs.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/decoder.h"
#include "export/formats.h"
#include "models/block_tensors.h"
#include "models/own_tensors.h"
#include "runtime/files.h"
#include "runtime/random.h"
#include "tests/models/fixtures.h"
#include "tests/runtime/refusal.h"
#include "tests/write_text.h"

namespace shiftrt {

class ExportTest : public testing::Test {
 protected:
  using Json = nlohmann::json;

  void SetUp() override { out_ = directory_.path() / "out"; }

  // The golden's model (seed 1) with all its blocks, in a directory of its own.
  Model Golden(const std::string& name, DType dtype = DType::kFloat32, WeightType load = WeightType::kAsStored) const {
    const std::filesystem::path directory = directory_.path() / (name + "-" + Name(dtype));
    if (!std::filesystem::exists(directory))
      WriteRandomCheckpoint(GoldenModel(name) / "config.json", dtype, 1, directory);
    return OpenModel(directory.string(), {.dtype = load});
  }
  static DepthPlan Pruned(const Model& model, std::vector<int64_t> removed) {
    return DepthPlan::Pruned(model.weights->config.layers, removed);
  }
  static Matrix<float> RandomMatrix(int64_t rows, int64_t cols, uint64_t seed) {
    Random random(seed);
    Matrix<float> m(rows, cols);
    for (float& x : m.span()) x = static_cast<float>(random.Uniform() - 0.5) / static_cast<float>(cols);
    return m;
  }
  static std::shared_ptr<const Lra> Adapter(const Model& model, int64_t rank, uint64_t seed) {
    const int64_t hidden = model.weights->config.hidden;
    Lra lra;
    if (rank < 0) {
      lra.a = RandomMatrix(hidden, hidden, seed);
    } else {
      lra.p = RandomMatrix(hidden, rank, seed);
      lra.q = RandomMatrix(rank, hidden, seed + 1);
    }
    lra.b = RandomMatrix(1, hidden, seed + 2);
    return std::make_shared<const Lra>(std::move(lra));
  }

  // `plan` with a final norm and a head of its own.
  static DepthPlan WithOutput(const Model& model, DepthPlan plan) {
    const ModelConfig& config = model.weights->config;
    const auto output = std::make_shared<OwnOutput>(*model.weights, plan);
    output->Replace(&OutputWeights::final_norm, RandomMatrix(1, config.hidden, 8).span());
    output->Replace(&OutputWeights::head, RandomMatrix(config.vocab, config.hidden, 9).span());
    plan.output = OwnOutput::Share(output);
    return plan;
  }

  std::vector<std::string> Write(const std::string& format, const Model& model, const DepthPlan& plan) {
    return Export(FindExportFormat(format), {context_, model, plan, provenance_, settings_, *progress_}, out_);
  }
  std::string WriteRefusal(const std::string& format, const Model& model, const DepthPlan& plan) {
    return Refusal([&] { Write(format, model, plan); });
  }
  void ExpectWriteRefusal(const std::string& format, const Model& model, const DepthPlan& plan,
                          const std::string& word) {
    const std::string what = WriteRefusal(format, model, plan);
    EXPECT_NE(what.find(word), std::string::npos) << word << " in: " << what;
    EXPECT_FALSE(std::filesystem::exists(out_));
  }
  // Expects that a format whose layers are those of a Llama refuses half blocks of other families, with both words,
  // adapters that read the stream itself, and windows.
  void ExpectOnlyPartsOfALlama(const std::string& format, const std::string& families, const std::string& remedy) {
    for (const char* name : {"qwen3", "phi3_tied", "granite", "olmo2"}) {
      const Model model = Golden(name);
      DepthPlan half = Pruned(model, {});
      half.stages[1] = BlockStage{1, Halves::kMlp};
      ExpectWriteRefusal(format, model, half, families);
      ExpectWriteRefusal(format, model, half, remedy);
      EXPECT_THROW(CheckFormat(FindExportFormat(format), model.weights->config, {}, /*parts=*/true), UsageError);
      CheckFormat(FindExportFormat(format), model.weights->config, {});
    }
    const Model llama = Golden("llama2"), window = Golden("mistral_window");
    DepthPlan plain = Pruned(llama, {1});
    plain.stages.insert(plain.stages.begin() + 1, AdapterStage{{1}, Adapter(llama, 4, 1)});
    ExpectWriteRefusal(format, llama, plain, "its adapter for layer 1 reads the stream itself");
    DepthPlan of_window = Pruned(window, {});
    of_window.stages[1] = BlockStage{1, Halves::kMlp};
    ExpectWriteRefusal(format, window, of_window, "attend to a window");
  }
  Json ReadJson(const std::string& name) const { return Json::parse(ReadFile(out_ / name)); }

  // Logits (tokens, vocab) of some tokens, longer than the windows of the goldens.
  static Matrix<float> Logits(const Model& model, const DepthPlan& plan) {
    Decoder decoder(Context::Default(), model.weights, plan);
    Batch batch;
    batch.Add(std::vector<int32_t>{1, 5, 23, 7, 0, 11, 2, 40, 3, 3, 9, 80, 17, 5, 61, 30});
    return decoder.Logits(decoder.Forward(batch));
  }
  // Expects that `found` gives the bits of `expected`.
  static void ExpectSame(const Matrix<float>& found, const Matrix<float>& expected) {
    ASSERT_EQ(found.size(), expected.size());
    EXPECT_TRUE(std::equal(found.span().begin(), found.span().end(), expected.span().begin()));
  }

  static std::vector<std::string> Listing(const std::filesystem::path& directory) {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(directory)) names.push_back(entry.path().filename());
    std::sort(names.begin(), names.end());
    return names;
  }

  TemporaryDirectory directory_;
  std::filesystem::path out_;
  Context context_ = Context::Default();
  Provenance provenance_ = {.criterion = "bi", .recipe = {.correction = "none", .merge = "off"}};
  ExportSettings settings_;
  NoProgress quiet_;
  Progress* progress_ = &quiet_;
};

}  // namespace shiftrt
