// SPDX-License-Identifier: Apache-2.0
#include "eval/evaluate.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <tuple>
#include <utility>

#include "engine/score.h"
#include "eval/replies.h"
#include "models/result_key.h"
#include "runtime/files.h"
#include "runtime/shared_items.h"
#include "runtime/stopwatch.h"

namespace shiftrt {

namespace {

// Requests of all prompts, and where each one's score is added.
struct Work {
  struct Place {
    size_t item, prompt;
  };
  std::vector<ScoringRequest> requests;
  std::vector<Place> places;
};

Work EncodeAll(const Model& model, const Dataset& dataset, Bos bos) {
  PromptEncoder encoder(model.RequireTokenizer(), bos, model.weights->config.max_positions);
  Work work;
  const auto add = [&](ScoringRequest request, size_t item, size_t prompt) {
    work.requests.push_back(std::move(request));
    work.places.push_back({item, prompt});
  };
  for (size_t i = 0; i < dataset.items.size(); ++i) {
    const Item& item = dataset.items[i];
    for (size_t p = 0; p < item.prompts.size(); ++p) {
      if (dataset.task->kind == TaskKind::kPages) {
        for (ScoringRequest& window : encoder.EncodeRolling(item.prompts[p].continuation)) add(std::move(window), i, p);
      } else {
        add(encoder.Encode(item.prompts[p], item.where), i, p);
      }
    }
  }
  return work;
}

// A hash of everything that the scores of one variant depend on, and of how many requests each batch has: journals
// name batches by their numbers.
std::string ScoresKey(const Context& context, const Model& model, const DepthPlan& plan, const Work& work,
                      int64_t batch_tokens, const std::vector<PackedBatch>& batches) {
  std::string requests, sizes;
  for (const ScoringRequest& request : work.requests)
    requests += fmt::format(" {} {}", request.scored, HashHex(std::as_bytes(std::span(request.tokens))));
  for (const PackedBatch& packed : batches) sizes += fmt::format(" {}", packed.members.size());
  return ResultKey("scores", context, model, plan)
      .Add("batch_tokens", batch_tokens)
      .Add("requests", requests)
      .Add("batches", sizes)
      .Hash();
}

EvalCost CostOf(const Work& work, const std::vector<PackedBatch>& batches) {
  EvalCost cost{.requests = std::ssize(work.requests)};
  for (const ScoringRequest& request : work.requests) cost.tokens_requested += std::ssize(request.tokens) - 1;
  for (const PackedBatch& packed : batches) {
    cost.tokens_computed += packed.batch.size();
    cost.head_rows += std::ssize(packed.rows);
  }
  return cost;
}

std::vector<DepthPlan> PlansOf(const std::vector<Variant>& variants) {
  std::vector<DepthPlan> plans;
  plans.reserve(variants.size());
  for (const Variant& variant : variants) plans.push_back(variant.plan);
  return plans;
}

// Adds the scores of one variant's batches where they belong, and counts the items that are complete.
class ScoreCollector {
 public:
  ScoreCollector(const Work& work, const Dataset& dataset) : work_(work), left_(dataset.items.size(), 0) {
    for (const Item& item : dataset.items) scores_.emplace_back(item.prompts.size());
    for (const Work::Place& place : work.places) ++left_[place.item];
  }

  // Returns how many items are now complete that were not.
  int64_t Add(const PackedBatch& packed, const std::vector<Score>& scores) {
    int64_t complete = 0;
    for (size_t m = 0; m < packed.members.size(); ++m) {
      const Work::Place& place = work_.places[packed.members[m].request];
      Score& sum = scores_[place.item][place.prompt];
      sum.log_likelihood += scores[m].log_likelihood;
      sum.greedy &= scores[m].greedy;
      complete += --left_[place.item] == 0;
    }
    return complete;
  }

  std::vector<std::vector<Score>> Take() { return std::move(scores_); }

 private:
  const Work& work_;
  std::vector<int64_t> left_;
  std::vector<std::vector<Score>> scores_;
};

// The scores of every variant and batch.
class ScoreTable {
 public:
  ScoreTable(size_t variants, size_t batches) : scores_(variants, std::vector<std::vector<Score>>(batches)) {}
  std::vector<Score>& At(size_t variant, size_t batch) { return scores_[variant][batch]; }

