# The kernels of AVX-512, AVX512-BF16 and AMX are tested on every machine. On a CPU without them they are compiled without their
# instructions and replace those of the library in this executable.
include(CheckCXXSourceRuns)
check_cxx_source_runs("int main() { return __builtin_cpu_supports(\"avx512f\") ? 0 : 1; }" SHIFTRT_CPU_HAS_AVX512)
check_cxx_source_runs("int main() { return __builtin_cpu_supports(\"avx512bf16\") ? 0 : 1; }" SHIFTRT_CPU_HAS_AVX512BF16)
check_cxx_source_runs("
#include <cpuid.h>
int main() {
  unsigned a, b, c, d;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d >> 22 & 1) && (d >> 24 & 1) ? 0 : 1;
}" SHIFTRT_CPU_HAS_AMX)
set(emulated_kernels "")
if(NOT SHIFTRT_CPU_HAS_AVX512)
  list(APPEND emulated_kernels ${PROJECT_SOURCE_DIR}/kernels/cpu/simd_avx512.cc)
endif()
if(NOT SHIFTRT_CPU_HAS_AVX512BF16)
  list(APPEND emulated_kernels ${PROJECT_SOURCE_DIR}/kernels/cpu/simd_avx512bf16.cc)
endif()
if(NOT SHIFTRT_CPU_HAS_AMX)
  list(APPEND emulated_kernels ${PROJECT_SOURCE_DIR}/kernels/cpu/simd_amx.cc)
endif()
set(emulation -Wno-psabi -O2)
if(SHIFTRT_CPU_HAS_AVX512)
  # AMX is emulated with AVX-512 where the CPU has it: the tests that multiply with it take the longest of this suite.
  list(APPEND emulation -O3 -mavx512f -mavx512bw -mavx512vl -mavx512dq -mfma -mf16c -ffp-contract=off -fno-math-errno -fno-trapping-math
       -Wno-uninitialized)
endif()
set_source_files_properties(${emulated_kernels} PROPERTIES COMPILE_OPTIONS "${emulation}" SKIP_PRECOMPILE_HEADERS ON)
set_source_files_properties(kernels/tile_product_test.cc PROPERTIES COMPILE_OPTIONS "-Wno-psabi")
shiftrt_test(kernels
  SOURCES kernels/adamw_test.cc kernels/attention_gradient_test.cc kernels/attention_test.cc kernels/dropout_test.cc kernels/elementwise_test.cc
          kernels/gram_test.cc kernels/logprob_test.cc kernels/low_rank_test.cc kernels/matmul_test.cc kernels/norm_test.cc
          kernels/quantised_product_test.cc kernels/rope_test.cc kernels/rounded_product_test.cc kernels/tile_product_test.cc
          kernels/experts_test.cc kernels/gated_delta_test.cc kernels/short_convolution_test.cc kernels/xielu_test.cc
          ${emulated_kernels}
  DEPENDS shiftrt_kernels)
target_compile_definitions(test_kernels PRIVATE
  SHIFTRT_EMULATED_AVX512=$<NOT:$<BOOL:${SHIFTRT_CPU_HAS_AVX512}>>
  SHIFTRT_EMULATED_AVX512BF16=$<NOT:$<BOOL:${SHIFTRT_CPU_HAS_AVX512BF16}>> SHIFTRT_EMULATED_AMX=$<NOT:$<BOOL:${SHIFTRT_CPU_HAS_AMX}>>)
