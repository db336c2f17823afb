// SPDX-License-Identifier: Apache-2.0
// The cache on the disk, the environment, and checksums.
#include "hub/cache.h"

#include <cstdlib>

#include "hub/digest.h"
#include "hub/http.h"
#include "hub/names.h"
#include "hub/partial_file.h"
#include "hub/settings.h"
#include "runtime/files.h"
#include "tests/hub/fixture.h"
#include "tests/runtime/refusal.h"
#include "tests/write_text.h"

namespace shiftrt {
namespace {

namespace fs = std::filesystem;

std::string HexOf(std::string_view etag, std::string_view text) {
  Digest digest(etag, std::ssize(text));
  digest.Update(std::as_bytes(std::span(text)));
  return digest.Hex();
}

// The values are those of sha256sum and of git hash-object.
TEST(Digest, IsThatOfSha256sumAndOfGit) {
  const std::string lfs(64, '0'), git(40, '0');
  EXPECT_EQ(HexOf(lfs, ""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(HexOf(lfs, "abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(HexOf(git, ""), "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391");
  EXPECT_EQ(HexOf(git, "hello\n"), "ce013625030ba8dba906f756967f9e9ca394464a");
  EXPECT_TRUE(IsChecksum(lfs));
  EXPECT_FALSE(IsChecksum(lfs + "0"));
  EXPECT_FALSE(IsChecksum(std::string(40, 'F')));
}

TEST(HubCache, NamesOfRepositories) {
  const auto plain = ParseRepository("Qwen/Qwen2-1.5B");
  ASSERT_TRUE(plain);
  EXPECT_EQ(plain->Folder(), "models--Qwen--Qwen2-1.5B");
  EXPECT_EQ(ParseRepository("allenai/c4", RepositoryType::kDataset)->Folder(), "datasets--allenai--c4");
  EXPECT_EQ(ParseRepository("a/b@refs/pr/1")->revision, "refs/pr/1");
  EXPECT_EQ(ParseRepository("a/b@v1")->Description(), "a/b@v1");
  EXPECT_EQ(RepositoryOfModel("qwen2-1.5b")->id, "Qwen/Qwen2-1.5B");
  for (const char* wrong : {"qwen", "/b", "a/", "a/b/c", "../b", "a/..", "a/b@", "a/b@../x", "a b/c", "a--b/c", "a/.b"})
    EXPECT_FALSE(ParseRepository(wrong)) << wrong;
  EXPECT_FALSE(RepositoryOfModel("qwen"));
  for (const KnownModel& known : KnownModels()) EXPECT_TRUE(ParseRepository(known.repository)) << known.name;
  for (const char* wrong : {"", "/etc/passwd", "a/../b", "..", "a//b", "a/./b", "a\\b"})
    EXPECT_FALSE(IsRelativePath(wrong)) << wrong;
  EXPECT_TRUE(IsRelativePath("a/b..c"));
}

// Sets variables of the environment, and undoes that.
class HubEnvironment : public ::testing::Test {
 protected:
  static constexpr const char* kNames[] = {"HF_HOME",
                                           "HF_HUB_CACHE",
                                           "HUGGINGFACE_HUB_CACHE",
                                           "XDG_CACHE_HOME",
                                           "HF_TOKEN",
                                           "HF_ENDPOINT",
                                           "HF_TOKEN_PATH",
                                           "HF_HUB_OFFLINE",
                                           "TRANSFORMERS_OFFLINE",
                                           "HF_HUB_DOWNLOAD_TIMEOUT",
                                           "HOME",
                                           "HUGGING_FACE_HUB_TOKEN",
                                           "HF_HUB_DISABLE_IMPLICIT_TOKEN"};
  void SetUp() override {
    for (const char* name : kNames) {
      const char* value = std::getenv(name);
      before_.emplace_back(name, value == nullptr ? std::nullopt : std::optional<std::string>(value));
      ::unsetenv(name);
    }
    ::setenv("HOME", "/nowhere/me", 1);
  }
  void TearDown() override {
    for (const auto& [name, value] : before_)
      if (value)
        ::setenv(name, value->c_str(), 1);
      else
        ::unsetenv(name);
  }
  std::vector<std::pair<const char*, std::optional<std::string>>> before_;
};

TEST_F(HubEnvironment, SaysWhereTheCacheIs) {
  EXPECT_EQ(HuggingFaceCache(), "/nowhere/me/.cache/huggingface/hub");
  ::setenv("XDG_CACHE_HOME", "/x", 1);
  EXPECT_EQ(HuggingFaceCache(), "/x/huggingface/hub");
  ::setenv("HF_HOME", "~/hf", 1);
  EXPECT_EQ(HuggingFaceCache(), "/nowhere/me/hf/hub");
  ::setenv("HUGGINGFACE_HUB_CACHE", "$HOME/old", 1);
  EXPECT_EQ(HuggingFaceCache(), "/nowhere/me/old");
  ::setenv("HF_HUB_CACHE", "${HOME}/${UNKNOWN_TO_ALL}/new", 1);
  EXPECT_EQ(HuggingFaceCache(), "/nowhere/me/${UNKNOWN_TO_ALL}/new");
}

TEST_F(HubEnvironment, SaysWhoWeAre) {
  const TemporaryDirectory home;
  ::setenv("HF_HOME", home.path().c_str(), 1);
  EXPECT_EQ(HubSettings::FromEnvironment().token, "");
  WriteText(home.path() / "token", "hf_file\n");
  EXPECT_EQ(HubSettings::FromEnvironment().token, "hf_file");
  ::setenv("HF_TOKEN", " hf_env\r\n", 1);
  EXPECT_EQ(HubSettings::FromEnvironment().token, "hf_env");
  for (const char* broken : {"hf_a\nX-Other: field", "hf_a\r\nhf_b", "hf a"}) {
    ::setenv("HF_TOKEN", broken, 1);
    EXPECT_NE(Refusal([] { HubSettings::FromEnvironment(); }).find("HF_TOKEN has a line break"), std::string::npos);
  }
  ::setenv("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1", 1);
  EXPECT_EQ(HubSettings::FromEnvironment().token, "");
  ::setenv("HF_ENDPOINT", "https://mirror/", 1);
  EXPECT_EQ(HubSettings::FromEnvironment().endpoint, "https://mirror");
  ::setenv("HF_HUB_DOWNLOAD_TIMEOUT", "soon", 1);
  EXPECT_THROW(HubSettings::FromEnvironment(), Error);
  EXPECT_FALSE(HubIsOffline());
  ::setenv("TRANSFORMERS_OFFLINE", "yes", 1);
  EXPECT_TRUE(HubIsOffline());
}

TEST(Http, OriginsTellServersApart) {
  EXPECT_EQ(OriginOf("https://HuggingFace.co/a?b"), OriginOf("https://huggingface.co:443/"));
  EXPECT_NE(OriginOf("https://huggingface.co/"), OriginOf("http://huggingface.co/"));
  EXPECT_NE(OriginOf("https://huggingface.co/"), OriginOf("https://huggingface.co.evil.example/"));
  EXPECT_NE(OriginOf("https://huggingface.co/"), OriginOf("https://huggingface.co:444/"));
  EXPECT_EQ(OriginOf("file:///etc/passwd"), "");
  EXPECT_EQ(OriginOf("nonsense"), "");
  EXPECT_EQ(EscapeUrl("refs/pr/1", false), "refs%2Fpr%2F1");
  EXPECT_EQ(EscapeUrl("a b/ü#", true), "a%20b/%C3%BC%23");
  EXPECT_EQ(RetryAfterSeconds("17"), 17);
  EXPECT_EQ(RetryAfterSeconds("Wed, 21 Oct 2015 07:28:00 GMT"), 0);
  EXPECT_LT(RetryAfterSeconds("soon"), 0);
}

class Partial : public ::testing::Test {
 protected:
  static constexpr int64_t kSize = 1000, kPieceBytes = 300;
  Partial() : content_(Noise(kSize, 9)), blob_(directory_.path() / HexOf(std::string(64, '0'), content_)) {}

  static void Put(PartialFile& file, int64_t piece, int64_t bytes, const std::string& content) {
    file.Append(piece, std::string_view(content).substr(file.Next(piece), bytes));
  }

  TemporaryDirectory directory_;
  std::string content_;
  fs::path blob_;
};

TEST_F(Partial, KnowsAfterAnInterruptionWhatIsThere) {
  {
    PartialFile file(blob_, kSize, kPieceBytes);
    EXPECT_EQ(file.pieces(), 4);
    Put(file, 2, 120, content_);
    Put(file, 0, 300, content_);
    Put(file, 3, 100, content_);
  }
  PartialFile file(blob_, kSize, 77);  // the pieces stay as they were
  EXPECT_EQ(file.present(), 520);
  EXPECT_EQ(file.Next(1), 300);
  EXPECT_EQ(file.Next(2), 720);
  EXPECT_TRUE(file.Complete(0));
  EXPECT_TRUE(file.Complete(3));
  EXPECT_EQ(ReadPieces(blob_, kSize, 77).Present(), 520);
  Put(file, 1, 300, content_);
  Put(file, 2, 180, content_);
  ASSERT_TRUE(file.Complete());
  while (file.Check(64)) {
  }
  ASSERT_TRUE(file.Checked());
  EXPECT_TRUE(file.Right());
  file.Commit();
  EXPECT_TRUE(ReadFile(blob_) == content_);
  EXPECT_EQ(std::distance(fs::directory_iterator(directory_.path()), {}), 1);
}

TEST_F(Partial, ChecksumsFollowTheBeginningThatIsThere) {
  PartialFile file(blob_, kSize, kPieceBytes);
  Put(file, 1, 300, content_);
  EXPECT_FALSE(file.Check(1 << 20));
  Put(file, 0, 100, content_);
  EXPECT_TRUE(file.Check(1 << 20));
  EXPECT_FALSE(file.Check(1 << 20));
  Put(file, 0, 200, std::string(kSize, 'x'));  // wrong bytes
  Put(file, 2, 300, content_);
  Put(file, 3, 100, content_);
  while (file.Check(1 << 20)) {
  }
  EXPECT_FALSE(file.Right());
  file.StartAgain(true);
  EXPECT_EQ(file.pieces(), 1);
  EXPECT_EQ(file.present(), 0);
  Put(file, 0, kSize, content_);
  while (file.Check(1 << 20)) {
  }
  EXPECT_TRUE(file.Right());
}

// huggingface_hub before 1.0 continued BLOB.incomplete.
TEST_F(Partial, TakesOverTheBeginningThatAnOlderHuggingfaceHubLeft) {
  WriteText(blob_.string() + ".incomplete", content_.substr(0, 450));
  EXPECT_EQ(ReadPieces(blob_, kSize, kPieceBytes).Present(), 450);
  PartialFile file(blob_, kSize, kPieceBytes);
  EXPECT_EQ(file.present(), 450);
  EXPECT_EQ(file.Next(1), 450);
  EXPECT_FALSE(fs::exists(blob_.string() + ".incomplete"));
}

TEST_F(Partial, ARecordThatCannotBeIsIgnored) {
  { PartialFile(blob_, kSize, kPieceBytes); }
  const fs::path record = blob_.string() + ".shiftrt.pieces.incomplete";
  std::string words = ReadFile(record);
  words[3 * sizeof(int64_t)] = 200;  // bytes that the data does not have
  WriteText(record, words);
  EXPECT_EQ(PartialFile(blob_, kSize, kPieceBytes).present(), 0);
  WriteText(record, words.substr(0, 20));
  EXPECT_EQ(PartialFile(blob_, kSize, kPieceBytes).present(), 0);
}

TEST_F(Partial, LocksAreForOne) {
  FileLock first(directory_.path() / "locks/a.lock"), second(directory_.path() / "locks/a.lock");
  EXPECT_TRUE(first.Try());
  EXPECT_FALSE(second.Try());
  {
    FileLock third(directory_.path() / "locks/b.lock");
    EXPECT_TRUE(third.Try());
    fs::remove(directory_.path() / "locks/b.lock");
    FileLock fourth(directory_.path() / "locks/b.lock");
    EXPECT_TRUE(fourth.Try());
    EXPECT_FALSE(FileLock(directory_.path() / "locks/b.lock").Try());
  }
}

}  // namespace
}  // namespace shiftrt
