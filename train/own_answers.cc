// SPDX-License-Identifier: Apache-2.0
#include "train/own_answers.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <optional>
#include <span>
#include <utility>

#include "engine/decoder.h"
#include "engine/generate.h"
#include "models/result_key.h"
#include "runtime/check.h"
#include "runtime/shared_items.h"
#include "runtime/stopwatch.h"

namespace shiftrt {

namespace {

// Replies that are continued together, at most, and prompts that are encoded at once.
constexpr int64_t kTogether = 32;
constexpr int64_t kPromptsAtOnce = 1024;
constexpr int64_t kHeldoutShare = 5;  // a fifth of the answers, at most

using Tokens = std::vector<int32_t>;

// Tokens of an answer, at most.
int64_t AnswerTokens(const AnswerJob& job) { return job.length / 2; }

std::filesystem::path FileOf(const AnswerJob& job, const DepthPlan& original) {
  if (job.directory.empty()) return {};
  WorkKey key = ResultKey("answers", job.context, job.model, original);
  key.Add("prompts", job.description)
      .Add("temperature", kAnswerTemperature)
      .Add("max_tokens", AnswerTokens(job))
      .Add("length", job.length)
      .Add("seed", job.seed);
  return job.directory / fmt::format("own-{}.answers", key.Hash());
}

class Answering {
 public:
  explicit Answering(const AnswerJob& job)
      : job_(job),
        original_(DepthPlan::Original(job.model.weights->config.layers)),
        file_(FileOf(job, original_)),
        clock_(file_.clock()),
        stop_(StopTokens(job.model)) {
    for (const std::string& bad : file_.bad())
      if (job.warn) job.warn(bad + "; its answer is generated again");
  }

  OwnAnswers Run() {
    if (!Enough()) {
      written_ = tokens_;
      begun_ = Done();
      job_.progress.Begin("answers of the original model", Total() - begun_);
      while (!Enough() && GenerateSome()) continue;
      file_.SetClock(clock_);
      job_.progress.End();
    }
    file_.Finish();
    return Chosen();
  }

 private:
  bool Enough() {
    if (job_.wanted.seconds > 0) return clock_ >= job_.wanted.seconds || file_.size() >= job_.prompts;
    // The answers that count are those before the first prompt without one.
    for (const OwnAnswer* next; !job_.wanted.Suffice(count_, tokens_) && (next = file_.Find(prompts_)) != nullptr;
         ++prompts_) {
      count_ += next->empty() ? 0 : 1;
      tokens_ += next->empty() ? 0 : std::ssize(next->tokens);
    }
    return prompts_ == job_.prompts || job_.wanted.Suffice(count_, tokens_);
  }

  // The units of progress: seconds, tokens or prompts. Tokens that are held out are estimated, at a quarter of the
  // length for each answer.
  int64_t Total() const {
    const AnswersWanted& wanted = job_.wanted;
    if (wanted.seconds > 0) return std::llround(std::ceil(wanted.seconds));
    if (wanted.tokens > 0)
      return wanted.tokens + std::min(wanted.tokens, wanted.heldout * job_.length) / (kHeldoutShare - 1);
    return wanted.sequences > 0 ? wanted.sequences + wanted.heldout : job_.prompts;
  }
  int64_t Done() const {
    if (job_.wanted.seconds > 0) return std::min<int64_t>(Total(), std::llround(clock_));
    return std::min(Total(), job_.wanted.tokens > 0 ? written_ : file_.size());
  }

  // Answers the next prompts that have no answer, or those that there is time for. Returns false if all have one.
  bool GenerateSome() {
    std::vector<int64_t> numbers;
    std::vector<Tokens> prompts;
    for (int64_t i = prompts_; i < job_.prompts && std::ssize(prompts) < kPromptsAtOnce; ++i) {
      if (file_.Find(i) != nullptr) continue;
      Tokens prompt = job_.encode(i);
      if (prompt.empty() || std::ssize(prompt) + AnswerTokens(job_) >= job_.length) {
        file_.Add(i, {.seconds = clock_});
        continue;
      }
      numbers.push_back(i);
      prompts.push_back(std::move(prompt));
    }
    if (!prompts.empty()) Generate(numbers, prompts);
    return !prompts.empty();
  }

