// SPDX-License-Identifier: Apache-2.0
// What is said when a pull fails: the name of what was pulled, and what to do.
#include "tests/hub/fixture.h"
#include "tests/runtime/refusal.h"

namespace shiftrt {
namespace {

class PullingFails : public Pulling {
 protected:
  void ExpectSays(const PullRequest& request, const std::vector<std::string>& words) {
    const std::string said = Refusal([&] { PullIt(request); });
    EXPECT_TRUE(said.starts_with(request.repository.id)) << said;
    for (const std::string& word : words) EXPECT_NE(said.find(word), std::string::npos) << word << " in: " << said;
  }
  void ExpectSays(const std::vector<std::string>& words) { ExpectSays(Request(), words); }
};

TEST_F(PullingFails, Gated) {
  hub_.behaviour.gated = {"models/org/model"};
  hub_.behaviour.token = "hf_secret";
  ExpectSays({"is gated", "ask for access at " + settings_.endpoint + "/org/model", "HF_TOKEN", "/settings/tokens"});
  settings_.token = hub_.behaviour.token = "stranger";
  ExpectSays({"is gated", "the token that was sent has no access"});
}

TEST_F(PullingFails, WrongToken) {
  hub_.behaviour.token = "hf_right";
  settings_.token = "hf_wrong";
  ExpectSays({"does not know the token", "HF_TOKEN", settings_.token_file.string()});
}

TEST_F(PullingFails, Missing) {
  ExpectSays(Request("org/modle"),
             {"there is no model org/modle on 127.0.0.1, or it is private", "check the spelling"});
  ExpectSays(Request("org/model@v9"), {"no branch, tag or commit called v9"});
  PullRequest request = Request();
  request.files = {"absent.json"};
  ExpectSays(request, {"absent.json", "no such file", "/tree/main"});
  request = Request();
  request.include = {"*.gguf"};
  ExpectSays(request, {"no file matches *.gguf", "config.json"});
  request.include = {"*.json"};
  request.exclude = {"*"};
  ExpectSays(request, {"leaves no file"});
}

TEST_F(PullingFails, OtherFormats) {
  TestRepository pickled, gguf;
  pickled.files = {{"config.json", "{}"}, {"pytorch_model.bin", "x", true}};
  gguf.files = {{"model-q8.gguf", "x", true}};
  hub_.Add("models/org/pickled", pickled);
  hub_.Add("models/org/gguf", gguf);
  ExpectSays(Request("org/pickled"), {"pytorch_model.bin", "--revision refs/pr/NUMBER"});
  ExpectSays(Request("org/gguf"), {"--include", "model-q8.gguf"});
}

TEST_F(PullingFails, AWebPageInsteadOfTheAnswer) {
  hub_.behaviour.api_pages = true;
  ExpectSays({"a web page came from 127.0.0.1", "proxy"});
  hub_.behaviour.api_pages = false;
  hub_.behaviour.pages = true;
  ExpectSays({"model-0000", "a web page came from 127.0.0.1", "https_proxy"});
}

TEST_F(PullingFails, SizesThatAreNotTrue) {
  hub_.behaviour.listed_size_error = 5;
  ExpectSays({"bytes of it, the hub's listing", "times in a row"});
  hub_.behaviour.listed_size_error = -5;
  ExpectSays({"bytes of it, the hub's listing"});
  EXPECT_FALSE(std::filesystem::exists(Folder() / "snapshots" / model_.commit / "model-00001-of-00002.safetensors"));
  EXPECT_FALSE(std::filesystem::exists(Folder() / "refs/main"));
}

TEST_F(PullingFails, TooManyRequestsForGood) {
  hub_.behaviour.too_many = 1000;
  ExpectSays({"too many requests (429)", "5 tries"});
}

TEST_F(PullingFails, NoNetwork) {
  settings_.endpoint = "http://127.0.0.1:1";
  ExpectSays({"127.0.0.1 cannot be reached", "--offline", "https_proxy"});
  settings_.endpoint = "http://there-is-no-such-name.invalid";
  ExpectSays({"there-is-no-such-name.invalid cannot be reached"});
}

// A server that speaks no TLS is no hub over HTTPS.
TEST_F(PullingFails, NoTls) {
  settings_.endpoint.replace(0, 4, "https");
  ExpectSays({"the connection to 127.0.0.1 broke 5 times"});
  settings_.endpoint = "ftp://127.0.0.1";
  EXPECT_NE(Refusal([&] { PullIt(); }).find("HF_ENDPOINT"), std::string::npos);
}

TEST_F(PullingFails, ASilentHub) {
  settings_.stall_seconds = settings_.connect_seconds = 1;
  hub_.behaviour.hang_after = 0;
  ExpectSays({"model-0000", "broke 5 times", "What is there is kept"});
}

// Bytes that come one by one are no sign of life: the connection is never silent, and never done.
TEST_F(PullingFails, AHubThatSendsAByteNowAndThen) {
  settings_.slow_seconds = 1;
  hub_.behaviour.trickle_ms = 20;
  ExpectSays({"model-0000", "sends too slowly, 5 times", "less than 1024 bytes per second over 1 seconds"});
}

TEST_F(PullingFails, NamesThatATerminalObeys) {
  TestRepository evil;
  evil.files = {{"config.json", "{}"}, {"model\x1B[2J.safetensors", "x", true}};
  hub_.Add("models/org/evil", evil);
  ExpectSays(Request("org/evil"), {"no path below the repository", "model\\x1b[2J"});
  EXPECT_EQ(Refusal([&] { PullIt(Request("org/evil")); }).find('\x1B'), std::string::npos);
}

TEST_F(PullingFails, ADirectoryInThePlaceOfAFile) {
  const std::filesystem::path blob = Folder() / "blobs" / model_.etag_of(File("tokenizer.json"));
  std::filesystem::create_directories(blob / "x");
  const std::string said = Refusal([&] { PullIt(); });
  EXPECT_TRUE(said.starts_with(blob.string() + ": not a regular file")) << said;
}

TEST_F(PullingFails, NamesThatLeaveTheDirectory) {
  TestRepository evil;
  evil.files = {{"config.json", "{}"}, {"../../../../evil", "x"}, {"model.safetensors", "x", true}};
  hub_.Add("models/org/evil", evil);
  ExpectSays(Request("org/evil"), {"../../../../evil", "no path below the repository"});
  evil.files.erase(evil.files.begin() + 1);
  evil.commit = "../../../../../../tmp/evil";
  hub_.Add("models/org/evil", evil);
  ExpectSays(Request("org/evil"), {"expected 40 hexadecimal digits"});
}

TEST_F(PullingFails, TooLittleSpace) {
  hub_.behaviour.listed_size_error = int64_t{1} << 44;
  ExpectSays({" TB are to come", "make room", "HF_HUB_CACHE=DIR"});
  EXPECT_EQ(hub_.BodyBytes(), 0);
}

}  // namespace
}  // namespace shiftrt
