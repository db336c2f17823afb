// SPDX-License-Identifier: Apache-2.0
#include "engine/cuda/call.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "engine/cuda/scratch.h"
#include "kernels/cuda/rowwise.h"
#include "runtime/check.h"

namespace shiftrt {

namespace {

const CudaKv& CacheOf(const Continued& continued) { return static_cast<const CudaKv&>(*continued.cache); }

}  // namespace

CudaCall::CudaCall(const Context& context, std::shared_ptr<const Weights> weights)
    : weights_(std::move(weights)), device_(OnDevice(context, weights_, context.gpus.front())) {
  ropes_.emplace_back(stream(), config().rope, config().head_dim);
  if (std::find(spec().ropes.begin(), spec().ropes.end(), RopeChoice::kSecond) != spec().ropes.end())
    ropes_.emplace_back(stream(), config().second_rope, config().head_dim);
}

bool CudaCall::Begin(const LayerCall& call) {
  caches_ = call.continued.empty() ? nullptr : CacheOf(call.continued.front()).pool.get();
  const int64_t count = call.batch.size(), vocab = config().vocab;
  const CallLayout layout = LayOut(call);
  constexpr int64_t kSequenceWords = sizeof(gpu::PackedSequence) / sizeof(int32_t),
                    kRangeWords = sizeof(gpu::DeltaRange) / sizeof(int32_t);
  const auto joined_count = std::ssize(layout.joined_rows), sequence_count = std::ssize(layout.sequences);
  const bool cached = caches_ != nullptr;
  delta_ranges_ = {};
  if (spec().gated_delta && (!cached || caches_->recurrent())) delta_ranges_ = DeltaRangesOf(call, layout);
  const auto range_words = kRangeWords * std::ssize(delta_ranges_.ranges);
  const int64_t total = (cached ? 5 : 4) * count + joined_count + kSequenceWords * sequence_count + range_words;
  std::vector<int32_t> host(total);
  // In the order in which BeginOnChosen() has them: recorded launches read the numbers of either.
  int32_t *tokens = host.data(), *rotations = tokens + count, *cache_rows = rotations + count,
          *first_row = cache_rows + (cached ? count : 0), *visible = first_row + count, *joined = visible + count,
          *sequence = joined + joined_count, *ranges = sequence + kSequenceWords * sequence_count;
  step_ = {};
  step_.count = count;
  int64_t reach = 0;  // the most positions of a sequence
  for (int64_t t = 0; t < count; ++t) {
    tokens[t] = call.batch.tokens[t];
    Check(tokens[t] >= 0 && tokens[t] < vocab, "token {} at position {} is outside the vocabulary of {}", tokens[t], t,
          vocab);
  }
  for (size_t i = 0; i < layout.sequences.size(); ++i) {
    const CallLayout::Sequence& s = layout.sequences[i];
    const auto begin = static_cast<int32_t>(s.begin), past = static_cast<int32_t>(s.past);
    const int64_t first_key = cached ? CacheOf(call.continued[i]).first : s.joined < 0 ? s.begin : count + s.joined;
    const auto kv_begin = static_cast<int32_t>(first_key),
               first_rotation = static_cast<int32_t>(ropes_.front().FirstRow(s.reach));
    const gpu::PackedSequence packed{begin, static_cast<int32_t>(s.count), past, kv_begin};
    std::memcpy(sequence + static_cast<int64_t>(i) * kSequenceWords, &packed, sizeof(packed));
    step_.longest = std::max(step_.longest, s.count);
    step_.longest_keys = std::max(step_.longest_keys, cached ? CacheOf(call.continued[i]).capacity : s.past + s.count);
    reach = std::max(reach, s.reach);
    for (int32_t t = begin; t < s.begin + s.count; ++t) {
      const int32_t position = past + t - begin;
      rotations[t] = first_rotation + position;
      first_row[t] = kv_begin;
      visible[t] = position + 1;
      if (cached) cache_rows[t] = kv_begin + position;
    }
  }
  std::copy(layout.joined_rows.begin(), layout.joined_rows.end(), joined);
  if (range_words > 0)
    std::memcpy(ranges, delta_ranges_.ranges.data(), static_cast<size_t>(range_words) * sizeof(int32_t));
  step_.one_each = cached && sequence_count > 1 && step_.longest == 1;
  // A power of two, so that recorded launches last while replies end. More idle blocks do not change attention's bits.
  if (step_.one_each)
    step_.longest_keys = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(step_.longest_keys)));
  const bool moved = ExtendRopes(reach) || (total > numbers_.size());
  const int32_t* const there = numbers_.Reserve(stream(), std::max<int64_t>(1, total), kActivations);
  gpu::CopyToDevice(stream(), numbers_.data(), host.data(), total * static_cast<int64_t>(sizeof(int32_t)));
  const auto at = [&](const int32_t* on_host) { return there + (on_host - host.data()); };
  step_.tokens = at(tokens);
  step_.rotations = at(rotations);
  step_.first_row = at(first_row);
  step_.visible = at(visible);
  step_.joined_rows = at(joined);
  step_.joined_count = joined_count;
  step_.sequences = reinterpret_cast<const gpu::PackedSequence*>(at(sequence));
  step_.sequence_count = sequence_count;
  step_.cache_rows = cached ? at(cache_rows) : nullptr;
  step_.delta_ranges = reinterpret_cast<const gpu::DeltaRange*>(at(ranges));
  return moved;
}

