// SPDX-License-Identifier: Apache-2.0
// Small saved models, and what spoils them.
#pragma once

#include <gtest/gtest.h>

#include <csignal>
#include <limits>
#include <nlohmann/json.hpp>

#include "engine/decoder.h"
#include "models/adapted.h"
#include "models/block_tensors.h"
#include "models/own_tensors.h"
#include "models/saved_config.h"
#include "runtime/files.h"
#include "runtime/random.h"
#include "tests/file_size_limit.h"
#include "tests/models/checkpoint_files.h"
#include "tests/models/fixtures.h"
#include "tests/models/mlp_units.h"

namespace shiftrt {
namespace fs = std::filesystem;
using Json = nlohmann::json;

inline constexpr int64_t kHidden = 8;

inline Matrix<float> RandomMatrix(int64_t rows, int64_t cols, uint64_t seed) {
  Random random(seed);
  Matrix<float> m(rows, cols);
  for (float& x : m.span()) x = static_cast<float>(static_cast<double>(random.Next() >> 11) * 0x1p-53 - 0.5);
  return m;
}

inline std::shared_ptr<const Lra> FullAdapter(uint64_t seed) {
  Lra lra;
  lra.a = RandomMatrix(kHidden, kHidden, seed);
  lra.b = RandomMatrix(1, kHidden, seed + 1);
  return std::make_shared<const Lra>(std::move(lra));
}

inline std::shared_ptr<const Lra> LowRankAdapter(int64_t rank, uint64_t seed) {
  Lra lra;
  lra.p = RandomMatrix(kHidden, rank, seed);
  lra.q = RandomMatrix(rank, kHidden, seed + 1);
  lra.b = RandomMatrix(1, kHidden, seed + 2);
  return std::make_shared<const Lra>(std::move(lra));
}

// A hash of the logits of a few tokens.
inline std::string Logits(const Model& model) {
  Decoder decoder(Context::Default(), model.weights, model.plan);
  Batch batch;
  batch.Add(std::vector<int32_t>{1, 5, 23, 7, 0, 11});
  const Matrix<float> logits = decoder.Logits(decoder.Forward(batch));
  return HashHex(std::as_bytes(logits.span()));
}

inline std::vector<std::string> Listing(const fs::path& directory) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(directory)) names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

class Adapted : public testing::Test {
 protected:
  void SetUp() override {
    base_ = Make("base", 1);
    saved_ = directory_.path() / "saved";
  }

  Model Make(const std::string& name, uint64_t seed, DType dtype = DType::kFloat32, bool tied = false) const {
    Model model;
    model.directory = directory_.path() / name;
    WriteText(directory_.path() / "shape.json", SmallConfig(tied));
    WriteRandomCheckpoint(directory_.path() / "shape.json", dtype, seed, model.directory);
    model.weights = LoadWeights(model.directory);
    return model;
  }
  static Model With(Model model, DepthPlan plan) {
    model.plan = std::move(plan);
    return model;
  }
  void Save(const Model& model, bool with_weights = false, const Provenance& provenance = {}) const {
    SaveAdapted(model, model.plan, provenance, with_weights, saved_);
  }
  Model Corrected() const {
    return With(base_, {{BlockStage{0}, AdapterStage{{1}, LowRankAdapter(2, 5)}, BlockStage{2}}});
  }

  // A block with two tensors of its own among its others, and a head and a final norm in place of the model's.
  static DepthPlan Tuned(const Model& base) {
    const Weights& weights = *base.weights;
    const auto block = std::make_shared<OwnBlock>(weights.blocks[2]);
    block->Replace(&BlockWeights::down, RandomMatrix(kHidden, 12, 11).span());
    block->Replace(&BlockWeights::post_norm, RandomMatrix(1, kHidden, 12).span());
    const auto output = std::make_shared<OwnOutput>(weights, DepthPlan());
    output->Replace(&OutputWeights::head, RandomMatrix(24, kHidden, 13).span());
    output->Replace(&OutputWeights::final_norm, RandomMatrix(1, kHidden, 14).span());
    return {
        {BlockStage{0}, AdapterStage{{1}, LowRankAdapter(2, 5)}, BlockStage{.layer = 2, .own = OwnBlock::Share(block)}},
        OwnOutput::Share(output)};
  }
  // Factors for some projections of such plans.
  static Lora Factors() {
    Lora lora{.rank = 2, .alpha = 5, .factors = {}};
    const auto add = [&](int64_t layer, TensorView BlockWeights::*member, int64_t rows, int64_t cols) {
      for (const BlockTensor& row : BlockTensors())
        if (row.member == member)
          lora.factors.push_back({layer, &row, RandomMatrix(2, cols, 20 + rows), RandomMatrix(rows, 2, 21 + cols)});
    };
    add(2, &BlockWeights::down, kHidden, 12);
    add(2, &BlockWeights::q, kHidden, kHidden);
    add(0, &BlockWeights::v, kHidden / 2, kHidden);
    return lora;
  }

