// What an algorithm launches. One call is captured into a CUDA graph, whose kernel nodes are read
// through the driver: no profiler, and nothing runs.
#include <cuda.h>
#include <dlfcn.h>

#include <cstdio>
#include <cstring>
#include <vector>

#include "internal.h"

namespace {

// The driver is opened by name: a build machine has none, and cuBLASLt's kernels are driver
// functions that the runtime's own graph queries do not describe.
struct Driver {
  CUresult (*nodes)(CUgraph, CUgraphNode*, size_t*) = nullptr;
  CUresult (*type)(CUgraphNode, CUgraphNodeType*) = nullptr;
  CUresult (*parameters)(CUgraphNode, CUDA_KERNEL_NODE_PARAMS_v2*) = nullptr;
  CUresult (*attribute)(CUgraphNode, CUlaunchAttributeID, CUlaunchAttributeValue*) = nullptr;
  CUresult (*function_name)(const char**, CUfunction) = nullptr;
  CUresult (*kernel_name)(const char**, CUkernel) = nullptr;
  CUresult (*function_parameter)(CUfunction, size_t, size_t*, size_t*) = nullptr;
  CUresult (*kernel_parameter)(CUkernel, size_t, size_t*, size_t*) = nullptr;

  Driver() {
    void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return;
    load(library, "cuGraphGetNodes", &nodes);
    load(library, "cuGraphNodeGetType", &type);
    load(library, "cuGraphKernelNodeGetParams_v2", &parameters);
    load(library, "cuGraphKernelNodeGetAttribute", &attribute);
    load(library, "cuFuncGetName", &function_name);
    load(library, "cuKernelGetName", &kernel_name);
    load(library, "cuFuncGetParamInfo", &function_parameter);
    load(library, "cuKernelGetParamInfo", &kernel_parameter);
  }
  bool complete() const {
    return nodes != nullptr && type != nullptr && parameters != nullptr && attribute != nullptr &&
           function_name != nullptr;
  }

 private:
  template <class F>
  static void load(void* library, const char* name, F* function) {
    *function = reinterpret_cast<F>(dlsym(library, name));
  }
};

class Capture {
 public:
  int begin(cudaStream_t* kept) {
    if (*kept == nullptr)
      KCLAB_LT_RUNTIME(cudaStreamCreateWithFlags(kept, cudaStreamNonBlocking));
    stream_ = *kept;
    KCLAB_LT_RUNTIME(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeRelaxed));
    return 0;
  }
  int end() {
    KCLAB_LT_RUNTIME(cudaStreamEndCapture(stream_, &graph_));
    return 0;
  }
  ~Capture() {
    if (graph_ != nullptr) cudaGraphDestroy(graph_);
  }
  uint64_t stream() const { return reinterpret_cast<uint64_t>(stream_); }
  CUgraph graph() const { return graph_; }

 private:
  cudaStream_t stream_ = nullptr;
  cudaGraph_t graph_ = nullptr;
};

// 64-bit FNV-1a.
class Fingerprint {
 public:
  void add(const void* data, size_t bytes) {
    const auto* p = static_cast<const unsigned char*>(data);
    for (size_t i = 0; i < bytes; i++) value_ = (value_ ^ p[i]) * 1099511628211ULL;
  }
  uint64_t value() const { return value_; }

 private:
  uint64_t value_ = 1469598103934665603ULL;
};

std::string kernel_name(const Driver& driver, const CUDA_KERNEL_NODE_PARAMS_v2& node) {
  const char* name = nullptr;
  if (node.func != nullptr) driver.function_name(&name, node.func);
  if (name == nullptr && node.kern != nullptr && driver.kernel_name != nullptr)
    driver.kernel_name(&name, node.kern);
  return name == nullptr ? "?" : name;
}

void add_parameters(const Driver& driver, const CUDA_KERNEL_NODE_PARAMS_v2& node, Fingerprint* f) {
  if (node.kernelParams == nullptr) return;
  for (size_t i = 0;; i++) {
    size_t offset = 0, bytes = 0;
    CUresult status = CUDA_ERROR_INVALID_VALUE;
    if (node.func != nullptr && driver.function_parameter != nullptr)
      status = driver.function_parameter(node.func, i, &offset, &bytes);
    else if (node.kern != nullptr && driver.kernel_parameter != nullptr)
      status = driver.kernel_parameter(node.kern, i, &offset, &bytes);
    if (status != CUDA_SUCCESS) return;
    f->add(node.kernelParams[i], bytes);
  }
}

