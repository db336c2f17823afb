// SPDX-License-Identifier: Apache-2.0
// --chat from outside, on a model of random weights.
#include "tests/file_size_limit.h"
#include "tests/tools/cli.h"

namespace shiftrt {
namespace {

constexpr const char* kTemplate =
    "{% for m in messages %}{% if m.role == 'critic' %}{{ raise_exception('no critics') }}{% endif %}"
    "{{ m.role }}: {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}";

class Chat : public Cli {
 protected:
  void SetUp() override {
    Cli::SetUp();
    WriteText(dir_ / "model/chat_template.jinja", kTemplate);
  }
  // `generate --chat` with these lines as its standard input.
  Outcome Talk(const std::string& lines) {
    WriteText(dir_ / "lines", lines);
    const std::string command = std::string(SHIFTRT_TOOL) + " generate --threads 1 --chat --max-tokens 4 --model " +
                                Path("model") + " < " + Path("lines");
    Outcome outcome;
    outcome.status = Wait(Start({"-c", command}, dir_ / "stdout", dir_ / "stderr", "/bin/sh"));
    outcome.out = ReadFile(dir_ / "stdout");
    outcome.err = ReadFile(dir_ / "stderr");
    return outcome;
  }
};

TEST_F(Chat, APromptIsAMessage) {
  const Outcome chat = Command("generate", {"--chat", "--system", "be", "--prompt", "hi", "--max-tokens", "6"});
  const Outcome plain = Command("generate", {"--prompt", "system: be\nuser: hi\nassistant:", "--max-tokens", "6"});
  ASSERT_EQ(chat.status, 0) << chat.err;
  ASSERT_EQ(plain.status, 0) << plain.err;
  EXPECT_EQ("system: be\nuser: hi\nassistant:" + chat.out, plain.out);
}

// A line of JSON for each prompt, in the order of the file, with the reply that the prompt gets alone.
TEST_F(Chat, ManyPromptsGiveALineEach) {
  WriteText(dir_ / "prompts.txt", "hi\n\nthe sea was calm and\r\nwell");
  WriteText(dir_ / "prompts.jsonl", "{\"text\": \"hi\"}\n{\"instruction\": \"the sea\", \"output\": \"was calm\"}\n");
  const std::vector<std::string> limits = {"--max-tokens", "5", "--quiet"};
  const auto many = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.end(), limits.begin(), limits.end());
    const Outcome outcome = Command("generate", arguments);
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    EXPECT_EQ(outcome.err, "");
    std::vector<Json> lines;
    std::istringstream in(outcome.out);
    for (std::string line; std::getline(in, line);) lines.push_back(Json::parse(line));
    return lines;
  };
  for (const bool chat : {false, true}) {
    std::vector<std::string> arguments = {"--prompts", Path("prompts.txt"), "--batch", "2"};
    if (chat) arguments.insert(arguments.end(), {"--chat", "--system", "be"});
    const std::vector<Json> lines = many(arguments);
    ASSERT_EQ(lines.size(), 3u);
    const char* const prompts[] = {"hi", "the sea was calm and", "well"};
    for (size_t i = 0; i < lines.size(); ++i) {
      std::vector<std::string> alone = {"--prompt", prompts[i], "--max-tokens", "5", "--quiet"};
      if (chat) alone.insert(alone.end(), {"--chat", "--system", "be"});
      const std::string reply = (chat ? "" : prompts[i]) + lines[i]["reply"].get<std::string>() + "\n";
      EXPECT_EQ(reply, Command("generate", alone).out) << chat << " " << i;
      EXPECT_EQ(lines[i]["finish_reason"], lines[i]["tokens"] < 5 ? "stop" : "length");
      EXPECT_EQ(lines[i]["text"], lines[i]["prompt"].get<std::string>() + lines[i]["reply"].get<std::string>());
    }
  }
  const std::vector<Json> documents = many({"--prompts", Path("prompts.jsonl")});
  ASSERT_EQ(documents.size(), 2u);
  EXPECT_NE(documents[1]["prompt"].get<std::string>().find("the sea"), std::string::npos);
  EXPECT_EQ(documents[1]["prompt"].get<std::string>().find("was calm"), std::string::npos) << "what asks for it alone";
  EXPECT_EQ(many({"--prompts", Path("prompts.txt"), "--prompt-tokens", "2", "--limit", "2"}).size(), 2u);
  // In a chat, the model's template takes the place of Alpaca's.
  const std::string message = many({"--prompts", Path("prompts.jsonl"), "--chat"})[1]["prompt"];
  EXPECT_NE(message.find("the sea"), std::string::npos) << message;
  EXPECT_EQ(message.find("Instruction"), std::string::npos) << message;

