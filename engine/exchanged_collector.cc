// SPDX-License-Identifier: Apache-2.0
#include "engine/exchanged_collector.h"

#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "engine/ridge_count.h"
#include "runtime/check.h"

namespace shiftrt {

namespace {

Matrix<float> Copied(const Rows& rows) {
  const HostRows host = rows.ToHost();
  const MatrixView<const float> view = host.view();
  Matrix<float> copy(view.rows, view.cols);
  for (int64_t t = 0; t < view.rows; ++t) std::copy_n(view.row(t), view.cols, copy.row(t));
  return copy;
}

// Bytes of the message with the rows of a batch: products, weights and both kinds of rows, each after their number.
int64_t RowsMessageBytes(int64_t tokens, int64_t inputs, int64_t hidden, bool weighted) {
  const auto each = static_cast<int64_t>(sizeof(RowProducts) + (weighted ? sizeof(double) : 0)) + 4 * (inputs + hidden);
  return tokens * each + 4 * int64_t{8};
}

// Bytes of the message with the sums: both totals, the upper triangle of the Gram, the products.
int64_t SumsMessageBytes(int64_t inputs, int64_t hidden) {
  const int64_t n = inputs + 1;
  return 8 * (2 + n * (n + 1) / 2 + n * hidden);
}

// Sums whose rows come from several groups of processes.
class ExchangedAdder : public RidgeAdder {
 public:
  ExchangedAdder(Processes& processes, Collector& own, RowExchange* exchange, const RidgeSite& site, int channel,
                 int owner)
      : processes_(processes),
        exchange_(exchange),
        channel_(channel),
        owner_(owner),
        count_(site),
        products_(own.MakeProducts()) {
    if (processes_.rank() == owner_) sums_ = own.MakeRidgeSums(site.into);
  }

  void Add(const SiteRows& rows, const RowWeights& weights) override {
    if (exchange_ != nullptr) return Hold(rows, weights);
    Bytes message = Packed(rows, weights);
    if (processes_.rank() == owner_) {
      of_this_process_ = std::move(message);
    } else {
      processes_.Send(owner_, channel_, std::move(message));
    }
  }

  // Hands to the exchange what goes between GPUs. The processes with numbers below `present` had a batch.
  void Offer(int64_t present) {
    const bool mine = processes_.group() < present && owner_ % processes_.parts() == processes_.part();
    if (mine && held_.products.empty()) held_.products = products_->Take();
    if (processes_.rank() != owner_) {
      if (!mine) return;
      Packer heading;
      heading.PutAll(held_.products).PutAll(held_.weights).Put(held_.inputs.hidden()).Put(held_.delta.hidden());
      processes_.Send(owner_, channel_, heading.Take());
      exchange_->Send(owner_, held_.inputs);
      exchange_->Send(owner_, held_.delta);
      return;
    }
    received_.assign(present, {});
    for (int group = 0; group < present; ++group) {
      const int rank = processes_.RankOf(group, processes_.part());
      Held& held = received_[group];
      if (rank == owner_) {
        held = std::move(held_);
        continue;
      }
      const Bytes heading = processes_.Receive(rank, channel_);
      Unpacker in(heading);
      held.products = in.GetAll<RowProducts>();
      held.weights = in.GetAll<double>();
      for (Rows* const rows : {&held.inputs, &held.delta})
        *rows = exchange_->Receive(rank, std::ssize(held.products), in.Get<int64_t>());
    }
  }

  // Adds the batches of a round in their order.
  void Take(int64_t present) {
    if (processes_.rank() != owner_) return;
    if (exchange_ != nullptr) {
      for (const Held& held : received_) Add(held);
      return;
    }
    for (int group = 0; group < present; ++group) {
      const int rank = processes_.RankOf(group, processes_.part());
      AddPacked(rank == owner_ ? std::exchange(of_this_process_, {}) : processes_.Receive(rank, channel_));
    }
  }

  void Complete() override {
    if (sums_ != nullptr) {
      sums_->Store();
      count_.Store();
    }
    if (!count_.site().into.totals.holder) Share();
  }

 private:
  // The rows of a batch on a GPU, and what goes with them.
  struct Held {
    std::vector<RowProducts> products;
    std::vector<double> weights;
    Rows inputs, delta;
  };

