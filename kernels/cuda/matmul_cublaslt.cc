// SPDX-License-Identifier: Apache-2.0
#include <cublasLt.h>

#include <array>
#include <compare>
#include <map>

#include "kernels/cuda/matmul.h"
#include "runtime/cuda/library.h"

namespace shiftrt::gpu {

namespace {

constexpr int64_t kWorkspaceBytes = 32 << 20;  // NVIDIA's recommendation for Hopper
constexpr const char* kOperation = "matrix product";

// The cuBLASLt functions in use, looked up by name.
struct Library {
  void CheckStatus(cublasStatus_t status, const MatMulProblem& problem) const {
    Check(status == CUBLAS_STATUS_SUCCESS, "cuBLASLt: {} in a product ({}, {}) of depth {} in {}",
          status_string(status), problem.m, problem.n, problem.k, Name(problem.x.dtype));
  }

  SharedLibrary library{"matrix products", "libcublasLt", CUBLAS_VER_MAJOR};
  decltype(&cublasLtCreate) create = library.Find("cublasLtCreate");
  decltype(&cublasLtDestroy) destroy = library.Find("cublasLtDestroy");
  decltype(&cublasLtMatmul) matmul = library.Find("cublasLtMatmul");
  decltype(&cublasLtMatmulDescCreate) desc_create = library.Find("cublasLtMatmulDescCreate");
  decltype(&cublasLtMatmulDescDestroy) desc_destroy = library.Find("cublasLtMatmulDescDestroy");
  decltype(&cublasLtMatmulDescSetAttribute) desc_set = library.Find("cublasLtMatmulDescSetAttribute");
  decltype(&cublasLtMatrixLayoutCreate) layout_create = library.Find("cublasLtMatrixLayoutCreate");
  decltype(&cublasLtMatrixLayoutDestroy) layout_destroy = library.Find("cublasLtMatrixLayoutDestroy");
  decltype(&cublasLtMatmulPreferenceCreate) preference_create = library.Find("cublasLtMatmulPreferenceCreate");
  decltype(&cublasLtMatmulPreferenceDestroy) preference_destroy = library.Find("cublasLtMatmulPreferenceDestroy");
  decltype(&cublasLtMatmulPreferenceSetAttribute) preference_set = library.Find("cublasLtMatmulPreferenceSetAttribute");
  decltype(&cublasLtMatmulAlgoGetHeuristic) heuristic = library.Find("cublasLtMatmulAlgoGetHeuristic");
  decltype(&cublasLtGetStatusString) status_string = library.Find("cublasLtGetStatusString");
};

cudaDataType_t CudaType(DType type) {
  switch (type) {
    case DType::kFloat32: return CUDA_R_32F;
    case DType::kFloat16: return CUDA_R_16F;
    case DType::kBFloat16: return CUDA_R_16BF;
    default:
      Refuse(kOperation, "float32, float16 or bfloat16, not elements or blocks of bytes",
             static_cast<int64_t>(SizeOf(type)));
  }
  return CUDA_R_32F;
}

// The largest power of two up to 256 that divides the address: what an algorithm may assume.
uint32_t AlignmentOf(const void* p) {
  uint32_t alignment = 256;
  while (reinterpret_cast<uintptr_t>(p) % alignment != 0) alignment /= 2;
  return alignment;
}

// All that an algorithm is chosen by. Whether the product is added to y is not: y + x W' by the same algorithm is y
// plus the same x W', rounded once.
struct Key {
  explicit Key(const MatMulProblem& p)
      : in(p.x.dtype),
        out(p.y.dtype),
        x_transposed(p.x_transposed),
        w_transposed(p.w_transposed),
        sizes{p.m, p.n, p.k, p.XStride(), p.WStride(), p.YStride()},
        alignments{AlignmentOf(p.w.data), AlignmentOf(p.x.data), AlignmentOf(p.y.data)} {}
  auto operator<=>(const Key&) const = default;

  DType in, out;
  bool x_transposed, w_transposed;
  std::array<int64_t, 6> sizes;
  std::array<uint32_t, 3> alignments;
};

// The descriptors and the algorithm for one key.
struct Prepared {
  cublasLtMatmulDesc_t operation = nullptr;
  cublasLtMatrixLayout_t w = nullptr, x = nullptr, y = nullptr;
  cublasLtMatmulAlgo_t algorithm{};
};

}  // namespace

struct Products::Impl {
  explicit Impl(Stream on) : stream(on), workspace(on, kWorkspaceBytes, "the workspace of matrix products") {
    UseDeviceOf(stream);
    Check(library.create(&handle) == CUBLAS_STATUS_SUCCESS, "cuBLASLt does not start");
  }
  ~Impl() {
    for (const auto& [key, prepared] : shapes) {
      library.layout_destroy(prepared.w);
      library.layout_destroy(prepared.x);
      library.layout_destroy(prepared.y);
      library.desc_destroy(prepared.operation);
    }
    library.destroy(handle);
  }

