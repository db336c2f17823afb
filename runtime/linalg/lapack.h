// SPDX-License-Identifier: Apache-2.0
// Declarations of LAPACK's Fortran interface, and helpers to call it.
#pragma once

#include <cblas.h>

#include <cstddef>
#include <cstdint>
#include <mutex>

#include "runtime/check.h"

extern "C" {
// The trailing size_t arguments are the lengths of the character arguments.
void dpotrf_(const char* uplo, const int* n, double* a, const int* lda, int* info, size_t);
void dgetrf_(const int* m, const int* n, double* a, const int* lda, int* ipiv, int* info);
void dgecon_(const char* norm, const int* n, const double* a, const int* lda, const double* anorm, double* rcond,
             double* work, int* iwork, int* info, size_t);
void dgetrs_(const char* trans, const int* n, const int* nrhs, const double* a, const int* lda, const int* ipiv,
             double* b, const int* ldb, int* info, size_t);
void dpocon_(const char* uplo, const int* n, const double* a, const int* lda, const double* anorm, double* rcond,
             double* work, int* iwork, int* info, size_t);
void dsyevd_(const char* jobz, const char* uplo, const int* n, double* a, const int* lda, double* w, double* work,
             const int* lwork, int* iwork, const int* liwork, int* info, size_t, size_t);
void dsytrd_(const char* uplo, const int* n, double* a, const int* lda, double* d, double* e, double* tau, double* work,
             const int* lwork, int* info, size_t);
void dlatrd_(const char* uplo, const int* n, const int* nb, double* a, const int* lda, double* e, double* tau,
             double* w, const int* ldw, size_t);
void dstedc_(const char* compz, const int* n, double* d, double* e, double* z, const int* ldz, double* work,
             const int* lwork, int* iwork, const int* liwork, int* info, size_t);
void dsterf_(const int* n, double* d, double* e, int* info);
void dstebz_(const char* range, const char* order, const int* n, const double* vl, const double* vu, const int* il,
             const int* iu, const double* abstol, const double* d, const double* e, int* m, int* nsplit, double* w,
             int* iblock, int* isplit, double* work, int* iwork, int* info, size_t, size_t);
void dstemr_(const char* jobz, const char* range, const int* n, double* d, double* e, const double* vl,
             const double* vu, const int* il, const int* iu, int* m, double* w, double* z, const int* ldz,
             const int* nzc, int* isuppz, int* tryrac, double* work, const int* lwork, int* iwork, const int* liwork,
             int* info, size_t, size_t);
void dormtr_(const char* side, const char* uplo, const char* trans, const int* m, const int* n, const double* a,
             const int* lda, const double* tau, double* c, const int* ldc, double* work, const int* lwork, int* info,
             size_t, size_t, size_t);
}

namespace shiftrt::lapack {

inline int ToInt(int64_t value) {
  Check(value <= INT32_MAX, "a matrix side of {} is beyond what LAPACK's 32-bit interface takes", value);
  return static_cast<int>(value);
}

// While a Threads lives, OpenBLAS computes on `threads` threads, and other callers wait: the number of threads is a
// setting of the whole process and can change the last bits of a result. A thread may have only one Threads at a time.
// Throws std::bad_alloc if there is no memory for these threads.
class [[nodiscard]] Threads {
 public:
  explicit Threads(int threads) : lock_(Mutex()) {
    Reserve(threads);
    openblas_set_num_threads(threads);
  }

 private:
  // Makes OpenBLAS allocate what `threads` threads need, once. Without memory it would try again for ever.
  static void Reserve(int threads);
  static std::mutex& Mutex() {
    static std::mutex mutex;
    return mutex;
  }
  std::scoped_lock<std::mutex> lock_;
};

}  // namespace shiftrt::lapack
