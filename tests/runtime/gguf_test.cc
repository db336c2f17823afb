// SPDX-License-Identifier: Apache-2.0
// The GGUF container and its block formats: files as the package gguf writes them, and every way in which a file can be
// wrong. The holes published for other readers of the format are among them.
#include "runtime/gguf.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "runtime/gguf_writer.h"
#include "runtime/random.h"
#include "tests/runtime/gguf_bytes.h"
#include "tests/runtime/refusal.h"
#include "tests/temporary_directory.h"
#include "tests/test_directory.h"
#include "tests/write_text.h"

namespace shiftrt {
namespace {

GgufContents Parse(const std::string& bytes) { return GgufFile::Parse(std::as_bytes(std::span(bytes)), "m.gguf"); }

void ExpectRefused(const std::string& bytes, const std::string& word) {
  ExpectRefusal([&] { Parse(bytes); }, "m.gguf", word);
}
void ExpectRefused(const GgufBytes& file, const std::string& word) { ExpectRefused(file.Bytes(), word); }

// goldens/make_gguf.py wrote it with the package gguf.
TEST(Gguf, ReadsWhatThePackageWrites) {
  const GgufFile file(TestDirectory() / "goldens/gguf/blocks.gguf");
  const GgufMetadata& metadata = file.metadata();
  EXPECT_EQ(metadata.Text("general.architecture"), "none");
  EXPECT_EQ(metadata.Integer("test.answer", 0, 100), 42);
  EXPECT_EQ(metadata.Number("test.small"), 1e-5);
  EXPECT_TRUE(metadata.Flag("test.flag", false));
  EXPECT_EQ(metadata.Texts("test.words"), (std::vector<std::string_view>{"one", "", "drei \xC3\xA9"}));
  EXPECT_EQ(metadata.Integers("test.numbers"), (std::vector<int64_t>{-1, 0, 7}));
  EXPECT_EQ(file.tensors().size(), 34u);
  EXPECT_EQ(file.tensors().at("Q4_K").shape, (std::vector<int64_t>{3, 512}));
}

class BlockFormat : public testing::TestWithParam<const char*> {};

TEST_P(BlockFormat, EqualsThePackageBitForBit) {
  const GgufFile file(TestDirectory() / "goldens/gguf/blocks.gguf");
  const GgufTensor& blocks = file.tensors().at(GetParam());
  const GgufTensor& expected = file.tensors().at(std::string(GetParam()) + ".float32");
  ASSERT_STREQ(blocks.type->name, GetParam());
  ASSERT_STREQ(expected.type->name, "F32");
  const int64_t elements = 3 * 512;
  std::vector<float> values(elements, std::nanf(""));
  blocks.type->decode(blocks.data, elements / blocks.type->elements, values.data());
  EXPECT_EQ(std::memcmp(values.data(), expected.data, elements * sizeof(float)), 0);
}

INSTANTIATE_TEST_SUITE_P(All, BlockFormat,
                         testing::Values("F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q4_K",
                                         "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS", "MXFP4"),
                         [](const auto& info) { return std::string(info.param); });

TEST(BlockFormats, AreWrittenAsThePackageDoes) {
  const GgufFile file(TestDirectory() / "goldens/gguf/blocks.gguf");
  const auto* values = reinterpret_cast<const float*>(file.tensors().at("quantize.float32").data);
  for (const BlockType type : {BlockType::kQ8_0, BlockType::kBF16}) {
    const GgufTensor& expected = file.tensors().at(fmt::format("quantize.{}", TraitsOf(type).name));
    std::vector<std::byte> blocks(static_cast<size_t>(expected.bytes), std::byte{0xAA});
    bool finite = true;
    EncodeBlocks(type, values, 3 * 512, blocks.data(), finite);
    EXPECT_TRUE(finite);
    EXPECT_EQ(std::memcmp(blocks.data(), expected.data, blocks.size()), 0) << TraitsOf(type).name;
  }
  EXPECT_TRUE(CanEncode(BlockType::kQ8_0, 64));
  EXPECT_FALSE(CanEncode(BlockType::kQ8_0, 48));
  EXPECT_FALSE(CanEncode(BlockType::kQ4_0, 64));
}

TEST(BlockFormats, NumbersThatDoNotFit) {
  std::vector<float> values(32, 1.0f);
  std::vector<std::byte> blocks(128);
  for (const float bad : {std::numeric_limits<float>::infinity(), std::nanf(""), 1e38f}) {
    values[7] = bad;
    for (const BlockType type : {BlockType::kQ8_0, BlockType::kF16}) {
      bool finite = true;
      EncodeBlocks(type, values.data(), 32, blocks.data(), finite);
      EXPECT_FALSE(finite) << bad;
    }
  }
}

TEST(GgufWriter, WhatIsWrittenIsRead) {
  GgufWriter writer;
  writer.AddInteger("count", 7);
  writer.AddNumber("small", 1e-5);
  writer.AddFlag("flag", true);
  writer.AddText("text", "caf\xC3\xA9");
  writer.AddIntegers("integers", {-1, 2});
  writer.AddNumbers("numbers", {0.5f});
  writer.AddTexts("texts", {"a", "", "bc"});
  writer.AddTensor("a", {3}, BlockType::kF32);
  writer.AddTensor("b", {2, 32}, BlockType::kQ8_0);
  const std::string a(12, 'a'), b(68, 'b');
  const std::string bytes = writer.header() + a + GgufWriter::Padding(12) + b + GgufWriter::Padding(68);
  EXPECT_EQ(bytes.size() % 32, 0u);
  const GgufContents contents = Parse(bytes);
  const GgufMetadata& metadata = contents.metadata;
  EXPECT_EQ(metadata.Integer("count", 0, 9), 7);
  EXPECT_EQ(metadata.Number("small"), 1e-5);
  EXPECT_TRUE(metadata.Flag("flag", false));
  EXPECT_EQ(metadata.Text("text"), "caf\xC3\xA9");
  EXPECT_EQ(metadata.Integers("integers"), (std::vector<int64_t>{-1, 2}));
  EXPECT_EQ(metadata.Numbers("numbers"), (std::vector<float>{0.5f}));
  EXPECT_EQ(metadata.Texts("texts"), (std::vector<std::string_view>{"a", "", "bc"}));
  EXPECT_EQ(contents.tensors.at("b").shape, (std::vector<int64_t>{2, 32}));
  EXPECT_EQ(std::memcmp(contents.tensors.at("a").data, a.data(), 12), 0);
  EXPECT_EQ(std::memcmp(contents.tensors.at("b").data, b.data(), 68), 0);
  GgufWriter copy;
  for (const auto& [key, value] : metadata.values()) copy.AddCopy(key, value);
  const std::string copied = copy.header();
  EXPECT_EQ(Parse(copied).metadata.Texts("texts"), metadata.Texts("texts"));
  EXPECT_EQ(Parse(copied).metadata.Number("small"), 1e-5);
}

TEST(Gguf, Header) {
  EXPECT_EQ(Refusal([] { Parse(GgufBytes().Bytes()); }), "");
  ExpectRefused(std::string(), "not a GGUF file");
  ExpectRefused(std::string("GGU"), "not a GGUF file");
  ExpectRefused(std::string("GGUF"), "truncated: the version");
  ExpectRefused(GgufBytes({.magic = "GGML"}), "not a GGUF file");
  EXPECT_EQ(Refusal([] { Parse(GgufBytes({.version = 2}).Bytes()); }), "");
  ExpectRefused(GgufBytes({.version = 1}), "version 1, expected 2 or 3");
  ExpectRefused(GgufBytes({.version = 4}), "version 4, expected 2 or 3");
  ExpectRefused(GgufBytes({.version = 3u << 24}), "big-endian");
  ExpectRefused(GgufBytes().Bytes().substr(0, 20), "truncated: the number of metadata values");
}

// Other readers multiplied these counts by the size of an element, and allocated what was left after the wrap.
TEST(Gguf, CountsThatTheFileCannotHold) {
  for (const uint64_t count : {uint64_t{1}, uint64_t{1} << 32, uint64_t{1} << 60, UINT64_MAX, UINT64_MAX / 32 + 2}) {
    ExpectRefused(GgufBytes({.tensor_count = count, .alignment = 1}), "truncated: the name of tensor 0");
    ExpectRefused(GgufBytes({.value_count = count, .alignment = 1}), "truncated: key 0 of the metadata");
  }
  for (const uint64_t count : {uint64_t{5}, uint64_t{1} << 40, UINT64_MAX / 4, UINT64_MAX}) {
    const std::string word = count > UINT64_MAX / 2 ? "more than any file can hold" : "truncated: k";
    ExpectRefused(GgufBytes({.alignment = 1}).AddArrayRaw("k", 4, count, std::string(16, '\0')), word);
  }
  ExpectRefused(GgufBytes().AddArrayRaw("k", 10, UINT64_MAX / 8 + 1, "x"), "more than any file can hold");
  ExpectRefused(GgufBytes().AddArrayRaw("k", 8, UINT64_MAX, GgufBytes::String("only one")), "truncated: k");
}

TEST(Gguf, StringsLongerThanTheFile) {
  for (const uint64_t length : {uint64_t{100}, uint64_t{1} << 63, UINT64_MAX - 1, UINT64_MAX}) {
    ExpectRefused(GgufBytes().AddRaw("k", 8, GgufBytes::Raw(length) + "text"), "truncated: k needs");
    ExpectRefused(GgufBytes().AddArrayRaw("k", 8, 1, GgufBytes::Raw(length) + "text"), "truncated: k needs");
    const std::string header = GgufBytes({.value_count = 1}).Bytes().substr(0, 24);
    ExpectRefused(header + GgufBytes::Raw(length) + "k", "truncated: key 0 of the metadata");
  }
}

TEST(Gguf, TypesOutOfRange) {
  for (const uint32_t kind : {13u, 255u, 1u << 31, UINT32_MAX}) {
    ExpectRefused(GgufBytes().AddRaw("k", kind, std::string(8, '\0')), "k is of the type");
    ExpectRefused(GgufBytes().AddArrayRaw("k", kind, 1, std::string(8, '\0')), "k is of the type");
  }
  ExpectRefused(GgufBytes().AddArrayRaw("k", 9, 1, std::string(64, '\0')), "array of arrays");
  ExpectRefused(GgufBytes().AddRaw("k", 7, "\x02"), "k holds 2, expected a bool");
  ExpectRefused(GgufBytes().AddArrayRaw("k", 7, 2, std::string("\0\xFF", 2)), "k holds 255, expected a bool");
  for (const uint32_t code : {4u, 5u, 31u, 36u, 100u, UINT32_MAX})
    ExpectRefused(GgufBytes().AddTensor("t", {32}, code, std::string(64, '\0')), "which is not known");
}

TEST(Gguf, NamesAndKeys) {
  ExpectRefused(GgufBytes().Add("k", 1u).Add("k", 2u), "k is twice in the metadata");
  ExpectRefused(GgufBytes().Add("", 1u), "0 bytes, expected 1 to 65535");
  ExpectRefused(GgufBytes().Add(std::string(65536, 'k'), 1u), "65536 bytes, expected 1 to 65535");
  ExpectRefused(GgufBytes().Add("a\x1B[2J", 1u), "has the byte 27, expected printable ASCII");
  const std::string four(4, '\0');
  ExpectRefused(GgufBytes().AddTensor("t", {1}, 0, four).AddTensor("t", {1}, 0, four), "tensor t is there twice");
  ExpectRefused(GgufBytes().AddTensor("", {1}, 0, four), "0 bytes, expected 1 to 64");
  ExpectRefused(GgufBytes().AddTensor(std::string(65, 't'), {1}, 0, four), "65 bytes, expected 1 to 64");
  ExpectRefused(GgufBytes().AddTensor("t\n", {1}, 0, four), "has the byte 10");
}

TEST(Gguf, Alignment) {
  const std::string four(4, '\0');
  for (const uint32_t good : {1u, 2u, 64u, 4096u}) {
    GgufBytes file({.alignment = good});
    file.Add("general.alignment", good).AddTensor("a", {1}, 0, four).AddTensor("b", {1}, 0, four);
    EXPECT_EQ(Refusal([&] { Parse(file.Bytes()); }), "") << good;
  }
  ExpectRefused(GgufBytes().Add("general.alignment", 0u).AddTensor("a", {1}, 0, four), "is 0, expected 1 to");
  ExpectRefused(GgufBytes().Add("general.alignment", 48u).AddTensor("a", {1}, 0, four), "expected a power of two");
  ExpectRefused(GgufBytes().Add("general.alignment", UINT32_MAX).AddTensor("a", {1}, 0, four), "expected 1 to");
  ExpectRefused(GgufBytes().Add("general.alignment", "32"), "is a string, expected an integer");
  ExpectRefused(GgufBytes().Add("general.alignment", std::vector<uint32_t>{32}), "an array of 1 uint32");
}

TEST(Gguf, Shapes) {
  const std::string bytes(256, '\0');
  ExpectRefused(GgufBytes().AddTensor("t", {}, 0, bytes), "has 0 sides, expected 1 to 4");
  ExpectRefused(GgufBytes().AddTensor("t", {1, 1, 1, 1, 1}, 0, bytes), "has 5 sides, expected 1 to 4");
  ExpectRefused(GgufBytes().AddTensor("t", {UINT64_MAX}, 0, bytes), "cannot be counted");
  ExpectRefused(GgufBytes().AddTensor("t", {uint64_t{1} << 32, uint64_t{1} << 32}, 0, bytes), "cannot be counted");
  ExpectRefused(GgufBytes().AddTensor("t", {3, uint64_t{1} << 62}, 0, bytes), "cannot be counted");
  ExpectRefused(GgufBytes().AddTensor("t", {uint64_t{1} << 62}, 0, bytes), "bytes cannot be counted");
  ExpectRefused(GgufBytes().AddTensor("t", {2, 33}, 2, bytes), "rows of 33 elements, expected a multiple of 32");
  ExpectRefused(GgufBytes().AddTensor("t", {256, 128}, 12, bytes), "rows of 128 elements, expected a multiple of 256");
  const GgufContents empty = Parse(GgufBytes().AddTensor("t", {0, 32}, 0, "").Bytes());
  EXPECT_EQ(empty.tensors.at("t").bytes, 0);
}

TEST(Gguf, Places) {
  const std::string bytes(64, '\0');
  const auto at = [&](uint64_t offset) { return GgufBytes().AddTensor("t", {16}, 0, bytes, offset); };
  EXPECT_EQ(Refusal([&] { Parse(at(0).Bytes()); }), "");
  ExpectRefused(at(4), "starts at byte 4 of the data, expected a multiple of 32");
  ExpectRefused(at(32), "has 64 bytes from byte 32 of the data on, which has 64 (truncated file?)");
  ExpectRefused(at(96), "which has 64");
  ExpectRefused(at(UINT64_MAX - 31), "which has 64");
  ExpectRefused(at(uint64_t{1} << 63), "which has 64");
  ExpectRefused(GgufBytes().AddTensor("a", {16}, 0, bytes).AddTensor("b", {16}, 0, bytes, 32), "a and b overlap");
  ExpectRefused(GgufBytes().AddTensor("a", {16}, 0, bytes).AddTensor("b", {16}, 0, bytes, 0), "a and b overlap");
  const std::string whole = GgufBytes().AddTensor("t", {16}, 0, bytes).Bytes();
  ExpectRefused(whole.substr(0, whole.size() - 1), "which has 63 (truncated file?)");
}

TEST(Gguf, ValuesOfTheWrongType) {
  const std::string bytes = GgufBytes()
                                .Add("text", "word")
                                .Add("count", uint64_t{7})
                                .Add("huge", UINT64_MAX)
                                .Add("share", 0.5f)
                                .Add("nan", std::nanf(""))
                                .Add("flag", true)
                                .Add("list", std::vector<float>{1, 2})
                                .Bytes();
  const GgufMetadata metadata = Parse(bytes).metadata;
  EXPECT_EQ(metadata.Integer("count", 0, 7), 7);
  EXPECT_EQ(metadata.Integer("none", 0, 7, 3), 3);
  EXPECT_EQ(metadata.Number("share"), 0.5);
  EXPECT_EQ(metadata.Numbers("list"), (std::vector<float>{1, 2}));
  const auto refused = [&](const auto& call, const std::string& word) { ExpectRefusal(call, "m.gguf", word); };
  refused([&] { metadata.Integer("none", 0, 7); }, "none is missing from the metadata (expected an integer)");
  refused([&] { metadata.Integer("count", 0, 6); }, "count is 7, expected 0 to 6");
  refused([&] { metadata.Integer("huge", 0, INT64_MAX); }, "more than 63 bits");
  refused([&] { metadata.Integer("flag", 0, 6); }, "flag is a bool, expected an integer");
  refused([&] { metadata.Integer("list", 0, 6); }, "list is an array of 2 float32, expected an integer");
  refused([&] { metadata.Number("count"); }, "count is a uint64, expected a float32");
  refused([&] { metadata.Number("nan"); }, "nan is nan, expected a finite number");
  refused([&] { metadata.Flag("count", false); }, "count is a uint64, expected a bool");
  refused([&] { metadata.Text("count"); }, "count is a uint64, expected a string");
  refused([&] { metadata.Texts("text"); }, "text is a string, expected an array of strings");
  refused([&] { metadata.Texts("list"); }, "expected an array of strings");
  refused([&] { metadata.Integers("list"); }, "expected an array of integers");
  refused([&] { metadata.Numbers("text"); }, "expected an array of float32");
}

class GgufParts : public testing::Test {
 protected:
  static GgufBytes Part(uint16_t number, uint16_t count, int32_t tensors = 3) {
    GgufBytes file;
    file.Add("split.no", number).Add("split.count", count).Add("split.tensors.count", tensors);
    return file.AddTensor(fmt::format("t{}", number), {2}, 0, std::string(8, static_cast<char>('a' + number)));
  }
  std::filesystem::path Path(int number, int count = 3) const {
    return directory_.path() / fmt::format("model-{:05}-of-{:05}.gguf", number, count);
  }
  void SetUp() override {
    for (uint16_t part = 0; part < 3; ++part) Write(part + 1, Part(part, 3));
  }
  void Write(int number, const GgufBytes& file) { WriteText(Path(number), file.Bytes()); }
  void ExpectOpenRefused(int number, const std::string& word) {
    const std::string what = Refusal([&] { GgufFile{Path(number)}; });
    EXPECT_NE(what.find(word), std::string::npos) << word << " in: " << what;
  }

