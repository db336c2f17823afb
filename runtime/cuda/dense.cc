// SPDX-License-Identifier: Apache-2.0
#include "runtime/cuda/dense.h"

#include <cublas_v2.h>
#include <cusolverDn.h>

#include <vector>

#include "runtime/cuda/library.h"

namespace shiftrt::gpu {

namespace {

constexpr const char* kWhatFor = "float64 linear algebra";
constexpr const char* kWorkspace = "the workspace of a decomposition";
constexpr const char* kTridiagonal = "a tridiagonalization";

// The cuBLAS and cuSOLVER functions in use, looked up by name.
struct Libraries {
  explicit Libraries(int device) : device(device) {
    blas.Find(blas_create, "cublasCreate_v2");
    blas.Find(blas_destroy, "cublasDestroy_v2");
    blas.Find(blas_set_stream, "cublasSetStream_v2");
    blas.Find(gemm, "cublasDgemm_v2_64");
    blas.Find(gemm_batched, "cublasDgemmStridedBatched_64");
    blas.Find(symm, "cublasDsymm_v2_64");
    blas.Find(dgmm, "cublasDdgmm_64");
    blas.Find(trsm, "cublasDtrsm_v2_64");
    blas.Find(blas_text, "cublasGetStatusString");
    solver.Find(solver_create, "cusolverDnCreate");
    solver.Find(solver_destroy, "cusolverDnDestroy");
    solver.Find(solver_set_stream, "cusolverDnSetStream");
    solver.Find(params_create, "cusolverDnCreateParams");
    solver.Find(params_destroy, "cusolverDnDestroyParams");
    solver.Find(potrf_size, "cusolverDnXpotrf_bufferSize");
    solver.Find(potrf, "cusolverDnXpotrf");
    solver.Find(syevd_size, "cusolverDnXsyevd_bufferSize");
    solver.Find(syevd, "cusolverDnXsyevd");
    solver.Find(sytrd_size, "cusolverDnDsytrd_bufferSize");
    solver.Find(sytrd, "cusolverDnDsytrd");
    solver.Find(ormtr_size, "cusolverDnDormtr_bufferSize");
    solver.Find(ormtr, "cusolverDnDormtr");
  }

  void CheckBlas(cublasStatus_t status, const char* what) const {
    if (status == CUBLAS_STATUS_ALLOC_FAILED) FailFull(what);
    Check(status == CUBLAS_STATUS_SUCCESS, "cuBLAS: {} in {}", blas_text(status), what);
  }
  void CheckSolver(cusolverStatus_t status, const char* what) const {
    if (status == CUSOLVER_STATUS_ALLOC_FAILED) FailFull(what);
    Check(status == CUSOLVER_STATUS_SUCCESS, "cuSOLVER: status {} in {}", static_cast<int>(status), what);
  }
  // The libraries do not report how much memory they asked for.
  [[noreturn]] void FailFull(const char* what) const {
    const DeviceInfo info = QueryDevice(device);
    throw OutOfMemory(what, 0, info.free_bytes, info.memory_bytes);
  }

  int device;
  SharedLibrary blas{kWhatFor, fmt::format("libcublas.so.{}", CUBLAS_VER_MAJOR)};
  SharedLibrary solver{kWhatFor, fmt::format("libcusolver.so.{}", CUSOLVER_VER_MAJOR)};
  decltype(&cublasCreate_v2) blas_create;
  decltype(&cublasDestroy_v2) blas_destroy;
  decltype(&cublasSetStream_v2) blas_set_stream;
  decltype(&cublasDgemm_v2_64) gemm;
  decltype(&cublasDgemmStridedBatched_64) gemm_batched;
  decltype(&cublasDsymm_v2_64) symm;
  decltype(&cublasDdgmm_64) dgmm;
  decltype(&cublasDtrsm_v2_64) trsm;
  decltype(&cublasGetStatusString) blas_text;
  decltype(&cusolverDnCreate) solver_create;
  decltype(&cusolverDnDestroy) solver_destroy;
  decltype(&cusolverDnSetStream) solver_set_stream;
  decltype(&cusolverDnCreateParams) params_create;
  decltype(&cusolverDnDestroyParams) params_destroy;
  decltype(&cusolverDnXpotrf_bufferSize) potrf_size;
  decltype(&cusolverDnXpotrf) potrf;
  decltype(&cusolverDnXsyevd_bufferSize) syevd_size;
  decltype(&cusolverDnXsyevd) syevd;
  decltype(&cusolverDnDsytrd_bufferSize) sytrd_size;
  decltype(&cusolverDnDsytrd) sytrd;
  decltype(&cusolverDnDormtr_bufferSize) ormtr_size;
  decltype(&cusolverDnDormtr) ormtr;
};

cublasOperation_t Operation(bool transposed) { return transposed ? CUBLAS_OP_T : CUBLAS_OP_N; }

// If a later handle cannot be created, those created before are destroyed.
struct Handles {
  explicit Handles(int device) : libraries(device) {}
  ~Handles() {
    if (params != nullptr) libraries.params_destroy(params);
    if (solver != nullptr) libraries.solver_destroy(solver);
    if (blas != nullptr) libraries.blas_destroy(blas);
  }
  Handles(const Handles&) = delete;
  Handles& operator=(const Handles&) = delete;

