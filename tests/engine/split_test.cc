// SPDX-License-Identifier: Apache-2.0
// A decoder whose model is split over processes, here threads, each with a part of the weights: the bits of one
// process.
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <condition_variable>
#include <fstream>
#include <map>
#include <mutex>

#include "engine/generate.h"
#include "engine/loss.h"
#include "eval/perplexity.h"
#include "runtime/check.h"
#include "runtime/random.h"
#include "runtime/shared_items.h"
#include "tests/models/fixtures.h"
#include "tests/runtime/thread_link.h"

namespace shiftrt {
namespace {

class SplitDecoder : public testing::Test {
 protected:
  static constexpr int64_t kLayers = 8, kHidden = 32, kVocab = 80;

  void WriteModel(bool tied) {
    std::ofstream(directory_.path() / "shape.json") << fmt::format(
        R"({{"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": {}, "vocab_size": {},
             "intermediate_size": 48, "num_hidden_layers": {}, "num_attention_heads": 4, "num_key_value_heads": 2,
             "max_position_embeddings": 64, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "hidden_act": "silu",
             "tie_word_embeddings": {}, "torch_dtype": "bfloat16"}})",
        kHidden, kVocab, kLayers, tied);
    WriteRandomCheckpoint(directory_.path() / "shape.json", DType::kBFloat16, 5, Model());
  }
  std::filesystem::path Model() const { return directory_.path() / "model"; }

  // A random adapter, of the full size where `rank` is 0.
  static std::shared_ptr<const Lra> Adapter(uint64_t seed, int64_t rank) {
    Random random(seed);
    Lra lra;
    const auto fill = [&](int64_t rows, int64_t cols) {
      Matrix<float> matrix(rows, cols);
      for (float& x : matrix.span()) x = static_cast<float>(random.Uniform() - 0.5) / 8;
      return matrix;
    };
    if (rank == 0) {
      lra.a = fill(kHidden, kHidden);
    } else {
      lra.p = fill(kHidden, rank);
      lra.q = fill(rank, kHidden);
    }
    lra.b = fill(1, kHidden);
    return std::make_shared<const Lra>(std::move(lra));
  }

  static Batch TwoSequences(uint64_t seed) {
    Random random(seed);
    Batch batch;
    for (const int64_t length : {9, 6}) {
      std::vector<int32_t> tokens(length);
      for (int32_t& token : tokens) token = static_cast<int32_t>(random.Below(kVocab));
      batch.Add(tokens);
    }
    return batch;
  }

  struct Setting {
    Context context;
    std::shared_ptr<const Weights> weights;
  };
  // The results of work(setting) in each of so many processes, of which `stages` hold a model together.
  template <typename Result>
  std::vector<Result> In(int size, int stages, WeightType dtype, const std::function<Result(const Setting&)>& work) {
    std::vector<Result> results(size);
    InProcesses(size, [&](const std::shared_ptr<Processes>& processes) {
      try {
        Setting setting;
        setting.context.processes = processes;
        processes->Split(stages);
        setting.weights = LoadWeights(Model(), {.dtype = dtype, .split = {stages, processes->part()}});
        results[processes->rank()] = work(setting);
        processes->Barrier();
      } catch (const std::exception& error) {
        ADD_FAILURE() << "process " << processes->rank() << ": " << error.what();
      }
    });
    return results;
  }

  // With blocks, halves of them and adapters where a cut into 2, 3 or 4 comes.
  static std::vector<DepthPlan> Plans() {
    std::vector<DepthPlan> plans = {
        DepthPlan::Original(kLayers), DepthPlan::Pruned(kLayers, std::vector<int64_t>{2, 3, 4}),
        DepthPlan::Corrected(
            kLayers, std::vector<AdapterStage>{{{3}, Adapter(1, 0)}, {{4}, Adapter(2, 3)}, {{7}, Adapter(3, 2)}}),
        DepthPlan::Corrected(kLayers, std::vector<AdapterStage>{{{0}, Adapter(4, 2)},
                                                                {{{1, Halves::kMlp}}, Adapter(5, 0)},
                                                                {{{4, Halves::kAttention}}, nullptr},
                                                                {{5, 6}, Adapter(6, 4)}})};
    return plans;
  }

  TemporaryDirectory directory_;
};

