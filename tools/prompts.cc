// SPDX-License-Identifier: Apache-2.0
#include "tools/prompts.h"

#include <algorithm>
#include <iterator>

#include "runtime/check.h"
#include "tools/options.h"
#include "tools/texts.h"

namespace shiftrt {

namespace {

// Messages of a user.
constexpr const char* kMessages[] = {
    "Explain in two sentences why the sky is blue.",
    "What is the capital of Australia, and what is the city known for?",
    "Write a short story about a lighthouse keeper who finds a letter in a bottle.",
    "List five things to check before a long bicycle tour.",
    "How does a refrigerator keep food cold?",
    "What is 17 times 24? Show each step.",
    "A train leaves at 9:40 and arrives at 13:15. How long does the journey take?",
    "Translate into French: The library opens at eight o'clock in the morning.",
    "Translate into German: My sister has lived in this house for ten years.",
    "Summarize in one sentence: Bees visit flowers to collect nectar and carry pollen to the next flower.",
    "Write a Python function that returns the largest number in a list.",
    "Write a Python function that checks whether a string is a palindrome.",
    "Write a SQL query that counts the orders of each customer in a table named orders.",
    "What does the following code print?\nfor i in range(3):\n    print(i * i)",
    "Explain the difference between a list and a tuple in Python.",
    "Write a bash command that finds all files larger than 10 MB in the current directory.",
    "Give three reasons why people keep diaries.",
    "Who wrote Pride and Prejudice, and what is the novel about?",
    "Describe how bread is made, step by step.",
    "What are the main differences between a crocodile and an alligator?",
    "Write a polite email that asks a landlord to repair a heater.",
    "Sort these words by the alphabet: pear, apple, cherry, banana.",
    "Is the following sentence grammatical? If not, correct it: She don't likes to swim.",
    "Classify the sentiment of this review as positive or negative: The soup was cold and the waiter ignored us.",
    "What causes the tides of the sea?",
    "If all roses are flowers and some flowers fade quickly, do all roses fade quickly? Explain.",
    "Name the planets of the solar system in their order from the sun.",
    "Convert 5 kilometres to miles and explain the calculation.",
    "Write four lines of a poem about the first snow of the year.",
    "What should you do if a pan of oil catches fire?",
    "Extract the names and dates: Ada Lovelace was born on 10 December 1815, Alan Turing on 23 June 1912.",
    "Explain to a child what money is for.",
};

// Beginnings of texts, which a model goes on with that was not asked anything.
constexpr const char* kBeginnings[] = {
    "The sky is blue because",
    "The capital of Australia is",
    "On the last evening of the summer, the lighthouse keeper found",
    "A refrigerator keeps food cold by",
    "The three most important reasons to keep a diary are",
    "Bread is made from flour, water, salt and yeast. First,",
    "The tides of the sea are caused by",
    "The planets of the solar system, in their order from the sun, are",
    "In 1969, two astronauts",
    "The report says that the prices of houses have",
    "Dear Mr. Miller,\nthe heater in our flat",
    "The main difference between a crocodile and an alligator is",
    "def largest(numbers):\n    \"\"\"Returns the largest number of a list.\"\"\"\n",
    "def is_palindrome(text):\n",
    "for i in range(10):\n    if i % 2 == 0:\n",
    "#include <stdio.h>\n\nint main(void) {\n",
};

}  // namespace

std::vector<std::string> BuiltInPrompts(bool chat) {
  if (chat) return {std::begin(kMessages), std::end(kMessages)};
  return {std::begin(kBeginnings), std::end(kBeginnings)};
}

std::vector<std::string> PromptChoice::Texts(const CommonOptions& common) const {
  std::vector<std::string> texts;
  if (!prompt.empty()) {
    texts = {prompt};
  } else if (prompts.empty()) {
    texts = BuiltInPrompts(chat);
  } else {
    PullMissingTexts(prompts, common);
    texts = ReadPrompts(prompts, chat);
  }
  if (limit > 0 && std::ssize(texts) > limit) texts.resize(static_cast<size_t>(limit));
  return texts;
}

std::vector<std::vector<int32_t>> PromptChoice::Encode(const LanguageModel& model, std::span<const std::string> texts,
                                                       int64_t reply) const {
  const int64_t positions = model.Shape().max_positions;
  std::vector<std::vector<int32_t>> ids;
  for (const std::string& text : texts) {
    ids.push_back(chat ? model.EncodeMessage(text, system) : model.Encode(text));
    const int64_t tokens = std::ssize(ids.back());
    Check(tokens > 0, "prompt {} is empty", ids.size());
    Check(
        reply <= positions - tokens,
        "prompt {} has {} tokens, which leaves {} of the model's context of {} for its reply, and --max-tokens is {}; "
        "lower it, or shorten the prompt",
        ids.size(), tokens, std::max<int64_t>(0, positions - tokens), positions, reply);
  }
  return ids;
}

}  // namespace shiftrt