  Libraries libraries;
  cublasHandle_t blas = nullptr;
  cusolverDnHandle_t solver = nullptr;
  cusolverDnParams_t params = nullptr;
};

int Fetch(Stream stream, const DeviceBuffer<int>& info) {
  int found = 0;
  CopyToHost(stream, &found, info.data(), sizeof(found));
  return found;
}

}  // namespace

struct Dense::Impl : Handles {
  explicit Impl(Stream on) : Handles(on.device), stream(on) {
    UseDeviceOf(stream);
    libraries.CheckBlas(libraries.blas_create(&blas), "its start");
    libraries.CheckBlas(libraries.blas_set_stream(blas, stream.handle), "its start");
    libraries.CheckSolver(libraries.solver_create(&solver), "its start");
    libraries.CheckSolver(libraries.solver_set_stream(solver, stream.handle), "its start");
    libraries.CheckSolver(libraries.params_create(&params), "its start");
  }

  // Workspace on the device and on the host, and the status of the routine that ran in it.
  struct Workspace {
    Workspace(Stream stream, size_t device_bytes, size_t host_bytes)
        : device(stream, static_cast<int64_t>(device_bytes), kWorkspace),
          host(host_bytes),
          info(stream, 1, kWorkspace) {}
    DeviceBuffer<std::byte> device;
    std::vector<std::byte> host;
    DeviceBuffer<int> info;
  };

