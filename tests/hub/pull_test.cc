// SPDX-License-Identifier: Apache-2.0
// Pulling from a hub that behaves, and from one that does not: whatever it does, what is in the cache is right.
#include <algorithm>
#include <future>
#include <set>

#include "hub/digest.h"
#include "tests/hub/fixture.h"
#include "tests/write_text.h"

namespace shiftrt {
namespace {

namespace fs = std::filesystem;

TEST_F(Pulling, TheCacheHasTheLayoutOfHuggingfaceHub) {
  const fs::path snapshot = PullIt();
  EXPECT_EQ(snapshot, Folder() / "snapshots" / model_.commit);
  ExpectWhole(snapshot);
  EXPECT_EQ(ReadFile(Folder() / "refs/main"), model_.commit);
  for (const char* path : {"config.json", "model-00001-of-00002.safetensors"}) {
    const fs::path link = snapshot / path;
    ASSERT_TRUE(fs::is_symlink(link)) << path;
    EXPECT_EQ(fs::read_symlink(link), "../../blobs/" + model_.etag_of(File(path)));
  }
  EXPECT_TRUE(ReadFile(settings_.cache / "CACHEDIR.TAG").starts_with("Signature: 8a477f597d28d172789f06886806bc55"));
  // Neither formats that nobody reads nor copies, and no unfinished files.
  EXPECT_EQ(std::distance(fs::recursive_directory_iterator(snapshot), {}), 6);
  EXPECT_EQ(std::distance(fs::directory_iterator(Folder() / "blobs"), {}), 6);
  EXPECT_EQ(hub_.BodyBytes(), NeededBytes());
  EXPECT_EQ(FindSnapshot(Request().repository, settings_.cache), snapshot);
}

TEST_F(Pulling, WhatIsThereIsNotFetchedAgain) {
  PullIt();
  const int64_t bytes = hub_.BodyBytes();
  PullIt();
  EXPECT_EQ(hub_.BodyBytes(), bytes);
  // A new commit that shares most files.
  TestRepository next = model_;
  next.commit = std::string(40, 'd');
  next.files[0].content = R"({"model_type": "qwen2"})";
  hub_.Add("models/org/model", next);
  const fs::path snapshot = PullIt();
  EXPECT_EQ(ReadFile(snapshot / "config.json"), next.files[0].content);
  EXPECT_EQ(hub_.BodyBytes(), bytes + std::ssize(next.files[0].content));
  EXPECT_EQ(ReadFile(Folder() / "refs/main"), next.commit);
  EXPECT_EQ(Snapshots(Request().repository, settings_.cache).front(), snapshot);
}

TEST_F(Pulling, PatternsAndRevisionsChoose) {
  PullRequest request = Request("org/model@refs/pr/1");
  request.include = {"*.json", "onnx/"};
  request.exclude = {"tokenizer*"};
  const fs::path snapshot = PullIt(request);
  EXPECT_TRUE(fs::exists(snapshot / "onnx/model.onnx"));
  EXPECT_EQ(fs::read_symlink(snapshot / "onnx/model.onnx"),
            "../../../blobs/" + model_.etag_of(File("onnx/model.onnx")));
  EXPECT_TRUE(fs::exists(snapshot / "config.json"));
  EXPECT_FALSE(fs::exists(snapshot / "tokenizer.json"));
  EXPECT_EQ(ReadFile(Folder() / "refs/refs/pr/1"), model_.commit);
  EXPECT_EQ(MissingOfModel(snapshot), "tokenizer.json");
}

TEST_F(Pulling, FilesByNameNeedNoListing) {
  TestRepository data;
  data.files = {{"en/one.json.gz", Noise(200'000, 8), true}, {"en/two.json.gz", "2"}, {"three", "3"}};
  hub_.Add("datasets/org/data", data);
  PullRequest request;
  request.repository = *ParseRepository("org/data", RepositoryType::kDataset);
  request.files = {"en/one.json.gz", "en/two.json.gz"};
  const fs::path snapshot = PullIt(request);
  EXPECT_EQ(snapshot.parent_path().parent_path().filename(), "datasets--org--data");
  EXPECT_TRUE(ReadFile(snapshot / "en/one.json.gz") == data.files[0].content);
  EXPECT_FALSE(fs::exists(snapshot / "three"));
  for (const SeenRequest& request_seen : hub_.Requests())
    EXPECT_EQ(request_seen.target.find("/api/"), std::string::npos) << request_seen.target;
}

TEST_F(Pulling, AMirrorMayListNamesOnly) {
  hub_.behaviour.names_only = true;
  ExpectWhole(PullIt());
}

// Two files of a commit with the same contents share a blob, and so a lock.
TEST_F(Pulling, EqualFilesAreOneBlob) {
  TestRepository twins;
  twins.files = {{"model.safetensors", Noise(200'000, 8), true}, {"model-copy.safetensors", Noise(200'000, 8), true}};
  hub_.Add("models/org/twins", twins);
  PullRequest request = Request("org/twins");
  request.include = {"*"};
  const fs::path snapshot = PullIt(request);
  EXPECT_EQ(fs::read_symlink(snapshot / "model.safetensors"), fs::read_symlink(snapshot / "model-copy.safetensors"));
  EXPECT_EQ(hub_.BodyBytes(), 200'000);
}

TEST_F(Pulling, EmptyFilesAreThere) {
  TestRepository repository;
  repository.files = {{"model.safetensors", "", false}};
  hub_.Add("models/org/empty", repository);
  EXPECT_EQ(ReadFile(PullIt(Request("org/empty")) / "model.safetensors"), "");
}

TEST_F(Pulling, LargeFilesComeInRangesAndTheHubIsAskedOnceForTheirPlace) {
  PullIt();
  std::set<std::string> ranges;
  int asked = 0;
  for (const SeenRequest& request : hub_.Requests()) {
    if (request.cdn && request.fields.count("range") > 0) ranges.insert(request.fields.at("range"));
    asked += !request.cdn && request.target.ends_with("model-00001-of-00002.safetensors") ? 1 : 0;
  }
  EXPECT_GE(ranges.size(), 16u);  // 1,000,003 bytes in pieces of 64 KiB
  EXPECT_LE(asked, 8);            // by what began before the first answer
}

// Every body is cut after a random byte with a probability of 0.7: what has arrived is never fetched again.
TEST_F(Pulling, BrokenConnectionsAreContinued) {
  hub_.behaviour.cut = 0.7;
  ExpectWhole(PullIt());
  EXPECT_LE(hub_.BodyBytes(), NeededBytes());
}

TEST_F(Pulling, AServerWithoutRangesWorks) {
  hub_.behaviour.ignores_ranges = true;
  ExpectWhole(PullIt());
  EXPECT_EQ(fs::exists(Folder() / "blobs" /
                       (model_.etag_of(File("model-00001-of-00002.safetensors")) + ".shiftrt.incomplete")),
            false);
}

TEST_F(Pulling, FilesWithoutRedirectWork) {
  hub_.behaviour.direct = true;
  ExpectWhole(PullIt());
}

TEST_F(Pulling, AFileThatChangesBetweenTwoRangesStartsAgain) {
  hub_.behaviour.change_after = 3;
  EXPECT_THROW(PullIt(), Error);  // the new contents are never those of the listing
  {
    const auto lock = hub_.Lock();
    hub_.behaviour.change_after = -1;
  }
  ExpectWhole(PullIt());
}

TEST_F(Pulling, TooManyRequestsAndBusyServersAreWaitedFor) {
  hub_.behaviour.too_many = 2;
  hub_.behaviour.unavailable = 2;
  ExpectWhole(PullIt());
}

TEST_F(Pulling, AnExpiredAddressIsAskedForAgain) {
  hub_.behaviour.expired = 2;
  ExpectWhole(PullIt());
}

TEST_F(Pulling, ASilentConnectionIsGivenUpAndContinued) {
  settings_.stall_seconds = 1;
  hub_.behaviour.hang_after = 400'000;
  EXPECT_THROW(PullIt(), Error);
  const int64_t bytes = hub_.BodyBytes();
  {
    const auto lock = hub_.Lock();
    hub_.behaviour.hang_after = -1;
  }
  ExpectWhole(PullIt());
  // Counted when sent: a byte on its way when the connection was given up may have been sent twice, no more.
  EXPECT_LE(hub_.BodyBytes(), NeededBytes() + 16 * (16 << 10));
  EXPECT_GT(bytes, 300'000);
}

TEST_F(Pulling, WrongBytesNeverGetTheName) {
  const TestFile& shard = File("model-00001-of-00002.safetensors");
  const fs::path blob = Folder() / "blobs" / model_.etag_of(shard);
  fs::create_directories(blob.parent_path());
  WriteText(blob.string() + ".incomplete", std::string(shard.content.size(), 'x'));  // whole, and wrong
  ExpectWhole(PullIt());
  EXPECT_TRUE(ReadFile(blob) == shard.content);
}

// A file of the wrong size is noticed always; one whose bytes changed, when that is asked for.
TEST_F(Pulling, DamagedFilesInTheCacheAreFetchedAgain) {
  ExpectWhole(PullIt());
  const TestFile& shard = File("model-00001-of-00002.safetensors");
  const fs::path blob = Folder() / "blobs" / model_.etag_of(shard);
  WriteText(blob, "short");
  HubClient hub(settings_);
  const PullPlan plan = PlanPull(hub, Request());
  ASSERT_EQ(plan.damaged.size(), 1u);
  EXPECT_NE(plan.damaged[0].find("the cache has 5 bytes of it, the hub lists 1000003"), std::string::npos)
      << plan.damaged[0];
  EXPECT_EQ(plan.missing_bytes, std::ssize(shard.content));
  ExpectWhole(PullIt());

  std::string changed = shard.content;
  changed[70000] = static_cast<char>(changed[70000] ^ 1);
  WriteText(blob, changed);
  EXPECT_TRUE(PlanPull(hub, Request()).damaged.empty());
  PullRequest request = Request();
  request.verify = true;
  EXPECT_NE(PlanPull(hub, request).damaged.at(0).find("checksum"), std::string::npos);
  ExpectWhole(PullIt(request));
  EXPECT_TRUE(PlanPull(hub, request).damaged.empty());
}

// A listing that is wrong about the size of a file does not cost the file.
TEST_F(Pulling, AGoodFileStaysWhateverTheListingSays) {
  const fs::path snapshot = PullIt();
  hub_.behaviour.listed_size_error = 5;
  HubClient hub(settings_);
  try {
    PlanPull(hub, Request());
    ADD_FAILURE() << "the listing was believed";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("the listing is wrong"), std::string::npos) << error.what();
  }
  ExpectWhole(snapshot);
}

TEST_F(Pulling, TheTokenIsForTheHubAlone) {
  settings_.token = hub_.behaviour.token = "hf_secret";
  hub_.behaviour.gated = {"models/org/model"};
  ExpectWhole(PullIt());
  int64_t cdn = 0;
  for (const SeenRequest& request : hub_.Requests()) {
    cdn += request.cdn ? 1 : 0;
    const auto sent = request.fields.find("authorization");
    if (request.cdn) {
      EXPECT_EQ(sent, request.fields.end());
      for (const auto& [name, value] : request.fields) EXPECT_EQ(value.find("hf_secret"), std::string::npos) << name;
      EXPECT_EQ(request.target.find("hf_secret"), std::string::npos);
    } else {
      ASSERT_NE(sent, request.fields.end()) << request.target;
      EXPECT_EQ(sent->second, "Bearer hf_secret");
    }
  }
  EXPECT_GT(cdn, 0);
}

TEST_F(Pulling, ARenamedRepositoryIsFollowedAndSaid) {
  hub_.Add("models/org/now", model_);
  hub_.behaviour.renamed = {{"models/org/before", "models/org/now"}};
  HubClient hub(settings_);
  const PullPlan plan = PlanPull(hub, Request("org/before"));
  EXPECT_EQ(plan.renamed_to, "org/now");
  Pull(hub, plan, [](auto) {});
  ExpectWhole(settings_.cache / "models--org--before" / "snapshots" / model_.commit);
}

// Two programs at once, as two clients of two threads: each byte comes once.
TEST_F(Pulling, TwoAtOnceShareTheWork) {
  std::future<void> other = std::async(std::launch::async, [this] { PullIt(); });
  PullIt();
  other.get();
  ExpectWhole(FindSnapshot(Request().repository, settings_.cache));
  EXPECT_EQ(hub_.BodyBytes(), NeededBytes());
}

TEST_F(Pulling, APlanSaysWhatIsToCome) {
  HubClient hub(settings_);
  PullPlan plan = PlanPull(hub, Request());
  EXPECT_EQ(plan.bytes, NeededBytes());
  EXPECT_EQ(plan.missing_bytes, NeededBytes());
  const TestFile& shard = File("model-00001-of-00002.safetensors");
  const fs::path blob = Folder() / "blobs" / model_.etag_of(shard);
  fs::create_directories(blob.parent_path());
  WriteText(blob.string() + ".incomplete", shard.content.substr(0, 1000));
  EXPECT_EQ(PlanPull(hub, Request()).missing_bytes, NeededBytes() - 1000);
  Pull(hub, plan, [](auto) {});
  EXPECT_EQ(PlanPull(hub, Request()).missing_bytes, 0);
}

// transformers keeps further chat templates in a directory, from which no other file is of the model.
TEST(FilesOfModel, FurtherChatTemplatesAreOfTheModel) {
  std::vector<RemoteFile> all;
  for (const char* path : {"additional_chat_templates/notes.txt", "additional_chat_templates/tool_use.jinja",
                           "config.json", "model.safetensors", "original/tool_use.jinja"})
    all.emplace_back().path = path;
  std::vector<std::string> chosen;
  for (const RemoteFile& file : FilesOfModel(all, "org/name")) chosen.push_back(file.path);
  std::sort(chosen.begin(), chosen.end());
  EXPECT_EQ(chosen,
            (std::vector<std::string>{"additional_chat_templates/tool_use.jinja", "config.json", "model.safetensors"}));
}

}  // namespace
}  // namespace shiftrt
