// SPDX-License-Identifier: Apache-2.0
#include "eval/fidelity.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <limits>
#include <utility>

#include "engine/score.h"
#include "eval/statistics.h"
#include "runtime/check.h"
#include "runtime/not_finite.h"
#include "runtime/parallel.h"
#include "runtime/shared_items.h"

namespace shiftrt {

namespace {

// Tokens that run at once, and bytes of logits of one model that are held: enough rows for efficient products.
constexpr int64_t kComparedTokens = 1024, kLogitsBytes = int64_t{32} << 20;

// The models of a comparison that share their weights.
struct Alike {
  std::vector<size_t> models;
  PlanTree plans;
};

// All models of a comparison, and the streams of the batch that they ran last.
class Models {
 public:
  Models(const Context& context, std::span<const ComparedModel> models) : streams_(models.size()) {
    std::vector<bool> taken(models.size());
    for (size_t m = 0; m < models.size(); ++m) {
      if (taken[m]) continue;
      std::vector<size_t> alike;
      std::vector<DepthPlan> plans;
      for (size_t other = m; other < models.size(); ++other) {
        if (models[other].weights != models[m].weights) continue;
        taken[other] = true;
        alike.push_back(other);
        plans.push_back(models[other].plan);
      }
      groups_.push_back({std::move(alike), PlanTree(context, models[m].weights, plans)});
    }
    decoders_.resize(models.size());
    for (Alike& group : groups_)
      for (size_t i = 0; i < group.models.size(); ++i) decoders_[group.models[i]] = &group.plans.decoder(i);
  }

  void Run(const Batch& batch) {
    for (Alike& group : groups_)
      group.plans.Run(batch, [&](size_t i, Decoder&, const Rows& stream) { streams_[group.models[i]].Set(stream); });
  }
  Matrix<float> Logits(size_t model, int64_t first, int64_t rows) {
    return decoders_[model]->Logits(streams_[model].rows().Slice(first, rows));
  }
  size_t size() const { return decoders_.size(); }
  int64_t vocab() const { return decoders_.front()->config().vocab; }

 private:
  std::deque<Alike> groups_;
  std::vector<Decoder*> decoders_;
  std::vector<KeptRows> streams_;
};

// Compares the rows of the streams from `first` on, which predict `targets`, and appends the figures of each variant.
void CompareRows(const Context& context, Models& models, int64_t first, std::span<const int32_t> targets,
                 std::span<std::vector<TokenFidelity>*> found) {
  const auto rows = static_cast<int64_t>(targets.size());
  const Matrix<float> original = models.Logits(0, first, rows);
  const auto row_of = [](const Matrix<float>& logits, int64_t i) {
    return std::span(logits.view().row(i), static_cast<size_t>(logits.cols()));
  };
  std::vector<RowSoftmax> softmaxes(static_cast<size_t>(rows), RowSoftmax({}));
  ParallelFor(context, rows, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) softmaxes[i] = RowSoftmax(row_of(original, i));
  });
  for (size_t m = 1; m < models.size(); ++m) {
    const Matrix<float> logits = models.Logits(m, first, rows);
    std::vector<TokenFidelity>& tokens = *found[m - 1];
    const size_t before = tokens.size();
    tokens.resize(before + targets.size());
    ParallelFor(context, rows, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i)
        tokens[before + i] = CompareLogits(row_of(original, i), softmaxes[i], row_of(logits, i), targets[i]);
    });
    for (size_t i = before; i < tokens.size(); ++i) {
      CheckIsFinite(tokens[i].divergence, "a divergence is not finite");
      CheckIsFinite(tokens[i].nll + tokens[i].nll_original, "a log-probability is not finite");
    }
  }
}

// The sequences first .. end - 1, which run as one batch.
struct Part {
  size_t first = 0, end = 0;
};

