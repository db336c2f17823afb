# The AVX-512 kernels are tested on every machine. On a CPU without AVX-512 they are compiled without its instructions and
# replace those of the library in this executable.
include(CheckCXXSourceRuns)
check_cxx_source_runs("int main() { return __builtin_cpu_supports(\"avx512f\") ? 0 : 1; }" SHIFTRT_CPU_HAS_AVX512)
if(SHIFTRT_CPU_HAS_AVX512)
  set(emulated_avx512 "")
else()
  set(emulated_avx512 ${PROJECT_SOURCE_DIR}/kernels/cpu/simd_avx512.cc)
  set_source_files_properties(${emulated_avx512} PROPERTIES COMPILE_OPTIONS "-Wno-psabi")
endif()
shiftrt_test(kernels
  SOURCES kernels/attention_test.cc kernels/elementwise_test.cc kernels/logprob_test.cc kernels/lra_test.cc
          kernels/matmul_test.cc kernels/rmsnorm_test.cc kernels/rope_test.cc ${emulated_avx512}
  DEPENDS shiftrt_kernels)
target_compile_definitions(test_kernels PRIVATE SHIFTRT_EMULATED_AVX512=$<BOOL:${emulated_avx512}>)