  ManyRequest Request(std::span<const int64_t> numbers) const {
    ManyRequest request;
    request.max_tokens = AnswerTokens(job_);
    request.sampling.temperature = kAnswerTemperature;
    request.seed = job_.seed;
    request.stop = stop_;
    request.batch = RepliesTogether(job_.model.weights->config, original_, job_.length, kTogether);
    request.numbers = numbers;
    return request;
  }

  void Generate(std::span<const int64_t> numbers, std::span<const Tokens> prompts) {
    if (!decoder_) decoder_.emplace(job_.context, job_.model.weights, original_);
    const auto start = std::chrono::steady_clock::now();
    const double before = clock_;
    std::vector<int32_t> ends(prompts.size(), -1);
    ManyRequest request = Request(numbers);
    request.on_stop = [&](size_t i, int32_t token) { ends[i] = token; };
    request.on_token = [&](size_t, int32_t) {
      ++written_;
      return true;
    };
    request.enough = [&] {
      clock_ = before + SecondsSince(start);
      const bool enough = Enough();
      const int64_t done = Done() - begun_;
      job_.progress.Advance(done - std::exchange(reported_, done));
      return enough;
    };
    // Once the answers in progress are probably enough, no more are begun: the first ones must be waited for anyway.
    int64_t begun = 0, ended = 0;
    request.more = [&] {
      const bool enough = job_.wanted.seconds == 0 && job_.wanted.Suffice(file_.size() + begun - ended, written_);
      if (enough && begun >= request.batch) return false;
      ++begun;
      return true;
    };
    GenerateMany(*decoder_, prompts, request, [&](size_t i, const Tokens& reply) {
      file_.Add(numbers[i], AnswerOf(prompts[i], reply, ends[i], before + SecondsSince(start)));
      written_ += std::ssize(prompts[i]);
      ++ended;
    });
  }

  // A reply of no token has nothing to learn from but its end, and makes an empty answer.
  static OwnAnswer AnswerOf(const Tokens& prompt, const Tokens& reply, int32_t end, double seconds) {
    OwnAnswer answer = {prompt, std::ssize(prompt), seconds};
    if (reply.empty()) return answer;
    answer.tokens.insert(answer.tokens.end(), reply.begin(), reply.end());
    if (end >= 0) answer.tokens.push_back(end);
    return answer;
  }

  OwnAnswers Chosen() const {
    const double limit = job_.wanted.seconds;
    OwnAnswers chosen;
    for (int64_t i = 0; i < (limit > 0 ? job_.prompts : prompts_); ++i) {
      const OwnAnswer* const answer = file_.Find(i);
      if (answer == nullptr || (limit > 0 && answer->seconds > limit)) continue;
      chosen.seconds = std::max(chosen.seconds, answer->seconds);
      if (answer->empty())
        ++chosen.without;
      else
        chosen.answers.push_back(*answer);
    }
    if (limit > 0 && file_.size() < job_.prompts) chosen.seconds = limit;
    return chosen;
  }

  const AnswerJob& job_;
  DepthPlan original_;
  AnswerFile file_;
  double clock_;  // seconds of generating, those of interrupted commands among them
  std::vector<int32_t> stop_;
  std::optional<Decoder> decoder_;
  int64_t prompts_ = 0, count_ = 0, tokens_ = 0;  // the first prompts have answers: so many, with so many tokens
  int64_t written_ = 0;                           // tokens of all answers, those in progress among them
  int64_t begun_ = 0, reported_ = 0;              // units of progress before this call, and reported since
};

}  // namespace

bool AnswersWanted::Suffice(int64_t answers, int64_t answer_tokens) const {
  const int64_t learnt = answers - std::min(heldout, answers / kHeldoutShare);
  if (tokens > 0) return answers > 0 && answer_tokens * learnt / answers >= tokens;
  return sequences > 0 && learnt >= sequences;
}

OwnAnswers AnswerPrompts(const AnswerJob& job) {
  OwnAnswers answers = SharedLoop(job.context, 1, [&](int64_t) { return Answering(job).Run(); }).front();
  if (answers.answers.empty() && job.wanted.seconds > 0)
    Fail("the original model finished no answer within {:.0f} s: give a longer budget, or one in tokens",
         job.wanted.seconds);
  Check(!answers.answers.empty(),
        "none of the {} prompts has an answer: the answers are empty, or prompts leave no room for an answer in a "
        "sequence of {} tokens; give shorter prompts or a greater length",
        job.prompts, job.length);
  return answers;
}

}  // namespace shiftrt