std::vector<Part> Parts(std::span<const FidelitySequence> sequences) {
  std::vector<Part> parts;
  int64_t tokens = 0;
  for (size_t s = 0; s < sequences.size(); ++s) {
    const int64_t more = std::ssize(sequences[s].tokens);
    if (parts.empty() || tokens + more > kComparedTokens) {
      parts.push_back({s, s});
      tokens = 0;
    }
    parts.back().end = s + 1;
    tokens += more;
  }
  return parts;
}

// For each variant, the figures of the sequences of a part.
std::vector<SequenceFidelities> OfPart(const Context& context, Models& models,
                                       std::span<const FidelitySequence> sequences) {
  Batch batch;
  for (const FidelitySequence& sequence : sequences) batch.Add(sequence.tokens);
  models.Run(batch);
  CountBatch(context, batch.size());
  std::vector<SequenceFidelities> found(models.size() - 1, SequenceFidelities(sequences.size()));
  const int64_t at_once = std::max<int64_t>(1, kLogitsBytes / (models.vocab() * static_cast<int64_t>(sizeof(float))));
  for (size_t s = 0; s < sequences.size(); ++s) {
    std::vector<std::vector<TokenFidelity>*> into;
    into.reserve(found.size());
    for (SequenceFidelities& variant : found) into.push_back(&variant[s]);
    const std::span<const int32_t> tokens = sequences[s].tokens;
    const auto length = static_cast<int64_t>(tokens.size());
    for (int64_t t = sequences[s].given; t < length; t += at_once) {
      CheckInterrupted();
      const int64_t rows = std::min(at_once, length - t);  // row t - 1 predicts token t
      CompareRows(context, models, batch.offsets[s] + t - 1, tokens.subspan(t, rows), into);
    }
  }
  return found;
}

void CheckCompared(std::span<const ComparedModel> models, std::span<const FidelitySequence> sequences) {
  if (models.size() < 2)
    FailUsage(Field("models"), "{} given, expected an original and at least one variant of it", models.size());
  const ModelConfig& original = models.front().weights->config;
  for (const ComparedModel& model : models)
    Check(model.weights->config.vocab == original.vocab,
          "the original model has a vocabulary of {} tokens and a variant one of {}; predictions over different "
          "vocabularies have no divergence",
          original.vocab, model.weights->config.vocab);
  int64_t predicted = 0;
  for (const FidelitySequence& sequence : sequences) {
    if (sequence.given < 1) FailUsage(Field("given"), "{}; nothing predicts the first token", sequence.given);
    predicted += std::max<int64_t>(0, std::ssize(sequence.tokens) - sequence.given);
  }
  if (predicted == 0) FailUsage(Field("sequences"), "they have no token that is predicted");
}

// Between two values of a sorted list, it interpolates, as llama.cpp does.
double Quantile(std::span<const double> sorted, double share) {
  const double place = share * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(place);
  const size_t above = std::min(below + 1, sorted.size() - 1);
  const double rest = place - static_cast<double>(below);
  return (1 - rest) * sorted[below] + rest * sorted[above];
}

template <typename Value>
std::vector<double> ValuesOf(std::span<const TokenFidelity> tokens, const Value& value) {
  std::vector<double> values;
  values.reserve(tokens.size());
  for (const TokenFidelity& token : tokens) values.push_back(value(token));
  return values;
}

}  // namespace

RowSoftmax::RowSoftmax(std::span<const float> logits) {
  if (logits.empty()) return;
  best = static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  const float largest = logits[best];
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - largest);
  log_sum = largest + std::log(sum);
}

TokenFidelity CompareLogits(std::span<const float> original, const RowSoftmax& softmax, std::span<const float> variant,
                            int32_t token) {
  const RowSoftmax other(variant);
  TokenFidelity found;
  for (size_t i = 0; i < original.size(); ++i) {
    const double log_p = original[i] - softmax.log_sum;
    const float p = std::exp(static_cast<float>(log_p));
    if (p > 0) found.divergence += p * (log_p - (variant[i] - other.log_sum));
  }
  if (found.divergence < 0) found.divergence = 0;  // rounding, where both are nearly the same
  found.nll_original = softmax.log_sum - original[token];
  found.nll = other.log_sum - variant[token];
  found.same_top = softmax.best == other.best;
  return found;
}