  static DepthPlan HalfBlocks() {
    return {{BlockStage{0, Halves::kAttention}, BlockStage{1, Halves::kMlp}, AdapterStage{{2}, LowRankAdapter(2, 5)}}};
  }
  // One plan of every kind.
  static std::vector<DepthPlan> Plans() {
    return {DepthPlan::Original(3),
            DepthPlan::Pruned(3, std::vector<int64_t>{1}),
            {{AdapterStage{{0}, FullAdapter(1)}, BlockStage{1}, AdapterStage{{2}, LowRankAdapter(3, 2)}}},
            {{BlockStage{0}, AdapterStage{{1, 2}, FullAdapter(7)}}},  // merged
            {{AdapterStage{{0}, LowRankAdapter(1, 3)}, AdapterStage{{1}, FullAdapter(4)}, BlockStage{2}}}};
  }

  Json ReadSaved() const { return Json::parse(ReadFile(saved_ / kAdaptedFile)); }
  std::string OpenRefusal() const {
    return Refusal([&] { OpenAdapted(saved_, {}); });
  }
  void ExpectRefused(const std::string& file, const std::string& word) const {
    const std::string what = OpenRefusal();
    EXPECT_NE(what.find((saved_ / file).string()), std::string::npos) << what;
    EXPECT_NE(what.find(word), std::string::npos) << word << " in: " << what;
  }
  void ExpectJsonRefused(const Json& json, const std::string& word) const {
    WriteText(saved_ / kAdaptedFile, json.dump());
    ExpectRefused(kAdaptedFile, word);
  }
  // `value` in the place of what `pointer` names.
  void ExpectJsonRefused(const char* pointer, const Json& value, const std::string& word) const {
    Json json = good_;
    json[Json::json_pointer(pointer)] = value;
    ExpectJsonRefused(json, word);
  }
  void ExpectTensorsRefused(const std::vector<StoredTensor>& tensors, const std::string& word,
                            const char* file = "adapters.safetensors") const {
    WriteText(saved_ / file, SafetensorsBytes(tensors));
    ExpectRefused(file, word);
  }
  // Every tensor of `file` in turn: missing, of another shape or type, empty, not finite; and one too many.
  void ExpectSpoiltTensorsRefused(const char* file) const {
    const std::vector<StoredTensor> good = ReadTensors(saved_ / file);
    for (size_t i = 0; i < good.size(); ++i) {
      const std::string& name = good[i].name;
      auto tensors = good;
      tensors.erase(tensors.begin() + static_cast<int64_t>(i));
      ExpectTensorsRefused(tensors, name + " is missing", file);
      tensors = good;
      tensors[i].shape.push_back(1);
      ExpectTensorsRefused(tensors, name, file);
      tensors = good;
      tensors[i] = {name, "F32", {}, std::string(4, '\0')};
      ExpectTensorsRefused(tensors, name, file);
      tensors = good;
      tensors[i].dtype = "I32";
      ExpectTensorsRefused(tensors, name, file);
      tensors = good;
      tensors[i].dtype = "F64";
      tensors[i].bytes += tensors[i].bytes;
      ExpectTensorsRefused(tensors, name, file);
      for (float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
        tensors = good;
        tensors[i].Set(tensors[i].bytes.size() / 4 - 1, bad);
        ExpectTensorsRefused(tensors, name, file);
      }
    }
    auto tensors = good;
    tensors.push_back({"stray", "F32", {1}, std::string(4, '\0')});
    ExpectTensorsRefused(tensors, "", file);
    const std::string bytes = SafetensorsBytes(good);
    for (size_t size : {size_t{0}, size_t{60}, bytes.size() - 1}) {
      WriteText(saved_ / file, bytes.substr(0, size));
      ExpectRefused(file, "");
    }
    fs::remove(saved_ / file);
    ExpectRefused(file, "No such file");
  }

  TemporaryDirectory directory_;
  fs::path saved_;
  Model base_;
  Json good_;
};

}  // namespace shiftrt