bool CudaCall::BeginOnChosen(const LayerCall& call, const int32_t* chosen, gpu::SampleRequest* request) {
  const CudaKv& cache = CacheOf(call.continued.front());
  caches_ = cache.pool.get();
  const int64_t past = call.continued.front().past;
  const bool moved = ExtendRopes(cache.capacity) || (numbers_.size() < gpu::kStepNumbers);
  int32_t* const numbers = numbers_.Reserve(stream(), gpu::kStepNumbers, kActivations);
  const int64_t rotation = ropes_.front().FirstRow(cache.capacity) + past;
  gpu::StepOnChosen(stream(), {.chosen = chosen,
                               .position = static_cast<int32_t>(past),
                               .rotation = static_cast<int32_t>(rotation),
                               .first_row = static_cast<int32_t>(cache.first),
                               .asked = RequestOf(*call.draw),
                               .numbers = numbers,
                               .request = request});
  step_ = {.count = 1,
           .tokens = numbers,
           .rotations = numbers + 1,
           .cache_rows = numbers + 2,
           .first_row = numbers + 3,
           .visible = numbers + 4,
           .longest = 1,
           .longest_keys = cache.capacity};
  return moved;
}

void CudaCall::Embed(MatrixView<float> h) const {
  const gpu::WeightRows& table = device_->embedding();
  if (table.quantised())
    return gpu::ExpandRows(stream(), table.parts[0], hidden(), {h.data, DType::kFloat32}, step_.tokens, h.rows,
                           weights_->EmbeddingScale());
  gpu::GatherRows(stream(), step_.tokens, {table.plain, config().vocab, hidden()}, h, weights_->EmbeddingScale());
}

gpu::AttentionShape CudaCall::ShapeOf(int64_t layer) const {
  return {.heads = static_cast<int>(config().heads),
          .kv_heads = static_cast<int>(config().kv_heads),
          .head_dim = static_cast<int>(config().head_dim),
          .scale = spec().attention_scale,
          .window = static_cast<int>(spec().Window(layer)),
          .soft_cap = spec().attention_cap};
}

void CudaCall::Attend(const Attention& a) {
  gpu::AttentionShape shape = ShapeOf(a.layer);
  shape.sinks = a.sinks;
  if (a.q.dtype == DType::kFloat32)
    return gpu::AttendSplit(stream(), {.shape = shape,
                                       .q = static_cast<const float*>(a.q.data),
                                       .keys = a.keys,
                                       .values = a.values,
                                       .first_row = step_.first_row,
                                       .visible = step_.visible,
                                       .tokens = step_.count,
                                       .splits = gpu::AttentionSplits(shape, step_.count, step_.longest_keys, cores()),
                                       .scratch = &shares_,
                                       .out = a.out,
                                       .log_sums = a.log_sums});
  gpu::AttendPacked(stream(), {.shape = shape,
                               .q = a.q,
                               .keys = a.keys,
                               .values = a.values,
                               .sequences = step_.sequences,
                               .sequence_count = step_.sequence_count,
                               .longest = step_.longest,
                               .tokens = step_.count,
                               .rows = a.rows,
                               .out = a.out,
                               .log_sums = a.log_sums});
}

}  // namespace shiftrt
