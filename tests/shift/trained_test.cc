// SPDX-License-Identifier: Apache-2.0
// Corrections of a trained checkpoint against figures found outside this project (numpy, float64): held-out loss of
// every block removed alone, and of several together. The data is not in the repository: see CONTRIBUTING.md.
#include "models/model.h"
#include "shift/corrections/corrections.h"
#include "shift/measure/heldout_loss.h"
#include "shift/refit/sequential_fit.h"
#include "shift/sums/collect.h"
#include "tests/engine/stories260k.h"

namespace shiftrt {
namespace {

class TrainedCorrections : public test::Stories260K {
 protected:
  void SetUp() override {
    Stories260K::SetUp();
    if (IsSkipped()) return;
    model_.weights = LoadWeights(checkpoint_);
    calibration_.fit = Packed(0, 50);
    for (const Batch& batch : calibration_.fit) calibration_.fit_tokens += batch.size();
    loss_.emplace(context_, model_.weights, Packed(50, 100), 1 << 20, 0);
  }

  // The model is too small to share.
  static Context OneThread() {
    Context context = Context::Default();
    context.threads = 1;
    return context;
  }

  int64_t Layers() const { return model_.weights->config.layers; }

  // Ten stories a batch, each a sequence of its own.
  std::vector<Batch> Packed(size_t begin, size_t end) const {
    std::vector<Batch> batches;
    for (size_t s = begin; s < end; ++s) {
      if (s % 10 == 0) batches.emplace_back();
      batches.back().Add(stories_[s]);
    }
    return batches;
  }

  double Corrected(const std::vector<Site>& sites, const FittedSites& fitted) {
    return (*loss_)(CorrectedPlan(Layers(), sites, fitted.adapters));
  }

  CalibrationSums Sums(const std::vector<Site>& sites, const TokenWeights& weighting) {
    CalibrationSums sums;
    for (const Site& site : sites) {
      sums.sites.emplace_back(site, model_.weights->config.hidden, SiteInput::kStream, weighting);
    }
    Collect({context_, model_, calibration_, quiet_}, sums);
    return sums;
  }

