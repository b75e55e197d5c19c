// kclab_lt: a C ABI over cuBLASLt for choosing the algorithm of one GEMM.
//
//     output[m, n] (bf16) = alpha * activation[m, k] . weight[n, k]^T        all row-major
//
// Addresses and streams cross this boundary as integers, so that neither torch nor a C++ type does.
// Every call returns 0, a positive cublasStatus_t, or a negative KCLAB_LT_* code; what went wrong
// is then in kclab_lt_error() of the same thread. A handle is used by one thread at a time.
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define KCLAB_LT_API __attribute__((visibility("default")))
#define KCLAB_LT_ABI 2

#define KCLAB_LT_MEMORY (-1)   // an allocation failed
#define KCLAB_LT_ARGUMENT (-2) // an argument that cannot mean anything
#define KCLAB_LT_CUDA (-3)     // the CUDA runtime refused
#define KCLAB_LT_DRIVER (-4)   // libcuda.so.1 is missing, or too old for what is asked

enum kclab_lt_dtype { KCLAB_LT_BF16 = 0, KCLAB_LT_FP8_E4M3 = 1, KCLAB_LT_NVFP4 = 2 };

typedef struct {
  int32_t dtype;             // kclab_lt_dtype of both operands
  int32_t fast_accumulation; // FP8 only: 1 lets the tensor cores keep partial sums below fp32
  int32_t device_scalars;    // 1: alpha and beta are read from device memory
  int32_t alignment;         // bytes that every operand's address is a multiple of (at most 256)
  int64_t m, n, k;           // m is the padded row count
} kclab_lt_problem;

typedef struct {
  uint64_t activation, weight, output;
  uint64_t activation_scale, weight_scale; // fp32 scalars (FP8), swizzled UE4M3 blocks (NVFP4)
  uint64_t alpha, beta;                    // fp32 on the device; ignored without device_scalars
  uint64_t workspace, workspace_bytes;
  uint64_t stream;                         // cudaStream_t
} kclab_lt_buffers;

typedef struct {
  int32_t algorithm, tile, stages, split_k, reduction, swizzle, custom, inner, cluster;
} kclab_lt_config;

typedef struct {
  kclab_lt_config config;
  int32_t status;           // cublasStatus_t of the check
  float waves;              // waves of thread blocks over the device
  uint64_t workspace_bytes; // needed
  uint64_t opaque[8];       // cublasLtMatmulAlgo_t: good in this process and library only
} kclab_lt_algorithm;

typedef struct {
  int32_t split_k, swizzle, custom_max, tile_count, stage_count;
  uint32_t reduction_mask;
  uint32_t alignment_a, alignment_b, alignment_c, alignment_d;
  uint64_t numerical; // CUBLASLT_NUMERICAL_IMPL_FLAGS_*
  uint32_t tiles[1024], stages[128];
} kclab_lt_capabilities;

typedef struct {
  int32_t nodes, kernels; // of the captured graph
  uint32_t grid[3], block[3], cluster[3], shared_bytes; // of the first kernel
  uint64_t fingerprint; // of every kernel's name, geometry and parameters, in this process
  char names[1024];     // kernel names joined with '|'
} kclab_lt_launch;

typedef struct {
  uint64_t cublaslt;      // cublasLtGetVersion()
  int32_t header;         // CUBLAS_VERSION compiled against
  int32_t driver, runtime; // as 13000
  int32_t major, minor, multiprocessors, l2_bytes;
  char name[256], uuid[40];
} kclab_lt_device;

typedef struct kclab_lt_handle kclab_lt_handle;
typedef struct kclab_lt_timer kclab_lt_timer;

KCLAB_LT_API int kclab_lt_abi(void);
// sizeof problem, buffers, config, algorithm, capabilities, launch, device: a caller in another
// language compares its own.
KCLAB_LT_API int kclab_lt_sizeof(int which);
KCLAB_LT_API const char* kclab_lt_error(void);
KCLAB_LT_API const char* kclab_lt_status_name(int status);
KCLAB_LT_API uint64_t kclab_lt_version(void);
KCLAB_LT_API int kclab_lt_device_read(int ordinal, kclab_lt_device* out);