  // Computes here all that the owner needs of these rows. Only the additions are left to the owner.
  Bytes Packed(const SiteRows& rows, const RowWeights& weights) {
    products_->Start(rows.stream, rows.delta);
    const std::vector<RowProducts> products = products_->Take();
    const std::vector<double> weighted = weights ? weights(products) : std::vector<double>();
    Packer packer(RowsMessageBytes(rows.stream.count(), rows.inputs.hidden(), rows.delta.hidden(), !weighted.empty()));
    packer.PutAll(products).PutAll(weighted);
    for (const Rows* const some : {&rows.inputs, &rows.delta}) {
      const HostRows host = some->ToHost();
      const MatrixView<const float> view = host.view();
      packer.Put(view.cols);
      for (int64_t t = 0; t < view.rows; ++t) packer.Put(std::span(view.row(t), view.cols));
    }
    return packer.Take();
  }

  void AddPacked(const Bytes& message) {
    Unpacker in(message);
    const auto products = in.GetAll<RowProducts>();
    const auto weights = in.GetAll<double>();
    Matrix<float> rows[2];
    for (Matrix<float>& matrix : rows) {
      const int64_t rows = std::ssize(products), cols = in.Get<int64_t>();
      in.CheckRoom(rows, cols, sizeof(float));
      matrix = Matrix<float>(rows, cols);
      in.Get(matrix.span());
    }
    Add({products, weights, Rows(rows[0].view()), Rows(rows[1].view())});
  }

  // Where all tokens count alike, the products are waited for when the round ends.
  void Hold(const SiteRows& rows, const RowWeights& weights) {
    kept_inputs_.Set(rows.inputs);
    kept_delta_.Set(rows.delta);
    held_ = {{}, {}, kept_inputs_.rows(), kept_delta_.rows()};
    products_->Start(rows.stream, rows.delta);
    if (!weights) return;
    held_.products = products_->Take();
    held_.weights = weights(held_.products);
  }

  void Add(const Held& held) {
    count_.Check(held.products, held.weights);
    count_.Add(held.delta.count(), held.weights);
    sums_->Add(held.inputs, held.delta, held.weights);
  }

  // The sums of the owner become everyone's. The lower triangle of the Gram is never read.
  void Share() {
    RidgeMatrices& into = count_.site().into;
    const bool own = processes_.rank() == owner_;
    Packer packer(own ? SumsMessageBytes(into.gram.rows() - 1, into.cross.cols()) : 0);
    if (own) {
      const MatrixView<const double> gram = into.gram.host().view();
      packer.Put(into.totals.tokens).Put(into.totals.delta_squares);
      for (int64_t i = 0; i < gram.rows; ++i) packer.Put(std::span(gram.row(i) + i, gram.cols - i));
      packer.Put(std::span<const double>(into.cross.host().span()));
    }
    const Bytes message = processes_.Broadcast(owner_, packer.Take());
    if (own) return;
    Unpacker in(message);
    into.totals.tokens = in.Get<int64_t>();
    into.totals.delta_squares = in.Get<double>();
    const RidgeSumsView sums = into.ToWrite();
    for (int64_t i = 0; i < sums.gram.rows; ++i) in.Get(std::span(sums.gram.row(i) + i, sums.gram.cols - i));
    for (int64_t i = 0; i < sums.cross.rows; ++i) in.Get(std::span(sums.cross.row(i), sums.cross.cols));
  }

  Processes& processes_;
  RowExchange* const exchange_;  // null without GPUs
  const int channel_, owner_;
  RidgeCount count_;
  std::unique_ptr<DeviceRidgeSums> sums_;  // the owner's
  std::unique_ptr<PendingProducts> products_;
  Bytes of_this_process_;  // the batch of a round that the owner itself has run
  KeptRows kept_inputs_, kept_delta_;
  Held held_;                   // the same of a GPU, on every process
  std::vector<Held> received_;  // from all groups, in their order
};

// Stands for sums that another process of the only group has.
class AbsentAdder : public RidgeAdder {
 public:
  void Add(const SiteRows&, const RowWeights&) override { Fail("rows for sums that another process has"); }
  void Complete() override {}
};

// The rows of a site whose blocks several parts of a split model hold.
class PartTransfer : public RowTransfer {
 public:
  // `first`, `last`: the first and the last block of the site in this process, if another process has the block before
  // the first, or after the last.
  PartTransfer(Processes& processes, std::optional<int64_t> first, std::optional<int64_t> last, int channel)
      : processes_(processes), first_(first), last_(last), channel_(channel) {}