  TemporaryDirectory directory_;
};

TEST_F(GgufParts, TheFirstOpensAll) {
  const GgufFile file(Path(1));
  ASSERT_EQ(file.tensors().size(), 3u);
  EXPECT_EQ(std::memcmp(file.tensors().at("t2").data, "cccccccc", 8), 0);
}

TEST_F(GgufParts, WhatIsWrongIsNamed) {
  ExpectOpenRefused(2, "give the first part");
  std::filesystem::remove(Path(3));
  ExpectOpenRefused(1, "part 3 of 3 is missing: " + Path(3).string());
  Write(3, Part(1, 3));
  ExpectOpenRefused(1, "says that it is part 2 of 3, expected part 3 of 3");
  Write(3, Part(2, 5));
  ExpectOpenRefused(1, "says that it is part 3 of 5, expected part 3 of 3");
  Write(3, GgufBytes().AddTensor("t2", {2}, 0, std::string(8, 'x')));
  ExpectOpenRefused(1, "split.count is missing");
  Write(3, Part(2, 3).AddTensor("t0", {2}, 0, std::string(8, 'x')));
  ExpectOpenRefused(1, "tensor t0 is in an earlier part too");
  Write(3, Part(2, 3).AddTensor("t3", {2}, 0, std::string(8, 'x')));
  ExpectOpenRefused(1, "have 4 tensors, expected 3");
  Write(1, Part(0, 4));
  ExpectOpenRefused(1, "must have a name that ends with -00001-of-00004.gguf");
  Write(1, GgufBytes().Add("split.count", -3));
  ExpectOpenRefused(1, "split.count is -3");
  Write(1, GgufBytes().Add("split.count", uint16_t{3}).Add("split.no", uint16_t{3}));
  ExpectOpenRefused(1, "split.no is 3, expected 0 to 2");
}

// With any byte changed and at any length, the file is refused or everything in it lies inside the bytes.
TEST(Gguf, RandomDamage) {
  const std::string good = GgufBytes()
                               .Add("general.architecture", "llama")
                               .Add("list", std::vector<int32_t>{1, 2, 3})
                               .Add("words", std::vector<std::string>{"a", "bc", ""})
                               .Add("flag", true)
                               .Add("general.alignment", 32u)
                               .AddTensor("a", {2, 32}, 8, std::string(68, '\1'))
                               .AddTensor("b", {7}, 0, std::string(28, '\1'))
                               .Bytes();
  ASSERT_EQ(Refusal([&] { Parse(good); }), "");
  Random random(3);
  int passed = 0;
  for (int round = 0; round < 20000; ++round) {
    std::string bad = good;
    for (int64_t i = random.Below(4); i >= 0; --i)
      bad[random.Below(static_cast<int64_t>(bad.size()))] = static_cast<char>(random.Next());
    if (round % 4 == 0) bad.resize(random.Below(static_cast<int64_t>(bad.size())));
    try {
      const GgufContents contents = Parse(bad);
      const auto inside = [&](const void* data, uint64_t bytes) {
        const auto* begin = static_cast<const char*>(data);
        return begin >= bad.data() && begin + bytes <= bad.data() + bad.size();
      };
      for (const auto& [name, tensor] : contents.tensors) ASSERT_TRUE(inside(tensor.data, tensor.bytes));
      for (const auto& [key, value] : contents.metadata.values()) {
        if (!value.array || value.kind != GgufKind::kString) continue;
        for (const std::string_view text : contents.metadata.Texts(key)) ASSERT_TRUE(inside(text.data(), text.size()));
      }
      ++passed;
    } catch (const Error&) {
    }
  }
  EXPECT_GT(passed, 1000);
}

}  // namespace
}  // namespace shiftrt