  WriteText(dir_ / "bad.txt", "hi\n\xff\n");
  EXPECT_FAILS(Command("generate", {"--prompts", Path("bad.txt")}), 1, "bad.txt: prompt 2: text is not valid UTF-8");
  std::string words = Words(400);
  std::replace(words.begin(), words.end(), '\n', ' ');
  WriteText(dir_ / "long.txt", "hi\n" + words);
  EXPECT_FAILS(Command("generate", {"--prompts", Path("long.txt"), "--max-tokens", "4"}), 1, "long.txt: prompt 2 has");

  EXPECT_FAILS(Command("generate", {"--prompts", Path("prompts.txt"), "--prompt", "hi"}), 2, "--prompt");
  EXPECT_FAILS(Command("generate", {"--prompt", "hi", "--batch", "3"}), 2, "--batch requires --prompts");
  EXPECT_FAILS(Command("generate", {"--prompts", Path("none.txt")}), 1, "none.txt");
  WriteText(dir_ / "empty.txt", "\n\n");
  EXPECT_FAILS(Command("generate", {"--prompts", Path("empty.txt")}), 1, "empty.txt: it has no prompt");
}

TEST_F(Chat, RepliesOfAnInterruptedCommandAreKept) {
  WriteText(dir_ / "prompts.txt", "hi\nthe sea was calm and\nwell");
  const std::vector<std::string> sampled = {"--prompts", Path("prompts.txt"), "--batch", "1",      "--max-tokens",
                                            "5",         "--temperature",     "1",       "--seed", "7",
                                            "--quiet"};
  const auto with = [&](std::vector<std::string> more) {
    std::vector<std::string> arguments = sampled;
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  };
  const std::string expected = Command("generate", sampled).out;
  ASSERT_EQ(std::count(expected.begin(), expected.end(), '\n'), 3);
  const size_t first = expected.find('\n');
  const fs::path out = dir_ / "own.jsonl", journal = dir_ / "own.jsonl.journal";
  {
    const FileSizeLimit limit(first + 60);  // room for the first reply with its key and checksum
    EXPECT_FAILS(Command("generate", with({"--out", out.string()})), 1, "own.jsonl.journal: cannot write it");
  }
  EXPECT_FALSE(fs::exists(out));
  ASSERT_TRUE(fs::exists(journal));
  std::vector<std::string> arguments = with({"--out", out.string()});
  std::erase(arguments, "--quiet");
  const Outcome rest = Command("generate", arguments);
  EXPECT_EQ(rest.status, 0) << rest.err;
  EXPECT_EQ(rest.out, "");
  EXPECT_NE(rest.err.find("1 replies were finished before an interruption"), std::string::npos) << rest.err;
  EXPECT_EQ(ReadFile(out), expected);
  EXPECT_FALSE(fs::exists(journal));
  // Other settings have other keys: nothing of a journal is believed for them. (--products=float32 is what auto means
  // for replies.)
  for (const char* other : {"--top-k=1", "--top-p=0.5", "--dtype=bfloat16"}) {
    SCOPED_TRACE(other);
    {
      const FileSizeLimit limit(first + 60);
      EXPECT_FAILS(Command("generate", with({"--out", out.string()})), 1, "cannot write it");
    }
    arguments = with({"--out", out.string(), other});
    std::erase(arguments, "--quiet");
    const Outcome all = Command("generate", arguments);
    EXPECT_EQ(all.status, 0) << all.err;
    EXPECT_EQ(all.err.find("finished before an interruption"), std::string::npos) << all.err;
    EXPECT_EQ(ReadFile(out), Command("generate", with({other})).out);
  }
  EXPECT_FAILS(Command("generate", {"--prompt", "hi", "--out", out.string()}), 2, "--out requires --prompts");

  // The tokens that end a reply decide it, too, and the model's files may be edited.
  {
    const FileSizeLimit limit(first + 60);
    EXPECT_FAILS(Command("generate", with({"--out", out.string()})), 1, "cannot write it");
  }
  Json every = Json::array();
  for (int64_t token = 0; token < kVocab; ++token) every.push_back(token);
  WriteText(dir_ / "model/generation_config.json", Json({{"eos_token_id", every}}).dump());
  EXPECT_EQ(Command("generate", with({"--out", out.string()})).status, 0);
  EXPECT_EQ(ReadFile(out), Command("generate", sampled).out);
}

// With a template that adds nothing, a chat gives the tokens of the plain prompt and another line.
TEST_F(Chat, LinesOfAChatAreNoLinesOfPlainPrompts) {
  WriteText(dir_ / "model/chat_template.jinja", "{{ messages[0].content }}");
  WriteText(dir_ / "prompts.txt", "hi\nwell");
  const fs::path out = dir_ / "own.jsonl";
  std::vector<std::string> plain = {"--prompts", Path("prompts.txt"), "--batch", "1", "--max-tokens", "5", "--quiet"};
  const size_t first = Command("generate", plain).out.find('\n');
  plain.insert(plain.end(), {"--out", out.string()});
  {
    const FileSizeLimit limit(first + 60);
    EXPECT_FAILS(Command("generate", plain), 1, "cannot write it");
  }
  plain.push_back("--chat");
  std::erase(plain, "--quiet");
  const Outcome chat = Command("generate", plain);
  EXPECT_EQ(chat.status, 0) << chat.err;
  EXPECT_EQ(chat.err.find("finished before an interruption"), std::string::npos) << chat.err;
}

