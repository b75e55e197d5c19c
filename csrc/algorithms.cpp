// Finding algorithms: the heuristic, algorithm ids, capabilities, and checking explicit configs.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <vector>

#include "internal.h"

namespace {

// cuBLASLt reads the last two as uint16_t and everything else as 32 bits: another size is refused.
template <class T>
cublasStatus_t set(cublasLtMatmulAlgo_t* algo, cublasLtMatmulAlgoConfigAttributes_t name, int32_t v) {
  const T value = static_cast<T>(v);
  return cublasLtMatmulAlgoConfigSetAttribute(algo, name, &value, sizeof value);
}

template <class T>
int32_t get(const cublasLtMatmulAlgo_t& algo, cublasLtMatmulAlgoConfigAttributes_t name) {
  T value{};
  size_t written = 0;
  const auto status =
      cublasLtMatmulAlgoConfigGetAttribute(&algo, name, &value, sizeof value, &written);
  return status == CUBLAS_STATUS_SUCCESS ? static_cast<int32_t>(value) : 0;
}

kclab_lt_config read_config(const cublasLtMatmulAlgo_t& algo) {
  kclab_lt_config c{};
  c.algorithm = get<int32_t>(algo, CUBLASLT_ALGO_CONFIG_ID);
  c.tile = get<uint32_t>(algo, CUBLASLT_ALGO_CONFIG_TILE_ID);
  c.stages = get<uint32_t>(algo, CUBLASLT_ALGO_CONFIG_STAGES_ID);
  c.split_k = get<int32_t>(algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM);
  c.reduction = get<uint32_t>(algo, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME);
  c.swizzle = get<uint32_t>(algo, CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING);
  c.custom = get<uint32_t>(algo, CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION);
  c.inner = get<uint16_t>(algo, CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID);
  c.cluster = get<uint16_t>(algo, CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID);
  return c;
}

cublasStatus_t write_config(cublasLtMatmulAlgo_t* algo, const kclab_lt_config& c) {
  const cublasStatus_t written[] = {
      set<uint32_t>(algo, CUBLASLT_ALGO_CONFIG_TILE_ID, c.tile),
      set<uint32_t>(algo, CUBLASLT_ALGO_CONFIG_STAGES_ID, c.stages),
      set<int32_t>(algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, c.split_k),
      set<uint32_t>(algo, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, c.reduction),
      set<uint32_t>(algo, CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING, c.swizzle),
      set<uint32_t>(algo, CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION, c.custom),
      set<uint16_t>(algo, CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID, c.inner),
      set<uint16_t>(algo, CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, c.cluster),
  };
  for (const cublasStatus_t status : written)
    if (status != CUBLAS_STATUS_SUCCESS) return status;
  return CUBLAS_STATUS_SUCCESS;
}

// Init, set and check; `found` gets the workspace, the waves and the algorithm itself.
cublasStatus_t try_config(const kclab_lt_handle& h, const kclab_lt_config& config,
                          cublasLtMatmulHeuristicResult_t* found) {
  cublasLtMatmulAlgo_t algo;
  cublasStatus_t status = kclab::init_algorithm(h, config.algorithm, &algo);
  if (status == CUBLAS_STATUS_SUCCESS) status = write_config(&algo, config);
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  *found = cublasLtMatmulHeuristicResult_t{};
  status = cublasLtMatmulAlgoCheck(h.lt, h.operation, h.a, h.b, h.d, h.d, &algo, found);
  found->algo = algo;  // cublasLtMatmulAlgoCheck leaves it unset
  return status == CUBLAS_STATUS_SUCCESS ? found->state : status;
}

kclab_lt_algorithm describe(const cublasLtMatmulHeuristicResult_t& found) {
  kclab_lt_algorithm out{};
  out.config = read_config(found.algo);
  out.status = static_cast<int32_t>(found.state);
  out.waves = found.wavesCount;
  out.workspace_bytes = found.workspaceSize;
  static_assert(sizeof out.opaque == sizeof found.algo.data, "cublasLtMatmulAlgo_t is 64 bytes");
  memcpy(out.opaque, found.algo.data, sizeof out.opaque);
  return out;
}

class Preference {
 public:
  int create(uint64_t workspace_bytes, int32_t alignment) {
    KCLAB_LT_CUBLAS(cublasLtMatmulPreferenceCreate(&preference_));
    KCLAB_LT_TRY(set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace_bytes));
    const auto bytes = static_cast<uint32_t>(alignment);
    KCLAB_LT_TRY(set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, bytes));
    KCLAB_LT_TRY(set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, bytes));
    KCLAB_LT_TRY(set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, bytes));
    return set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, bytes);
  }
  ~Preference() {
    if (preference_ != nullptr) cublasLtMatmulPreferenceDestroy(preference_);
  }
  cublasLtMatmulPreference_t get() const { return preference_; }

 private:
  template <class T>
  int set(cublasLtMatmulPreferenceAttributes_t name, T value) {
    KCLAB_LT_CUBLAS(cublasLtMatmulPreferenceSetAttribute(preference_, name, &value, sizeof value));
    return 0;
  }
  cublasLtMatmulPreference_t preference_ = nullptr;
};

