// SPDX-License-Identifier: Apache-2.0
#include "shift/sums/ridge_probe.h"

#include <algorithm>

namespace shiftrt {

// The stream before the block that runs, and behind its attention.
struct RidgeProbe::Shared {
  KeptRows before, behind_attention;
};

// What goes by at one site while a batch runs.
class RidgeProbe::SiteTaps {
 public:
  // `shared` serves every site within one block that reads the stream: the next block's input comes after its updates.
  SiteTaps(const Entry& entry, RidgeAdder& adder, const std::optional<Border>& border, Shared& shared)
      : site_(entry.site),
        entry_(entry),
        adder_(adder),
        border_(border),
        before_(shared.before),
        input_(site_.blocks > 1 || entry.input != SiteInput::kStream ? &own_
               : site_.from_mlp                                      ? &shared.behind_attention
                                                                     : &shared.before) {}

  void AddTo(std::vector<Tap>& taps) {
    const auto keep = [this](const Rows& h, const Batch&) { input_->Set(h); };
    if (entry_.input != SiteInput::kStream) {
      taps.push_back({site_.layer - 1, TapPoint::kMlp, keep});
    } else if (!site_.from_mlp) {
      taps.push_back({site_.layer, TapPoint::kInput, keep});
    } else {
      taps.push_back({site_.layer, TapPoint::kInput, [this](const Rows& h, const Batch&) { before_.Set(h); }});
      taps.push_back({site_.layer, TapPoint::kAttention, [this](const Rows& update, const Batch&) {
                        input_->Set(before_.rows());
                        input_->Add(update);
                      }});
    }
    for (const BlockPart& part : site_.Parts())
      taps.push_back({part.layer, UpdateOf(part.halves),
                      [this, part](const Rows& update, const Batch& batch) { Take(part, update, batch); }});
  }

 private:
  static TapPoint UpdateOf(Halves halves) {
    return halves == Halves::kBoth ? TapPoint::kUpdate : halves == Halves::kMlp ? TapPoint::kMlp : TapPoint::kAttention;
  }

  void Take(const BlockPart& part, const Rows& update, const Batch& batch) {
    if (site_.blocks == 1) return Finish(update, batch);
    if (part.begin() == site_.begin()) {
      sum_.Set(update);
    } else {
      if (border_ && part.layer == border_->first) TakeOver(update);
      sum_.Add(update);
    }
    if (part.end() == site_.end()) return Finish(sum_.rows(), batch);
    if (border_ && part.layer == border_->last) PassOn();
  }

  // Of rows like `alike`.
  void TakeOver(const Rows& alike) {
    const Bytes message = border_->processes->Receive(border_->processes->rank() - 1, border_->channel);
    Unpacker in(message);
    for (KeptRows* const rows : {input_, &sum_}) {
      Matrix<float> values(alike.count(), alike.hidden());
      in.Get(values.span());
      rows->SetThere(values.view(), alike);
    }
  }
  void PassOn() {
    Packer packer;
    for (const KeptRows* const rows : {input_, &sum_}) {
      const HostRows host = rows->rows().ToHost();
      const MatrixView<const float> view = host.view();
      packer.Put(std::span(view.data, view.rows * view.cols));
    }
    border_->processes->Send(border_->processes->rank() + 1, border_->channel, packer.Take());
  }

  void Finish(const Rows& update, const Batch& batch) {
    adder_.Add({input_->rows(), input_->rows(), update}, entry_.weighting, batch);
  }

  const Site& site_;
  const Entry& entry_;
  RidgeAdder& adder_;
  const std::optional<Border>& border_;
  KeptRows& before_;
  KeptRows own_, sum_;  // where needed
  KeptRows* input_;
};

struct RidgeProbe::OnDevice {
  Shared shared;
  std::deque<SiteTaps> sites;
};

void RidgeProbe::Begin(Tally& tally, int64_t begin, int64_t end) {
  devices_.clear();
  adders_.clear();
  begin_ = begin;
  end_ = end;
  heard_ = 0;
  const bool whole = end - begin == parts();
  for (size_t i = staged_.size(); !whole && i < entries_.size(); ++i) staged_.push_back(entries_[i].sums->Clone());
  // All processes have the same channels, also where one has no memory for its adders.
  const bool split = weights_ != nullptr && weights_->split();
  std::vector<int> channels, border_channels;
  for (int64_t i = begin; i < end; ++i) {
    channels.push_back(tally.processes().NewChannel());
    if (split) border_channels.push_back(tally.processes().NewChannel());
  }
  for (int64_t i = begin; i < end; ++i)
    adders_.emplace_back(tally, entries_[i].site, whole ? *entries_[i].sums : staged_[i], channels[i - begin],
                         entries_[i].holder);
  borders_.assign(end - begin, {});
  if (!split) return;
  const ModelShare& share = weights_->shares[weights_->share];
  for (int64_t i = begin; i < end; ++i) {
    const Site& site = entries_[i].site;
    const int64_t first = std::max(site.layer, share.begin), last = std::min(site.last(), share.end - 1);
    if (first > site.layer || last < site.last())
      borders_[i - begin] = Border{&tally.processes(), border_channels[i - begin], first, last};
  }
}

std::vector<Tap> RidgeProbe::Taps() {
  OnDevice& device = *devices_.emplace_back(std::make_shared<OnDevice>());
  std::vector<Tap> taps;
  for (int64_t i = begin_; i < end_; ++i)
    device.sites.emplace_back(entries_[i], adders_[i - begin_], borders_[i - begin_], device.shared).AddTo(taps);
  return taps;
}

void RidgeProbe::EndRound(int64_t present) {
  std::vector<RidgeAdder*> adders;
  for (RidgeAdder& adder : adders_) adders.push_back(&adder);
  RidgeAdder::EndRound(adders, present);
}

void RidgeProbe::Settle(int64_t batches) {
  for (RidgeAdder& adder : adders_) adder.Settle();
  for (int64_t i = begin_; !staged_.empty() && i < end_; ++i) staged_[i].ToHost();  // the next group needs the room
  heard_ += batches;
  if (!staged_.empty() || batches_ == nullptr) return;
  *batches_ += batches;
}

void RidgeProbe::End() {
  devices_.clear();
  adders_.clear();
  if (staged_.empty() || end_ < parts()) return;
  for (size_t i = 0; i < entries_.size(); ++i) *entries_[i].sums = std::move(staged_[i]);
  staged_.clear();
  if (batches_ != nullptr) *batches_ += heard_;
}

}  // namespace shiftrt
