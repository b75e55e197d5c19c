// A GEMM as cuBLASLt describes it, and what library and device it will run on.
#include <cstdio>
#include <cstring>

#include "internal.h"

namespace {

template <class T>
int describe(cublasLtMatmulDesc_t operation, cublasLtMatmulDescAttributes_t attribute, T value) {
  KCLAB_LT_CUBLAS(cublasLtMatmulDescSetAttribute(operation, attribute, &value, sizeof value));
  return 0;
}

int operand_type(int dtype, cudaDataType_t* out) {
  switch (dtype) {
    case KCLAB_LT_BF16: *out = CUDA_R_16BF; return 0;
    case KCLAB_LT_FP8_E4M3: *out = CUDA_R_8F_E4M3; return 0;
    case KCLAB_LT_NVFP4: *out = CUDA_R_4F_E2M1; return 0;
    default: return kclab::fail(KCLAB_LT_ARGUMENT, "unknown dtype " + std::to_string(dtype));
  }
}

int describe_operation(kclab_lt_handle& h) {
  const kclab_lt_problem& p = h.problem;
  KCLAB_LT_CUBLAS(cublasLtMatmulDescCreate(&h.operation, CUBLAS_COMPUTE_32F, CUDA_R_32F));
  // Both operands are row-major with k innermost: in column-major words, A transposed times B.
  KCLAB_LT_TRY(describe(h.operation, CUBLASLT_MATMUL_DESC_TRANSA, int32_t{CUBLAS_OP_T}));
  KCLAB_LT_TRY(describe(h.operation, CUBLASLT_MATMUL_DESC_TRANSB, int32_t{CUBLAS_OP_N}));
  if (p.device_scalars != 0) {
    KCLAB_LT_TRY(describe(h.operation, CUBLASLT_MATMUL_DESC_POINTER_MODE,
                          int32_t{CUBLASLT_POINTER_MODE_DEVICE}));
  }
  if (p.dtype == KCLAB_LT_FP8_E4M3) {
    KCLAB_LT_TRY(describe(h.operation, CUBLASLT_MATMUL_DESC_FAST_ACCUM,
                          static_cast<int8_t>(p.fast_accumulation != 0)));
  }
  if (p.dtype == KCLAB_LT_NVFP4) {
    const int32_t blocks = CUBLASLT_MATMUL_MATRIX_SCALE_VEC16_UE4M3;
    KCLAB_LT_TRY(describe(h.operation, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, blocks));
    KCLAB_LT_TRY(describe(h.operation, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, blocks));
  }
  return 0;
}

int describe_layouts(kclab_lt_handle& h) {
  const uint64_t m = static_cast<uint64_t>(h.problem.m), n = static_cast<uint64_t>(h.problem.n),
                 k = static_cast<uint64_t>(h.problem.k);
  KCLAB_LT_CUBLAS(cublasLtMatrixLayoutCreate(&h.a, h.operand, k, n, h.problem.k));
  KCLAB_LT_CUBLAS(cublasLtMatrixLayoutCreate(&h.b, h.operand, k, m, h.problem.k));
  KCLAB_LT_CUBLAS(cublasLtMatrixLayoutCreate(&h.d, CUDA_R_16BF, n, m, h.problem.n));
  return 0;
}

int build(kclab_lt_handle& h) {
  const kclab_lt_problem& p = h.problem;
  if (p.m < 1 || p.n < 1 || p.k < 1 || p.alignment < 1 || p.alignment > 256)
    return kclab::fail(KCLAB_LT_ARGUMENT, "m, n, k must be positive and alignment in 1..256");
  KCLAB_LT_TRY(operand_type(p.dtype, &h.operand));
  KCLAB_LT_CUBLAS(cublasLtCreate(&h.lt));
  KCLAB_LT_TRY(describe_operation(h));
  return describe_layouts(h);
}

void write_uuid(const cudaUUID_t& uuid, char* out, size_t capacity) {
  const auto* b = reinterpret_cast<const unsigned char*>(uuid.bytes);
  snprintf(out, capacity,
           "%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", b[0], b[1], b[2],
           b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13], b[14], b[15]);
}

}  // namespace

