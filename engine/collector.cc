// SPDX-License-Identifier: Apache-2.0
#include "engine/collector.h"

#include <algorithm>
#include <utility>

#include "engine/exchanged_collector.h"
#include "engine/ridge_count.h"
#include "runtime/check.h"
#include "runtime/not_finite.h"

namespace shiftrt {

namespace {

class CpuRidgeSums : public DeviceRidgeSums {
 public:
  CpuRidgeSums(const Context& context, RidgeMatrices& into) : context_(context), sums_(into.ToWrite()) {}
  void Add(const Rows& h, const Rows& delta, std::span<const double> weights) override {
    AddToRidgeSums(context_, h.host(), delta.host(), weights, sums_);
  }
  void Store() override {}

 private:
  Context context_;
  RidgeSumsView sums_;
};

class CpuProducts : public PendingProducts {
 public:
  explicit CpuProducts(const Context& context) : context_(context) {}
  void Start(const Rows& a, const Rows& b) override {
    products_.resize(a.count());
    ComputeRowProducts(context_, a.host(), b.host(), products_);
  }
  std::vector<RowProducts> Take() override { return std::exchange(products_, {}); }

 private:
  Context context_;
  std::vector<RowProducts> products_;
};

class CpuCollector : public Collector {
 public:
  explicit CpuCollector(const Context& context) : context_(context) {}
  int64_t devices() const override { return 1; }
  std::unique_ptr<DeviceRidgeSums> MakeRidgeSums(RidgeMatrices& into) override {
    return std::make_unique<CpuRidgeSums>(context_, into);
  }
  std::unique_ptr<PendingProducts> MakeProducts() override { return std::make_unique<CpuProducts>(context_); }

 private:
  Context context_;
};

// Adds the rows of this process alone, on one device or several.
class OwnRidgeAdder : public RidgeAdder {
 public:
  OwnRidgeAdder(Collector& collector, const RidgeSite& site) : count_(site), sums_(collector.MakeRidgeSums(site.into)) {
    for (int64_t i = 0; i < collector.devices(); ++i) pending_.push_back(collector.MakeProducts());
  }

  void Add(const SiteRows& rows, const RowWeights& weights) override {
    PendingProducts& products = *pending_[turn_];
    turn_ = (turn_ + 1) % pending_.size();
    count_.Check(products.Take(), {});
    products.Start(rows.stream, rows.delta);
    if (!weights) {
      count_.Add(rows.stream.count(), {});
      return sums_->Add(rows.inputs, rows.delta, {});
    }
    const std::vector<RowProducts> now = products.Take();
    const std::vector<double> weighted = weights(now);
    count_.Check(now, weighted);
    count_.Add(rows.stream.count(), weighted);
    sums_->Add(rows.inputs, rows.delta, weighted);
  }

  void Complete() override {
    for (size_t i = 0; i < pending_.size(); ++i) count_.Check(pending_[(turn_ + i) % pending_.size()]->Take(), {});
    sums_->Store();
    count_.Store();
  }

 private:
  RidgeCount count_;
  std::unique_ptr<DeviceRidgeSums> sums_;
  std::vector<std::unique_ptr<PendingProducts>> pending_;  // one per device, used in turn
  size_t turn_ = 0;                                        // the oldest
};

}  // namespace

double CheckedDeltaSquares(std::span<const RowProducts> inputs_and_deltas, std::span<const double> weights) {
  Check(weights.empty() || weights.size() == inputs_and_deltas.size(), "{} weights for {} rows", weights.size(),
        inputs_and_deltas.size());
  double sum = 0;
  for (size_t t = 0; t < inputs_and_deltas.size(); ++t) {
    const RowProducts& row = inputs_and_deltas[t];
    CheckIsFinite(row.aa, "row {} of the block's input is not finite", t);
    CheckIsFinite(row.bb, "row {} of the block's update is not finite", t);
    sum += weights.empty() ? row.bb : weights[t] * row.bb;
  }
  return sum;
}

int64_t CountedRows(int64_t rows, std::span<const double> weights) {
  return weights.empty() ? rows : std::count_if(weights.begin(), weights.end(), [](double w) { return w > 0; });
}

SharedItems WhereSumsAre(const Context& context, std::span<const RidgeMatrices* const> sums) {
  std::vector<int> owners;
  for (size_t i = 0; i < sums.size(); ++i)
    owners.push_back(sums[i]->totals.holder.value_or(context.processes->Owner(static_cast<int64_t>(i))));
  return {context, std::move(owners)};
}

std::vector<std::unique_ptr<RidgeAdder>> Collector::MakeAdders(const std::vector<RidgeSite>& sites) {
  std::vector<std::unique_ptr<RidgeAdder>> adders;
  adders.reserve(sites.size());
  for (const RidgeSite& site : sites) adders.push_back(std::make_unique<OwnRidgeAdder>(*this, site));
  return adders;
}

void Collector::ForEachBatch(int64_t count, const std::function<void(int64_t)>& run,
                             const std::function<void(int64_t, int64_t, bool)>& ended) {
  for (int64_t b = 0; b < count; ++b) {
    run(b);
    ended(b, b + 1, true);
  }
}

std::unique_ptr<RowExchange> Collector::MakeExchange(const Context&) { return nullptr; }

std::unique_ptr<Collector> MakeCpuCollector(const Context& context) { return std::make_unique<CpuCollector>(context); }

std::unique_ptr<Collector> MakeCollector(const Context& context, const std::shared_ptr<const Weights>& weights) {
  std::unique_ptr<Collector> own =
      context.device == Device::kCuda ? MakeCudaCollector(context, weights) : MakeCpuCollector(context);
  if (context.processes->alone()) return own;
  return MakeExchangedCollector(context, std::move(own), *weights);
}

}  // namespace shiftrt