  Context context_ = OneThread();
  Model model_;
  CalibrationSet calibration_;
  std::optional<HeldOutLoss> loss_;
  NoProgress quiet_;
};

// Their svd refits the bias, which is svd-refit here.
TEST_F(TrainedCorrections, OneBlock) {
  struct Line {
    double pruned, mean;
    double by_weights[2][5];  // none, norm: svd-refit 4, rrr 4, svd-refit 16, rrr 16, full
  };
  const Line lines[] = {
      {4.684, 3.445, {{3.076, 2.874, 2.476, 2.391, 2.210}, {2.986, 2.760, 2.394, 2.378, 2.183}}},
      {2.744, 2.724, {{2.712, 2.680, 2.564, 2.568, 2.475}, {2.689, 2.668, 2.547, 2.562, 2.458}}},
      {2.274, 2.248, {{2.224, 2.211, 2.152, 2.152, 2.112}, {2.210, 2.199, 2.142, 2.143, 2.107}}},
      {2.395, 2.311, {{2.274, 2.290, 2.219, 2.215, 2.172}, {2.270, 2.287, 2.208, 2.211, 2.166}}},
      {2.399, 2.405, {{2.384, 2.378, 2.289, 2.292, 2.238}, {2.373, 2.369, 2.284, 2.287, 2.234}}},
  };
  constexpr double kRounding = 6e-4;  // error of three decimals, and a little for float32
  EXPECT_NEAR((*loss_)(DepthPlan::Original(Layers())), 1.495, kRounding);
  for (int64_t layer = 0; layer < Layers(); ++layer) {
    SCOPED_TRACE(layer);
    const std::vector<Site> sites = {{layer, 1}};
    EXPECT_NEAR((*loss_)(DepthPlan::Pruned(Layers(), sites[0].Layers())), lines[layer].pruned, kRounding);
    for (const bool norm : {false, true}) {
      const CalibrationSums sums = Sums(sites, {.norm = norm});
      FitOptions options;
      options.ridge.lambda = ParseLambda("1e-4rel");
      const auto fitted = [&] { return Corrected(sites, FitSites(context_, {&sums.sites[0]}, options, quiet_)); };
      const double* expected = lines[layer].by_weights[norm];
      for (const int64_t rank : {4, 16}) {
        options.rank = RankSpec::Fixed(rank);
        for (const Factorization kind : {Factorization::kSvdRefit, Factorization::kReducedRank}) {
          options.factorization = kind;
          EXPECT_NEAR(fitted(), *expected++, kRounding) << Name(kind) << " " << rank << " norm " << norm;
        }
      }
      options.rank = RankSpec::Full();
      EXPECT_NEAR(fitted(), *expected, kRounding) << "norm " << norm;
      if (norm) continue;
      const std::vector<const SiteSums*> of = {&sums.sites[0]};
      const ShiftJob job = {context_, model_, calibration_, quiet_};
      EXPECT_NEAR(Corrected(sites, FindCorrection("bias").fit({job, sites, of, options})), lines[layer].mean,
                  kRounding);
    }
  }
}

// In sequence with norm weights, theirs are of the original's stream, and ours of the stream the block's output will be
// in: a little better in every line.
TEST_F(TrainedCorrections, SeveralBlocks) {
  struct Line {
    std::vector<int64_t> removed;
    double pruned;
    double by_weights[2][3];  // none, norm: independent, sequential, drift
    double ours;              // sequential with norm weights
  };
  const Line lines[] = {
      {{1, 3}, 4.009, {{3.2366, 3.1538, 3.2637}, {3.2222, 3.1402, 3.2412}}, 3.1351},
      {{2, 4}, 3.347, {{2.9806, 2.9038, 3.0139}, {2.9750, 2.8969, 3.0069}}, 2.8967},
      {{1, 2, 4}, 4.910, {{3.9210, 3.6494, 3.9872}, {3.9119, 3.6429, 3.9792}}, 3.6379},
  };
  constexpr double kRounding = 1.5e-4;  // error of four decimals, and a little for float32
  FitOptions options;
  options.rank = RankSpec::Full();
  options.ridge.lambda = ParseLambda("1e-4rel");
  for (const Line& line : lines) {
    SCOPED_TRACE(testing::PrintToString(line.removed));
    const std::vector<Site> sites = SitesOf(WholeBlocks(line.removed));
    EXPECT_NEAR((*loss_)(DepthPlan::Pruned(Layers(), line.removed)), line.pruned, 6e-4);
    for (const bool norm : {false, true}) {
      const TokenWeights weighting{.norm = norm};
      const CalibrationSums sums = Sums(sites, weighting);
      const double independent =
          Corrected(sites, FitSites(context_, sums.Sites(WholeBlocks(line.removed)), options, quiet_));
      EXPECT_NEAR(independent, line.by_weights[norm][0], kRounding) << "norm " << norm;
      const auto in_sequence = [&](Calibration mode) {
        const ShiftJob job = {context_, model_, calibration_, quiet_};
        const auto fit = [&](const SiteSums& site, Progress& progress) {
          return FitSites(context_, {&site}, options, progress);
        };
        return Corrected(sites, FitInSequence(job, sites, {mode, weighting}, fit));
      };
      const double sequential = in_sequence(Calibration::kSequential);
      EXPECT_NEAR(sequential, norm ? line.ours : line.by_weights[norm][1], kRounding) << "norm " << norm;
      EXPECT_LE(sequential, line.by_weights[norm][1] + kRounding);
      EXPECT_NEAR(in_sequence(Calibration::kDrift), line.by_weights[norm][2], kRounding) << "norm " << norm;
    }
  }
}

}  // namespace
}  // namespace shiftrt