// A capability that this library does not know keeps the value it has.
template <class T>
void capability(const cublasLtMatmulAlgo_t& algo, cublasLtMatmulAlgoCapAttributes_t name, T* value) {
  T read{};
  size_t written = 0;
  if (cublasLtMatmulAlgoCapGetAttribute(&algo, name, &read, sizeof read, &written) ==
      CUBLAS_STATUS_SUCCESS)
    *value = read;
}

// A list capability, or the one value `fallback` where the algorithm lists none.
int32_t capability_list(const cublasLtMatmulAlgo_t& algo, cublasLtMatmulAlgoCapAttributes_t name,
                        uint32_t fallback, uint32_t* out, size_t capacity) {
  size_t bytes = 0;
  cublasLtMatmulAlgoCapGetAttribute(&algo, name, nullptr, 0, &bytes);
  std::vector<uint32_t> values(bytes / sizeof(uint32_t));
  if (values.empty() || cublasLtMatmulAlgoCapGetAttribute(&algo, name, values.data(), bytes,
                                                          &bytes) != CUBLAS_STATUS_SUCCESS)
    values.assign(1, fallback);
  values.resize(std::min(values.size(), capacity));
  std::copy(values.begin(), values.end(), out);
  return static_cast<int32_t>(values.size());
}

}  // namespace

namespace kclab {

cublasStatus_t init_algorithm(const kclab_lt_handle& h, int id, cublasLtMatmulAlgo_t* out) {
  return cublasLtMatmulAlgoInit(h.lt, CUBLAS_COMPUTE_32F, CUDA_R_32F, h.operand, h.operand,
                                CUDA_R_16BF, CUDA_R_16BF, id, out);
}

}  // namespace kclab

int kclab_lt_heuristic(kclab_lt_handle* handle, uint64_t workspace_bytes, int wanted,
                       kclab_lt_algorithm* out, int* found) {
  return kclab::guarded([&]() -> int {
    *found = 0;
    if (wanted < 1) return kclab::fail(KCLAB_LT_ARGUMENT, "ask for at least one algorithm");
    Preference preference;
    KCLAB_LT_TRY(preference.create(workspace_bytes, handle->problem.alignment));
    std::vector<cublasLtMatmulHeuristicResult_t> results(static_cast<size_t>(wanted));
    kclab::Log log;
    const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
        handle->lt, handle->operation, handle->a, handle->b, handle->d, handle->d,
        preference.get(), wanted, results.data(), found);
    if (status != CUBLAS_STATUS_SUCCESS) {
      *found = 0;
      const std::string said = log.text();
      return kclab::fail(static_cast<int>(status),
                         std::string("cublasLtMatmulAlgoGetHeuristic: ") +
                             cublasLtGetStatusName(status) + (said.empty() ? "" : " (" + said + ")"));
    }
    for (int i = 0; i < *found; i++) out[i] = describe(results[static_cast<size_t>(i)]);
    return 0;
  });
}