  void Before(int64_t layer, std::span<KeptRows* const> kept, const Rows& alike) override {
    if (layer != first_) return;
    const Bytes message = processes_.Receive(processes_.rank() - 1, channel_);
    Unpacker in(message);
    for (KeptRows* const rows : kept) {
      Matrix<float> values(alike.count(), alike.hidden());
      in.Get(values.span());
      rows->SetThere(values.view(), alike);
    }
  }
  void After(int64_t layer, std::span<KeptRows* const> kept) override {
    if (layer != last_) return;
    Packer packer;
    for (const KeptRows* const rows : kept) {
      const HostRows host = rows->rows().ToHost();
      const MatrixView<const float> view = host.view();
      packer.Put(std::span(view.data, view.rows * view.cols));
    }
    processes_.Send(processes_.rank() + 1, channel_, packer.Take());
  }

 private:
  Processes& processes_;
  const std::optional<int64_t> first_, last_;
  const int channel_;
};

class ExchangedCollector : public Collector {
 public:
  ExchangedCollector(const Context& context, std::unique_ptr<Collector> own, const Weights& weights)
      : processes_(context.processes),
        on_gpu_(context.device == Device::kCuda),
        own_(std::move(own)),
        shares_(weights.shares),
        share_(weights.share) {
    if (processes_->groups() == 1) return;
    Check(own_->devices() == 1, "a process that shares batches with others has {} GPUs, not one", own_->devices());
    exchange_ = own_->MakeExchange(context);
  }

  int64_t devices() const override { return own_->devices(); }
  std::unique_ptr<DeviceRidgeSums> MakeRidgeSums(RidgeMatrices& into) override { return own_->MakeRidgeSums(into); }
  std::unique_ptr<PendingProducts> MakeProducts() override { return own_->MakeProducts(); }

  std::vector<std::unique_ptr<RidgeAdder>> MakeAdders(const std::vector<RidgeSite>& sites) override {
    // All processes have the same channels, also where one has no memory for its adders.
    std::vector<int> channels;
    for (size_t i = 0; i < sites.size(); ++i) channels.push_back(processes_->NewChannel());
    std::vector<std::unique_ptr<RidgeAdder>> adders;
    for (size_t i = 0; i < sites.size(); ++i) {
      const RidgeSite& site = sites[i];
      const int owner = OwnerOf(site, channels[i]);
      if (!shares_.empty()) site.into.totals.holder = owner;
      if (processes_->groups() > 1) {
        auto adder = std::make_unique<ListedAdder>(*this, site, channels[i], owner);
        adders.push_back(std::move(adder));
      } else if (owner == processes_->rank()) {
        adders.push_back(std::move(own_->MakeAdders({site}).front()));
      } else {
        adders.push_back(std::make_unique<AbsentAdder>());
      }
    }
    return adders;
  }

  std::unique_ptr<RowTransfer> MakeTransfer(int64_t first, int64_t last) override {
    if (shares_.empty()) return nullptr;
    const int channel = processes_->NewChannel();  // in all processes
    const ModelShare& share = shares_[share_];
    const auto before = share.begin > first ? std::optional(share.begin) : std::nullopt,
               after = share.end <= last ? std::optional(share.end - 1) : std::nullopt;
    if (!before && !after) return nullptr;
    return std::make_unique<PartTransfer>(*processes_, before, after, channel);
  }

  void ForEachBatch(int64_t count, const std::function<void(int64_t)>& run,
                    const std::function<void(int64_t, int64_t, bool)>& ended) override {
    int64_t rounds = 0;
    processes_->InRounds(count, [&](const Round& round) {
      const auto mine = [&] {
        if (round.mine) run(*round.mine);
      };
      on_gpu_ ? WithMemoryForBatch(*processes_, mine) : mine();
      EndRound(round.present);
      const bool together = ++rounds % processes_->RoundsTogether() == 0 || round.end() == count;
      if (together) {
        ReceiveRecords();
        processes_->Flush();
      }
      ended(round.first, round.end(), together);
    });
  }

  void InMemory(const std::function<void()>& call) override { on_gpu_ ? WithMemoryForAll(*processes_, call) : call(); }

  bool Exchanges(ExchangedRecords* records) override {
    records_.push_back({records, {}});
    return true;
  }

