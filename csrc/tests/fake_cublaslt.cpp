// A libcublasLt without a GPU: plausible heuristics, refusals and workspace needs over the kernels
// of fake_kernels.cpp. Just what kclab_lt calls.
#include <cublasLt.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <vector>

#include "fake_kernels.h"

namespace {

constexpr size_t kVersion = 130100;
cublasLtLoggerCallback_t logger = nullptr;
int log_level = 0;
FILE* log_file = stdout;  // the real one's default as well

cublasStatus_t refuse(const char* function, const char* why,
                      cublasStatus_t status = CUBLAS_STATUS_NOT_SUPPORTED) {
  if (log_level > 0) {
    if (logger != nullptr) logger(1, function, why);
    std::fprintf(log_file, "[cublasLt][Error][%s] %s\n", function, why);
    std::fflush(log_file);
  }
  return status;
}

struct Operation {
  bool device_scalars, fast_accumulation;
  const void *weight_scale, *activation_scale;
};
struct Layout {
  cudaDataType type;
  uint64_t rows, columns;
};

template <class To, class From>
To* as(From* opaque) {
  static_assert(sizeof(To) <= sizeof(*opaque), "fits the opaque descriptor");
  return reinterpret_cast<To*>(opaque);
}
FakeConfig* config_of(cublasLtMatmulAlgo_t* algo) { return as<FakeConfig>(algo); }
const FakeConfig* config_of(const cublasLtMatmulAlgo_t* algo) {
  return config_of(const_cast<cublasLtMatmulAlgo_t*>(algo));
}

std::vector<int> ids(cudaDataType type) {
  if (type == CUDA_R_16BF) return {66, kDropsTail, kRacy};
  if (type == CUDA_R_8F_E4M3) return {66, kReadsPadding};
  return {66, 70};
}

// Named, but not there: as real cuBLASLt does with FP4 below capability 10.0.
bool supported(cudaDataType type) { return type != CUDA_R_4F_E2M1 || fake_capability() >= 100; }

const char* fault(const FakeConfig& c) {
  if (c.tile < 20 || c.tile > 25) return "tile is not built for this algorithm";
  if (c.stages != 35 && c.stages != 36) return "stages do not fit the shared memory";
  if (c.cluster < 2 || c.cluster > 5) return "cluster shape is not supported";
  if (c.inner != 0) return "inner shape must be undefined";
  if (c.swizzle < 0 || c.swizzle > 1) return "CTA swizzling must be 0 or 1";
  if (c.custom < 0 || c.custom > 1) return "custom option is out of range";
  if (c.split_k < 1 || c.split_k > 4) return "split-K number is not supported";
  if ((c.split_k > 1) != (c.reduction == 2 || c.reduction == 4))
    return "the reduction scheme does not fit the split-K number";
  return nullptr;
}

size_t workspace(const FakeConfig& c, const Layout& d) {
  if (c.split_k == 1) return 0;
  const size_t partial = c.reduction == 4 ? 2 : 4;
  return static_cast<size_t>(c.split_k) * d.rows * d.columns * partial;
}

const char* missing_scale(const Operation& op, cudaDataType type) {
  if (type != CUDA_R_4F_E2M1 || (op.weight_scale != nullptr && op.activation_scale != nullptr))
    return nullptr;
  return "scaling mode for A scale (VEC16_UE4M3) requires a custom pointer";
}

void fill(const FakeConfig& c, const Layout& d, cublasLtMatmulHeuristicResult_t* out) {
  *out = cublasLtMatmulHeuristicResult_t{};
  *config_of(&out->algo) = c;
  out->workspaceSize = workspace(c, d);
  out->state = CUBLAS_STATUS_SUCCESS;
  out->wavesCount = 1.5F;
}

// In the order of the heuristic, which is not the order of speed: the third is the fastest. The
// last is refused when it runs.
const FakeConfig kRanked[] = {
    {66, 20, 35, 1, 0, 0, 0, 0, 2}, {66, 21, 35, 1, 0, 0, 0, 0, 2}, {66, 22, 35, 1, 0, 0, 0, 0, 2},
    {66, 20, 36, 1, 0, 0, 0, 0, 2}, {66, 20, 35, 2, 2, 0, 0, 0, 2}, {66, 24, 35, 1, 0, 0, 0, 0, 2},
    {66, 20, 35, 1, 0, 0, 0, 0, 3}, {66, 20, 35, 3, 2, 0, 0, 0, 2}, {66, 25, 35, 1, 0, 0, 1, 0, 2},
};

int32_t* field(FakeConfig* c, cublasLtMatmulAlgoConfigAttributes_t name) {
  switch (name) {
    case CUBLASLT_ALGO_CONFIG_ID: return &c->algorithm;
    case CUBLASLT_ALGO_CONFIG_TILE_ID: return &c->tile;
    case CUBLASLT_ALGO_CONFIG_SPLITK_NUM: return &c->split_k;
    case CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME: return &c->reduction;
    case CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING: return &c->swizzle;
    case CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION: return &c->custom;
    case CUBLASLT_ALGO_CONFIG_STAGES_ID: return &c->stages;
    case CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID: return &c->inner;
    default: return &c->cluster;
  }
}

size_t width(cublasLtMatmulAlgoConfigAttributes_t name) {
  const bool half = name == CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID ||
                    name == CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID;
  return half ? 2 : 4;
}

}  // namespace

