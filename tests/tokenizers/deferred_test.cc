// SPDX-License-Identifier: Apache-2.0
#include "tokenizers/deferred.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "runtime/check.h"
#include "tests/temporary_directory.h"
#include "tests/tokenizers/goldens.h"
#include "tests/write_text.h"

namespace shiftrt {
namespace {

const std::filesystem::path kLlama3 = kTokenizerGoldens / "llama3-json";

std::string EncodeError(const DeferredTokenizer& tokenizer, const std::string& text) {
  try {
    tokenizer->Encode(text);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(Deferred, NoneIsNone) {
  EXPECT_FALSE(DeferredTokenizer());
  EXPECT_FALSE(DeferredTokenizer(std::unique_ptr<Tokenizer>()));
  EXPECT_TRUE(DeferredTokenizer(LoadTokenizer(kLlama3)));
}

TEST(Deferred, CopiesAndThreadsShareOneTokenizer) {
  const DeferredTokenizer tokenizer(kLlama3, 1000);
  const DeferredTokenizer copy = tokenizer;  // NOLINT(performance-unnecessary-copy-initialization)
  std::vector<const Tokenizer*> found(4);
  std::vector<std::thread> threads;
  threads.reserve(found.size());
  for (const Tokenizer*& one : found)
    threads.emplace_back(
        [&one, &tokenizer, &copy, even = (&one - found.data()) % 2 == 0] { one = &(even ? tokenizer : copy).Get(); });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(std::set<const Tokenizer*>(found.begin(), found.end()).size(), 1u);
}

// A file that was mended in the meantime is read.
TEST(Deferred, EveryCallSaysWhyItFails) {
  const TemporaryDirectory directory;
  const auto file = directory.path() / "tokenizer.json";
  WriteText(file, "{}");
  const DeferredTokenizer tokenizer(directory.path(), 1000);
  for (int i = 0; i < 2; ++i)
    EXPECT_NE(EncodeError(tokenizer, "a").find(directory.path().string()), std::string::npos) << i;
  std::filesystem::copy_file(kLlama3 / "tokenizer.json", file, std::filesystem::copy_options::overwrite_existing);
  EXPECT_EQ(EncodeError(tokenizer, "a"), "");
}

TEST(Deferred, NotesAreToldOnceWhenItIsLoaded) {
  const TemporaryDirectory directory;
  nlohmann::json root;
  std::ifstream(kLlama3 / "tokenizer.json") >> root;
  root["decoder"] = nullptr;
  WriteText(directory.path() / "tokenizer.json", root.dump());
  const DeferredTokenizer tokenizer(directory.path(), 1000);
  std::vector<std::string> told;
  tokenizer.ReportTo([&](const std::string& note) { told.push_back(note); });
  EXPECT_TRUE(told.empty());
  tokenizer->Encode("a");
  tokenizer->Encode("b");
  ASSERT_EQ(told.size(), 1u);
  EXPECT_NE(told[0].find("there is no decoder"), std::string::npos);
}

TEST(Deferred, OnlyTextWithATokenThatHasNoRowIsRefused) {
  const auto whole = LoadTokenizer(kLlama3);
  const int32_t end = whole->Encode("<|end|>").at(0);
  const DeferredTokenizer tokenizer(kLlama3, end);  // the tokenizer's ids from `end` on have no rows
  EXPECT_EQ(tokenizer->Encode("the keeper"), whole->Encode("the keeper"));
  EXPECT_EQ(tokenizer->EncodeWithBos("the keeper"), whole->EncodeWithBos("the keeper"));
  EXPECT_EQ(tokenizer->vocab_size(), end);
  EXPECT_EQ(tokenizer->eos_token(), -1);
  const std::string error = EncodeError(tokenizer, "the keeper<|end|>");
  for (const std::string& part : {kLlama3.string(), "token " + std::to_string(end) + ", '<|end|>'",
                                  "has " + std::to_string(end) + " rows", std::string("leave this token out")})
    EXPECT_NE(error.find(part), std::string::npos) << part << "\nnot in: " << error;
}

TEST(Deferred, ATokenBeforeEveryTextNeedsARow) {
  const int32_t begin = LoadTokenizer(kLlama3)->bos_token();
  EXPECT_NE(EncodeError(DeferredTokenizer(kLlama3, begin), "a").find("<|begin|>"), std::string::npos);
}

}  // namespace
}  // namespace shiftrt