TEST_F(SplitDecoder, ScoresTheSameBits) {
  for (const bool tied : {false, true}) {
    WriteModel(tied);
    for (const WeightType dtype : {WeightType::kAsStored, WeightType::kFloat32}) {
      // Losses of several batches per plan, shared as those who measure them do.
      const auto losses = [&](const Setting& setting) {
        std::vector<double> all;
        for (const DepthPlan& plan : Plans()) {
          Decoder decoder(setting.context, setting.weights, plan);
          const std::vector<double> sums = SharedLoop(setting.context, 11, [&](int64_t i) {
            const Batch batch = TwoSequences(i);
            return SummedLoss(decoder, batch, decoder.Forward(batch));
          });
          all.insert(all.end(), sums.begin(), sums.end());
        }
        return all;
      };
      const auto expected = In<std::vector<double>>(1, 1, dtype, losses).front();
      for (const auto& [size, stages] : {std::pair(2, 2), {3, 3}, {4, 4}, {4, 2}, {9, 9}})
        for (const std::vector<double>& found : In<std::vector<double>>(size, stages, dtype, losses))
          EXPECT_EQ(found, expected) << size << " processes, " << stages << " stages";
      std::filesystem::remove_all(Model());
      WriteModel(tied);
    }
  }
}

// Each tap receives its rows in the process that has the block, with the same bits.
TEST_F(SplitDecoder, TapsAreReceivedWhereTheBlockIs) {
  WriteModel(false);
  using Received = std::map<std::pair<int64_t, TapPoint>, std::vector<float>>;
  for (const bool taps_only : {false, true}) {
    const auto listen = [&](const Setting& setting) {
      Received received;
      std::vector<Tap> taps;
      for (const int64_t layer : {0, 2, 3, 5})
        for (const TapPoint point : {TapPoint::kInput, TapPoint::kHeads, TapPoint::kAttention, TapPoint::kUpdate})
          taps.push_back({layer, point, [&received, layer, point](const Rows& rows, const Batch&) {
                            const MatrixView<const float> view = rows.host();
                            received[{layer, point}].assign(view.data, view.data + view.rows * view.cols);
                          }});
      Decoder decoder(setting.context, setting.weights, DepthPlan::Original(kLayers), std::move(taps));
      for (const uint64_t seed : {1, 2}) decoder.Forward(TwoSequences(seed), taps_only);
      return received;
    };
    const Received expected = In<Received>(1, 1, WeightType::kAsStored, listen).front();
    EXPECT_EQ(expected.size(), 16U);
    for (const int stages : {2, 3, 4}) {
      Received all;
      for (const Received& one : In<Received>(stages, stages, WeightType::kAsStored, listen))
        for (const auto& [where, rows] : one) {
          EXPECT_EQ(rows, expected.at(where));
          const bool at_border = where.second == TapPoint::kInput;  // the process before receives that too
          EXPECT_TRUE(all.emplace(where, rows).second || at_border);
        }
      EXPECT_EQ(all.size(), expected.size());
    }
  }
}

// Variants that share their first blocks: the rest of each goes on from one stream.
TEST_F(SplitDecoder, GoesOnFromAKeptStream) {
  WriteModel(true);
  const auto losses = [&](const Setting& setting) {
    std::vector<double> sums;
    for (int64_t shared = 0; shared <= kLayers; ++shared) {
      DepthPlan trunk = DepthPlan::Original(kLayers);
      const std::vector<Stage> rest(trunk.stages.begin() + shared, trunk.stages.end());
      std::vector<Stage> other = {AdapterStage{{std::min(shared, kLayers - 1)}, Adapter(shared, 2)}};
      if (shared < kLayers) other.insert(other.end(), rest.begin() + 1, rest.end());
      trunk.stages.erase(trunk.stages.begin() + shared, trunk.stages.end());
      Decoder decoder(setting.context, setting.weights, trunk);
      const Batch batch = TwoSequences(shared);
      KeptRows kept;
      kept.Set(decoder.Forward(batch));
      for (const std::vector<Stage>& stages : {rest, other})
        sums.push_back(SummedLoss(decoder, batch, decoder.Resume(batch, kept.rows(), stages)));
    }
    const int last = setting.context.processes->size() - 1;
    SharedItems(setting.context, std::vector<int>(sums.size(), last)).Share(sums);
    return sums;
  };
  const auto expected = In<std::vector<double>>(1, 1, WeightType::kAsStored, losses).front();
  for (const int stages : {2, 3, 4})
    for (const std::vector<double>& found : In<std::vector<double>>(stages, stages, WeightType::kAsStored, losses))
      EXPECT_EQ(found, expected) << stages << " stages";
}

