// SPDX-License-Identifier: Apache-2.0
#include "engine/tally.h"

#include <utility>

namespace shiftrt {

namespace {

class CpuRidgeSums : public DeviceRidgeSums {
 public:
  CpuRidgeSums(const Context& context, const RidgeSumsView& host) : context_(context), host_(host) {}
  void Add(const Rows& h, const Rows& delta, std::span<const double> weights) override {
    AddToRidgeSums(context_, h.host(), delta.host(), weights, host_);
  }
  void Store() override {}

 private:
  Context context_;
  RidgeSumsView host_;
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

class CpuTally : public Tally {
 public:
  explicit CpuTally(const Context& context) : Tally(context), context_(context) {}
  int64_t devices() const override { return 1; }
  std::unique_ptr<DeviceRidgeSums> MakeRidgeSums(const RidgeSumsView& host) override {
    return std::make_unique<CpuRidgeSums>(context_, host);
  }
  std::unique_ptr<PendingProducts> MakeProducts() override { return std::make_unique<CpuProducts>(context_); }

 private:
  Context context_;
};

}  // namespace

std::unique_ptr<Tally> MakeCpuTally(const Context& context) { return std::make_unique<CpuTally>(context); }

std::unique_ptr<Tally> MakeTally(const Context& context, std::shared_ptr<const Weights> weights) {
  return context.device == Device::kCuda ? MakeCudaTally(context, std::move(weights)) : MakeCpuTally(context);
}

}  // namespace shiftrt