std::vector<SequenceFidelities> MeasureTokenFidelity(const Context& context, std::span<const ComparedModel> models,
                                                     std::span<const FidelitySequence> sequences, Progress& progress) {
  CheckCompared(models, sequences);
  Models running(context, models);
  const std::vector<Part> parts = Parts(sequences);
  progress.Begin("fidelity", std::ssize(sequences));
  const auto measure = [&](int64_t p) {
    return OfPart(context, running, sequences.subspan(parts[p].first, parts[p].end - parts[p].first));
  };
  auto by_part = SharedLoop(context, std::ssize(parts), measure, [&](int64_t first, int64_t end) {
    progress.Advance(static_cast<int64_t>(parts[end - 1].end - parts[first].first));
  });
  progress.End();
  std::vector<SequenceFidelities> found(models.size() - 1);
  for (std::vector<SequenceFidelities>& part : by_part)
    for (size_t v = 0; v < found.size(); ++v) std::move(part[v].begin(), part[v].end(), std::back_inserter(found[v]));
  return found;
}

std::vector<FidelitySequence> WindowsOf(std::span<const int32_t> tokens, int64_t window) {
  if (tokens.size() < 2 || window < 2)
    FailUsage(Field("text"), "a text of {} tokens in windows of {}: both are at least 2", tokens.size(), window);
  const auto length = static_cast<size_t>(std::min(window, static_cast<int64_t>(tokens.size())));
  std::vector<FidelitySequence> windows;
  for (; tokens.size() >= length; tokens = tokens.subspan(length))
    windows.push_back({.tokens = {tokens.begin(), tokens.begin() + static_cast<int64_t>(length)}});
  return windows;
}

double TokenFidelity::DeltaP() const { return std::exp(-nll) - std::exp(-nll_original); }

Fidelity SummarizeFidelity(std::span<const TokenFidelity> tokens) {
  if (tokens.empty()) FailUsage(Field("tokens"), "there is none");
  std::vector<double> divergences = ValuesOf(tokens, [](const TokenFidelity& t) { return t.divergence; });
  const Estimate divergence = Mean(divergences);
  std::sort(divergences.begin(), divergences.end());
  const Estimate same = Mean(ValuesOf(tokens, [](const TokenFidelity& t) { return t.same_top ? 1.0 : 0.0; }));
  const Estimate delta = Mean(ValuesOf(tokens, [](const TokenFidelity& t) { return t.DeltaP(); }));
  const Estimate squared = Mean(ValuesOf(tokens, [](const TokenFidelity& t) { return t.DeltaP() * t.DeltaP(); }));
  const Estimate nll_original = Mean(ValuesOf(tokens, [](const TokenFidelity& t) { return t.nll_original; }));
  const Estimate nll = Mean(ValuesOf(tokens, [](const TokenFidelity& t) { return t.nll; }));
  const Estimate more = Mean(ValuesOf(tokens, [](const TokenFidelity& t) { return t.nll - t.nll_original; }));
  return {.tokens = std::ssize(tokens),
          .mean_kld = divergence.value,
          .mean_kld_error = divergence.error,
          .median_kld = Quantile(divergences, 0.5),
          .kld_90 = Quantile(divergences, 0.9),
          .kld_99 = Quantile(divergences, 0.99),
          .max_kld = divergences.back(),
          .same_top = same.value,
          .same_top_error = same.error,
          .mean_delta_p = delta.value,
          .mean_delta_p_error = delta.error,
          .rms_delta_p = std::sqrt(squared.value),
          .perplexity_original = std::exp(nll_original.value),
          .perplexity = std::exp(nll.value),
          .log_perplexity_ratio = more.value,
          .log_perplexity_ratio_error = more.error};
}

}  // namespace shiftrt