// The second process waits in its first batch until the first one has reached the fourth. It gets no further ahead than
// the streams that may wait.
TEST_F(SplitDecoder, ProcessesWorkAtDifferentBatches) {
  WriteModel(false);
  std::mutex mutex;
  std::condition_variable reached;
  std::array<int, 2> batches = {0, 0};  // begun by each
  int ahead = 0;
  In<int>(2, 2, WeightType::kAsStored, [&](const Setting& setting) {
    const int part = setting.context.processes->part();
    const Tap tap = {part == 0 ? 0 : 7, TapPoint::kInput, [&, part](const Rows&, const Batch&) {
                       std::unique_lock lock(mutex);
                       ++batches[part];
                       ahead = std::max(ahead, batches[0] - batches[1]);
                       reached.notify_all();
                       if (part == 0 || batches[1] > 1) return;
                       EXPECT_TRUE(reached.wait_for(lock, std::chrono::seconds(60), [&] { return batches[0] >= 4; }));
                     }};
    Decoder decoder(setting.context, setting.weights, DepthPlan::Original(kLayers), {tap});
    for (int batch = 0; batch < 20; ++batch) decoder.Forward(TwoSequences(batch));
    return 0;
  });
  EXPECT_EQ(batches, (std::array{20, 20}));
  EXPECT_GE(ahead, 3);
  EXPECT_LE(ahead, 7);
}

TEST_F(SplitDecoder, GeneratesTheSameTokens) {
  WriteModel(true);
  const auto reply = [&](const Setting& setting) {
    std::vector<int32_t> tokens;
    for (const DepthPlan& plan : Plans()) {
      Decoder decoder(setting.context, setting.weights, plan);
      for (const double temperature : {0.0, 1.0}) {
        const GenerationResult result =
            Generate(decoder, std::vector<int32_t>{3, 1, 4, 1, 5}, 12, {.temperature = temperature}, 7, {});
        tokens.insert(tokens.end(), result.tokens.begin(), result.tokens.end());
      }
    }
    return tokens;
  };
  const auto expected = In<std::vector<int32_t>>(1, 1, WeightType::kAsStored, reply).front();
  EXPECT_EQ(expected.size(), 4 * 2 * 12U);
  for (const int stages : {2, 3, 4})
    for (const std::vector<int32_t>& found : In<std::vector<int32_t>>(stages, stages, WeightType::kAsStored, reply))
      EXPECT_EQ(found, expected) << stages << " stages";
}

TEST_F(SplitDecoder, TheModelIsTheSameAndItsPartsAreNot) {
  for (const bool tied : {false, true}) {
    WriteModel(tied);
    for (const WeightType dtype : {WeightType::kAsStored, WeightType::kFloat32}) {
      const std::shared_ptr<const Weights> whole = LoadWeights(Model(), {.dtype = dtype});
      const DepthPlan plan = DepthPlan::Original(kLayers);
      for (int64_t process = 0; process < 3; ++process) {
        const std::shared_ptr<const Weights> part =
            LoadWeights(Model(), {.dtype = dtype, .check_finite = true, .split = {3, process}});
        EXPECT_EQ(part->Fingerprint(), whole->Fingerprint());
        EXPECT_EQ(plan.Parameters(*part), plan.Parameters(*whole));
        EXPECT_EQ(plan.BytesPerToken(*part), plan.BytesPerToken(*whole));
        EXPECT_EQ(part->shares[process], CutModel(part->config, plan, 3)[process]);
        EXPECT_THROW(part->RequireWhole("this test"), UsageError);
        EXPECT_THROW(Decoder(Context(), part, plan), UsageError);  // in one process
      }
    }
  }
}

}  // namespace
}  // namespace shiftrt
