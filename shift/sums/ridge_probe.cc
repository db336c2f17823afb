#include "shift/sums/ridge_probe.h"

namespace shiftrt {

// What goes by at one site while a batch runs.
class RidgeProbe::SiteTaps {
 public:
  // `shared` serves every site of one block that reads the stream: the next site's input comes after its update.
  SiteTaps(const Target& target, RidgeFeed& feed, KeptRows& shared)
      : site_(target.site),
        target_(target),
        feed_(feed),
        input_(site_.blocks > 1 || target.input != SiteInput::kStream ? &own_ : &shared) {}

  void AddTo(std::vector<Tap>& taps) {
    const auto keep = [this](const Rows& h, const Batch&) { input_->Set(h); };
    if (target_.input == SiteInput::kStream) {
      taps.push_back({site_.layer, TapPoint::kInput, keep});
    } else {
      taps.push_back({site_.layer - 1, TapPoint::kMlp, keep});
    }
    for (int64_t layer = site_.layer; layer <= site_.last(); ++layer)
      taps.push_back({layer, TapPoint::kUpdate,
                      [this, layer](const Rows& update, const Batch& batch) { Take(layer, update, batch); }});
  }

 private:
  void Take(int64_t layer, const Rows& update, const Batch& batch) {
    if (site_.blocks == 1) return Finish(update, batch);
    if (layer == site_.layer) {
      sum_.Set(update);
    } else {
      sum_.Add(update);
    }
    if (layer == site_.last()) Finish(sum_.rows(), batch);
  }

  void Finish(const Rows& update, const Batch& batch) {
    feed_.Add(input_->rows(), update, target_.weighting, batch.offsets);
  }

  const Site& site_;
  const Target& target_;
  RidgeFeed& feed_;
  KeptRows own_, sum_;  // where needed
  KeptRows* input_;
};

struct RidgeProbe::Lane {
  KeptRows shared;
  std::deque<SiteTaps> sites;
};

void RidgeProbe::Begin(Tally& tally, int64_t begin, int64_t end) {
  lanes_.clear();
  feeds_.clear();
  begin_ = begin;
  end_ = end;
  heard_ = 0;
  const bool whole = end - begin == parts();
  for (size_t i = staged_.size(); !whole && i < targets_.size(); ++i) staged_.push_back(targets_[i].sums->Clone());
  for (int64_t i = begin; i < end; ++i)
    feeds_.emplace_back(tally, targets_[i].site, whole ? *targets_[i].sums : staged_[i]);
}

std::vector<Tap> RidgeProbe::Taps() {
  Lane& lane = *lanes_.emplace_back(std::make_shared<Lane>());
  std::vector<Tap> taps;
  for (int64_t i = begin_; i < end_; ++i)
    lane.sites.emplace_back(targets_[i], feeds_[i - begin_], lane.shared).AddTo(taps);
  return taps;
}

void RidgeProbe::Settle(int64_t batches) {
  for (RidgeFeed& feed : feeds_) feed.Settle();
  heard_ += batches;
  if (!staged_.empty() || batches_ == nullptr) return;
  *batches_ += batches;
}

void RidgeProbe::End() {
  lanes_.clear();
  feeds_.clear();
  if (staged_.empty() || end_ < parts()) return;
  for (size_t i = 0; i < targets_.size(); ++i) *targets_[i].sums = std::move(staged_[i]);
  staged_.clear();
  if (batches_ != nullptr) *batches_ += heard_;
}

}  // namespace shiftrt
