// SPDX-License-Identifier: Apache-2.0
// Requests packed into batches in which every shared prefix stands once.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/decoder.h"
#include "eval/requests.h"

namespace shiftrt {

// A batch and the rows of it whose distribution is wanted: rows[i] should have predicted targets[i]. Each pair stands
// once, though several requests may count it.
struct PackedBatch {
  Batch batch;
  std::vector<int64_t> rows;
  std::vector<int32_t> targets;

  struct Member {
    int64_t request = 0;
    std::vector<int64_t> pairs;  // indices into rows and targets, one per scored token
  };
  std::vector<Member> members;
};

// Requests in the order of their tokens, so that those with a common prefix are neighbours, cut into batches of at most
// `batch_tokens` tokens to compute (but at least one request). Which batch a request falls in depends on the arguments
// only.
std::vector<PackedBatch> Pack(std::span<const ScoringRequest> requests, int64_t batch_tokens);

}  // namespace shiftrt