void read_kernel(const Driver& driver, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS_v2& p,
                 std::string* names, Fingerprint* f, kclab_lt_launch* out) {
  const std::string name = kernel_name(driver, p);
  const uint32_t geometry[] = {p.gridDimX,  p.gridDimY,  p.gridDimZ,      p.blockDimX,
                               p.blockDimY, p.blockDimZ, p.sharedMemBytes};
  CUlaunchAttributeValue value;
  memset(&value, 0, sizeof value);
  uint32_t cluster[3] = {0, 0, 0};
  if (driver.attribute(node, CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, &value) == CUDA_SUCCESS) {
    cluster[0] = value.clusterDim.x;
    cluster[1] = value.clusterDim.y;
    cluster[2] = value.clusterDim.z;
  }
  f->add(name.data(), name.size());
  f->add(geometry, sizeof geometry);
  f->add(cluster, sizeof cluster);
  add_parameters(driver, p, f);
  *names += (names->empty() ? "" : "|") + name;
  if (out->kernels++ != 0) return;
  memcpy(out->grid, geometry, sizeof out->grid);
  memcpy(out->block, geometry + 3, sizeof out->block);
  memcpy(out->cluster, cluster, sizeof cluster);
  out->shared_bytes = p.sharedMemBytes;
}

const Driver& loaded_driver() {
  static const Driver driver;
  return driver;
}

int read_graph(CUgraph graph, kclab_lt_launch* out) {
  const Driver& driver = loaded_driver();
  size_t count = 0;
  if (!driver.complete()) return kclab::fail(KCLAB_LT_DRIVER, "libcuda.so.1 is missing or too old");
  if (driver.nodes(graph, nullptr, &count) != CUDA_SUCCESS)
    return kclab::fail(KCLAB_LT_DRIVER, "cuGraphGetNodes failed");
  std::vector<CUgraphNode> nodes(count);
  if (count != 0 && driver.nodes(graph, nodes.data(), &count) != CUDA_SUCCESS)
    return kclab::fail(KCLAB_LT_DRIVER, "cuGraphGetNodes failed");
  std::string names;
  Fingerprint fingerprint;
  for (CUgraphNode node : nodes) {
    CUgraphNodeType type;
    if (driver.type(node, &type) != CUDA_SUCCESS)
      return kclab::fail(KCLAB_LT_DRIVER, "cuGraphNodeGetType failed");
    fingerprint.add(&type, sizeof type);
    if (type != CU_GRAPH_NODE_TYPE_KERNEL) continue;
    CUDA_KERNEL_NODE_PARAMS_v2 parameters;
    memset(&parameters, 0, sizeof parameters);
    if (driver.parameters(node, &parameters) != CUDA_SUCCESS)
      return kclab::fail(KCLAB_LT_DRIVER, "cuGraphKernelNodeGetParams failed");
    read_kernel(driver, node, parameters, &names, &fingerprint, out);
  }
  out->nodes = static_cast<int32_t>(count);
  out->fingerprint = fingerprint.value();
  snprintf(out->names, sizeof out->names, "%s", names.c_str());
  return 0;
}

}  // namespace

int kclab_lt_fingerprint(kclab_lt_handle* handle, const kclab_lt_buffers* buffers,
                         const kclab_lt_algorithm* algorithm, kclab_lt_launch* out) {
  return kclab::guarded([&]() -> int {
    *out = kclab_lt_launch{};
    Capture capture;
    KCLAB_LT_TRY(capture.begin(&handle->capture_stream));
    kclab_lt_buffers captured = *buffers;
    captured.stream = capture.stream();
    const int ran = kclab_lt_run(handle, &captured, algorithm);
    const int ended = capture.end();  // also after a refusal: the stream must leave capture
    KCLAB_LT_TRY(ran);
    KCLAB_LT_TRY(ended);
    return read_graph(capture.graph(), out);
  });
}

int kclab_lt_launches(kclab_lt_handle* handle, const kclab_lt_buffers* buffers,
                      const kclab_lt_config* configs, int64_t count,
                      kclab_lt_algorithm* algorithms, kclab_lt_launch* launches, int32_t* status) {
  for (int64_t i = 0; i < count; i++) {
    status[i] = kclab_lt_prepare(handle, &configs[i], &algorithms[i]);
    if (status[i] == 0)
      status[i] = kclab_lt_fingerprint(handle, buffers, &algorithms[i], &launches[i]);
  }
  return 0;
}

int kclab_lt_read_graph(uint64_t graph, kclab_lt_launch* out) {
  return kclab::guarded([&]() -> int {
    *out = kclab_lt_launch{};
    return read_graph(reinterpret_cast<CUgraph>(graph), out);
  });
}