  Stream stream;
};

Dense::Dense(Stream stream) : impl_(std::make_unique<Impl>(stream)) {}
Dense::~Dense() = default;

// The libraries use column-major order, so they see the transpose of every matrix. For a row-major c = a b they compute
// c' = b' a', and a row-major upper triangle is their lower triangle.

void Dense::Gemm(double alpha, const DenseOperand& a, const DenseOperand& b, double beta, double* c) {
  const int64_t m = a.transposed ? a.cols : a.rows, k = a.transposed ? a.rows : a.cols;
  const int64_t n = b.transposed ? b.rows : b.cols;
  impl_->libraries.CheckBlas(impl_->libraries.gemm(impl_->blas, Operation(b.transposed), Operation(a.transposed), n, m,
                                                   k, &alpha, b.data, b.cols, a.data, a.cols, &beta, c, n),
                             "a product");
}

void Dense::Symm(linalg::Side side, const double* a, const double* b, int64_t rows, int64_t cols, double* c) {
  const double one = 1, zero = 0;
  const bool left = side == linalg::Side::kLeft;
  impl_->libraries.CheckBlas(
      impl_->libraries.symm(impl_->blas, left ? CUBLAS_SIDE_RIGHT : CUBLAS_SIDE_LEFT, CUBLAS_FILL_MODE_LOWER, cols,
                            rows, &one, a, left ? rows : cols, b, cols, &zero, c, cols),
      "a product with a symmetric matrix");
}

void Dense::ScaleRows(const double* factors, const double* from, int64_t rows, int64_t cols, double* to) {
  impl_->libraries.CheckBlas(
      impl_->libraries.dgmm(impl_->blas, CUBLAS_SIDE_RIGHT, cols, rows, from, cols, factors, 1, to, cols),
      "a scaling of rows");
}

// A batch of dot products, each of a row with itself.
void Dense::RowSquares(const double* a, int64_t rows, int64_t cols, double* squares) {
  const double one = 1, zero = 0;
  impl_->libraries.CheckBlas(impl_->libraries.gemm_batched(impl_->blas, CUBLAS_OP_T, CUBLAS_OP_N, 1, 1, cols, &one, a,
                                                           cols, cols, a, cols, cols, &zero, squares, 1, 1, rows),
                             "a sum of squares");
}

bool Dense::Cholesky(double* a, int64_t n) {
  size_t device_bytes = 0, host_bytes = 0;
  impl_->libraries.CheckSolver(impl_->libraries.potrf_size(impl_->solver, impl_->params, CUBLAS_FILL_MODE_LOWER, n,
                                                           CUDA_R_64F, a, n, CUDA_R_64F, &device_bytes, &host_bytes),
                               "a Cholesky factorization");
  Impl::Workspace work(impl_->stream, device_bytes, host_bytes);
  impl_->libraries.CheckSolver(
      impl_->libraries.potrf(impl_->solver, impl_->params, CUBLAS_FILL_MODE_LOWER, n, CUDA_R_64F, a, n, CUDA_R_64F,
                             work.device.data(), device_bytes, work.host.data(), host_bytes, work.info.data()),
      "a Cholesky factorization");
  return Fetch(impl_->stream, work.info) == 0;
}

// In the column-major view of the library, U'^-1 b is b' L'^-1.
void Dense::SolveTriangular(const double* u, int64_t n, bool transposed, double* b, int64_t cols) {
  const double one = 1;
  impl_->libraries.CheckBlas(
      impl_->libraries.trsm(impl_->blas, CUBLAS_SIDE_RIGHT, CUBLAS_FILL_MODE_LOWER, Operation(transposed),
                            CUBLAS_DIAG_NON_UNIT, cols, n, &one, u, n, b, cols),
      "a triangular solve");
}

bool Dense::Eigen(double* a, int64_t n, double* values) {
  size_t device_bytes = 0, host_bytes = 0;
  impl_->libraries.CheckSolver(
      impl_->libraries.syevd_size(impl_->solver, impl_->params, CUSOLVER_EIG_MODE_VECTOR, CUBLAS_FILL_MODE_LOWER, n,
                                  CUDA_R_64F, a, n, CUDA_R_64F, values, CUDA_R_64F, &device_bytes, &host_bytes),
      "an eigendecomposition");
  Impl::Workspace work(impl_->stream, device_bytes, host_bytes);
  impl_->libraries.CheckSolver(
      impl_->libraries.syevd(impl_->solver, impl_->params, CUSOLVER_EIG_MODE_VECTOR, CUBLAS_FILL_MODE_LOWER, n,
                             CUDA_R_64F, a, n, CUDA_R_64F, values, CUDA_R_64F, work.device.data(), device_bytes,
                             work.host.data(), host_bytes, work.info.data()),
      "an eigendecomposition");
  return Fetch(impl_->stream, work.info) == 0;
}

void Dense::Tridiagonalize(double* a, int64_t n, double* diagonal, double* beside, double* reflectors) {
  const auto side = static_cast<int>(n);
  int elements = 0;
  impl_->libraries.CheckSolver(impl_->libraries.sytrd_size(impl_->solver, CUBLAS_FILL_MODE_LOWER, side, a, side,
                                                           diagonal, beside, reflectors, &elements),
                               kTridiagonal);
  const DeviceBuffer<double> work(impl_->stream, elements, kWorkspace);
  const DeviceBuffer<int> info(impl_->stream, 1, kWorkspace);
  impl_->libraries.CheckSolver(impl_->libraries.sytrd(impl_->solver, CUBLAS_FILL_MODE_LOWER, side, a, side, diagonal,
                                                      beside, reflectors, work.data(), elements, info.data()),
                               kTridiagonal);
  Check(Fetch(impl_->stream, info) == 0, "cuSOLVER: wrong arguments in {}", kTridiagonal);
}

void Dense::Rotate(double* a, int64_t n, double* reflectors, double* rows, int64_t count) {
  const auto side = static_cast<int>(n), vectors = static_cast<int>(count);
  int elements = 0;
  impl_->libraries.CheckSolver(
      impl_->libraries.ormtr_size(impl_->solver, CUBLAS_SIDE_LEFT, CUBLAS_FILL_MODE_LOWER, CUBLAS_OP_N, side, vectors,
                                  a, side, reflectors, rows, side, &elements),
      kTridiagonal);
  const DeviceBuffer<double> work(impl_->stream, elements, kWorkspace);
  const DeviceBuffer<int> info(impl_->stream, 1, kWorkspace);
  impl_->libraries.CheckSolver(
      impl_->libraries.ormtr(impl_->solver, CUBLAS_SIDE_LEFT, CUBLAS_FILL_MODE_LOWER, CUBLAS_OP_N, side, vectors, a,
                             side, reflectors, rows, side, work.data(), elements, info.data()),
      kTridiagonal);
}

}  // namespace shiftrt::gpu
