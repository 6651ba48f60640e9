#include "attn/exec/cuda.h"

#include "kernels/attn/softmax/launch.h"

namespace seqpar::attn {
namespace {

/// With the highest priority: collectives that run concurrently with a computation must not queue behind its thread
/// blocks.
StreamHandle makeSideStream() {
  int least = 0, most = 0;
  checkCuda(cudaDeviceGetStreamPriorityRange(&least, &most), "cudaDeviceGetStreamPriorityRange");
  cudaStream_t stream = nullptr;
  checkCuda(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, most), "cudaStreamCreateWithPriority");
  return StreamHandle(stream);
}

/// A dense tensor as rows of a length that suits a warp, as far as the element count allows.
Tensor flat(const Tensor& t) {
  constexpr int64_t kLongest = 512;
  const int64_t elements = t.elements();
  int64_t dim = 1;
  while (dim < kLongest && elements % (2 * dim) == 0) dim *= 2;
  return denseTensor(t.data, t.type, 1, elements / dim, 1, dim);
}

softmax::Sum sumOf(const Tensor& to) {
  softmax::Sum sum;
  sum.batch = to.batch;
  sum.tokens = to.tokens;
  sum.heads = to.heads;
  sum.dim = to.dim;
  sum.out = viewOf(to);
  return sum;
}

void addPart(softmax::Sum& sum, const Tensor& from) {
  sum.parts[0].out = viewOf(from);
  sum.parts[0].tokens = from.tokens;
  sum.count = 1;
}

}  // namespace

softmax::View viewOf(const Tensor& t) {
  return {t.data, t.type, t.batchStride, t.tokenStride, t.headStride};
}

softmax::RowView viewOf(const Rows& rows) {
  return {rows.data, rows.batchStride, rows.headStride, 1};
}

CudaExec::CudaExec(int device, bool shared, int rank) : device_(device), sharer_(shared ? rank : 0) {
  const CurrentDevice current(device);
  if (!shared) side_ = makeSideStream();
  forked_ = makeEvent();
  joined_ = makeEvent();
}

std::shared_ptr<void> CudaExec::allocate(size_t bytes, const char* what) {
  const CurrentDevice current(device_);
  return std::shared_ptr<std::byte[]>(allocateDevice(bytes, what));
}

void CudaExec::begin(void* stream) {
  current_.emplace(device_);
  main_ = static_cast<cudaStream_t>(stream);
}

void CudaExec::follow() {
  order_.begin(main_);
}

void CudaExec::finish() {
  order_.end();
  current_.reset();
}

void CudaExec::drain() noexcept {
  const RelaxedCapture relaxed;
  // Replays are not tracked: a caller that replays a graph waits for it before destroying the plan.
  noteCuda(order_.synchronize(), "cudaEventSynchronize");
}

void CudaExec::fork() {
  if (!side_) return;
  checkCuda(cudaEventRecord(forked_.get(), main_), "cudaEventRecord");
  checkCuda(cudaStreamWaitEvent(side_.get(), forked_.get(), 0), "cudaStreamWaitEvent");
}

void CudaExec::join() {
  if (!side_) return;
  checkCuda(cudaEventRecord(joined_.get(), side_.get()), "cudaEventRecord");
  checkCuda(cudaStreamWaitEvent(main_, joined_.get(), 0), "cudaStreamWaitEvent");
}

// Kernels copy and clear tensors, never copy engines: all streams of a process share the engines' queues, and a copy
// that waits for its stream would block other ranks that share the GPU.

void CudaExec::copy(const Tensor& to, const Tensor& from) {
  const bool dense = to.dense() && from.dense();
  if (!dense && to.dim == 1 && to.type == seqparFloat32 && from.type == seqparFloat32) {
    // One thread per value instead of a warp.
    const auto numbers = [](const Tensor& t) {
      return softmax::RowView{static_cast<float*>(t.data), t.batchStride, t.headStride, t.tokenStride};
    };
    checkCuda(softmax::launchRows(numbers(to), numbers(from), 0, to.batch, to.tokens, to.heads, main_), "copying rows");
    return;
  }
  auto sum = sumOf(dense ? flat(to) : to);
  addPart(sum, dense ? flat(from) : from);
  checkCuda(softmax::launchSum(sum, main_), "copying a tensor");
}

void CudaExec::copy(const Rows& to, const Rows& from) {
  checkCuda(softmax::launchRows(viewOf(to), viewOf(from), 0, to.batch, to.tokens, to.heads, main_), "copying rows");
}

void CudaExec::add(const Tensor& to, const Tensor& from) {
  auto sum = sumOf(to);
  sum.sum = viewOf(to);
  addPart(sum, from);
  checkCuda(softmax::launchSum(sum, main_), "adding tensors");
}

void CudaExec::zero(const Tensor& tensor) {
  checkCuda(softmax::launchSum(sumOf(tensor.dense() ? flat(tensor) : tensor), main_), "clearing a tensor");
}

void CudaExec::fill(const Rows& rows, float value) {
  checkCuda(softmax::launchRows(viewOf(rows), {}, value, rows.batch, rows.tokens, rows.heads, main_), "filling rows");
}

}  // namespace seqpar::attn
