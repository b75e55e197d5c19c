// A libcudart and libcuda without a GPU: device memory is host memory, and events read a clock that
// only fake_work() moves. Just what kclab_lt and the fake cuBLASLt call.
#include <cuda.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "fake_cuda.h"

namespace {

double clock_ms = 0;

struct FakeEvent {
  double at = 0;
};
struct FakeGraph {
  std::vector<FakeLaunch> launches;
};
struct FakeStream {
  FakeGraph* capturing = nullptr;
};

FakeEvent* fake(cudaEvent_t event) { return reinterpret_cast<FakeEvent*>(event); }
FakeStream* fake(cudaStream_t stream) { return reinterpret_cast<FakeStream*>(stream); }

}  // namespace

extern "C" {

void fake_work(double milliseconds) { clock_ms += milliseconds; }

bool fake_capture(cudaStream_t stream, const FakeLaunch* launch) {
  if (stream == nullptr || fake(stream)->capturing == nullptr) return false;
  fake(stream)->capturing->launches.push_back(*launch);
  return true;
}

int fake_capability(void) {
  const char* set = getenv("KCLAB_FAKE_CAPABILITY");
  return static_cast<int>(atof(set == nullptr ? "9.0" : set) * 10 + 0.5);
}

// ---- libcudart ----
cudaError_t cudaDriverGetVersion(int* version) { return *version = 13000, cudaSuccess; }
cudaError_t cudaRuntimeGetVersion(int* version) { return *version = 13000, cudaSuccess; }
cudaError_t cudaGetLastError(void) { return cudaSuccess; }
const char* cudaGetErrorString(cudaError_t) { return "an error of the fake CUDA runtime"; }

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* out, int) {
  memset(out, 0, sizeof *out);
  snprintf(out->name, sizeof out->name, "kclab fake GPU");
  out->major = fake_capability() / 10;
  out->minor = fake_capability() % 10;
  out->multiProcessorCount = 4;
  out->l2CacheSize = 1 << 16;
  return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t* event) {
  *event = reinterpret_cast<cudaEvent_t>(new FakeEvent);
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) { return delete fake(event), cudaSuccess; }
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t) {
  fake(event)->at = clock_ms;
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t begin, cudaEvent_t end) {
  *ms = static_cast<float>(fake(end)->at - fake(begin)->at);
  return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void* at, int value, size_t bytes, cudaStream_t) {
  memset(at, value, bytes);
  fake_work(0.05);
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  *stream = reinterpret_cast<cudaStream_t>(new FakeStream);
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) { return delete fake(stream), cudaSuccess; }
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  fake(stream)->capturing = new FakeGraph;
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  *graph = reinterpret_cast<cudaGraph_t>(fake(stream)->capturing);
  fake(stream)->capturing = nullptr;
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  return delete reinterpret_cast<FakeGraph*>(graph), cudaSuccess;
}

// ---- libcuda ----
CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode* nodes, size_t* count) {
  auto& launches = reinterpret_cast<FakeGraph*>(graph)->launches;
  for (size_t i = 0; nodes != nullptr && i < *count; i++)
    nodes[i] = reinterpret_cast<CUgraphNode>(&launches[i]);
  *count = launches.size();
  return CUDA_SUCCESS;
}
CUresult cuGraphNodeGetType(CUgraphNode, CUgraphNodeType* type) {
  return *type = CU_GRAPH_NODE_TYPE_KERNEL, CUDA_SUCCESS;
}
CUresult cuGraphKernelNodeGetParams_v2(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS_v2* out) {
  auto* launch = reinterpret_cast<FakeLaunch*>(node);
  static void* arguments[1];
  arguments[0] = &launch->parameter;
  out->func = reinterpret_cast<CUfunction>(launch);
  out->kernelParams = arguments;
  out->gridDimX = launch->grid[0], out->gridDimY = launch->grid[1], out->gridDimZ = launch->grid[2];
  out->blockDimX = launch->block[0], out->blockDimY = launch->block[1];
  out->blockDimZ = launch->block[2], out->sharedMemBytes = launch->shared_bytes;
  return CUDA_SUCCESS;
}
CUresult cuGraphKernelNodeGetAttribute(CUgraphNode node, CUlaunchAttributeID,
                                       CUlaunchAttributeValue* value) {
  auto* launch = reinterpret_cast<FakeLaunch*>(node);
  value->clusterDim.x = launch->cluster[0];
  value->clusterDim.y = launch->cluster[1];
  value->clusterDim.z = launch->cluster[2];
  return CUDA_SUCCESS;
}
CUresult cuFuncGetName(const char** name, CUfunction function) {
  *name = reinterpret_cast<FakeLaunch*>(function)->name.c_str();
  return CUDA_SUCCESS;
}
CUresult cuFuncGetParamInfo(CUfunction, size_t index, size_t* offset, size_t* bytes) {
  if (index != 0) return CUDA_ERROR_INVALID_VALUE;
  *offset = 0, *bytes = sizeof(uint64_t);
  return CUDA_SUCCESS;
}

}  // extern "C"
