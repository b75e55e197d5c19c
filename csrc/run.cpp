// Running one algorithm, and timing whatever runs on a stream.
#include <cstring>

#include "internal.h"

struct kclab_lt_timer {
  cudaEvent_t begin = nullptr, end = nullptr;
};

namespace {

template <class T>
T* at(uint64_t address) {
  return reinterpret_cast<T*>(address);
}

}  // namespace

int kclab_lt_run(kclab_lt_handle* handle, const kclab_lt_buffers* buffers,
                 const kclab_lt_algorithm* algorithm) {
  return kclab::guarded([&]() -> int {
    if (algorithm->workspace_bytes > buffers->workspace_bytes)
      return kclab::fail(KCLAB_LT_ARGUMENT,
                         "needs " + std::to_string(algorithm->workspace_bytes) +
                             " bytes of workspace, has " + std::to_string(buffers->workspace_bytes));
    KCLAB_LT_TRY(kclab::bind_scales(*handle, *buffers));
    cublasLtMatmulAlgo_t algo;
    memcpy(algo.data, algorithm->opaque, sizeof algo.data);
    const float one = 1.0F, zero = 0.0F;
    const bool on_device = handle->problem.device_scalars != 0;
    const void* alpha = on_device ? at<const void>(buffers->alpha) : &one;
    const void* beta = on_device ? at<const void>(buffers->beta) : &zero;
    KCLAB_LT_CUBLAS(cublasLtMatmul(
        handle->lt, handle->operation, alpha, at<const void>(buffers->weight), handle->a,
        at<const void>(buffers->activation), handle->b, beta, at<const void>(buffers->output),
        handle->d, at<void>(buffers->output), handle->d, &algo, at<void>(buffers->workspace),
        buffers->workspace_bytes, at<CUstream_st>(buffers->stream)));
    return 0;
  });
}

int kclab_lt_timer_create(kclab_lt_timer** out) {
  return kclab::guarded([&]() -> int {
    *out = nullptr;
    auto* timer = new kclab_lt_timer;
    int code = kclab::check_cuda(cudaEventCreate(&timer->begin), "cudaEventCreate");
    if (code == 0) code = kclab::check_cuda(cudaEventCreate(&timer->end), "cudaEventCreate");
    if (code != 0) {
      kclab_lt_timer_destroy(timer);
      return code;
    }
    *out = timer;
    return 0;
  });
}

void kclab_lt_timer_destroy(kclab_lt_timer* timer) {
  if (timer == nullptr) return;
  if (timer->end != nullptr) cudaEventDestroy(timer->end);
  if (timer->begin != nullptr) cudaEventDestroy(timer->begin);
  delete timer;
}

int kclab_lt_timer_start(kclab_lt_timer* timer, uint64_t stream, uint64_t flush,
                         uint64_t flush_bytes) {
  return kclab::guarded([&]() -> int {
    if (flush_bytes != 0)
      KCLAB_LT_RUNTIME(cudaMemsetAsync(at<void>(flush), 0, flush_bytes, at<CUstream_st>(stream)));
    KCLAB_LT_RUNTIME(cudaEventRecord(timer->begin, at<CUstream_st>(stream)));
    return 0;
  });
}

int kclab_lt_timer_stop(kclab_lt_timer* timer, uint64_t stream, float* milliseconds) {
  return kclab::guarded([&]() -> int {
    KCLAB_LT_RUNTIME(cudaEventRecord(timer->end, at<CUstream_st>(stream)));
    KCLAB_LT_RUNTIME(cudaEventSynchronize(timer->end));
    KCLAB_LT_RUNTIME(cudaEventElapsedTime(milliseconds, timer->begin, timer->end));
    return 0;
  });
}
