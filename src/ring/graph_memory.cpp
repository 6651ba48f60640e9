#include "ring/graph_memory.h"

#include <mutex>
#include <utility>
#include <vector>

#include "device/cuda.h"

namespace seqpar {
namespace {

class Ended {
 public:
  void add(std::shared_ptr<void> memory) {
    const std::lock_guard lock(mutex_);
    memory_.push_back(std::move(memory));
  }
  std::vector<std::shared_ptr<void>> take() {
    const std::lock_guard lock(mutex_);
    return std::exchange(memory_, {});
  }

 private:
  std::mutex mutex_;
  std::vector<std::shared_ptr<void>> memory_;
};

/// Never destroyed: graphs may end with the process.
Ended& ended() {
  static auto* const all = std::make_unique<Ended>().release();
  return *all;
}

void CUDART_CB onEnd(void* kept) {
  const std::unique_ptr<std::shared_ptr<void>> memory(static_cast<std::shared_ptr<void>*>(kept));
  ended().add(std::move(*memory));
}

}  // namespace

void keepForGraph(cudaGraph_t graph, std::shared_ptr<void> memory) {
  auto kept = std::make_unique<std::shared_ptr<void>>(std::move(memory));
  cudaUserObject_t object = nullptr;
  checkCuda(cudaUserObjectCreate(&object, kept.get(), onEnd, 1, cudaUserObjectNoDestructorSync),
            "cudaUserObjectCreate");
  kept.release();  // onEnd() owns it now
  const cudaError_t given = cudaGraphRetainUserObject(graph, object, 1, cudaGraphUserObjectMove);
  if (given != cudaSuccess) noteCuda(cudaUserObjectRelease(object, 1), "cudaUserObjectRelease");
  checkCuda(given, "cudaGraphRetainUserObject");
}

void freeOfEndedGraphs() noexcept {
  const auto memory = ended().take();
}

}  // namespace seqpar