  // Takes what journals hold, of this program and of those that share its work, which may be on other hosts. Returns
  // the batches that some variant lacks; of these, what the own journal holds is in the table, and nothing where it
  // holds nothing.
  std::vector<int64_t> TakeKnown(const EvalJob& job, const std::vector<std::string>& keys,
                                 const std::vector<PackedBatch>& batches) {
    Known mine;
    for (size_t b = 0; b < batches.size(); ++b) {
      bool whole = true;
      for (size_t v = 0; v < keys.size(); ++v) {
        const std::vector<Score>* known = job.journal.Find(keys[v], static_cast<int64_t>(b));
        if (known != nullptr && known->size() == batches[b].members.size()) At(v, b) = *known;
        whole = whole && !At(v, b).empty();
      }
      if (!whole) {
        // Where several hold the model together, they run the same variants; what one of them alone knows is computed
        // again.
        for (size_t v = 0; !job.model.weights->shares.empty() && v < keys.size(); ++v) At(v, b).clear();
        continue;
      }
      mine.batches.push_back(b);
      for (size_t v = 0; v < keys.size(); ++v) mine.scores.push_back(At(v, b));
    }
    std::vector<bool> known(batches.size(), false);
    for (Known& all : FromAll(job.context, mine))
      for (size_t i = 0; i < all.batches.size(); ++i) {
        known.at(all.batches[i]) = true;
        for (size_t v = 0; v < keys.size(); ++v) At(v, all.batches[i]) = std::move(all.scores[i * keys.size() + v]);
      }
    std::vector<int64_t> missing;
    for (size_t b = 0; b < batches.size(); ++b)
      if (!known[b]) missing.push_back(static_cast<int64_t>(b));
    return missing;
  }

 private:
  // Batches of which a journal has all scores, and these, by batch and variant.
  struct Known {
    std::vector<size_t> batches;
    std::vector<std::vector<Score>> scores;

    friend auto FieldsOf(Known& k) { return std::tie(k.batches, k.scores); }
  };

  std::vector<std::vector<std::vector<Score>>> scores_;
};

}  // namespace

void EvalScores::PutFirst(EvalScores others) {
  cost.requests += others.cost.requests;
  cost.tokens_requested += others.cost.tokens_requested;
  cost.tokens_computed += others.cost.tokens_computed;
  cost.head_rows += others.cost.head_rows;
  seconds += others.seconds;
  scores.insert(scores.begin(), std::make_move_iterator(others.scores.begin()),
                std::make_move_iterator(others.scores.end()));
  replies.insert(replies.begin(), std::make_move_iterator(others.replies.begin()),
                 std::make_move_iterator(others.replies.end()));
}

bool HasHead(const Weights& weights) { return weights.shares.empty() || weights.shares[weights.share].last; }

EvalScores Evaluate(const EvalJob& job, const Dataset& dataset) {
  if (dataset.task->kind == TaskKind::kReply) return EvaluateReplies(job, dataset);
  const auto start = std::chrono::steady_clock::now();
  const Work work = EncodeAll(job.model, dataset, job.options.bos);
  const std::vector<PackedBatch> batches = Pack(work.requests, job.options.batch_tokens);
  PlanTree plans(job.context, job.model.weights, PlansOf(job.variants));
  EvalScores result{CostOf(work, batches), {}, {}, 0};
  result.cost.shared_stages = plans.shared_stages();
  std::vector<std::string> keys;
  std::vector<ScoreCollector> collectors;
  for (const Variant& variant : job.variants) {
    keys.push_back(ScoresKey(job.context, job.model, variant.plan, work, job.options.batch_tokens, batches));
    collectors.emplace_back(work, dataset);
  }
  ScoreTable table(job.variants.size(), batches.size());
  const std::vector<int64_t> missing = table.TakeKnown(job, keys, batches);
  // Batches that the journal has are counted first. In the progress they would make the time left look short.
  ScoreCollector done(work, dataset);
  int64_t left = std::ssize(dataset.items);
  std::vector<bool> known(batches.size(), true);
  for (const int64_t b : missing) known[b] = false;
  for (size_t b = 0; b < batches.size(); ++b)
    if (known[b]) left -= done.Add(batches[b], table.At(0, b));

  if (!missing.empty()) job.progress.Begin(dataset.task->name, left);
  const auto score = [&](int64_t b) {
    const auto score_plan = [&](size_t v, Decoder& decoder, const Rows& stream) {
      table.At(v, b) = ScoreBatch(decoder, batches[b], stream);
      if (HasHead(*job.model.weights)) job.journal.Add(keys[v], b, table.At(v, b));
    };
    plans.Run(batches[b].batch, score_plan, [&](size_t v) { return table.At(v, b).empty(); });
    std::vector<std::vector<Score>> of_variants;
    for (size_t v = 0; v < job.variants.size(); ++v) of_variants.push_back(table.At(v, b));
    CountBatch(job.context, batches[b].batch.size());
    return of_variants;
  };
  const int64_t count = std::ssize(missing), together = ItemsBetweenSharing(job.context);
  for (int64_t first = 0; first < count; first += together) {
    const auto scores = SharedLoop(job.context, std::min(together, count - first),
                                   [&](int64_t i) { return score(missing[first + i]); });
    for (size_t i = 0; i < scores.size(); ++i) {
      const int64_t b = missing[first + static_cast<int64_t>(i)];
      for (size_t v = 0; v < job.variants.size(); ++v) table.At(v, b) = scores[i][v];
      job.progress.Advance(done.Add(batches[b], table.At(0, b)));
    }
  }
  if (!missing.empty()) job.progress.End();
  for (size_t b = 0; b < batches.size(); ++b)
    for (size_t v = 0; v < job.variants.size(); ++v) collectors[v].Add(batches[b], table.At(v, b));
  for (ScoreCollector& collector : collectors) result.scores.push_back(collector.Take());
  result.seconds = SecondsSince(start);
  return result;
}

}  // namespace shiftrt
