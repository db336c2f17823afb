// SPDX-License-Identifier: Apache-2.0
// clang-format off
// The rule, for element i = 0 .. count - 1 of tensor NAME with fan-in K (its last side), all in unsigned 64-bit
// arithmetic that wraps:
//   key = FNV1a64(bytes of NAME) ^ (seed * 0x9e3779b97f4a7c15)
//   z   = key + i + 0x9e3779b97f4a7c15
//   z   = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9
//   z   = (z ^ (z >> 27)) * 0x94d049bb133111eb
//   z   = z ^ (z >> 31)
//   n   = (z >> 56) - 128                     signed, uniform over -128 .. 127
// and the value is
//   NAME ends with ".bias":        n * 2^-10
//   NAME ends with ".A_log":       (n - 64) * 2^-5, so that some heads of a recurrence forget fast and others slowly
//   NAME ends with ".act_fn.beta": 1/2
//   NAME ends with ".act_fn.eps":  -2^-20
//   another vector (a norm):       1 + floor(n / 16) / 16
//   a matrix:                      n * 2^-(6 + b / 2), b the number of binary digits of K, b / 2 rounded down
// so that a matrix has a standard deviation within a factor 1.64 of 1 / sqrt(K).
// FNV1a64: h = 0xcbf29ce484222325; for each byte c: h = (h ^ c) * 0x100000001b3.
// Every value has at most 8 significant bits, so bfloat16, float16 and float32 hold the same numbers.
// clang-format on
#include <algorithm>
#include <bit>
#include <cmath>

#include "models/weights.h"
#include "runtime/check.h"
#include "runtime/elements.h"
#include "runtime/parallel.h"
#include "runtime/random.h"

namespace shiftrt {

namespace {

constexpr int64_t kChunk = 1 << 22;  // elements made and written at a time: no tensor is ever whole in memory

uint64_t Key(std::string_view name, uint64_t seed) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash ^ (seed * 0x9e3779b97f4a7c15u);
}

// The 256 values a tensor's elements take, by n + 128.
template <typename T>
std::vector<T> Levels(std::string_view name, const std::vector<int64_t>& shape) {
  const bool bias = name.ends_with(".bias"), decay = name.ends_with(".A_log"), norm = !bias && shape.size() == 1;
  if (name.ends_with(".act_fn.beta")) return std::vector<T>(256, T(0.5f));
  if (name.ends_with(".act_fn.eps")) return std::vector<T>(256, T(std::ldexp(-1.0f, -20)));
  const int exponent = bias ? 10 : 6 + std::bit_width(static_cast<uint64_t>(shape.back())) / 2;
  std::vector<T> levels;
  for (int n = -128; n < 128; ++n) {
    const auto value = static_cast<float>(n);
    const float level = decay  ? std::ldexp(value - 64, -5)
                        : norm ? 1 + std::floor(value / 16) / 16
                               : std::ldexp(value, -exponent);
    levels.push_back(T(level));
  }
  return levels;
}

template <typename T>
void WriteTensor(const std::string& name, const std::vector<int64_t>& shape, uint64_t seed, Buffer<T>& chunk,
                 AtomicFile& file) {
  const uint64_t key = Key(name, seed);
  const std::vector<T> levels = Levels<T>(name, shape);
  const int64_t elements = TensorView{nullptr, DTypeOf<T>::value, shape}.elements();
  for (int64_t begin = 0; begin < elements; begin += kChunk) {
    CheckInterrupted();
    const int64_t count = std::min(kChunk, elements - begin);
    ParallelFor(Cores(), count, 1 << 12, [&](int64_t first, int64_t last) {
      for (int64_t i = first; i < last; ++i)
        chunk[i] = levels[Random(key + static_cast<uint64_t>(begin + i)).Next() >> 56];
    });
    file.Write(std::as_bytes(chunk.span().first(static_cast<size_t>(count))));
  }
}

template <typename T>
void WriteTensors(const ModelConfig& config, uint64_t seed, AtomicFile& file) {
  Buffer<T> chunk(kChunk);
  for (const auto& [name, shape] : TensorShapes(config)) WriteTensor(name, shape, seed, chunk, file);
}

}  // namespace

void WriteRandomCheckpoint(const std::filesystem::path& config_file, DType dtype, uint64_t seed,
                           const std::filesystem::path& directory) {
  if (dtype == DType::kFloat64) FailUsage("a checkpoint in float64 cannot be made");
  const std::string text = ReadFile(config_file, kMaxConfigBytes);
  const ModelConfig config = ParseConfig(text, config_file.string());
  std::vector<NamedTensor> tensors;
  for (const auto& [name, shape] : TensorShapes(config)) tensors.push_back({name, {nullptr, dtype, shape}});
  AtomicDirectory out(directory);
  AtomicFile& file = out.Create("model.safetensors");
  file.Write(SafetensorsHeader(tensors, {{"format", "pt"}}));
  WithType(dtype, [&]<typename T>(std::type_identity<T>) { WriteTensors<T>(config, seed, file); });
  out.Create("config.json").Write(text);
  out.Commit();
}

}  // namespace shiftrt
