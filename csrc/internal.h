// What the library's source files share; nothing here is visible outside it.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <exception>
#include <new>
#include <string>

#include "kclab_lt.h"

struct kclab_lt_handle {
  kclab_lt_problem problem{};
  cudaDataType_t operand = CUDA_R_16BF;
  uint64_t bound_activation_scale = 0, bound_weight_scale = 0;
  cublasLtHandle_t lt = nullptr;
  cublasLtMatmulDesc_t operation = nullptr;
  // cuBLASLt is column-major: its A is the weight, its B the activation, and D the output transposed.
  cublasLtMatrixLayout_t a = nullptr, b = nullptr, d = nullptr;
  // Made by the first fingerprint and kept: a stream costs more than the capture on it.
  cudaStream_t capture_stream = nullptr;

  kclab_lt_handle() = default;
  kclab_lt_handle(const kclab_lt_handle&) = delete;
  kclab_lt_handle& operator=(const kclab_lt_handle&) = delete;
  ~kclab_lt_handle();
};

namespace kclab {

// Remember what went wrong, for kclab_lt_error(); returns `code`.
int fail(int code, const std::string& text);
int check_cublas(cublasStatus_t status, const char* call);
int check_cuda(cudaError_t status, const char* call);

// While one lives, what cuBLASLt logs on this thread is collected. Slow: a line for every call.
class Log {
 public:
  Log();
  ~Log();
  Log(const Log&) = delete;
  Log& operator=(const Log&) = delete;
  std::string text() const;
};

cublasStatus_t init_algorithm(const kclab_lt_handle& handle, int id, cublasLtMatmulAlgo_t* out);
int bind_scales(kclab_lt_handle& handle, const kclab_lt_buffers& buffers);

// No exception crosses the C boundary.
template <class Body>
int guarded(Body body) {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return fail(KCLAB_LT_MEMORY, "out of host memory");
  } catch (const std::exception& error) {
    return fail(KCLAB_LT_ARGUMENT, error.what());
  }
}

}  // namespace kclab

#define KCLAB_LT_TRY(expression)         \
  do {                                   \
    const int code_ = (expression);      \
    if (code_ != 0) return code_;        \
  } while (0)
#define KCLAB_LT_CUBLAS(expression) KCLAB_LT_TRY(kclab::check_cublas((expression), #expression))
#define KCLAB_LT_RUNTIME(expression) KCLAB_LT_TRY(kclab::check_cuda((expression), #expression))