// The numbers N of "prompt: N tokens" in what was written to standard error.
std::vector<int> PromptTokens(const std::string& err) {
  std::vector<int> numbers;
  for (size_t at = err.find("prompt: "); at != std::string::npos; at = err.find("prompt: ", at + 1))
    numbers.push_back(std::atoi(err.c_str() + at + 8));
  return numbers;
}

TEST_F(Chat, TurnsShareTheCache) {
  const Outcome one = Talk("hi\n");
  const Outcome three = Talk("hi\n\nand then\r\nwell");
  ASSERT_EQ(one.status, 0) << one.err;
  ASSERT_EQ(three.status, 0) << three.err;
  ASSERT_FALSE(one.out.empty());
  EXPECT_TRUE(three.out.starts_with(one.out)) << three.out;
  // Later turns compute fewer tokens than the conversation that they continue has.
  const std::vector<int> computed = PromptTokens(three.err);
  ASSERT_EQ(computed.size(), 3u) << three.err;
  // The same reply follows from the whole conversation, computed at once.
  const size_t first_end = one.out.size() - 1;
  const std::string conversation =
      "user: hi\nassistant: " + one.out.substr(0, first_end) + "\nuser: and then\nassistant:";
  const Outcome whole = Command("generate", {"--prompt", conversation, "--max-tokens", "4"});
  ASSERT_EQ(whole.status, 0) << whole.err;
  EXPECT_TRUE(three.out.substr(one.out.size()).starts_with(whole.out.substr(conversation.size())));
  ASSERT_EQ(PromptTokens(whole.err).size(), 1u) << whole.err;
  EXPECT_LT(computed[1], PromptTokens(whole.err)[0]);
}

TEST_F(Chat, WhatCannotBeDoneIsSaid) {
  EXPECT_FAILS(Command("generate", {"--system", "be", "--prompt", "hi"}), 2, "--system requires --chat");
  EXPECT_FAILS(Command("generate", {}), 2, "or --chat");
  EXPECT_FAILS(Talk(Words(200)), 1, "fills the model's context of 128");
  fs::remove(dir_ / "model/chat_template.jinja");
  EXPECT_FAILS(Command("generate", {"--chat", "--prompt", "hi"}), 1, "--chat needs a chat template");
  WriteText(dir_ / "model/chat_template.jinja", "a\n{% extends 'b' %}");
  EXPECT_FAILS(Command("generate", {"--chat", "--prompt", "hi"}), 1, "chat_template.jinja:2:4: the tag 'extends'");
}

TEST_F(Chat, TheEndOfATurnIsReadFromTheGenerationConfig) {
  const std::vector<std::string> prompt = {"--chat", "--prompt", "hi", "--max-tokens", "6"};
  EXPECT_NE(Command("generate", prompt).out, "\n");
  Json every = Json::array();
  for (int64_t token = 0; token < kVocab; ++token) every.push_back(token);
  WriteText(dir_ / "model/generation_config.json", Json({{"eos_token_id", every}}).dump());
  EXPECT_EQ(Command("generate", prompt).out, "\n");
}

TEST_F(Chat, RunAndTokenizeKnowConversations) {
  const Outcome run = Run({"--prune", "reverse:1", "--chat", "--prompt", "hi"});
  EXPECT_EQ(run.status, 0) << run.err;
  WriteText(dir_ / "c.json", R"([{"role": "user", "content": "hi"}])");
  EXPECT_EQ(Command("tokenize", {"--chat", Path("c.json"), "--rendered"}).out, "user: hi\nassistant:");
  EXPECT_NE(Command("tokenize", {"--chat", Path("c.json")}).out.find("tokens\n"), std::string::npos);
  WriteText(dir_ / "c.json", R"({"messages": [{"role": "critic", "content": "hi"}]})");
  EXPECT_FAILS(Command("tokenize", {"--chat", Path("c.json")}), 1, "the template refuses: no critics");
  WriteText(dir_ / "c.json", R"({"message": 1})");
  EXPECT_FAILS(Command("tokenize", {"--chat", Path("c.json")}), 1, "neither a list of messages");
  EXPECT_FAILS(Command("tokenize", {"--rendered", "x"}), 2, "--rendered requires --chat");
}

}  // namespace
}  // namespace shiftrt
