// SPDX-License-Identifier: Apache-2.0
// Tests what the launch of a kernel asks of the CUDA runtime. The functions of the runtime stand here in a form that
// keeps their arguments, so that the test needs no GPU. The kernel is that of an adapter in a cluster, as nvcc compiled
// it.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <map>
#include <vector>

#include "kernels/cuda/lra_cluster.h"

namespace {

// The attributes of the last query or launch, and the answers of the runtime.
std::map<cudaLaunchAttributeID, cudaLaunchAttributeValue> attributes;
std::map<cudaFuncAttribute, int> asked_for;  // by the last kernel
int queries = 0, reports = 0, clusters = 0, ptx_version = 90;
cudaError_t answer = cudaSuccess;

void Keep(const cudaLaunchConfig_t* config) {
  attributes.clear();
  for (unsigned i = 0; i < config->numAttrs; ++i) attributes[config->attrs[i].id] = config->attrs[i].val;
}

}  // namespace

extern "C" {

cudaError_t cudaOccupancyMaxActiveClusters(int* count, const void*, const cudaLaunchConfig_t* config) {
  Keep(config);
  ++queries;
  *count = clusters;
  return answer;
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void*, void**) {
  Keep(config);
  return cudaSuccess;
}
cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute attribute, int value) {
  asked_for[attribute] = value;
  return cudaSuccess;
}
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* of, const void*) {
  of->ptxVersion = ptx_version;
  return cudaSuccess;
}
cudaError_t cudaGetLastError() { return cudaSuccess; }
// nvcc's code for the host calls these.
void** __cudaRegisterFatBinary(void*) { return nullptr; }
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
void __cudaRegisterFunction(void**, const char*, char*, const char*, int, uint3*, uint3*, dim3*, dim3*, int*) {}
unsigned __cudaPushCallConfiguration(dim3, dim3, size_t, void*) { return 0; }
cudaError_t __cudaPopCallConfiguration(dim3*, dim3*, size_t*, void*) { return cudaSuccess; }
cudaError_t cudaLaunchKernel(const void*, dim3, dim3, void**, size_t, cudaStream_t) { return cudaSuccess; }
cudaError_t __cudaLaunchKernel(cudaKernel_t, dim3, dim3, void**, size_t, cudaStream_t) { return cudaSuccess; }
cudaError_t __cudaGetKernel(cudaKernel_t*, const void*) { return cudaSuccess; }
cudaError_t __cudaInitModule(void**) { return cudaSuccess; }

}  // extern "C"

namespace shiftrt::gpu {

void CheckLaunch(int status, const char*) { EXPECT_EQ(status, cudaSuccess); }
void ReportNoCluster(int status, const char* kernel) {
  EXPECT_NE(status, cudaSuccess);
  EXPECT_NE(std::string(kernel).find("ClusterLraKernel"), std::string::npos);
  ++reports;
}
bool LaunchesOverlap(Stream) { return true; }
bool RunsHopperKernels(int) { return true; }
void UseDeviceOf(Stream) {}

namespace {

// Another device each time, because a device is asked once.
Stream NextDevice() {
  static int device = 0;
  return {nullptr, device++};
}
constexpr LowRankLra kSmall{.hidden = 64, .rank = 8};

TEST(LaunchOfACluster, IsAskedAboutWithoutTheAttributeOfOverlap) {
  clusters = 1, answer = cudaSuccess;
  const Stream stream = NextDevice();
  EXPECT_TRUE(LraTakesCluster(stream, kSmall));
  EXPECT_EQ(attributes.size(), 1);
  EXPECT_EQ(attributes.at(cudaLaunchAttributeClusterDimension).clusterDim.x, 16);
  const int asked = queries;
  EXPECT_TRUE(LraTakesCluster(stream, kSmall));
  EXPECT_EQ(queries, asked);
  ApplyLowRankLraInCluster(stream, kSmall, nullptr);
  EXPECT_EQ(attributes.at(cudaLaunchAttributeProgrammaticStreamSerialization).programmaticStreamSerializationAllowed,
            1);
  EXPECT_EQ(attributes.at(cudaLaunchAttributeClusterDimension).clusterDim.x, 16);
}

// Code that was built for an older architecture waits for nothing, so that its launches must not overlap.
TEST(LaunchOfACluster, CodeWithoutTheWaitDoesNotOverlap) {
  ptx_version = 80;
  const Stream stream = NextDevice();
  for (int launch = 0; launch < 2; ++launch) {
    ApplyLowRankLraInCluster(stream, kSmall, nullptr);
    EXPECT_EQ(attributes.count(cudaLaunchAttributeProgrammaticStreamSerialization), 0);
    EXPECT_EQ(attributes.count(cudaLaunchAttributeClusterDimension), 1);
  }
  ptx_version = 90;
}

// A smaller request would be rounded up to whole blocks, differently for each kernel, and a multiprocessor changes its
// division only when it is idle.
TEST(LaunchOfACluster, AsksForTheLargestShareOfSharedMemory) {
  asked_for.clear();
  ApplyLowRankLraInCluster(NextDevice(), kSmall, nullptr);
  EXPECT_EQ(asked_for.at(cudaFuncAttributePreferredSharedMemoryCarveout), 100);
}

TEST(LaunchOfACluster, AnErrorIsReportedOnceAndNoRoomIsNone) {
  const int before = reports;
  clusters = 0, answer = cudaSuccess;
  EXPECT_FALSE(LraTakesCluster(NextDevice(), kSmall));
  EXPECT_EQ(reports, before);
  clusters = 1, answer = cudaErrorInvalidValue;
  const Stream stream = NextDevice();
  EXPECT_FALSE(LraTakesCluster(stream, kSmall));
  EXPECT_FALSE(LraTakesCluster(stream, kSmall));
  EXPECT_EQ(reports, before + 1);
}

}  // namespace
}  // namespace shiftrt::gpu
