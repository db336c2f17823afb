// SPDX-License-Identifier: Apache-2.0
#include "engine/model_part.h"

#include "runtime/check.h"

namespace shiftrt {

namespace {

// The first stage after the last block before `layer`. An adapter thus belongs to the process of the block that
// follows it, whatever part of a plan is given.
int64_t EndOfBlocksBefore(std::span<const Stage> stages, int64_t layer) {
  int64_t end = 0;
  for (int64_t i = 0; i < std::ssize(stages); ++i)
    if (stages[i].Visit([&](const BlockStage& block) { return block.layer < layer; },
                        [](const AdapterStage&) { return false; }))
      end = i + 1;
  return end;
}

}  // namespace

ModelPart::ModelPart(std::shared_ptr<Processes> processes, std::shared_ptr<const Weights> weights)
    : processes_(std::move(processes)), weights_(std::move(weights)) {
  // Work that every process does by itself comes here alone.
  if (std::ssize(weights_->shares) != processes_->parts()) weights_->RequireWhole("this");
}

std::span<const Stage> ModelPart::Mine(std::span<const Stage> stages) const {
  const int64_t begin = share().first ? 0 : EndOfBlocksBefore(stages, share().begin);
  const int64_t end = share().last ? std::ssize(stages) : EndOfBlocksBefore(stages, share().end);
  return stages.subspan(begin, end - begin);
}

Rows ModelPart::TakeOver(const LayerCall& call) {
  const Bytes message = processes_->TakeOver();
  taken_over_ = Matrix<float>(call.batch.size(), weights_->config.hidden);
  Unpacker in(message);
  in.Get(taken_over_.span());
  Check(in.done(), "{} has passed on the stream of another batch", processes_->Name(processes_->rank() - 1));
  return taken_over_.view();
}

Rows ModelPart::Run(const LayerCall& call, const TapSet& taps, const std::function<Rows(const LayerCall&)>& run) {
  const std::span<const Stage> mine = Mine(call.stages);
  const bool from_start = call.residual == nullptr, at_first = mine.data() == call.stages.data();
  // A continued stream begins in the process of its first stage. The processes before that one do nothing.
  if (!from_start && at_first && mine.empty()) return *call.residual;
  const auto used = [&](int64_t layer) { return !call.taps_only || taps.HasFrom(layer); };
  if (!share().first && !used(share().begin)) return {};
  const bool takes_over = from_start ? !share().first : !at_first, passes_on = !share().last && used(share().end);

  LayerCall part = call;
  part.stages = mine;
  part.taps_only = call.taps_only && !passes_on;
  if (!share().last) part.draw = nullptr;
  const auto after = call.stages.subspan(mine.data() + mine.size() - call.stages.data());
  if (!after.empty() && call.next >= 0)
    part.next = after.front().Visit([](const BlockStage& block) { return block.layer; },
                                    [](const AdapterStage&) { return int64_t{-1}; });
  Rows taken;
  if (takes_over) {
    taken = TakeOver(call);
    part.residual = &taken;
  }
  const Rows stream = run(part);
  if (passes_on) {
    const HostRows host = stream.ToHost();
    const MatrixView<const float> view = host.view();
    processes_->PassOn(Packer(view.rows * view.cols * 4).Put(std::span(view.data, view.rows * view.cols)).Take());
  }
  return call.taps_only ? Rows() : stream;
}

int32_t ModelPart::Token(int32_t chosen) {
  const Bytes message = processes_->FromLast(Packer().Put(chosen).Take());
  return Unpacker(message).Get<int32_t>();
}

}  // namespace shiftrt
