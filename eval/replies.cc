// SPDX-License-Identifier: Apache-2.0
#include "eval/replies.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <tuple>
#include <utility>

#include "engine/generate.h"
#include "eval/programs/runner.h"
#include "models/result_key.h"
#include "runtime/files.h"
#include "runtime/shared_items.h"
#include "runtime/stopwatch.h"

namespace shiftrt {

namespace {

using Tokens = std::vector<int32_t>;

// The prompts of a data set, and what a journal calls the reply of a variant to each.
class Requests {
 public:
  Requests(const EvalJob& job, const Dataset& dataset) : job_(job), task_(*dataset.task) {
    const PromptEncoder encoder(job.model.RequireTokenizer(), job.options.bos, job.model.weights->config.max_positions);
    prompts_.reserve(dataset.items.size());
    for (const Item& item : dataset.items)
      prompts_.push_back(encoder.EncodePrompt(item.prompts[0].context, task_.max_tokens, item.where));
  }

  const std::vector<Tokens>& prompts() const { return prompts_; }
  int64_t tokens() const {
    int64_t sum = 0;
    for (const Tokens& prompt : prompts_) sum += std::ssize(prompt);
    return sum;
  }
  // The key of all replies of a variant, for KeyOf().
  WorkKey KeyOf(const Variant& variant) const {
    WorkKey key = ResultKey("reply", job_.context, job_.model, variant.plan);
    key.Add("max_tokens", task_.max_tokens);
    for (const std::string& stop : task_.stop) key.Add("stop", stop);
    return key;
  }
  std::string KeyOf(WorkKey replies, size_t item) const {
    return replies.Add("prompt", HashHex(std::as_bytes(std::span(prompts_[item])))).Hash();
  }
  // As many replies as the options allow and as the memory of their caches allows.
  int64_t Together(const DepthPlan& plan) const {
    size_t longest = 0;
    for (const Tokens& prompt : prompts_) longest = std::max(longest, prompt.size());
    const int64_t positions = static_cast<int64_t>(longest) + task_.max_tokens;
    return RepliesTogether(job_.model.weights->config, plan, positions, job_.options.replies);
  }

 private:
  const EvalJob& job_;
  const Task& task_;
  std::vector<Tokens> prompts_;
};

// Replies that a journal holds, by the numbers of their items.
struct KnownReplies {
  std::vector<int64_t> items = {};
  std::vector<Tokens> replies = {};

  friend auto FieldsOf(KnownReplies& k) { return std::tie(k.items, k.replies); }
};

// The replies of one variant. What journals hold, of this program and of those that share its work, is taken from them.
class VariantReplies {
 public:
  VariantReplies(const EvalJob& job, const Variant& variant, const Requests& requests, const StopTexts& stops)
      : job_(job),
        variant_(variant),
        requests_(requests),
        stops_(stops),
        key_(requests.KeyOf(variant)),
        replies_(requests.prompts().size()) {
    KnownReplies mine;
    for (size_t i = 0; i < replies_.size(); ++i) {
      const Tokens* const known = job.journal.FindReply(requests.KeyOf(key_, i));
      if (known == nullptr) continue;
      mine.items.push_back(static_cast<int64_t>(i));
      mine.replies.push_back(*known);
    }
    std::vector<bool> known(replies_.size(), false);
    for (KnownReplies& all : FromAll(job.context, mine))
      for (size_t k = 0; k < all.items.size(); ++k) {
        known.at(static_cast<size_t>(all.items[k])) = true;
        replies_[static_cast<size_t>(all.items[k])] = std::move(all.replies[k]);
      }
    for (size_t i = 0; i < known.size(); ++i)
      if (!known[i]) missing_.push_back(i);
  }

  int64_t missing() const { return std::ssize(missing_); }

  std::vector<Tokens> Run(int64_t max_tokens) {
    const int64_t shares = Sharers(job_.context);
    int64_t reported = 0;
    const auto generated = SharedLoop(job_.context, shares, [&](int64_t share) {
      std::vector<size_t> items;
      for (auto at = static_cast<size_t>(share); at < missing_.size(); at += static_cast<size_t>(shares))
        items.push_back(missing_[at]);
      std::vector<Tokens> replies = Generate(items, max_tokens);
      reported += std::ssize(items);
      return replies;
    });
    job_.progress.Advance(missing() - reported);
    for (size_t share = 0; share < generated.size(); ++share)
      for (size_t k = 0; k < generated[share].size(); ++k)
        replies_[missing_[share + k * static_cast<size_t>(shares)]] = generated[share][k];
    return std::move(replies_);
  }

 private:
  std::vector<Tokens> Generate(const std::vector<size_t>& items, int64_t max_tokens) {
    std::vector<Tokens> prompts, replies(items.size()), begun(items.size());
    for (const size_t item : items) prompts.push_back(requests_.prompts()[item]);
    if (prompts.empty()) return replies;
    Decoder decoder(job_.context, job_.model.weights, variant_.plan);
    const std::vector<int32_t> stop = StopTokens(job_.model);
    ManyRequest request;
    request.max_tokens = max_tokens;
    request.stop = stop;
    request.batch = requests_.Together(variant_.plan);
    request.on_token = [&](size_t prompt, int32_t token) {
      begun[prompt].push_back(token);
      return !stops_.Ends(begun[prompt]);
    };
    GenerateMany(decoder, prompts, request, [&](size_t prompt, Tokens tokens) {
      if (HasHead(*job_.model.weights)) job_.journal.AddReply(requests_.KeyOf(key_, items[prompt]), tokens);
      replies[prompt] = std::move(tokens);
      job_.progress.Advance(1);
    });
    return replies;
  }

