// The rule, for tensor NAME of `count` elements and fan-in K (its last side; 1 for a vector):
//   key     = FNV-1a 64 of NAME's bytes, xor (seed * 0x9e3779b97f4a7c15)
//   u       = first output of SplitMix64 seeded with key + i     (i = 0 .. count - 1; runtime/random.h)
//   n       = signed byte: (u >> 56) - 128                       (uniform over -128 .. 127)
//   matrix  : n * 2^-e, e = 6 + round(log2(sqrt(K)))             (standard deviation 1.15 / sqrt(K) within a
//   factor 1.41) norm    : 1 + floor(n / 16) / 16 bias    : n * 2^-10
// Every value has at most 8 significant bits, so bfloat16, float16 and float32 hold the same numbers.
#include <cmath>
#include <nlohmann/json.hpp>

#include "models/weights.h"
#include "runtime/check.h"
#include "runtime/random.h"

namespace shiftrt {

namespace {

uint64_t Key(std::string_view name, uint64_t seed) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash ^ (seed * 0x9e3779b97f4a7c15u);
}

template <typename T>
void FillRandom(std::string_view name, const std::vector<int64_t>& shape, uint64_t seed, std::span<T> out) {
  const uint64_t key = Key(name, seed);
  const bool norm = name.ends_with("norm.weight"), bias = name.ends_with(".bias");
  const double fan_in = shape.size() == 2 ? static_cast<double>(shape[1]) : 1;
  const float unit =
      bias ? 0x1p-10f : std::ldexp(1.0f, -6 - static_cast<int>(std::lround(std::log2(std::sqrt(fan_in)))));
#pragma omp parallel for schedule(static)
  for (size_t i = 0; i < out.size(); ++i) {
    const int n = static_cast<int>(Random(key + i).Next() >> 56) - 128;
    out[i] = T(norm ? 1.0f + std::floor(static_cast<float>(n) / 16) / 16 : static_cast<float>(n) * unit);
  }
}

template <typename T>
void WriteTensors(const ModelConfig& config, uint64_t seed, AtomicFile& file) {
  for (const auto& [name, shape] : TensorShapes(config)) {
    Buffer<T> values(TensorView{nullptr, DTypeOf<T>::value, shape}.elements());
    FillRandom(std::string_view(name), shape, seed, values.span());
    file.Write(std::as_bytes(values.span()));
  }
}

}  // namespace

void WriteRandomCheckpoint(const std::filesystem::path& config_file, DType dtype, uint64_t seed,
                           const std::filesystem::path& directory) {
  const ModelConfig config = LoadConfig(config_file);
  std::filesystem::create_directories(directory);
  std::vector<NamedTensor> tensors;
  for (const auto& [name, shape] : TensorShapes(config)) tensors.push_back({name, {nullptr, dtype, shape}});
  AtomicFile file(directory / "model.safetensors");
  file.Write(SafetensorsHeader(tensors, {{"format", "pt"}}));
  switch (dtype) {
    case DType::kFloat32: WriteTensors<float>(config, seed, file); break;
    case DType::kFloat16: WriteTensors<Float16>(config, seed, file); break;
    case DType::kBFloat16: WriteTensors<BFloat16>(config, seed, file); break;
    case DType::kFloat64: FailUsage("a checkpoint in float64 cannot be made");
  }
  file.Commit();
  AtomicFile copy(directory / "config.json");
  copy.Write(ReadFile(config_file, 1 << 24));
  copy.Commit();
}

}  // namespace shiftrt
