// What the two fake libraries share: a clock that only fake work moves, and captured launches.
#pragma once

#include <cuda_runtime_api.h>
#include <stdint.h>

#include <string>

struct FakeLaunch {
  std::string name;
  unsigned grid[3], block[3], cluster[3], shared_bytes;
  uint64_t parameter;  // stands for the kernel's argument bytes
};

extern "C" {
// Let `milliseconds` of device time pass.
void fake_work(double milliseconds);
// Append to the graph that the stream captures; false when it does not capture.
bool fake_capture(cudaStream_t stream, const FakeLaunch* launch);
// The compute capability that the fake device has, as 90: KCLAB_FAKE_CAPABILITY, else 9.0.
int fake_capability(void);
}