  // The library uses column-major order: it sees W as (k, n), x as (k, m) and y as (n, m), and computes y = W' x. An
  // operand that is stored the other way round is the transpose of that.
  Prepared Prepare(const MatMulProblem& problem, const Key& key) const {
    Prepared prepared;
    const cudaDataType_t in = CudaType(problem.x.dtype), out = CudaType(problem.y.dtype);
    const auto check = [&](cublasStatus_t status) { library.CheckStatus(status, problem); };
    check(library.desc_create(&prepared.operation, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    const cublasOperation_t w_operation = problem.w_transposed ? CUBLAS_OP_N : CUBLAS_OP_T,
                            x_operation = problem.x_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    check(library.desc_set(prepared.operation, CUBLASLT_MATMUL_DESC_TRANSA, &w_operation, sizeof(w_operation)));
    check(library.desc_set(prepared.operation, CUBLASLT_MATMUL_DESC_TRANSB, &x_operation, sizeof(x_operation)));
    const auto layout = [&](cublasLtMatrixLayout_t* to, cudaDataType_t type, int64_t depth, int64_t count, bool other,
                            int64_t stride) {
      check(library.layout_create(to, type, other ? count : depth, other ? depth : count, stride));
    };
    layout(&prepared.w, in, problem.k, problem.n, problem.w_transposed, problem.WStride());
    layout(&prepared.x, in, problem.k, problem.m, problem.x_transposed, problem.XStride());
    layout(&prepared.y, out, problem.n, problem.m, false, problem.YStride());

    cublasLtMatmulPreference_t preference = nullptr;
    check(library.preference_create(&preference));
    const size_t bytes = kWorkspaceBytes;
    check(library.preference_set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes, sizeof(bytes)));
    // An algorithm may divide the depth. It then adds up the parts in float32, before it adds y.
    const uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    check(library.preference_set(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reductions,
                                 sizeof(reductions)));
    const auto [w_bytes, x_bytes, y_bytes] = key.alignments;
    for (const auto& [attribute, alignment] : {std::pair{CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, w_bytes},
                                               {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, x_bytes},
                                               {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, y_bytes},
                                               {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, y_bytes}})
      check(library.preference_set(preference, attribute, &alignment, sizeof(alignment)));
    cublasLtMatmulHeuristicResult_t best{};
    int found = 0;
    const cublasStatus_t status = library.heuristic(handle, prepared.operation, prepared.w, prepared.x, prepared.y,
                                                    prepared.y, preference, 1, &best, &found);
    library.preference_destroy(preference);
    check(found > 0 ? status : CUBLAS_STATUS_NOT_SUPPORTED);
    prepared.algorithm = best.algo;
    return prepared;
  }

  Library library;
  Stream stream;
  DeviceBuffer<std::byte> workspace;
  cublasLtHandle_t handle = nullptr;
  std::map<Key, Prepared> shapes;
};

Products::Products(Stream stream) : impl_(std::make_unique<Impl>(stream)) {}
Products::~Products() = default;

void Products::MatMul(const MatMulProblem& problem) {
  Require(problem.x.dtype == problem.w.dtype, kOperation, "operands of one type, not of bytes",
          static_cast<int64_t>(SizeOf(problem.w.dtype)));
  if (problem.m == 0 || problem.n == 0) return;
  UseDeviceOf(impl_->stream);
  const Key key(problem);
  auto at = impl_->shapes.find(key);
  if (at == impl_->shapes.end()) at = impl_->shapes.emplace(key, impl_->Prepare(problem, key)).first;
  const Prepared& shape = at->second;
  const float one = 1, beta = problem.accumulate ? 1 : 0;
  impl_->library.CheckStatus(
      impl_->library.matmul(impl_->handle, shape.operation, &one, problem.w.data, shape.w, problem.x.data, shape.x,
                            &beta, problem.y.data, shape.y, problem.y.data, shape.y, &shape.algorithm,
                            impl_->workspace.data(), kWorkspaceBytes, impl_->stream.handle),
      problem);
}

}  // namespace shiftrt::gpu
