// Error texts and cuBLASLt's log, both kept by thread.
#include <cstdio>
#include <cstdlib>

#include "internal.h"

namespace {

thread_local std::string last_error;
thread_local std::string log_text;
thread_local std::string log_trace;
thread_local int listening = 0;

constexpr int kTraceLevel = 5;

void on_log(int level, const char* function, const char* message) {
  if (listening == 0) return;
  // An API trace line comes with every call; it is kept only where nothing better was said.
  std::string& into = level >= kTraceLevel ? log_trace : log_text;
  if (!into.empty()) into += "; ";
  if (function != nullptr && *function != '\0') into += std::string(function) + ": ";
  into += message == nullptr ? "" : message;
}

// cuBLASLt also prints what it logs, to stdout unless told otherwise: that would be inside our
// caller's output. A user who names CUBLASLT_LOG_FILE keeps it.
void keep_log_off_stdout() {
  static FILE* const nowhere = std::getenv("CUBLASLT_LOG_FILE") ? nullptr : std::fopen("/dev/null", "w");
  if (nowhere != nullptr) cublasLtLoggerSetFile(nowhere);
}

}  // namespace

namespace kclab {

int fail(int code, const std::string& text) {
  last_error = text;
  return code;
}

int check_cublas(cublasStatus_t status, const char* call) {
  if (status == CUBLAS_STATUS_SUCCESS) return 0;
  const std::string name = std::string(call).substr(0, std::string(call).find('('));
  return fail(static_cast<int>(status), name + ": " + cublasLtGetStatusName(status));
}

int check_cuda(cudaError_t status, const char* call) {
  if (status == cudaSuccess) return 0;
  const std::string name = std::string(call).substr(0, std::string(call).find('('));
  cudaGetLastError();  // a sticky error would be reported again by an innocent call
  return fail(KCLAB_LT_CUDA, name + ": " + cudaGetErrorString(status));
}

Log::Log() {
  log_text.clear();
  log_trace.clear();
  listening++;
  keep_log_off_stdout();
  cublasLtLoggerSetCallback(on_log);
  cublasLtLoggerSetLevel(kTraceLevel);
}

Log::~Log() {
  listening--;
  cublasLtLoggerSetLevel(0);
}

std::string Log::text() const { return log_text.empty() ? log_trace : log_text; }

}  // namespace kclab

const char* kclab_lt_error(void) { return last_error.c_str(); }

const char* kclab_lt_status_name(int status) {
  switch (status) {
    case KCLAB_LT_MEMORY: return "OUT_OF_MEMORY";
    case KCLAB_LT_ARGUMENT: return "BAD_ARGUMENT";
    case KCLAB_LT_CUDA: return "CUDA_ERROR";
    case KCLAB_LT_DRIVER: return "NO_DRIVER";
    default: return cublasLtGetStatusName(static_cast<cublasStatus_t>(status));
  }
}
