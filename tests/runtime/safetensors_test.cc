// SPDX-License-Identifier: Apache-2.0
#include "runtime/safetensors.h"

#include <cstring>
#include <limits>
#include <numeric>

#include "runtime/files.h"
#include "runtime/host_memory.h"
#include "runtime/random.h"
#include "tests/runtime/refusal.h"
#include "tests/temporary_directory.h"

namespace shiftrt {
namespace {

using Tensors = std::map<std::string, TensorView, std::less<>>;

std::string Length(uint64_t size) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes.push_back(static_cast<char>(size >> (8 * i)));
  return bytes;
}

// A file with this header and `data_bytes` bytes of data.
std::string FileOf(const std::string& header, size_t data_bytes) {
  return Length(header.size()) + header + std::string(data_bytes, '\x01');
}

Tensors Parse(const std::string& bytes, std::map<std::string, std::string, std::less<>>* metadata = nullptr) {
  return SafetensorsFile::Parse(std::as_bytes(std::span(bytes)), "m.safetensors", metadata);
}

void ExpectHeaderRefused(const std::string& bytes, const std::string& word) {
  ExpectRefusal([&] { Parse(bytes); }, "m.safetensors", word);
}

std::string Tensor(const std::string& name, const std::string& dtype, const std::string& shape,
                   const std::string& offsets) {
  return fmt::format(R"("{}":{{"dtype":"{}","shape":[{}],"data_offsets":[{}]}})", name, dtype, shape, offsets);
}

// A header with a single tensor "t".
std::string OneTensor(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return "{" + Tensor("t", dtype, shape, offsets) + "}";
}

TEST(Safetensors, TakesWhatIsValid) {
  const std::string header = "{" + Tensor("b", "BF16", "3", "24,30") + "," + Tensor("a", "F32", "2,3", "0,24") + "," +
                             Tensor("scalar", "F64", "", "30,38") + "," + Tensor("ids", "I64", "1", "38,46") + "," +
                             Tensor("none", "F16", "0,7", "46,46") + R"(,"__metadata__":{"format":"pt"}}   )";
  const std::string bytes = FileOf(header, 46);
  std::map<std::string, std::string, std::less<>> metadata;
  const Tensors tensors = Parse(bytes, &metadata);
  ASSERT_EQ(tensors.size(), 4u);  // tensors of integers are checked but not listed
  EXPECT_EQ(tensors.at("a").dtype, DType::kFloat32);
  EXPECT_EQ(tensors.at("a").shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(tensors.at("a").data, bytes.data() + 8 + header.size());
  EXPECT_EQ(tensors.at("b").data, bytes.data() + 8 + header.size() + 24);
  EXPECT_EQ(tensors.at("scalar").elements(), 1);
  EXPECT_EQ(tensors.at("none").bytes(), 0);
  EXPECT_EQ(metadata.at("format"), "pt");
  EXPECT_TRUE(Parse(FileOf("{}", 0)).empty());
}

TEST(Safetensors, HeaderLength) {
  ExpectHeaderRefused("", "too few");
  ExpectHeaderRefused("x", "too few");
  ExpectHeaderRefused(Length(2).substr(0, 7), "too few");
  ExpectHeaderRefused(Length(0), "start with '{'");
  ExpectHeaderRefused(Length(0) + "{}", "start with '{'");
  ExpectHeaderRefused(Length(3) + "{}", "truncated");
  ExpectHeaderRefused(Length(100'000'000) + "{}", "truncated");
  ExpectHeaderRefused(Length(100'000'001) + "{}", "limit");
  ExpectHeaderRefused(Length(std::numeric_limits<uint64_t>::max()) + "{}", "limit");
  ExpectHeaderRefused(Length(std::numeric_limits<uint64_t>::max() - 7) + "{}", "limit");
}

TEST(Safetensors, HeaderText) {
  ExpectHeaderRefused(FileOf(" {}", 0), "start with '{'");
  ExpectHeaderRefused(FileOf("[]", 0), "start with '{'");
  ExpectHeaderRefused(FileOf("\xEF\xBB\xBF{}", 0), "start with '{'");
  ExpectHeaderRefused(FileOf("{", 0), "not valid JSON");
  ExpectHeaderRefused(FileOf("{} x", 0), "not valid JSON");
  ExpectHeaderRefused(FileOf(std::string("{}\0\0", 4), 0), "zero byte");
  ExpectHeaderRefused(FileOf("{\"\xFF\":{}}", 0), "not valid JSON");
  ExpectHeaderRefused(FileOf("{\"a\":" + std::string(100000, '['), 0), "nested");
  ExpectHeaderRefused(FileOf("{" + Tensor("t", "U8", "1", "0,1") + "," + Tensor("t", "U8", "1", "0,1") + "}", 1),
                      "duplicate key t");
  ExpectHeaderRefused(FileOf(R"({"t":{"dtype":"U8","dtype":"F32","shape":[1],"data_offsets":[0,1]}})", 1),
                      "duplicate key dtype");
}

TEST(Safetensors, Entries) {
  for (const char* value : {"1", "null", "[]", "{}", R"({"dtype":"U8","shape":[1]})",
                            R"({"dtype":"U8","data_offsets":[0,1]})", R"({"shape":[1],"data_offsets":[0,1]})"})
    ExpectHeaderRefused(FileOf(fmt::format(R"({{"t":{}}})", value), 1), "tensor t: expected an object");
  ExpectHeaderRefused(FileOf(R"({"t":{"dtype":3,"shape":[1],"data_offsets":[0,1]}})", 1), "dtype is not a string");
  for (const char* dtype : {"F31", "f32", "", "float32", "F32 "})
    ExpectHeaderRefused(FileOf(OneTensor(dtype, "1", "0,4"), 4), "unknown dtype");
  ExpectHeaderRefused(FileOf(R"({"t":{"dtype":"U8","shape":1,"data_offsets":[0,1]}})", 1), "shape is not a list");
  ExpectHeaderRefused(FileOf(R"({"t":{"dtype":"U8","shape":[1],"data_offsets":1}})", 1), "not a pair");
  for (const char* offsets : {"", "0", "0,1,1"})
    ExpectHeaderRefused(FileOf(OneTensor("U8", "1", offsets), 1), "not a pair");
  for (const char* metadata : {"1", "[]", R"({"a":1})", R"({"a":null})", R"({"a":{"b":"c"}})"})
    ExpectHeaderRefused(FileOf(fmt::format(R"({{"__metadata__":{}}})", metadata), 0), "__metadata__");
}

TEST(Safetensors, Sizes) {
  for (const char* size : {"-1", "1.0", "1.5", "1e3", "\"1\"", "null", "true", "9223372036854775808",
                           "18446744073709551615", "18446744073709551616", "99999999999999999999999"}) {
    ExpectHeaderRefused(FileOf(OneTensor("F32", size, "0,4"), 4), "is not a size");
    ExpectHeaderRefused(FileOf(OneTensor("F32", "1", fmt::format("{},4", size)), 4), "is not a size");
    ExpectHeaderRefused(FileOf(OneTensor("F32", "1", fmt::format("0,{}", size)), 4), "is not a size");
  }
  ExpectHeaderRefused(FileOf(OneTensor("F32", "4611686018427387904", "0,0"), 0), "overflows");
  ExpectHeaderRefused(FileOf(OneTensor("U8", "4294967296,4294967296", "0,0"), 0), "overflows");
  ExpectHeaderRefused(FileOf(OneTensor("F64", "3037000500,3037000500", "0,8"), 8), "overflows");
  ExpectHeaderRefused(FileOf(OneTensor("U8", "9223372036854775807", "0,1"), 1), "ask for 9223372036854775807");
  ExpectHeaderRefused(FileOf(OneTensor("U8", "9223372036854775807", "0,9223372036854775807"), 1), "truncated");
  ExpectHeaderRefused(FileOf(OneTensor("U8", "1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1", "0,1"), 1), "at most 16");
}

TEST(Safetensors, Ranges) {
  const auto two = [](const char* first, const char* second, size_t bytes) {
    return FileOf("{" + Tensor("a", "U8", "4", first) + "," + Tensor("b", "U8", "4", second) + "}", bytes);
  };
  EXPECT_EQ(Refusal([&] { Parse(two("0,4", "4,8", 8)); }), "");
  EXPECT_EQ(Refusal([&] { Parse(two("4,8", "0,4", 8)); }), "");
  ExpectHeaderRefused(two("0,4", "3,7", 7), "tensor b starts at byte 3 of the data, expected 4");
  ExpectHeaderRefused(two("0,4", "0,4", 4), "starts at byte 0 of the data, expected 4");
  ExpectHeaderRefused(two("0,4", "5,9", 9), "tensor b starts at byte 5 of the data, expected 4");
  ExpectHeaderRefused(two("1,5", "5,9", 9), "tensor a starts at byte 1 of the data, expected 0");
  ExpectHeaderRefused(two("0,4", "4,8", 7), "tensor b ends at byte 8 of 7");
  ExpectHeaderRefused(two("0,4", "4,8", 9), "cover 8 of 9");
  ExpectHeaderRefused(two("4,0", "4,8", 8), "tensor a: data_offsets");
  ExpectHeaderRefused(two("0,4", "4,4", 4), "ask for 4");
  ExpectHeaderRefused(two("0,4", "4,9", 9), "hold 5 bytes");
  ExpectHeaderRefused(FileOf("{}", 1), "cover 0 of 1");
  ExpectHeaderRefused(FileOf(OneTensor("F32", "2", "0,4"), 4), "hold 4 bytes, dtype and shape ask for 8");
  ExpectHeaderRefused(FileOf(OneTensor("BF16", "2", "0,8"), 8), "ask for 4");
  ExpectHeaderRefused(FileOf(OneTensor("F32", "0", "4,4"), 4), "starts at byte 4");
}

TEST(Safetensors, FilesThatAreNone) {
  const TemporaryDirectory directory;
  for (const std::string& content : {std::string(), std::string("x"), std::string(100, '\xFF')}) {
    const auto path = directory.path() / "f.safetensors";
    AtomicFile file(path);
    file.Write(content);
    file.Commit();
    ExpectRefusal([&] { SafetensorsFile{path}; }, path.string(), content.size() < 8 ? "too few" : "limit");
  }
}

TEST(Safetensors, WhatIsWrittenIsRead) {
  const TemporaryDirectory directory;
  std::vector<float> a(15);
  std::iota(a.begin(), a.end(), -3.5f);
  std::vector<uint16_t> b = {0x3c00, 0xffff, 1};
  const double c = 0.1;
  const std::vector<NamedTensor> tensors = {{"z.first \"quoted\"", {a.data(), DType::kFloat32, {3, 5}}},
                                            {"b", {b.data(), DType::kFloat16, {3}}},
                                            {"empty", {nullptr, DType::kBFloat16, {0, 4}}},
                                            {"c", {&c, DType::kFloat64, {}}}};
  const auto path = directory.path() / "f.safetensors";
  WriteSafetensors(path, tensors, {{"format", "shiftrt"}, {"text", "\xC3\xA9\n"}});
  const SafetensorsFile file(path);
  ASSERT_EQ(file.tensors().size(), tensors.size());
  for (const auto& [name, tensor, in_file] : tensors) {
    const TensorView& found = file.tensors().at(name);
    EXPECT_EQ(found.dtype, tensor.dtype);
    EXPECT_EQ(found.shape, tensor.shape);
    EXPECT_TRUE(tensor.bytes() == 0 || std::memcmp(found.data, tensor.data, tensor.bytes()) == 0) << name;
  }
  EXPECT_EQ(reinterpret_cast<uintptr_t>(file.tensors().at(tensors[0].name).data) % 64, 0u);
  EXPECT_EQ(file.metadata().at("text"), "\xC3\xA9\n");
  EXPECT_EQ(SafetensorsHeader(tensors, {}).size() % 64, 0u);
}

// More than one piece, whose pages are released once they are read.
TEST(Safetensors, MemoryOfAFileIsWrittenAsOtherMemoryIs) {
  const TemporaryDirectory directory;
  const int64_t count = (int64_t{17} << 20) / sizeof(float);
  std::vector<float> values(count);
  for (int64_t i = 0; i < count; ++i) values[i] = static_cast<float>(i);
  const std::shared_ptr<std::byte> memory = AllocateInFile(count * sizeof(float), directory.path());
  std::memcpy(memory.get(), values.data(), count * sizeof(float));
  const std::vector<NamedTensor> plain = {{"a", {values.data(), DType::kFloat32, {count}}}},
                                 in_file = {{"a", {memory.get(), DType::kFloat32, {count}}, /*in_file=*/true}};
  EXPECT_EQ(ChecksumOf("text", plain), ChecksumOf("text", in_file));
  EXPECT_NE(ChecksumOf("other", plain), ChecksumOf("text", in_file));
  for (const auto& [name, tensors] : {std::pair("plain", &plain), std::pair("in_file", &in_file)})
    WriteSafetensors(directory.path() / name, *tensors);
  EXPECT_EQ(ReadFile(directory.path() / "plain"), ReadFile(directory.path() / "in_file"));
}

// With any byte changed and at any length, the file is refused or its views stay inside the bytes.
TEST(Safetensors, RandomDamage) {
  const std::string good = FileOf("{" + Tensor("a", "F32", "2,3", "0,24") + "," + Tensor("b", "F16", "2,2", "24,32") +
                                      R"(,"__metadata__":{"format":"pt"}})",
                                  32);
  ASSERT_EQ(Refusal([&] { Parse(good); }), "");
  Random random(3);
  for (int round = 0; round < 20000; ++round) {
    std::string bad = good;
    for (int64_t i = random.Below(4); i >= 0; --i)
      bad[random.Below(static_cast<int64_t>(bad.size()))] = static_cast<char>(random.Next());
    if (round % 4 == 0) bad.resize(random.Below(static_cast<int64_t>(bad.size())));
    try {
      for (const auto& [name, tensor] : Parse(bad)) {
        const auto* begin = static_cast<const char*>(tensor.data);
        ASSERT_TRUE(begin >= bad.data() && begin + tensor.bytes() <= bad.data() + bad.size());
      }
    } catch (const Error&) {
    }
  }
}

}  // namespace
}  // namespace shiftrt
