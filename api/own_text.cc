// SPDX-License-Identifier: Apache-2.0
#include "api/own_text.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <optional>
#include <utility>

#include "runtime/check.h"
#include "runtime/files.h"
#include "runtime/progress.h"
#include "runtime/random.h"
#include "text/mixture.h"
#include "text/prompts.h"
#include "tokenizers/chat_template.h"
#include "train/finetune.h"

namespace shiftrt {

namespace {

// The share of a budget in seconds in which answers are generated, as a divisor.
constexpr double kTimeShare = 3;

std::vector<MixedText> OwnTexts(const FinetuneSettings& settings) {
  std::vector<MixedText> texts = MixtureIn(settings.text);
  std::erase_if(texts, [](const MixedText& text) { return !text.own; });
  return texts;
}

// The prompts of a file in a seeded order, in the form in which the model reads them: as a user's message in its chat
// template, or without one as they stand, with the template of their rows.
class Prompts {
 public:
  Prompts(const Model& model, const std::string& name, uint64_t seed)
      : name_(name),
        tokenizer_(model.RequireTokenizer()),
        chat_(LoadChatTemplate(model.directory, tokenizer_)),
        texts_(ReadPrompts(name, chat_ != nullptr)) {
    const std::optional<ChatTemplateText> form = FindChatTemplate(model.directory);
    description_ = HashHex(form ? form->text : "");
    for (const std::string& text : texts_) description_ = HashHex(description_ + text);
    order_.resize(texts_.size());
    std::iota(order_.begin(), order_.end(), size_t{0});
    Random random(seed);
    for (size_t i = 0; i < order_.size(); ++i)
      std::swap(order_[i], order_[i + static_cast<size_t>(random.Below(std::ssize(order_) - static_cast<int64_t>(i)))]);
  }

  int64_t size() const { return std::ssize(texts_); }
  const std::string& description() const { return description_; }
  std::vector<int32_t> Encode(int64_t number) const {
    const size_t place = order_.at(static_cast<size_t>(number));
    const std::string& text = texts_[place];
    try {
      if (chat_ == nullptr) return tokenizer_.EncodeWithBos(text);
      const ChatMessage message = {"user", text};
      return tokenizer_.Encode(chat_->Render(std::span(&message, 1)));
    } catch (const Interrupted&) {
      throw;
    } catch (const Error& error) {
      Fail("{}: prompt {}: {}", name_, place + 1, error.what());
    }
  }

 private:
  std::string name_;
  const Tokenizer& tokenizer_;
  std::unique_ptr<ChatTemplate> chat_;  // null for a model without one
  std::vector<std::string> texts_;
  std::string description_;
  std::vector<size_t> order_;
};

// Computes how many answers the text must have. `all`: the shares of all own texts together.
AnswersWanted WantedOf(const FinetuneSettings& settings, double share, double all) {
  const auto part = [&](int64_t count) { return std::llround(std::ceil(share * static_cast<double>(count))); };
  AnswersWanted wanted;
  if (settings.validation_text.empty()) wanted.heldout = part(settings.validation);
  if (settings.budget.seconds > 0) {
    wanted.seconds = settings.budget.seconds / kTimeShare * share / all;
  } else if (settings.budget.tokens > 0) {
    wanted.tokens = part(settings.budget.tokens);
  } else if (settings.steps > 0) {
    wanted.sequences = part(settings.steps * settings.batch);
  } else {
    wanted.sequences = part(settings.samples);
  }
  return wanted;
}

}  // namespace

void CheckOwnTexts(const Model& model, const FinetuneSettings& settings) {
  OriginalPlan(model, "text");
  for (const MixedText& text : OwnTexts(settings)) Prompts(model, text.name, settings.seed).Encode(0);
}

std::vector<OwnAnswers> AnswerOwnTexts(const Model& model, const FinetuneSettings& settings, const Context& context,
                                       const FinetuneObserver& observer) {
  CheckOwnTexts(model, settings);
  const std::vector<MixedText> texts = OwnTexts(settings);
  double all = 0;
  for (const MixedText& text : texts) all += text.share;
  NoProgress none;
  std::vector<OwnAnswers> answers;
  for (const MixedText& text : texts) {
    const Prompts prompts(model, text.name, settings.seed);
    answers.push_back(AnswerPrompts({.context = context,
                                     .model = model,
                                     .prompts = prompts.size(),
                                     .encode = [&](int64_t number) { return prompts.Encode(number); },
                                     .description = prompts.description(),
                                     .length = settings.length,
                                     .seed = settings.seed,
                                     .wanted = WantedOf(settings, text.share, all),
                                     .directory = settings.answers,
                                     .progress = observer.answers == nullptr ? none : *observer.answers,
                                     .warn = observer.warn}));
  }
  return answers;
}

}  // namespace shiftrt
