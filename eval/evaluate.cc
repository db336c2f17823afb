#include "eval/evaluate.h"

#include <chrono>

#include "runtime/files.h"

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
  PromptEncoder encoder(*model.tokenizer, bos, model.weights->config.max_positions);
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

std::string HashOf(const Matrix<float>& matrix) { return HashHex(std::as_bytes(matrix.span())); }

// Tells plans apart, adapters' values included.
std::string PlanText(const DepthPlan& plan) {
  std::string text;
  for (const Stage& stage : plan.stages) {
    if (const auto* block = std::get_if<BlockStage>(&stage)) {
      text += fmt::format("block {};", block->layer);
    } else {
      const Lra& lra = *std::get<AdapterStage>(stage).lra;
      text += fmt::format("lra {} {} {} {};", HashOf(lra.a), HashOf(lra.p), HashOf(lra.q), HashOf(lra.b));
    }
  }
  return text;
}

// Of everything the scores of one variant hang on.
std::string WorkKey(const Context& context, const Model& model, const DepthPlan& plan, const Work& work,
                    int64_t batch_tokens) {
  std::string text = fmt::format("{} {} {} {} {}", model.weights->Fingerprint(), Name(model.weights->embedding.dtype),
                                 Name(context.isa), batch_tokens, PlanText(plan));
  for (const ScoringRequest& request : work.requests)
    text += fmt::format(" {} {}", request.scored, HashHex(std::as_bytes(std::span(request.tokens))));
  return HashHex(text);
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

// Adds the scores of one variant's batches where they belong, and tells `progress` of the items that are complete.
class Collector {
 public:
  Collector(const Work& work, const Dataset& dataset) : work_(work), left_(dataset.items.size(), 0) {
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

}  // namespace

EvalScores Evaluate(const Context& context, const Model& model, const std::vector<EvalVariant>& variants,
                    const Dataset& dataset, const EvalOptions& options, Journal& journal, Progress& progress) {
  const Work work = EncodeAll(model, dataset, options.bos);
  const std::vector<PackedBatch> batches = Pack(work.requests, options.batch_tokens);
  EvalScores result{CostOf(work, batches), {}, {}};
  for (const EvalVariant& variant : variants) {
    const auto start = std::chrono::steady_clock::now();
    const std::string key = WorkKey(context, model, variant.plan, work, options.batch_tokens);
    Decoder decoder(context, model.weights, variant.plan);
    Collector collector(work, dataset);
    progress.Begin(dataset.task->name + ", " + variant.name, std::ssize(dataset.items));
    for (size_t b = 0; b < batches.size(); ++b) {
      const std::vector<Score>* known = journal.Find(key, b);
      if (known != nullptr && known->size() == batches[b].members.size()) {
        progress.Advance(collector.Add(batches[b], *known));
        continue;
      }
      const std::vector<Score> scores = ScoreBatch(decoder, batches[b]);
      journal.Add(key, b, scores);
      progress.Advance(collector.Add(batches[b], scores));
    }
    progress.End();
    result.scores.push_back(collector.Take());
    result.seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return result;
}

}  // namespace shiftrt