KCLAB_LT_API int kclab_lt_create(const kclab_lt_problem* problem, kclab_lt_handle** out);
KCLAB_LT_API void kclab_lt_destroy(kclab_lt_handle* handle);
// Scale addresses belong to the operation's descriptor: cuBLASLt refuses NVFP4 without them.
KCLAB_LT_API int kclab_lt_bind(kclab_lt_handle* handle, const kclab_lt_buffers* buffers);

// The heuristic's ranked answer within a workspace budget; fills at most `wanted`, sets *found.
KCLAB_LT_API int kclab_lt_heuristic(kclab_lt_handle* handle, uint64_t workspace_bytes, int wanted,
                                    kclab_lt_algorithm* out, int* found);
KCLAB_LT_API int kclab_lt_algorithm_ids(kclab_lt_handle* handle, int capacity, int* ids, int* found);
KCLAB_LT_API int kclab_lt_read_capabilities(kclab_lt_handle* handle, int algorithm,
                                            kclab_lt_capabilities* out);
// Init, set and check one config; fills `out` so that it can be run.
KCLAB_LT_API int kclab_lt_prepare(kclab_lt_handle* handle, const kclab_lt_config* config,
                                  kclab_lt_algorithm* out);
// The same for `count` configs, keeping only the verdicts. Always 0; see `status`.
KCLAB_LT_API int kclab_lt_check(kclab_lt_handle* handle, const kclab_lt_config* configs,
                                int64_t count, int32_t* status, uint64_t* workspace_bytes,
                                float* waves);
// What cuBLASLt's own log says while it refuses `config` ("" when it says nothing).
KCLAB_LT_API int kclab_lt_refusal(kclab_lt_handle* handle, const kclab_lt_config* config,
                                  char* text, size_t capacity);

KCLAB_LT_API int kclab_lt_run(kclab_lt_handle* handle, const kclab_lt_buffers* buffers,
                              const kclab_lt_algorithm* algorithm);
// What running it would launch, read from a captured CUDA graph; nothing is executed.
KCLAB_LT_API int kclab_lt_fingerprint(kclab_lt_handle* handle, const kclab_lt_buffers* buffers,
                                      const kclab_lt_algorithm* algorithm, kclab_lt_launch* out);
// kclab_lt_prepare and kclab_lt_fingerprint for `count` configs in one call: listing a space takes a
// hundred thousand. Always 0; status[i] tells of each, and only accepted ones are filled.
KCLAB_LT_API int kclab_lt_launches(kclab_lt_handle* handle, const kclab_lt_buffers* buffers,
                                   const kclab_lt_config* configs, int64_t count,
                                   kclab_lt_algorithm* algorithms, kclab_lt_launch* launches,
                                   int32_t* status);
// The same of a graph (cudaGraph_t) that the caller captured, as of somebody else's GEMM call.
KCLAB_LT_API int kclab_lt_read_graph(uint64_t graph, kclab_lt_launch* out);

// Time between two points of a stream. `start` may first overwrite `flush_bytes` at `flush`: that
// empties the L2 cache and keeps the device busy while the host enqueues the work to be timed.
KCLAB_LT_API int kclab_lt_timer_create(kclab_lt_timer** out);
KCLAB_LT_API void kclab_lt_timer_destroy(kclab_lt_timer* timer);
KCLAB_LT_API int kclab_lt_timer_start(kclab_lt_timer* timer, uint64_t stream, uint64_t flush,
                                      uint64_t flush_bytes);
KCLAB_LT_API int kclab_lt_timer_stop(kclab_lt_timer* timer, uint64_t stream, float* milliseconds);
// Times `count` runs, the i-th of algorithms[order[i]], each behind an overwrite of `flush_bytes` at
// `flush`. The host enqueues ahead and waits for old samples only, so that the device never waits
// for it. status[i] is what kclab_lt_run would return; a refused run's time means nothing.
KCLAB_LT_API int kclab_lt_timer_series(kclab_lt_timer* timer, kclab_lt_handle* handle,
                                       const kclab_lt_buffers* buffers,
                                       const kclab_lt_algorithm* algorithms, const int32_t* order,
                                       int64_t count, uint64_t flush, uint64_t flush_bytes,
                                       float* milliseconds, int32_t* status);

#ifdef __cplusplus
}
#endif
