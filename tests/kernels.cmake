shiftrt_test(kernels
  SOURCES kernels/attention_test.cc kernels/elementwise_test.cc kernels/logprob_test.cc kernels/lra_test.cc
          kernels/matmul_test.cc kernels/rmsnorm_test.cc kernels/rope_test.cc
  DEPENDS shiftrt_kernels)
