// SPDX-License-Identifier: Apache-2.0
#include "runtime/cuda/dense.h"

#include <cublas_v2.h>
#include <cusolverDn.h>

#include <vector>

#include "runtime/cuda/library.h"

namespace shiftrt::gpu {

namespace {

constexpr const char* kWhatFor = "float64 linear algebra";
constexpr const char* kStart = "its start";
constexpr const char* kWorkspace = "the workspace of a decomposition";
constexpr const char* kTridiagonal = "a tridiagonalization";

// The cuBLAS and cuSOLVER functions in use, looked up by name.
struct Libraries {
  explicit Libraries(int device) : device(device) {}

  void CheckBlas(cublasStatus_t status, const char* what) const {
    if (status == CUBLAS_STATUS_ALLOC_FAILED) FailFull(what);
    Check(status == CUBLAS_STATUS_SUCCESS, "cuBLAS: {} in {}", blas_text(status), what);
  }
  void CheckSolver(cusolverStatus_t status, const char* what) const {
    if (status == CUSOLVER_STATUS_ALLOC_FAILED) FailFull(what);
    Check(status == CUSOLVER_STATUS_SUCCESS, "cuSOLVER: status {} in {}", static_cast<int>(status), what);
  }
  // Without memory for its own buffers a library may answer its start with a status that says nothing about memory.
  void CheckStart(cublasStatus_t status) const {
    if (status == CUBLAS_STATUS_NOT_INITIALIZED || status == CUBLAS_STATUS_INTERNAL_ERROR) FailIfFull();
    CheckBlas(status, kStart);
  }
  void CheckStart(cusolverStatus_t status) const {
    if (status == CUSOLVER_STATUS_NOT_INITIALIZED || status == CUSOLVER_STATUS_INTERNAL_ERROR) FailIfFull();
    CheckSolver(status, kStart);
  }
  void FailIfFull() const {
    constexpr int64_t kEnoughForAStart = int64_t{1} << 30;
    if (QueryDevice(device).free_bytes < kEnoughForAStart) FailFull(kStart);
  }
  // The libraries do not report how much memory they asked for.
  [[noreturn]] void FailFull(const char* what) const {
    cudaGetLastError();  // clears the error: it is reported here and must not be reported again
    const DeviceInfo info = QueryDevice(device);
    throw OutOfMemory(what, 0, info.free_bytes, info.memory_bytes);
  }

  int device;
  SharedLibrary blas{kWhatFor, "libcublas", CUBLAS_VER_MAJOR};
  SharedLibrary solver{kWhatFor, "libcusolver", CUSOLVER_VER_MAJOR};
  decltype(&cublasCreate_v2) blas_create = blas.Find("cublasCreate_v2");
  decltype(&cublasDestroy_v2) blas_destroy = blas.Find("cublasDestroy_v2");
  decltype(&cublasSetStream_v2) blas_set_stream = blas.Find("cublasSetStream_v2");
  decltype(&cublasDgemm_v2_64) gemm = blas.Find("cublasDgemm_v2_64");
  decltype(&cublasDgemmStridedBatched_64) gemm_batched = blas.Find("cublasDgemmStridedBatched_64");
  decltype(&cublasDsymm_v2_64) symm = blas.Find("cublasDsymm_v2_64");
  decltype(&cublasDdgmm_64) dgmm = blas.Find("cublasDdgmm_64");
  decltype(&cublasDgeam_64) geam = blas.Find("cublasDgeam_64");
  decltype(&cublasDtrsm_v2_64) trsm = blas.Find("cublasDtrsm_v2_64");
  decltype(&cublasGetStatusString) blas_text = blas.Find("cublasGetStatusString");
  decltype(&cusolverDnCreate) solver_create = solver.Find("cusolverDnCreate");
  decltype(&cusolverDnDestroy) solver_destroy = solver.Find("cusolverDnDestroy");
  decltype(&cusolverDnSetStream) solver_set_stream = solver.Find("cusolverDnSetStream");
  decltype(&cusolverDnCreateParams) params_create = solver.Find("cusolverDnCreateParams");
  decltype(&cusolverDnDestroyParams) params_destroy = solver.Find("cusolverDnDestroyParams");
  decltype(&cusolverDnXpotrf_bufferSize) potrf_size = solver.Find("cusolverDnXpotrf_bufferSize");
  decltype(&cusolverDnXpotrf) potrf = solver.Find("cusolverDnXpotrf");
  decltype(&cusolverDnXsyevd_bufferSize) syevd_size = solver.Find("cusolverDnXsyevd_bufferSize");
  decltype(&cusolverDnXsyevd) syevd = solver.Find("cusolverDnXsyevd");
  decltype(&cusolverDnDsytrd_bufferSize) sytrd_size = solver.Find("cusolverDnDsytrd_bufferSize");
  decltype(&cusolverDnDsytrd) sytrd = solver.Find("cusolverDnDsytrd");
  decltype(&cusolverDnDormtr_bufferSize) ormtr_size = solver.Find("cusolverDnDormtr_bufferSize");
  decltype(&cusolverDnDormtr) ormtr = solver.Find("cusolverDnDormtr");
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
    // Sums over calibration text may have filled the GPU before the first solve.
    ReleaseFreed(stream);
    libraries.CheckStart(libraries.blas_create(&blas));
    libraries.CheckStart(libraries.blas_set_stream(blas, stream.handle));
    libraries.CheckStart(libraries.solver_create(&solver));
    libraries.CheckStart(libraries.solver_set_stream(solver, stream.handle));
    libraries.CheckStart(libraries.params_create(&params));
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