  const EvalJob& job_;
  const Variant& variant_;
  const Requests& requests_;
  const StopTexts& stops_;
  const WorkKey key_;
  std::vector<Tokens> replies_;
  std::vector<size_t> missing_;
};

// Runs the program of every reply; the processes that share the work share the programs out.
void RunPrograms(const EvalJob& job, const Dataset& dataset, std::vector<std::vector<Reply>>& replies) {
  const ProgramRunner runner;
  const int64_t items = std::ssize(dataset.items), count = std::ssize(replies) * items;
  job.progress.Begin(dataset.task->name + ", programs", count);
  int64_t ended = 0;
  const auto outcomes = SharedLoop(
      job.context, count,
      [&](int64_t i) {
        const Item& item = dataset.items[static_cast<size_t>(i % items)];
        const Reply& reply = replies[static_cast<size_t>(i / items)][static_cast<size_t>(i % items)];
        return runner.Run(dataset.task->program(item.code, reply.text, item.answer));
      },
      [&](int64_t, int64_t end) { job.progress.Advance(end - std::exchange(ended, end)); });
  job.progress.End();
  for (int64_t i = 0; i < count; ++i) {
    Reply& reply = replies[static_cast<size_t>(i / items)][static_cast<size_t>(i % items)];
    const ProgramOutcome outcome = outcomes[static_cast<size_t>(i)];
    reply.right.assign(dataset.task->metrics.size(), outcome == ProgramOutcome::kPassed);
    reply.outcome = Name(outcome);
  }
}

}  // namespace

StopTexts::StopTexts(const Tokenizer& tokenizer, std::vector<std::string> texts) : tokenizer_(tokenizer) {
  if (tokenizer.eos_token() >= 0) {
    const int32_t eos = tokenizer.eos_token();
    texts.push_back(tokenizer.Decode(std::span(&eos, 1)));
  }
  for (std::string& text : texts) {
    if (text.empty()) continue;
    const size_t tokens = tokenizer.Encode(text).size() + 2;
    stops_.push_back({std::move(text), tokens});
  }
}

// Ids of a vocabulary that is padded beyond the tokenizer's stand for no text.
std::vector<int32_t> StopTexts::Known(std::span<const int32_t> tokens) const {
  std::vector<int32_t> known(tokens.begin(), tokens.end());
  std::erase_if(known, [&](int32_t token) { return token >= tokenizer_.vocab_size(); });
  return known;
}

bool StopTexts::Ends(std::span<const int32_t> tokens) const {
  return std::any_of(stops_.begin(), stops_.end(), [&](const Stop& stop) {
    const std::vector<int32_t> last = Known(tokens.last(std::min(stop.tokens, tokens.size())));
    return tokenizer_.Decode(last).find(stop.text) != std::string::npos;
  });
}

std::string StopTexts::Text(std::span<const int32_t> tokens) const {
  std::string text = tokenizer_.Decode(Known(tokens), /*skip_special=*/true);
  for (const Stop& stop : stops_) text.resize(std::min(text.find(stop.text), text.size()));
  return text;
}

EvalScores EvaluateReplies(const EvalJob& job, const Dataset& dataset) {
  const auto start = std::chrono::steady_clock::now();
  const Task& task = *dataset.task;
  const Requests requests(job, dataset);
  const StopTexts stops(job.model.RequireTokenizer(), task.stop);
  std::vector<VariantReplies> variants;
  variants.reserve(job.variants.size());
  int64_t missing = 0;
  for (const Variant& variant : job.variants) {
    missing += variants.emplace_back(job, variant, requests, stops).missing();
  }
  EvalScores result;
  if (missing > 0) job.progress.Begin(task.name, missing);
  for (VariantReplies& variant : variants) {
    std::vector<Reply>& replies = result.replies.emplace_back();
    for (Tokens& tokens : variant.Run(task.max_tokens)) {
      std::string text = stops.Text(tokens);
      replies.push_back({std::move(tokens), std::move(text)});
    }
  }
  if (missing > 0) job.progress.End();
  if (task.program != nullptr) RunPrograms(job, dataset, result.replies);
  for (std::vector<Reply>& replies : result.replies)
    for (size_t i = 0; task.right != nullptr && i < replies.size(); ++i)
      for (const std::string& metric : task.metrics)
        replies[i].right.push_back(task.right(metric, replies[i].text, dataset.items[i].answer));
  // The requests and the first variant's replies; each token of a reply passes through the blocks but the last.
  int64_t generated = 0;
  for (const Reply& reply : result.replies[0]) generated += std::ssize(reply.tokens);
  result.cost = {.requests = std::ssize(requests.prompts()),
                 .tokens_requested = requests.tokens(),
                 .tokens_computed = requests.tokens() + generated,
                 .head_rows = generated};
  result.seconds = SecondsSince(start);
  return result;
}

}  // namespace shiftrt