 private:
  // An adder that takes part in the rounds of the collector as long as it lives. It may outlive the collector.
  class ListedAdder : public ExchangedAdder {
   public:
    ListedAdder(ExchangedCollector& collector, const RidgeSite& site, int channel, int owner)
        : ExchangedAdder(*collector.processes_, *collector.own_, collector.exchange_.get(), site, channel, owner),
          list_(collector.adders_) {
      list_->push_back(this);
    }
    ~ListedAdder() override { std::erase(*list_, this); }

   private:
    const std::shared_ptr<std::vector<ExchangedAdder*>> list_;
  };

  struct ProbeRecords {
    ExchangedRecords* records;
    std::vector<Bytes> rounds;  // messages that this process has written since the last exchange
  };

  int OwnerOf(const RidgeSite& site, int channel) const {
    if (shares_.empty()) return processes_->Owner(channel);
    const auto share =
        std::find_if(shares_.begin(), shares_.end(), [&](const ModelShare& one) { return one.Has(site.last_layer); });
    return processes_->RankOf(static_cast<int>(site.first_layer % processes_->groups()),
                              static_cast<int>(share - shares_.begin()));
  }

  void EndRound(int64_t present) {
    for (ProbeRecords& probe : records_) probe.rounds.push_back(probe.records->written.Take());
    if (exchange_ != nullptr && !adders_->empty()) {
      for (ExchangedAdder* const adder : *adders_) adder->Offer(present);
      exchange_->Run();
    }
    for (ExchangedAdder* const adder : *adders_) adder->Take(present);
  }

  // Every process receives the records of the batches of all groups in their order. Of the processes that hold a model
  // together, each has written the records of its own blocks.
  void ReceiveRecords() {
    for (ProbeRecords& probe : records_) {
      Packer mine;
      for (const Bytes& round : probe.rounds) mine.PutAll(round);
      const std::vector<Bytes> all = processes_->Gather(mine.Take());
      std::vector<Unpacker> in(all.begin(), all.end());
      for (size_t round = 0; round < probe.rounds.size(); ++round)
        for (Unpacker& process : in) {
          const Bytes batch = process.GetAll<std::byte>();
          probe.records->Receive(Unpacker(batch));
        }
      probe.rounds.clear();
    }
  }

  std::shared_ptr<Processes> processes_;
  const bool on_gpu_;
  std::unique_ptr<Collector> own_;
  const std::vector<ModelShare> shares_;
  const size_t share_;
  std::unique_ptr<RowExchange> exchange_;
  std::shared_ptr<std::vector<ExchangedAdder*>> adders_ = std::make_shared<std::vector<ExchangedAdder*>>();
  std::vector<ProbeRecords> records_;
};

// Says which process has no memory.
class OutOfMemoryElsewhere : public OutOfMemory {
 public:
  explicit OutOfMemoryElsewhere(std::string what) : OutOfMemory("", 0, 0, 0), what_(std::move(what)) {}
  const char* what() const noexcept override { return what_.c_str(); }

 private:
  std::string what_;
};

}  // namespace

std::unique_ptr<Collector> MakeExchangedCollector(const Context& context, std::unique_ptr<Collector> own,
                                                  const Weights& weights) {
  return std::make_unique<ExchangedCollector>(context, std::move(own), weights);
}

std::vector<KeptRows> EveryOf(const Context& context, std::span<const KeptRows> streams, int64_t step) {
  Processes& processes = *context.processes;
  const int64_t count = (std::ssize(streams) + step - 1) / step;
  const int channel = processes.NewChannel();
  const auto has = [&](int64_t batch) { return processes.Mine(batch); };
  std::vector<KeptRows> some(count);
  for (int64_t i = 0; i < count; ++i) {
    if (!has(i * step)) continue;
    const Rows rows = streams[i * step].rows();
    if (has(i)) {
      some[i].Set(rows);
      continue;
    }
    Packer packer;
    Write(packer, Copied(rows));
    processes.Send(processes.RankOf(static_cast<int>(i % processes.groups()), processes.part()), channel,
                   packer.Take());
  }
  for (int64_t i = 0; i < count; ++i) {
    if (!has(i) || has(i * step)) continue;
    const int from = processes.RankOf(static_cast<int>(i * step % processes.groups()), processes.part());
    const Bytes message = processes.Receive(from, channel);
    Unpacker in(message);
    Matrix<float> rows;
    Read(in, rows);
    some[i].SetThere(rows.view(), streams[i % processes.groups()].rows());
  }
  return some;
}

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

}  // namespace shiftrt