int kclab_lt_algorithm_ids(kclab_lt_handle* handle, int capacity, int* ids, int* found) {
  return kclab::guarded([&]() -> int {
    *found = 0;
    KCLAB_LT_CUBLAS(cublasLtMatmulAlgoGetIds(handle->lt, CUBLAS_COMPUTE_32F, CUDA_R_32F,
                                             handle->operand, handle->operand, CUDA_R_16BF,
                                             CUDA_R_16BF, capacity, ids, found));
    return 0;
  });
}

int kclab_lt_read_capabilities(kclab_lt_handle* handle, int algorithm, kclab_lt_capabilities* out) {
  return kclab::guarded([&]() -> int {
    *out = kclab_lt_capabilities{};
    cublasLtMatmulAlgo_t algo;
    KCLAB_LT_CUBLAS(kclab::init_algorithm(*handle, algorithm, &algo));
    capability(algo, CUBLASLT_ALGO_CAP_SPLITK_SUPPORT, &out->split_k);
    capability(algo, CUBLASLT_ALGO_CAP_CTA_SWIZZLING_SUPPORT, &out->swizzle);
    capability(algo, CUBLASLT_ALGO_CAP_CUSTOM_OPTION_MAX, &out->custom_max);
    capability(algo, CUBLASLT_ALGO_CAP_REDUCTION_SCHEME_MASK, &out->reduction_mask);
    capability(algo, CUBLASLT_ALGO_CAP_MIN_ALIGNMENT_A_BYTES, &out->alignment_a);
    capability(algo, CUBLASLT_ALGO_CAP_MIN_ALIGNMENT_B_BYTES, &out->alignment_b);
    capability(algo, CUBLASLT_ALGO_CAP_MIN_ALIGNMENT_C_BYTES, &out->alignment_c);
    capability(algo, CUBLASLT_ALGO_CAP_MIN_ALIGNMENT_D_BYTES, &out->alignment_d);
    capability(algo, CUBLASLT_ALGO_CAP_NUMERICAL_IMPL_FLAGS, &out->numerical);
    out->tile_count =
        capability_list(algo, CUBLASLT_ALGO_CAP_TILE_IDS, CUBLASLT_MATMUL_TILE_UNDEFINED,
                        out->tiles, sizeof out->tiles / sizeof out->tiles[0]);
    out->stage_count =
        capability_list(algo, CUBLASLT_ALGO_CAP_STAGES_IDS, CUBLASLT_MATMUL_STAGES_UNDEFINED,
                        out->stages, sizeof out->stages / sizeof out->stages[0]);
    return 0;
  });
}

int kclab_lt_prepare(kclab_lt_handle* handle, const kclab_lt_config* config,
                     kclab_lt_algorithm* out) {
  return kclab::guarded([&]() -> int {
    *out = kclab_lt_algorithm{};
    cublasLtMatmulHeuristicResult_t found{};
    KCLAB_LT_CUBLAS(try_config(*handle, *config, &found));
    *out = describe(found);
    return 0;
  });
}

int kclab_lt_check(kclab_lt_handle* handle, const kclab_lt_config* configs, int64_t count,
                   int32_t* status, uint64_t* workspace_bytes, float* waves) {
  for (int64_t i = 0; i < count; i++) {
    cublasLtMatmulHeuristicResult_t found{};
    status[i] = static_cast<int32_t>(try_config(*handle, configs[i], &found));
    workspace_bytes[i] = found.workspaceSize;
    waves[i] = found.wavesCount;
  }
  return 0;
}

int kclab_lt_refusal(kclab_lt_handle* handle, const kclab_lt_config* config, char* text,
                     size_t capacity) {
  return kclab::guarded([&]() -> int {
    kclab::Log log;
    cublasLtMatmulHeuristicResult_t found{};
    const cublasStatus_t status = try_config(*handle, *config, &found);
    snprintf(text, capacity, "%s", status == CUBLAS_STATUS_SUCCESS ? "" : log.text().c_str());
    return static_cast<int>(status);
  });
}