  // to (cols, rows) = from' (rows, cols), row-major.
  void Transpose(const double* from, int64_t rows, int64_t cols, double* to) const {
    const double one = 1, zero = 0;
    libraries.CheckBlas(
        libraries.geam(blas, CUBLAS_OP_T, CUBLAS_OP_N, rows, cols, &one, from, cols, &zero, to, rows, to, rows),
        "a transposition");
  }
  // columns (n, count) = op(Q) columns, column-major.
  void ApplyReflectors(double* a, int64_t n, double* reflectors, cublasOperation_t op, double* columns,
                       int64_t count) const {
    const auto side = static_cast<int>(n), vectors = static_cast<int>(count);
    int elements = 0;
    libraries.CheckSolver(libraries.ormtr_size(solver, CUBLAS_SIDE_LEFT, CUBLAS_FILL_MODE_LOWER, op, side, vectors, a,
                                               side, reflectors, columns, side, &elements),
                          kTridiagonal);
    const DeviceBuffer<double> work(stream, elements, kWorkspace);
    const DeviceBuffer<int> info(stream, 1, kWorkspace);
    libraries.CheckSolver(libraries.ormtr(solver, CUBLAS_SIDE_LEFT, CUBLAS_FILL_MODE_LOWER, op, side, vectors, a, side,
                                          reflectors, columns, side, work.data(), elements, info.data()),
                          kTridiagonal);
  }

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

// A batch of products of a row and a column.
void Dense::RowDots(const double* a, const double* b, int64_t rows, int64_t cols, double* dots) {
  const double one = 1, zero = 0;
  impl_->libraries.CheckBlas(impl_->libraries.gemm_batched(impl_->blas, CUBLAS_OP_T, CUBLAS_OP_N, 1, 1, cols, &one, a,
                                                           cols, cols, b, cols, cols, &zero, dots, 1, 1, rows),
                             "dot products");
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

void Dense::Tridiagonalize(double* a, int64_t n, double* diagonal, double* off_diagonal, double* reflectors) {
  const auto side = static_cast<int>(n);
  int elements = 0;
  impl_->libraries.CheckSolver(impl_->libraries.sytrd_size(impl_->solver, CUBLAS_FILL_MODE_LOWER, side, a, side,
                                                           diagonal, off_diagonal, reflectors, &elements),
                               kTridiagonal);
  const DeviceBuffer<double> work(impl_->stream, elements, kWorkspace);
  const DeviceBuffer<int> info(impl_->stream, 1, kWorkspace);
  impl_->libraries.CheckSolver(impl_->libraries.sytrd(impl_->solver, CUBLAS_FILL_MODE_LOWER, side, a, side, diagonal,
                                                      off_diagonal, reflectors, work.data(), elements, info.data()),
                               kTridiagonal);
  Check(Fetch(impl_->stream, info) == 0, "cuSOLVER: wrong arguments in {}", kTridiagonal);
}

void Dense::Rotate(double* a, int64_t n, double* reflectors, double* rows, int64_t count) {
  impl_->ApplyReflectors(a, n, reflectors, CUBLAS_OP_N, rows, count);
}

// The library sees b', so that b is transposed for it. It could multiply b' by Q from the right instead, but one side,
// the one that Rotate() uses, is less to depend on.
void Dense::RotateColumns(double* a, int64_t n, double* reflectors, double* b, int64_t columns) {
  const DeviceBuffer<double> turned(impl_->stream, n * columns, kWorkspace);
  impl_->Transpose(b, n, columns, turned.data());
  impl_->ApplyReflectors(a, n, reflectors, CUBLAS_OP_T, turned.data(), columns);
  impl_->Transpose(turned.data(), columns, n, b);
}

}  // namespace shiftrt::gpu
