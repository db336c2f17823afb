// SPDX-License-Identifier: Apache-2.0
// Where a chat template comes from, and its variables.
#include "tokenizers/chat_template.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "runtime/check.h"
#include "tests/temporary_directory.h"
#include "tests/test_directory.h"
#include "tests/write_text.h"

namespace shiftrt {
namespace {

class ChatTemplates : public ::testing::Test {
 protected:
  ChatTemplates() : tokenizer_(LoadTokenizer(TestDirectory() / "goldens/tokenizers/llama3-json")) {}

  void Write(const std::string& file, const std::string& text) { WriteText(directory_.path() / file, text); }
  std::string Render(const std::vector<ChatMessage>& messages = {{"user", "hi"}}) {
    return LoadChatTemplate(directory_.path(), *tokenizer_)->Render(messages);
  }
  std::string ErrorOf() {
    try {
      return "no error, but: " + Render();
    } catch (const Error& error) {
      return error.what();
    }
  }

  TemporaryDirectory directory_;
  std::unique_ptr<Tokenizer> tokenizer_;
};

TEST_F(ChatTemplates, TheFileOfItsOwnComesFirst) {
  EXPECT_EQ(LoadChatTemplate(directory_.path(), *tokenizer_), nullptr);
  Write("chat_template.json", R"({"chat_template": "legacy"})");
  EXPECT_EQ(Render(), "legacy");
  Write("tokenizer_config.json", R"({"chat_template": [{"name": "tool_use", "template": "tools"},
                                                       {"name": "default", "template": "listed"}]})");
  EXPECT_EQ(Render(), "listed");
  Write("tokenizer_config.json", R"({"chat_template": "config"})");
  EXPECT_EQ(Render(), "config");
  Write("chat_template.jinja", "own\n");
  EXPECT_EQ(Render(), "own");
}

TEST_F(ChatTemplates, VariablesAreThoseOfTransformers) {
  Write("chat_template.jinja",
        "{{ bos_token }}|{{ eos_token }}|{{ pad_token }}|{{ tools is none }}{{ documents is none }}|"
        "{% for m in messages %}{{ m.role }}: {{ m.content }};{% endfor %}{{ add_generation_prompt }}");
  // Without a name in the files they are the tokenizer's.
  EXPECT_EQ(Render({{"system", "be"}, {"user", "hi"}}), "<|begin|>|<|end|>||TrueTrue|system: be;user: hi;True");
  Write("tokenizer_config.json", R"({"bos_token": null, "eos_token": {"content": "<e>"}})");
  Write("special_tokens_map.json", R"({"bos_token": "<ignored>", "pad_token": "<p>"})");
  EXPECT_EQ(Render(), "|<e>|<p>|TrueTrue|user: hi;True");
}

TEST_F(ChatTemplates, ErrorsNameTheFile) {
  Write("tokenizer_config.json", R"({"chat_template": [{"name": "rag", "template": "x"}]})");
  EXPECT_NE(ErrorOf().find("none of the templates is called \"default\" (rag)"), std::string::npos) << ErrorOf();
  Write("tokenizer_config.json", R"({"chat_template": 3})");
  EXPECT_NE(ErrorOf().find("tokenizer_config.json: chat_template is neither"), std::string::npos) << ErrorOf();
  Write("tokenizer_config.json", R"({"chat_template": "a\n{% block %}"})");
  EXPECT_NE(ErrorOf().find("tokenizer_config.json:2:4: the tag 'block'"), std::string::npos) << ErrorOf();
}

}  // namespace
}  // namespace shiftrt
