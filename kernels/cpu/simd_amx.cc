// SPDX-License-Identifier: Apache-2.0
// Products on AMX, the bfloat16 matrix unit of Intel's server CPUs since 2023.
#include "kernels/cpu/tile_product.h"

#if defined(__AMX_BF16__)

namespace shiftrt {
namespace {

// Configures the tiles of the calling thread, and releases them at the end, because a thread without tiles is switched
// faster. GCC's intrinsics need the number of a tile as a literal; assembly takes it from a template's argument.
class AmxTiles {
 public:
  AmxTiles() {
    struct alignas(64) Config {
      uint8_t palette = 1;
      uint8_t start_row = 0;
      uint8_t reserved[14] = {};
      uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
      uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
    };
    const Config config;
    __asm__ volatile("ldtilecfg %0" ::"m"(config));
  }
  ~AmxTiles() { __asm__ volatile("tilerelease"); }
  AmxTiles(const AmxTiles&) = delete;
  AmxTiles& operator=(const AmxTiles&) = delete;

  template <int kTile>
  void Zero() {
    __asm__ volatile("tilezero %%tmm%c0" ::"i"(kTile));
  }
  template <int kTile>
  void Load(const void* from) {
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(int64_t{64}), "i"(kTile) : "memory");
  }
  template <int kTile>
  void Store(float* to, int64_t stride) const {
    __asm__ volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(stride * 4), "i"(kTile) : "memory");
  }
  template <int kSum, int kLeft, int kRight>
  void MultiplyAdd() {
    __asm__ volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kSum), "i"(kLeft), "i"(kRight));
  }
};

}  // namespace
}  // namespace shiftrt
#else
#include "kernels/cpu/emulated_tiles.h"

namespace shiftrt {
namespace {
using AmxTiles = EmulatedTiles;
}  // namespace
}  // namespace shiftrt
#endif

namespace shiftrt {
extern const BlockProduct kAmxBFloat16Product = MakeTileProduct<AmxTiles, BFloat16>();
extern const BlockProduct kAmxFloat16Product = MakeTileProduct<AmxTiles, Float16>();
extern const BlockProduct kAmxFloat32Product = MakeTileProduct<AmxTiles, float>();
extern const BlockProduct kAmxRoundedProduct = MakeRoundedTileProduct<AmxTiles>();
}  // namespace shiftrt
