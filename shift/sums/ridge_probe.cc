// SPDX-License-Identifier: Apache-2.0
#include "shift/sums/ridge_probe.h"

#include <algorithm>

#include "shift/sums/row_norm.h"

namespace shiftrt {

// The stream before the block that runs, and after its attention.
struct RidgeProbe::Shared {
  KeptRows before, after_attention;
};

// Takes the rows of one site while a batch runs.
class RidgeProbe::SiteTaps {
 public:
  // `shared` serves every site within one block that reads the stream: the next block's input comes after its updates.
  SiteTaps(const RidgeProbe& probe, int64_t part, Shared& shared)
      : entry_(probe.entries_[part]),
        site_(entry_.site),
        adder_(*probe.adders_[part - probe.begin_]),
        transfer_(probe.transfers_[part - probe.begin_].get()),
        before_(shared.before),
        norm_(entry_.input == SiteInput::kNormed ? std::make_unique<RowNorm>(*probe.context_, probe.weights_)
                                                 : nullptr),
        input_(site_.blocks > 1 || !IsStream(entry_.input) ? &own_
               : site_.from_mlp                            ? &shared.after_attention
                                                           : &shared.before) {}

  void AddTo(std::vector<Tap>& taps) {
    const auto keep = [this](const Rows& h, const Batch&) { input_->Set(h); };
    if (!IsStream(entry_.input)) {
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
    KeptRows* const kept[] = {input_, &sum_};
    if (part.begin() == site_.begin()) {
      sum_.Set(update);
    } else {
      if (transfer_ != nullptr) transfer_->Before(part.layer, kept, update);
      sum_.Add(update);
    }
    if (part.end() == site_.end()) return Finish(sum_.rows(), batch);
    if (transfer_ != nullptr) transfer_->After(part.layer, kept);
  }

  void Finish(const Rows& update, const Batch& batch) {
    const Rows stream = input_->rows();
    const SiteRows rows = {norm_ != nullptr ? norm_->Of(stream) : stream, stream, update};
    adder_.Add(rows, RowWeightsOf(entry_.weighting, rows, batch));
  }

  const Entry& entry_;
  const Site& site_;
  RidgeAdder& adder_;
  RowTransfer* const transfer_;  // or null
  KeptRows& before_;
  const std::unique_ptr<RowNorm> norm_;  // or null
  KeptRows own_, sum_;                   // unused by a site of one block that reads the shared stream
  KeptRows* input_;
};

struct RidgeProbe::OnDevice {
  Shared shared;
  std::deque<SiteTaps> sites;
};

void RidgeProbe::Begin(Collector& collector, int64_t begin, int64_t end) {
  devices_.clear();
  adders_.clear();
  begin_ = begin;
  end_ = end;
  run_batches_ = 0;
  const bool whole = end - begin == parts();
  for (size_t i = staged_.size(); !whole && i < entries_.size(); ++i) staged_.push_back(entries_[i].sums->Clone());
  transfers_.clear();
  std::vector<RidgeSite> sites;
  for (int64_t i = begin; i < end; ++i) {
    const Site& site = entries_[i].site;
    transfers_.push_back(collector.MakeTransfer(site.layer, site.last()));
    sites.push_back({(whole ? *entries_[i].sums : staged_[i]).matrices(), site.layer, site.last(), site.Name()});
  }
  adders_ = collector.MakeAdders(sites);
}

std::vector<Tap> RidgeProbe::Taps() {
  OnDevice& device = *devices_.emplace_back(std::make_shared<OnDevice>());
  std::vector<Tap> taps;
  for (int64_t i = begin_; i < end_; ++i) device.sites.emplace_back(*this, i, device.shared).AddTo(taps);
  return taps;
}

void RidgeProbe::Complete(int64_t batches) {
  for (const std::unique_ptr<RidgeAdder>& adder : adders_) adder->Complete();
  for (int64_t i = begin_; !staged_.empty() && i < end_; ++i) staged_[i].ToHost();  // the next group needs the room
  run_batches_ += batches;
  if (!staged_.empty() || batches_ == nullptr) return;
  *batches_ += batches;
}

void RidgeProbe::End() {
  devices_.clear();
  adders_.clear();
  if (staged_.empty() || end_ < parts()) return;
  for (size_t i = 0; i < entries_.size(); ++i) *entries_[i].sums = std::move(staged_[i]);
  staged_.clear();
  if (batches_ != nullptr) *batches_ += run_batches_;
}

}  // namespace shiftrt
