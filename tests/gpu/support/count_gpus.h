// The number of GPUs, for programs that fork.
#pragma once

#include <cuda_runtime_api.h>
#include <sys/wait.h>
#include <unistd.h>

namespace seqpar::test {

/// Counted in a separate process: CUDA does not survive a fork.
inline int countGpus() {
  const pid_t process = fork();
  if (process == 0) {
    int count = 0;
    _exit(cudaGetDeviceCount(&count) == cudaSuccess ? count : 0);
  }
  int status = 0;
  waitpid(process, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 0;
}

}  // namespace seqpar::test
