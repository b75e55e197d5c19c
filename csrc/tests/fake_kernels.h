// The GEMMs that the fake cuBLASLt "launches": real results over host memory, and made-up times.
#pragma once

#include <cublasLt.h>
#include <stdint.h>

#include "fake_cuda.h"

struct FakeConfig {
  int32_t algorithm, tile, stages, split_k, reduction, swizzle, custom, inner, cluster;
};

struct FakeOperands {
  cudaDataType type;
  int64_t m, n, k;
  bool fast_accumulation;
  const void *weight, *activation;
  const void *weight_scale, *activation_scale;
  float alpha;
  uint16_t* output;
};

// Faulty on purpose; everything else computes what it should.
enum : int32_t {
  kDropsTail = 21,   // with split-K, forgets the last k % 64 products
  kReadsPadding = 31, // lets the next row's NaN into a result
  kRacy = 71,         // bf16 only: every call rounds one element differently
};
// Reduction scheme 4 (OUTPUT_TYPE) rounds each K slice to bf16 before adding: not byte-exact.

void fake_gemm(const FakeConfig& config, const FakeOperands& operands);
double fake_milliseconds(const FakeConfig& config, const FakeOperands& operands);
FakeLaunch fake_launch(const FakeConfig& config, const FakeOperands& operands);