kclab_lt_handle::~kclab_lt_handle() {
  if (capture_stream != nullptr) cudaStreamDestroy(capture_stream);
  if (d != nullptr) cublasLtMatrixLayoutDestroy(d);
  if (b != nullptr) cublasLtMatrixLayoutDestroy(b);
  if (a != nullptr) cublasLtMatrixLayoutDestroy(a);
  if (operation != nullptr) cublasLtMatmulDescDestroy(operation);
  if (lt != nullptr) cublasLtDestroy(lt);
}

namespace kclab {

int bind_scales(kclab_lt_handle& h, const kclab_lt_buffers& buffers) {
  if (h.problem.dtype == KCLAB_LT_BF16) return 0;
  if (h.bound_weight_scale != buffers.weight_scale) {
    KCLAB_LT_TRY(describe(h.operation, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER,
                          reinterpret_cast<const void*>(buffers.weight_scale)));
    h.bound_weight_scale = buffers.weight_scale;
  }
  if (h.bound_activation_scale != buffers.activation_scale) {
    KCLAB_LT_TRY(describe(h.operation, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER,
                          reinterpret_cast<const void*>(buffers.activation_scale)));
    h.bound_activation_scale = buffers.activation_scale;
  }
  return 0;
}

}  // namespace kclab

int kclab_lt_abi(void) { return KCLAB_LT_ABI; }

int kclab_lt_sizeof(int which) {
  const size_t sizes[] = {sizeof(kclab_lt_problem),      sizeof(kclab_lt_buffers),
                          sizeof(kclab_lt_config),       sizeof(kclab_lt_algorithm),
                          sizeof(kclab_lt_capabilities), sizeof(kclab_lt_launch),
                          sizeof(kclab_lt_device)};
  const int count = static_cast<int>(sizeof sizes / sizeof sizes[0]);
  return which < 0 || which >= count ? -1 : static_cast<int>(sizes[which]);
}

uint64_t kclab_lt_version(void) { return cublasLtGetVersion(); }

int kclab_lt_device_read(int ordinal, kclab_lt_device* out) {
  return kclab::guarded([&]() -> int {
    *out = kclab_lt_device{};
    out->cublaslt = cublasLtGetVersion();
    out->header = CUBLAS_VERSION;
    KCLAB_LT_RUNTIME(cudaDriverGetVersion(&out->driver));
    KCLAB_LT_RUNTIME(cudaRuntimeGetVersion(&out->runtime));
    cudaDeviceProp properties;
    KCLAB_LT_RUNTIME(cudaGetDeviceProperties(&properties, ordinal));
    out->major = properties.major;
    out->minor = properties.minor;
    out->multiprocessors = properties.multiProcessorCount;
    out->l2_bytes = properties.l2CacheSize;
    snprintf(out->name, sizeof out->name, "%s", properties.name);
    write_uuid(properties.uuid, out->uuid, sizeof out->uuid);
    return 0;
  });
}

int kclab_lt_create(const kclab_lt_problem* problem, kclab_lt_handle** out) {
  return kclab::guarded([&]() -> int {
    *out = nullptr;
    auto* handle = new kclab_lt_handle;
    handle->problem = *problem;
    const int code = build(*handle);
    if (code != 0) {
      delete handle;
      return code;
    }
    *out = handle;
    return 0;
  });
}

void kclab_lt_destroy(kclab_lt_handle* handle) { delete handle; }

int kclab_lt_bind(kclab_lt_handle* handle, const kclab_lt_buffers* buffers) {
  return kclab::guarded([&]() -> int { return kclab::bind_scales(*handle, *buffers); });
}