extern "C" {

size_t cublasLtGetVersion(void) { return kVersion; }
const char* cublasLtGetStatusName(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS: return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_INVALID_VALUE: return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_NOT_SUPPORTED: return "CUBLAS_STATUS_NOT_SUPPORTED";
    default: return "CUBLAS_STATUS_INTERNAL_ERROR";
  }
}
cublasStatus_t cublasLtLoggerSetCallback(cublasLtLoggerCallback_t callback) {
  return logger = callback, CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtLoggerSetFile(FILE* file) { return log_file = file, CUBLAS_STATUS_SUCCESS; }
cublasStatus_t cublasLtLoggerSetLevel(int level) { return log_level = level, CUBLAS_STATUS_SUCCESS; }

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  *handle = reinterpret_cast<cublasLtHandle_t>(&log_level);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t) { return CUBLAS_STATUS_SUCCESS; }

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* out, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
  if (compute != CUBLAS_COMPUTE_32F || scale != CUDA_R_32F)
    return refuse("cublasLtMatmulDescCreate", "only 32-bit compute and scale");
  *out = new cublasLtMatmulDescOpaque_t{};
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t d) {
  return delete d, CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t d,
                                              cublasLtMatmulDescAttributes_t name,
                                              const void* value, size_t bytes) {
  auto* op = as<Operation>(d);
  const void* address = nullptr;
  if (bytes == sizeof address) memcpy(&address, value, bytes);
  switch (name) {
    case CUBLASLT_MATMUL_DESC_POINTER_MODE: op->device_scalars = true; break;
    case CUBLASLT_MATMUL_DESC_FAST_ACCUM:
      if (bytes != 1) return CUBLAS_STATUS_INVALID_VALUE;
      op->fast_accumulation = *static_cast<const int8_t*>(value) != 0;
      break;
    case CUBLASLT_MATMUL_DESC_A_SCALE_POINTER: op->weight_scale = address; break;
    case CUBLASLT_MATMUL_DESC_B_SCALE_POINTER: op->activation_scale = address; break;
    default: break;
  }
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* out, cudaDataType type,
                                          uint64_t rows, uint64_t columns, int64_t leading) {
  if (leading < static_cast<int64_t>(rows)) return CUBLAS_STATUS_INVALID_VALUE;
  *out = new cublasLtMatrixLayoutOpaque_t{};
  *as<Layout>(*out) = Layout{type, rows, columns};
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  return delete layout, CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* out) {
  *out = new cublasLtMatmulPreferenceOpaque_t{};
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  return delete preference, CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t name,
                                                    const void* value, size_t bytes) {
  if (name == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES) memcpy(preference->data, value, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(
    cublasLtHandle_t, cublasLtMatmulDesc_t d, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t,
    cublasLtMatrixLayout_t, cublasLtMatrixLayout_t out, cublasLtMatmulPreference_t preference,
    int wanted, cublasLtMatmulHeuristicResult_t results[], int* found) {
  const auto* layout = as<Layout>(a);
  *found = 0;
  const char* function = "cublasLtMatmulAlgoGetHeuristic";
  if (const char* why = missing_scale(*as<Operation>(d), layout->type)) return refuse(function, why);
  if (!supported(layout->type)) return refuse(function, "FP4 needs compute capability 10.0");
  for (const FakeConfig& config : kRanked) {
    // The real library gives at most eight, however many are asked for.
    if (*found == std::min(wanted, 8)) break;
    if (workspace(config, *as<Layout>(out)) > preference->data[0]) continue;
    fill(config, *as<Layout>(out), &results[(*found)++]);
  }
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoGetIds(cublasLtHandle_t, cublasComputeType_t, cudaDataType_t,
                                        cudaDataType_t a, cudaDataType_t, cudaDataType_t,
                                        cudaDataType_t, int capacity, int out[], int* found) {
  *found = 0;
  for (const int id : ids(a))
    if (*found < capacity) out[(*found)++] = id;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoInit(cublasLtHandle_t, cublasComputeType_t, cudaDataType_t,
                                      cudaDataType_t a, cudaDataType_t, cudaDataType_t,
                                      cudaDataType_t, int id, cublasLtMatmulAlgo_t* algo) {
  const auto known = ids(a);
  if (std::find(known.begin(), known.end(), id) == known.end())
    return refuse("cublasLtMatmulAlgoInit", "unknown algorithm", CUBLAS_STATUS_INVALID_VALUE);
  *algo = cublasLtMatmulAlgo_t{};
  config_of(algo)->algorithm = id;
  config_of(algo)->split_k = 1;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoCapGetAttribute(const cublasLtMatmulAlgo_t*,
                                                 cublasLtMatmulAlgoCapAttributes_t name,
                                                 void* out, size_t bytes, size_t* written) {
  static const uint32_t tiles[] = {18, 20, 21, 22, 23, 24, 25}, stages[] = {35, 36};
  const bool is_tiles = name == CUBLASLT_ALGO_CAP_TILE_IDS;
  if (is_tiles || name == CUBLASLT_ALGO_CAP_STAGES_IDS) {
    *written = is_tiles ? sizeof tiles : sizeof stages;
    if (out != nullptr) memcpy(out, is_tiles ? tiles : stages, std::min(bytes, *written));
    return CUBLAS_STATUS_SUCCESS;
  }
  int32_t value = 0;
  switch (name) {
    case CUBLASLT_ALGO_CAP_SPLITK_SUPPORT:
    case CUBLASLT_ALGO_CAP_CTA_SWIZZLING_SUPPORT:
    case CUBLASLT_ALGO_CAP_CUSTOM_OPTION_MAX: value = 1; break;
    case CUBLASLT_ALGO_CAP_REDUCTION_SCHEME_MASK: value = 2 | 4; break;
    case CUBLASLT_ALGO_CAP_MIN_ALIGNMENT_A_BYTES:
    case CUBLASLT_ALGO_CAP_MIN_ALIGNMENT_B_BYTES: value = 16; break;
    default: break;
  }
  memset(out, 0, bytes);
  memcpy(out, &value, std::min(bytes, sizeof value));
  *written = bytes;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoConfigSetAttribute(cublasLtMatmulAlgo_t* algo,
                                                    cublasLtMatmulAlgoConfigAttributes_t name,
                                                    const void* value, size_t bytes) {
  if (bytes != width(name)) return CUBLAS_STATUS_INVALID_VALUE;
  *field(config_of(algo), name) = 0;
  memcpy(field(config_of(algo), name), value, bytes);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t* algo,
                                                    cublasLtMatmulAlgoConfigAttributes_t name,
                                                    void* value, size_t bytes, size_t* written) {
  if (bytes != width(name)) return CUBLAS_STATUS_INVALID_VALUE;
  FakeConfig copy = *config_of(algo);
  memcpy(value, field(&copy, name), bytes);
  *written = bytes;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t, cublasLtMatmulDesc_t d,
                                       cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t,
                                       cublasLtMatrixLayout_t, cublasLtMatrixLayout_t out,
                                       const cublasLtMatmulAlgo_t* algo,
                                       cublasLtMatmulHeuristicResult_t* result) {
  const char* function = "cublasLtMatmulAlgoCheck";
  const cudaDataType type = as<Layout>(a)->type;
  if (const char* why = missing_scale(*as<Operation>(d), type)) return refuse(function, why);
  if (!supported(type))
    return refuse(function, "FP4 needs compute capability 10.0", CUBLAS_STATUS_ARCH_MISMATCH);
  if (const char* why = fault(*config_of(algo))) return refuse(function, why);
  const cublasLtMatmulAlgo_t unset = result->algo;
  fill(*config_of(algo), *as<Layout>(out), result);
  result->algo = unset;  // the real one does not write it either
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t d, const void* alpha,
                              const void* weight, cublasLtMatrixLayout_t a, const void* activation,
                              cublasLtMatrixLayout_t, const void*, const void*,
                              cublasLtMatrixLayout_t, void* output, cublasLtMatrixLayout_t out,
                              const cublasLtMatmulAlgo_t* algo, void*, size_t workspace_bytes,
                              cudaStream_t stream) {
  const FakeConfig& config = *config_of(algo);
  const auto* layout = as<Layout>(out);
  if (workspace(config, *layout) > workspace_bytes) return CUBLAS_STATUS_INVALID_VALUE;
  // Accepted by the check and yet refused here, which the real library's words allow too.
  if (config.tile == 25 && config.custom == 1)
    return refuse("cublasLtMatmul", "no kernel image for this configuration");
  const auto* op = as<Operation>(d);
  const FakeOperands operands{as<Layout>(a)->type,
                              static_cast<int64_t>(layout->columns),
                              static_cast<int64_t>(layout->rows),
                              static_cast<int64_t>(as<Layout>(a)->rows),
                              op->fast_accumulation,
                              weight,
                              activation,
                              op->weight_scale,
                              op->activation_scale,
                              *static_cast<const float*>(alpha),
                              static_cast<uint16_t*>(output)};
  const FakeLaunch launch = fake_launch(config, operands);
  if (fake_capture(stream, &launch)) return CUBLAS_STATUS_SUCCESS;
  fake_gemm(config, operands);
  fake_work(fake_milliseconds(config, operands));
  return CUBLAS_STATUS_SUCCESS;
}

}  // extern "C"
