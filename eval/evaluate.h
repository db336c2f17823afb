// SPDX-License-Identifier: Apache-2.0
// Scores that the variants of a model give to the prompts of a data set, and their replies to prompts.
#pragma once

#include <string>
#include <vector>

#include "eval/dataset.h"
#include "eval/journal.h"
#include "eval/requests.h"
#include "models/model.h"
#include "runtime/progress.h"

namespace shiftrt {

// The work that was done for one variant, and that which the requests would have taken one by one.
struct EvalCost {
  int64_t requests = 0;
  int64_t tokens_requested = 0, tokens_computed = 0;  // tokens that pass through the blocks
  int64_t head_rows = 0;                              // rows that pass through the head
  int64_t shared_stages = 0;                          // stages that all variants begin with; they run once for all
};

// A reply to the prompt of an item.
struct Reply {
  std::vector<int32_t> tokens = {};  // as generated; a text that ended the reply is among them, a token is not
  std::string text = {};             // up to the first stop text
  std::vector<bool> right = {};      // by each metric of the task
  std::string outcome = {};          // "passed", "failed" or "timed out" if a program was run
};

struct EvalScores {
  EvalCost cost;
  std::vector<std::vector<std::vector<Score>>> scores;  // by variant, item and prompt; none for a task of replies
  std::vector<std::vector<Reply>> replies;              // by variant and item; none for the other tasks
  double seconds = 0;                                   // for all variants, without what was read from the journal

  // Puts the scores of other variants, of the same data set, before these, and adds their cost.
  void PutFirst(EvalScores others);
};

struct EvalOptions {
  Bos bos = Bos::kAuto;
  int64_t batch_tokens = 2048;
  int64_t replies = 32;  // that are generated together, at most
};

// A depth plan of a model, and what tables and files call it.
struct Variant {
  std::string name;
  DepthPlan plan;
};

// The objects that the scoring of every data set needs. They are references: the maker of a job keeps them alive.
struct EvalJob {
  const Context& context;
  const Model& model;
  const std::vector<Variant>& variants;
  EvalOptions options;
  Journal& journal;
  Progress& progress;
};

// The batches are shared out (runtime/shared_items.h). The scores do not depend on that, nor on what the journal
// holds, bit for bit; replies do up to rounding, which depends on those that are generated together. Throws Error for a
// model without a tokenizer, what PromptEncoder throws, and Interrupted; what was scored until then is in the journal.
EvalScores Evaluate(const EvalJob& job, const Dataset& dataset);

// True if the results of this program count: of a model that is split, one part has the head.
bool HasHead(const Weights& weights);

}  // namespace shiftrt
