// Running one algorithm, and timing whatever runs on a stream.
#include <cstring>

#include "internal.h"

namespace {

struct Interval {
  cudaEvent_t begin = nullptr, end = nullptr;
};

// Samples that may be under way at once: enough work for the device while the host loads a kernel,
// few enough for the launch queue (about a thousand operations, four for a sample).
constexpr int64_t kUnderWay = 64;

}  // namespace

// The first interval also serves kclab_lt_timer_start and _stop.
struct kclab_lt_timer {
  Interval intervals[kUnderWay];
};

namespace {

template <class T>
T* at(uint64_t address) {
  return reinterpret_cast<T*>(address);
}

int create_events(kclab_lt_timer* timer) {
  for (Interval& each : timer->intervals) {
    KCLAB_LT_RUNTIME(cudaEventCreate(&each.begin));
    KCLAB_LT_RUNTIME(cudaEventCreate(&each.end));
  }
  return 0;
}

int begin(const Interval& interval, uint64_t stream, uint64_t flush, uint64_t flush_bytes) {
  if (flush_bytes != 0)
    KCLAB_LT_RUNTIME(cudaMemsetAsync(at<void>(flush), 0, flush_bytes, at<CUstream_st>(stream)));
  KCLAB_LT_RUNTIME(cudaEventRecord(interval.begin, at<CUstream_st>(stream)));
  return 0;
}

int elapsed(const Interval& interval, float* milliseconds) {
  KCLAB_LT_RUNTIME(cudaEventSynchronize(interval.end));
  KCLAB_LT_RUNTIME(cudaEventElapsedTime(milliseconds, interval.begin, interval.end));
  return 0;
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
    const int code = create_events(timer);
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
  for (const Interval& each : timer->intervals) {
    if (each.end != nullptr) cudaEventDestroy(each.end);
    if (each.begin != nullptr) cudaEventDestroy(each.begin);
  }
  delete timer;
}

int kclab_lt_timer_start(kclab_lt_timer* timer, uint64_t stream, uint64_t flush,
                         uint64_t flush_bytes) {
  return kclab::guarded(
      [&]() -> int { return begin(timer->intervals[0], stream, flush, flush_bytes); });
}

int kclab_lt_timer_stop(kclab_lt_timer* timer, uint64_t stream, float* milliseconds) {
  return kclab::guarded([&]() -> int {
    KCLAB_LT_RUNTIME(cudaEventRecord(timer->intervals[0].end, at<CUstream_st>(stream)));
    return elapsed(timer->intervals[0], milliseconds);
  });
}

int kclab_lt_timer_series(kclab_lt_timer* timer, kclab_lt_handle* handle,
                          const kclab_lt_buffers* buffers, const kclab_lt_algorithm* algorithms,
                          const int32_t* order, int64_t count, uint64_t flush,
                          uint64_t flush_bytes, float* milliseconds, int32_t* status) {
  return kclab::guarded([&]() -> int {
    for (int64_t i = 0; i < count; i++) {
      const Interval& slot = timer->intervals[i % kUnderWay];
      if (i >= kUnderWay) KCLAB_LT_TRY(elapsed(slot, &milliseconds[i - kUnderWay]));
      KCLAB_LT_TRY(begin(slot, buffers->stream, flush, flush_bytes));
      status[i] = kclab_lt_run(handle, buffers, &algorithms[order[i]]);
      KCLAB_LT_RUNTIME(cudaEventRecord(slot.end, at<CUstream_st>(buffers->stream)));
    }
    for (int64_t i = count > kUnderWay ? count - kUnderWay : 0; i < count; i++)
      KCLAB_LT_TRY(elapsed(timer->intervals[i % kUnderWay], &milliseconds[i]));
    return 0;
  });
}
