// SPDX-License-Identifier: Apache-2.0
#include "eval/packing.h"

#include <algorithm>
#include <map>
#include <numeric>

namespace shiftrt {

namespace {

// The tokens of a request that the model reads: the last token is only predicted.
std::span<const int32_t> Input(const ScoringRequest& request) {
  return std::span(request.tokens).first(request.tokens.size() - 1);
}

int64_t CommonPrefix(std::span<const int32_t> a, std::span<const int32_t> b) {
  return std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin();
}

// Turns sorted requests into a batch: a tree whose paths are their inputs.
class BatchBuilder {
 public:
  BatchBuilder(std::span<const ScoringRequest> requests, std::span<const int64_t> order)
      : requests_(requests), order_(order) {
    Grow(0, std::ssize(order), 0, -1);
  }

  PackedBatch Take() { return std::move(packed_); }

 private:
  const ScoringRequest& Request(int64_t i) const { return requests_[order_[i]]; }

  // Adds what members first .. last have after their common `depth` tokens, which end in sequence `parent` and whose
  // rows are in rows_.
  void Grow(int64_t first, int64_t last, int64_t depth, int64_t parent) {
    // Sorted, so what the first and the last share, all share.
    const int64_t common = CommonPrefix(Input(Request(first)), Input(Request(last - 1)));
    if (common > depth) {
      for (int64_t i = depth; i < common; ++i) rows_.push_back(packed_.batch.size() + i - depth);
      packed_.batch.Add(Input(Request(first)).subspan(depth, common - depth), parent);
      parent = packed_.batch.sequences() - 1;
    }
    while (first < last && std::ssize(Input(Request(first))) == common) Finish(first++);
    while (first < last) {
      int64_t end = first + 1;
      while (end < last && Input(Request(end))[common] == Input(Request(first))[common]) ++end;
      Grow(first, end, common, parent);
      rows_.resize(common);
      first = end;
    }
  }

  // rows_ now holds the rows of member i's whole input.
  void Finish(int64_t i) {
    const ScoringRequest& request = Request(i);
    PackedBatch::Member member{order_[i], {}};
    const int64_t inputs = std::ssize(request.tokens) - 1;
    for (int64_t at = inputs - request.scored; at < inputs; ++at) {
      const auto [pair, fresh] = pairs_.try_emplace({rows_[at], request.tokens[at + 1]}, std::ssize(packed_.rows));
      if (fresh) {
        packed_.rows.push_back(rows_[at]);
        packed_.targets.push_back(request.tokens[at + 1]);
      }
      member.pairs.push_back(pair->second);
    }
    packed_.members.push_back(std::move(member));
  }

  std::span<const ScoringRequest> requests_;
  std::span<const int64_t> order_;
  PackedBatch packed_;
  std::vector<int64_t> rows_;  // in the batch, of the tokens on the path to where the tree grows
  std::map<std::pair<int64_t, int32_t>, int64_t> pairs_;
};

}  // namespace

std::vector<PackedBatch> Pack(std::span<const ScoringRequest> requests, int64_t batch_tokens) {
  std::vector<int64_t> order(requests.size());
  std::iota(order.begin(), order.end(), int64_t{0});
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    const auto x = Input(requests[a]), y = Input(requests[b]);
    return std::lexicographical_compare(x.begin(), x.end(), y.begin(), y.end());
  });
  std::vector<PackedBatch> batches;
  const auto size = [&](size_t i) { return std::ssize(Input(requests[order[i]])); };
  for (size_t first = 0, end; first < order.size(); first = end) {
    int64_t tokens = size(first);
    for (end = first + 1; end < order.size(); ++end) {
      const int64_t added = size(end) - CommonPrefix(Input(requests[order[end - 1]]), Input(requests[order[end]]));
      if (added > 0 && tokens + added > batch_tokens) break;
      tokens += added;
    }
    batches.push_back(BatchBuilder(requests, std::span(order).subspan(first, end - first)).Take());
  }
  return batches;
}

}  // namespace shiftrt
