/*
 * All-gather on GPUs: every GPU of this machine is a rank with its own thread and stream. Needs a CUDA build and at
 * least one GPU.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <cuda_runtime_api.h>
#include <pthread.h>
#include <seqpar/exchange.h>
#include <stdio.h>

enum { MOST_GPUS = 16, TOKENS = 1024, WIDTH = 64 }; /* per rank */

static void* rank_main(void* comm) {
  int rank = -1, ranks = 0, device = -1;
  float *mine = NULL, *all = NULL, host[TOKENS * WIDTH], last = -1;
  cudaStream_t stream;
  seqparShards_t shards = SEQPAR_SHARDS_INITIALIZER; /* fp32 */
  seqparCommUserRank(comm, &rank);
  seqparCommCount(comm, &ranks);
  seqparCommDevice(comm, &device);
  cudaSetDevice(device);
  cudaStreamCreate(&stream);
  cudaMalloc((void**)&mine, sizeof host);
  cudaMalloc((void**)&all, sizeof host * (size_t)ranks);
  for (int i = 0; i < TOKENS * WIDTH; ++i) host[i] = (float)rank;
  cudaMemcpyAsync(mine, host, sizeof host, cudaMemcpyDefault, stream);

  shards.tokens = TOKENS;
  shards.inner = WIDTH;
  if (seqparAllGather(mine, all, &shards, comm, stream) != seqparSuccess) /* enqueues and returns */
    fprintf(stderr, "rank %d: %s\n", rank, seqparGetLastError(comm));
  cudaMemcpyAsync(&last, all + (size_t)TOKENS * WIDTH * (size_t)ranks - 1, sizeof last, cudaMemcpyDefault, stream);
  cudaStreamSynchronize(stream);
  printf("rank %d on GPU %d: the last rank's tokens hold %g\n", rank, device, (double)last);

  cudaFree(mine);
  cudaFree(all);
  cudaStreamDestroy(stream);
  seqparCommDestroy(comm);
  return NULL;
}

int main(void) {
  seqparComm_t comms[MOST_GPUS];
  pthread_t threads[MOST_GPUS];
  int devices[MOST_GPUS], gpus = 0;
  if (cudaGetDeviceCount(&gpus) != cudaSuccess || gpus == 0) return puts("no GPU"), 77;
  if (gpus > MOST_GPUS) gpus = MOST_GPUS;
  for (int r = 0; r < gpus; ++r) devices[r] = r;
  if (seqparCommInitAll(comms, gpus, devices) != seqparSuccess)
    return fprintf(stderr, "%s\n", seqparGetLastError(NULL)), 1;
  for (int r = 0; r < gpus; ++r) pthread_create(&threads[r], NULL, rank_main, comms[r]);
  for (int r = 0; r < gpus; ++r) pthread_join(threads[r], NULL);
  return 0;
}
