// Computes linear attention's state and passes it along in one kernel: each block sums k v^T over its rank's tokens for
// one head, in shared memory, and sends the head to the next rank as soon as it is complete, while other blocks still
// work. Ranks are threads; several ranks share a GPU if there are fewer GPUs than ranks. Their kernels wait for each
// other, so between the first launch and the end of the last kernel no rank may run an operation that waits for a whole
// GPU: allocate, free, or load a kernel. Every rank checks its final states against a direct sum.
#include <cuda_runtime.h>
#include <seqpar/seqpar_device.cuh>

#include <barrier>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

namespace {

constexpr int kRanks = 4, kHeads = 8, kTokens = 64, kSize = 32; /* a head's state is kSize x kSize */
constexpr int kThreads = 256;

/* Tokens of a rank: small integers, so that sums are exact. */
__host__ __device__ float keyOf(int rank, int head, int token, int i) {
  return static_cast<float>((rank * 7 + head * 3 + token * 5 + i) % 5 - 2);
}
__host__ __device__ float valueOf(int rank, int head, int token, int j) {
  return static_cast<float>((rank * 3 + head + token * 2 + j * 7) % 7 - 3);
}
/* Decay of a row of the incoming state over a rank's tokens: a power of two. */
__host__ __device__ float decayOf(int rank, int row) {
  return (rank + row) % 3 == 0 ? 0.5F : 1.0F;
}

__global__ void makeAndPass(seqparScanDevice_t scan, int rank, float* totals) {
  __shared__ float state[kSize * kSize];
  const int head = static_cast<int>(blockIdx.x);
  for (int element = static_cast<int>(threadIdx.x); element < kSize * kSize; element += kThreads) {
    float sum = 0;
    for (int token = 0; token < kTokens; ++token) {
      sum += keyOf(rank, head, token, element / kSize) * valueOf(rank, head, token, element % kSize);
    }
    state[element] = sum;
  }
  __syncthreads();
  // False: a rank has failed; the communicator's error names it.
  seqpar::device::passHead(scan, head, [&](int64_t element, float4 x) {
    const float decay = decayOf(rank, static_cast<int>(element) / kSize);
    const float* const own = state + element;
    const float4 total =
        make_float4(decay * x.x + own[0], decay * x.y + own[1], decay * x.z + own[2], decay * x.w + own[3]);
    *reinterpret_cast<float4*>(totals + head * kSize * kSize + element) = total;
    return total;
  });
}

/* Number of elements of all heads that differ from the direct sum. */
int countWrong(int rank, const std::vector<float>& got) {
  int wrong = 0;
  for (int head = 0; head < kHeads; ++head) {
    for (int element = 0; element < kSize * kSize; ++element) {
      float expected = 0;
      for (int r = 0; r <= rank; ++r) {
        expected *= decayOf(r, element / kSize);
        for (int token = 0; token < kTokens; ++token) {
          expected += keyOf(r, head, token, element / kSize) * valueOf(r, head, token, element % kSize);
        }
      }
      wrong += got[static_cast<std::size_t>(head * kSize * kSize + element)] == expected ? 0 : 1;
    }
  }
  return wrong;
}

/* One rank; 0 on success. */
int runRank(seqparComm_t comm, int rank, int device, std::barrier<>& meeting) {
  std::vector<float> got(std::size_t{kHeads} * kSize * kSize);
  seqparScanDevice_t scan = SEQPAR_SCAN_DEVICE_INITIALIZER;
  float* totals = nullptr;
  cudaStream_t stream = nullptr;
  if (cudaSetDevice(device) != cudaSuccess ||
      cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) != cudaSuccess ||
      cudaMalloc(&totals, got.size() * sizeof(float)) != cudaSuccess) {
    std::fprintf(stderr, "rank %d: no memory on the GPU\n", rank);
    std::exit(1); /* the other ranks would wait */
  }
  meeting.arrive_and_wait();
  const bool open = seqparScanDeviceCreate(&scan, kHeads, kSize * kSize, seqparForward, comm) == seqparSuccess;
  bool ran = false;
  if (open) {
    makeAndPass<<<kHeads, kThreads, 0, stream>>>(scan, rank, totals);
    ran = cudaStreamSynchronize(stream) == cudaSuccess;
  }
  meeting.arrive_and_wait();
  int wrong = -1;
  if (ran && cudaMemcpy(got.data(), totals, got.size() * sizeof(float), cudaMemcpyDeviceToHost) == cudaSuccess) {
    wrong = countWrong(rank, got);
  }
  if (open) seqparScanDeviceDestroy(&scan);
  if (wrong < 0) std::fprintf(stderr, "rank %d: %s\n", rank, seqparGetLastError(comm));
  if (wrong >= 0) std::printf("rank %d: %d of %zu numbers are wrong\n", rank, wrong, got.size());
  cudaFree(totals);
  cudaStreamDestroy(stream);
  return wrong == 0 ? 0 : 1;
}

}  // namespace

int main() {
  setenv("CUDA_MODULE_LOADING", "EAGER", 1);
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0); /* more streams than this share hardware queues */
  int gpus = 0;
  if (cudaGetDeviceCount(&gpus) != cudaSuccess || gpus == 0) {
    std::printf("skipped: no GPU\n");
    return 77;
  }
  std::vector<int> devices;
  for (int rank = 0; rank < kRanks; ++rank) devices.push_back(rank % gpus);
  std::vector<seqparComm_t> comms(kRanks);
  if (seqparCommInitAll(comms.data(), kRanks, devices.data()) != seqparSuccess) {
    std::fprintf(stderr, "%s\n", seqparGetLastError(nullptr));
    return 1;
  }
  std::vector<int> results(kRanks);
  std::barrier<> meeting(kRanks);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      const auto index = static_cast<std::size_t>(rank);
      results[index] = runRank(comms[index], rank, devices[index], meeting);
      seqparCommDestroy(comms[index]);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const int result : results) {
    if (result != 0) return 1;
  }
  return 0;
}
