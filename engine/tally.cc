// SPDX-License-Identifier: Apache-2.0
#include "engine/tally.h"

#include <optional>
#include <string>
#include <utility>

#include "runtime/check.h"

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

class CpuTally : public Tally {
 public:
  explicit CpuTally(const Context& context) : Tally(context), context_(context) {}
  int64_t devices() const override { return 1; }
  std::unique_ptr<DeviceRidgeSums> MakeRidgeSums(RidgeMatrices& into) override {
    return std::make_unique<CpuRidgeSums>(context_, into);
  }
  std::unique_ptr<PendingProducts> MakeProducts() override { return std::make_unique<CpuProducts>(context_); }

 private:
  Context context_;
};

// The error of a process in whose place another process lacks memory.
class OutOfMemoryElsewhere : public OutOfMemory {
 public:
  explicit OutOfMemoryElsewhere(std::string what) : OutOfMemory("", 0, 0, 0), what_(std::move(what)) {}
  const char* what() const noexcept override { return what_.c_str(); }

 private:
  std::string what_;
};

}  // namespace

void WithMemoryForAll(Processes& processes, const std::function<void()>& call) {
  if (processes.alone()) return call();
  std::optional<OutOfMemory> lacking;
  try {
    call();
  } catch (const OutOfMemory& error) {
    lacking = error;
  }
  const std::vector<Bytes> all = processes.Gather(Packer().PutText(lacking ? lacking->what() : "").Take());
  if (lacking) throw *lacking;
  for (int rank = 0; rank < processes.size(); ++rank)
    if (const std::string why = Unpacker(all[rank]).GetText(); !why.empty())
      throw OutOfMemoryElsewhere(fmt::format("{}: {}", processes.Name(rank), why));
}

void WithMemoryForBatch(Processes& processes, const std::function<void()>& call) {
  if (!processes.split()) return WithMemoryForAll(processes, call);
  try {
    call();
  } catch (const OutOfMemory& error) {
    Fail("{}; divide the model among more processes (--split)", error.what());
  }
}

std::unique_ptr<Tally> MakeCpuTally(const Context& context) { return std::make_unique<CpuTally>(context); }

std::unique_ptr<Tally> MakeTally(const Context& context, std::shared_ptr<const Weights> weights) {
  return context.device == Device::kCuda ? MakeCudaTally(context, std::move(weights)) : MakeCpuTally(context);
}

}  // namespace shiftrt
