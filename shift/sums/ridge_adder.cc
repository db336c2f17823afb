// SPDX-License-Identifier: Apache-2.0
#include "shift/sums/ridge_adder.h"

#include <algorithm>

#include "runtime/check.h"

namespace shiftrt {

RidgeAdder::RidgeAdder(Tally& tally, const Site& site, RidgeSums& into, int channel, int holder)
    : site_(site),
      into_(into),
      processes_(tally.processes()),
      channel_(channel),
      holder_(holder),
      owner_(holder >= 0 ? holder : processes_.Owner(channel_)),
      exchange_(tally.exchange()),
      delta_squares_(into.DeltaSquares()),
      tokens_(into.tokens()) {
  if (processes_.rank() == owner_) sums_ = tally.MakeRidgeSums(into.matrices());
  for (int64_t i = 0; i < tally.devices(); ++i) pending_.push_back(tally.MakeProducts());
}

void RidgeAdder::Add(const Tokens& tokens, const TokenWeighting& weighting, const Batch& batch) {
  const auto& [inputs, stream, delta] = tokens;
  if (exchange_ != nullptr) return Hold(tokens, weighting, batch);
  if (processes_.groups() > 1) {
    Bytes message = Packed(tokens, weighting, batch);
    if (processes_.rank() == owner_) {
      own_ = std::move(message);
    } else {
      processes_.Send(owner_, channel_, std::move(message));
    }
    return;
  }
  PendingProducts& products = *pending_[turn_];
  turn_ = (turn_ + 1) % pending_.size();
  Count(products.Take(), {});
  products.Start(stream, delta);
  tokens_ += stream.count();
  if (weighting.uniform()) return sums_->Add(inputs, delta, {});
  const std::vector<RowProducts> now = products.Take();
  const std::vector<double> weights = weighting.Weights(now, stream, delta, {batch, site_.last()});
  Count(now, weights);
  sums_->Add(inputs, delta, weights);
}

// What Add takes of these rows, computed here: only the additions are the owner's.
Bytes RidgeAdder::Packed(const Tokens& tokens, const TokenWeighting& weighting, const Batch& batch) {
  const auto& [inputs, stream, delta] = tokens;
  PendingProducts& pending = *pending_.front();
  pending.Start(stream, delta);
  const std::vector<RowProducts> products = pending.Take();
  std::vector<double> weights;
  if (!weighting.uniform()) weights = weighting.Weights(products, stream, delta, {batch, site_.last()});
  Packer packer(RowsBytes(stream.count(), inputs.hidden(), delta.hidden(), !weights.empty()));
  packer.PutAll(products).PutAll(weights);
  for (const Rows* rows : {&inputs, &delta}) {
    const HostRows host = rows->ToHost();
    const MatrixView<const float> view = host.view();
    packer.Put(view.cols);
    for (int64_t t = 0; t < view.rows; ++t) packer.Put(std::span(view.row(t), view.cols));
  }
  return packer.Take();
}

void RidgeAdder::AddPacked(const Bytes& message) {
  Unpacker in(message);
  const auto products = in.GetAll<RowProducts>();
  const auto weights = in.GetAll<double>();
  Matrix<float> rows[2];
  for (Matrix<float>& matrix : rows) {
    matrix = Matrix<float>(std::ssize(products), in.Get<int64_t>());
    in.Get(matrix.span());
  }
  Count(products, weights);
  tokens_ += std::ssize(products);
  sums_->Add(Rows(rows[0].view()), Rows(rows[1].view()), weights);
}

// Where all tokens count alike, the products are waited for when the round ends.
void RidgeAdder::Hold(const Tokens& tokens, const TokenWeighting& weighting, const Batch& batch) {
  const auto& [inputs, stream, delta] = tokens;
  kept_inputs_.Set(inputs);
  kept_delta_.Set(delta);
  held_ = {{}, {}, kept_inputs_.rows(), kept_delta_.rows()};
  pending_.front()->Start(stream, delta);
  if (weighting.uniform()) return;
  held_.products = pending_.front()->Take();
  held_.weights = weighting.Weights(held_.products, stream, delta, {batch, site_.last()});
}

void RidgeAdder::Add(const Held& held) {
  Count(held.products, held.weights);
  tokens_ += held.delta.count();
  sums_->Add(held.inputs, held.delta, held.weights);
}

// To the exchange, what goes between GPUs.
void RidgeAdder::Offer(int64_t present) {
  const bool mine = processes_.group() < present && owner_ % processes_.parts() == processes_.part();
  if (mine && held_.products.empty()) held_.products = pending_.front()->Take();
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

void RidgeAdder::Take(int64_t present) {
  if (processes_.groups() == 1 || processes_.rank() != owner_) return;
  if (exchange_ != nullptr) {
    for (const Held& held : received_) Add(held);
    return;
  }
  for (int group = 0; group < present; ++group) {
    const int rank = processes_.RankOf(group, processes_.part());
    AddPacked(rank == owner_ ? std::exchange(own_, {}) : processes_.Receive(rank, channel_));
  }
}

void RidgeAdder::EndRound(std::span<RidgeAdder* const> adders, int64_t present) {
  if (adders.empty()) return;
  if (RowExchange* const exchange = adders.front()->exchange_) {
    for (RidgeAdder* const adder : adders) adder->Offer(present);
    exchange->Run();
  }
  for (RidgeAdder* const adder : adders) adder->Take(present);
}

// As Packed() writes it: products, weights and both kinds of rows, each after their number.
int64_t RidgeAdder::RowsBytes(int64_t tokens, int64_t inputs, int64_t hidden, bool weighted) {
  const auto each = static_cast<int64_t>(sizeof(RowProducts) + (weighted ? sizeof(double) : 0)) + 4 * (inputs + hidden);
  return tokens * each + 4 * int64_t{8};
}

// As Share() writes it: both totals, the upper triangle of the Gram, the products.
int64_t RidgeAdder::SharedBytes(int64_t inputs, int64_t hidden) {
  const int64_t n = inputs + 1;
  return 8 * (2 + n * (n + 1) / 2 + n * hidden);
}

// The sums of the owner become everyone's. The lower triangle of the Gram is never read.
void RidgeAdder::Share() {
  Packer packer(processes_.rank() == owner_ ? SharedBytes(into_.inputs(), into_.hidden()) : 0);
  if (processes_.rank() == owner_) {
    const MatrixView<const double> gram = into_.UpperGram();
    packer.Put(into_.tokens()).Put(into_.DeltaSquares());
    for (int64_t i = 0; i < gram.rows; ++i) packer.Put(std::span(gram.row(i) + i, gram.cols - i));
    packer.Put(std::span<const double>(into_.Cross().span()));
  }
  const Bytes message = processes_.Broadcast(owner_, packer.Take());
  if (processes_.rank() == owner_) return;
  Unpacker in(message);
  const auto tokens = in.Get<int64_t>();
  into_.SetTotals(tokens, in.Get<double>());
  const RidgeSumsView sums = into_.matrices().ToWrite();
  for (int64_t i = 0; i < sums.gram.rows; ++i) in.Get(std::span(sums.gram.row(i) + i, sums.gram.cols - i));
  for (int64_t i = 0; i < sums.cross.rows; ++i) in.Get(std::span(sums.cross.row(i), sums.cross.cols));
}

void RidgeAdder::Count(std::span<const RowProducts> products, std::span<const double> weights) {
  try {
    delta_squares_ += CheckedDeltaSquares(products, weights);
  } catch (const Error& error) {
    Fail("calibrating layer {}: {}", site_.Name(), error.what());
  }
}

void RidgeAdder::Settle() {
  for (size_t i = 0; i < pending_.size(); ++i) Count(pending_[(turn_ + i) % pending_.size()]->Take(), {});
  if (sums_ != nullptr) sums_->Store();
  if (processes_.rank() == owner_) into_.SetTotals(tokens_, delta_squares_);
  if (holder_ < 0 && !processes_.alone()) Share();
}

}  // namespace shiftrt
