// SPDX-License-Identifier: Apache-2.0
// The driver's part of kernels/cuda/tiles.h. The function that encodes a tensor map is asked of the driver at run time,
// through the CUDA runtime, so that nothing links to the driver's library.
#include "kernels/cuda/tiles.h"

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstring>

#include "runtime/check.h"

namespace shiftrt::gpu {

namespace {

using Encode = decltype(&cuTensorMapEncodeTiled);

// Null if the driver has no such function.
Encode FindEncode() {
  constexpr unsigned kSinceCuda = 12000;
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
  const cudaError_t status =
      cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, kSinceCuda, cudaEnableDefault, &result);
  if (status != cudaSuccess) cudaGetLastError();  // it is answered by null and must not surface again
  return status == cudaSuccess && result == cudaDriverEntryPointSuccess ? reinterpret_cast<Encode>(found) : nullptr;
}

Encode Encoder() {
  static const Encode encode = FindEncode();
  return encode;
}

}  // namespace

bool RunsHopperKernels(int device) {
  int major = 0, minor = 0;
  return cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess &&
         cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) == cudaSuccess && major == 9 &&
         minor == 0 && Encoder() != nullptr;
}

BoxMap MapBoxes(const BoxEncoding& encoding) {
  CUtensorMap encoded{};
  constexpr cuuint32_t kEveryElement[2] = {1, 1};
  Check(Encoder() != nullptr, "the driver has no cuTensorMapEncodeTiled; a driver of CUDA 12 or later has it");
  const CUresult status = Encoder()(
      &encoded, encoding.dtype == DType::kBFloat16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
      2, const_cast<void*>(encoding.data), encoding.sizes, &encoding.row_bytes, encoding.box, kEveryElement,
      CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
      CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  Check(status == CUDA_SUCCESS, "CUDA: cuTensorMapEncodeTiled of a matrix of {} x {}, boxes of {} x {}: error {}",
        encoding.sizes[1], encoding.sizes[0], encoding.box[1], encoding.box[0], static_cast<int>(status));
  BoxMap map;
  static_assert(sizeof(map) == sizeof(encoded));
  std::memcpy(&map, &encoded, sizeof(map));
  return map;
}

}  // namespace shiftrt::gpu
