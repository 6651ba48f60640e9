#include "attn/block/cudnn.h"

#include <cuda_runtime_api.h>

#define CUDNN_FRONTEND_SKIP_JSON_LIB
#include <cudnn_frontend.h>

#include <atomic>
#include <map>
#include <mutex>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "attn/block/cudnn_library.h"
#include "base/error.h"

namespace seqpar::attn {
namespace {

namespace fe = cudnn_frontend;
using Attributes = fe::graph::Tensor_attributes;
using Tensor = std::shared_ptr<Attributes>;

enum Uid : int64_t {
  kQ = 1,
  kK,
  kV,
  kOut,
  kLse,
  kDOut,
  kDq,
  kDk,
  kDv,
  kRows,
  kColumns,
  kQOffset,
  kKOffset,
  kVOffset,
  kOutOffset,
  kLseOffset
};

fe::DataType_t typeOf(seqparDataType_t type) {
  return type == seqparBfloat16 ? fe::DataType_t::BFLOAT16 : fe::DataType_t::HALF;
}

/// Builds a graph of one node from a shape.
class Builder {
 public:
  explicit Builder(const SdpaShape& shape) : shape_(shape), graph_(std::make_shared<fe::graph::Graph>()) {
    graph_->set_io_data_type(typeOf(shape.type))
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
  }

  std::shared_ptr<fe::graph::Graph> build() {
    if (shape_.ragged) {
      for (const Uid uid : {kQOffset, kKOffset, kVOffset, kOutOffset, kLseOffset}) {
        offsets_[uid] = graph_->tensor(Attributes()
                                           .set_uid(uid)
                                           .set_dim({shape_.batch + 1, 1, 1, 1})
                                           .set_stride({1, 1, 1, 1})
                                           .set_data_type(fe::DataType_t::INT64));
      }
    }
    if (shape_.padded || shape_.ragged) {
      rows_ = lengths(kRows);
      columns_ = lengths(kColumns);
    }
    const auto q = input(kQ, shape_.heads, shape_.rows, shape_.headDim, shape_.q, kQOffset);
    const auto k = input(kK, shape_.kvHeads, shape_.columns, shape_.headDim, shape_.k, kKOffset);
    const auto v = input(kV, shape_.kvHeads, shape_.columns, shape_.valueDim, shape_.v, kVOffset);
    if (shape_.backward) {
      backward(q, k, v);
    } else {
      forward(q, k, v);
    }
    return graph_;
  }

 private:
  void forward(const Tensor& q, const Tensor& k, const Tensor& v) {
    fe::graph::SDPA_attributes attributes;
    attributes.set_generate_stats(true).set_attn_scale(shape_.scale);
    mask(attributes);
    auto [out, lse] = graph_->sdpa(q, k, v, attributes);
    output(out, kOut, shape_.heads, shape_.rows, shape_.valueDim, shape_.out, kOutOffset);
    lse->set_output(true);
    describeLse(*lse);
  }

  void backward(const Tensor& q, const Tensor& k, const Tensor& v) {
    const auto out = input(kOut, shape_.heads, shape_.rows, shape_.valueDim, shape_.out, kOutOffset);
    const auto dOut = input(kDOut, shape_.heads, shape_.rows, shape_.valueDim, shape_.dOut, kOutOffset);
    Attributes rows;
    describeLse(rows);
    const auto lse = graph_->tensor(rows);
    fe::graph::SDPA_backward_attributes attributes;
    attributes.set_attn_scale(shape_.scale);
    if (shape_.deterministic) attributes.set_deterministic_algorithm(true);
    // Otherwise the workspace has room for the longest length times the number of entries.
    if (shape_.ragged && shape_.allRows > 0) attributes.set_max_total_seq_len_q(shape_.allRows);
    if (shape_.ragged && shape_.allColumns > 0) attributes.set_max_total_seq_len_kv(shape_.allColumns);
    mask(attributes);
    auto [dq, dk, dv] = graph_->sdpa_backward(q, k, v, out, dOut, lse, attributes);
    output(dq, kDq, shape_.heads, shape_.rows, shape_.headDim, shape_.dq, kQOffset);
    output(dk, kDk, shape_.kvHeads, shape_.columns, shape_.headDim, shape_.dk, kKOffset);
    output(dv, kDv, shape_.kvHeads, shape_.columns, shape_.valueDim, shape_.dv, kVOffset);
  }

  template <typename Node>
  void mask(Node& node) {
    if (rows_ != nullptr) node.set_padding_mask(true).set_seq_len_q(rows_).set_seq_len_kv(columns_);
    if (shape_.left == SdpaShape::kUnbounded && shape_.right == SdpaShape::kUnbounded) return;
    node.set_diagonal_alignment(shape_.bottomRight ? fe::DiagonalAlignment_t::BOTTOM_RIGHT
                                                   : fe::DiagonalAlignment_t::TOP_LEFT);
    if (shape_.left != SdpaShape::kUnbounded) node.set_diagonal_band_left_bound(static_cast<int>(shape_.left));
    if (shape_.right != SdpaShape::kUnbounded) node.set_diagonal_band_right_bound(static_cast<int>(shape_.right));
  }

  Tensor lengths(Uid uid) {
    return graph_->tensor(Attributes()
                              .set_uid(uid)
                              .set_dim({shape_.batch, 1, 1, 1})
                              .set_stride({1, 1, 1, 1})
                              .set_data_type(fe::DataType_t::INT32));
  }

  void describe(Attributes& tensor, Uid uid, int64_t heads, int64_t tokens, int64_t dim, const SdpaStrides& strides,
                Uid offset) {
    // With ragged tensors the batch stride is unused, but checked.
    const int64_t batchStride = shape_.ragged ? tokens * strides[1] : strides[0];
    tensor.set_uid(uid)
        .set_dim({shape_.batch, heads, tokens, dim})
        .set_stride({batchStride, strides[2], strides[1], 1})
        .set_data_type(typeOf(shape_.type));
    if (shape_.ragged) tensor.set_ragged_offset(offsets_.at(offset));
  }

  Tensor input(Uid uid, int64_t heads, int64_t tokens, int64_t dim, const SdpaStrides& strides, Uid offset) {
    Attributes tensor;
    describe(tensor, uid, heads, tokens, dim, strides, offset);
    return graph_->tensor(tensor);
  }

  void output(const Tensor& tensor, Uid uid, int64_t heads, int64_t tokens, int64_t dim, const SdpaStrides& strides,
              Uid offset) {
    tensor->set_output(true);
    describe(*tensor, uid, heads, tokens, dim, strides, offset);
  }

  void describeLse(Attributes& lse) {
    lse.set_uid(kLse).set_dim({shape_.batch, shape_.heads, shape_.rows, 1}).set_data_type(fe::DataType_t::FLOAT);
    if (shape_.ragged) {
      lse.set_stride({shape_.heads * shape_.rows, 1, shape_.heads, 1}).set_ragged_offset(offsets_.at(kLseOffset));
    } else {
      lse.set_stride({shape_.heads * shape_.rows, shape_.rows, 1, 1});
    }
  }

  const SdpaShape& shape_;
  std::shared_ptr<fe::graph::Graph> graph_;
  std::map<Uid, Tensor> offsets_;
  Tensor rows_, columns_;
};

struct Plan {
  std::shared_ptr<fe::graph::Graph> graph;
  size_t workspace = 0;
  std::string refusal;
};

void checkCudnn(cudnnStatus_t status, const char* call) {
  if (status == CUDNN_STATUS_SUCCESS) return;
  fail(seqparUnhandledCudaError, call, ": ", cudnnGetErrorString(status));
}

int currentDevice() {
  int device = 0;
  const auto result = cudaGetDevice(&device);
  if (result != cudaSuccess) fail(seqparUnhandledCudaError, "cudaGetDevice: ", cudaGetErrorString(result));
  return device;
}

/// A cuDNN handle for a device.
class Handle {
 public:
  /// For the current device.
  Handle() { checkCudnn(cudnnCreate(&cudnn_), "cudnnCreate"); }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  ~Handle() { cudnnDestroy(cudnn_); }
  cudnnHandle_t get() const { return cudnn_; }

 private:
  cudnnHandle_t cudnn_ = nullptr;
};

/// The unused handles of the process. They are kept, because creating one is slower than everything except a plan, and
/// cuDNN creates streams for it, and a GPU runs few streams concurrently.
class Handles {
 public:
  static Handles& instance() {
    static Handles& handles = *new Handles;  // never destroyed: at exit the driver may be gone
    return handles;
  }

  /// For the current device, which is `device`.
  std::unique_ptr<Handle> take(int device) {
    {
      const std::lock_guard lock(mutex_);
      auto& idle = idle_[device];
      if (!idle.empty()) {
        auto handle = std::move(idle.back());
        idle.pop_back();
        return handle;
      }
    }
    // cuDNN's first handle initializes the library and must not be created concurrently with others.
    static std::mutex creating;
    const std::lock_guard lock(creating);
    return std::make_unique<Handle>();
  }
  void give(int device, std::unique_ptr<Handle> handle) {
    const std::lock_guard lock(mutex_);
    idle_[device].push_back(std::move(handle));
  }

 private:
  std::mutex mutex_;
  std::map<int, std::vector<std::unique_ptr<Handle>>> idle_;
};

/// A handle for one thread at a time.
class BorrowedHandle {
 public:
  explicit BorrowedHandle(int device) : device_(device), handle_(Handles::instance().take(device)) {}
  BorrowedHandle(const BorrowedHandle&) = delete;
  BorrowedHandle& operator=(const BorrowedHandle&) = delete;
  ~BorrowedHandle() { Handles::instance().give(device_, std::move(handle_)); }
  cudnnHandle_t get() const { return handle_->get(); }

 private:
  int device_;
  std::unique_ptr<Handle> handle_;
};

/// A plan of a device and of one of the ranks that share it.
struct PlanKey {
  int device = 0, sharer = 0;
  SdpaShape shape;
  auto operator<=>(const PlanKey&) const = default;
};

/// The plans of the process. Plans of different shapes are built concurrently: each takes about a second of processor
/// time, and ranks that are threads request them at the same time.
class Plans {
 public:
  static Plans& instance() {
    static Plans& plans = *new Plans;  // never destroyed: at exit the driver may be gone
    return plans;
  }

  struct Entry {
    std::once_flag built, loaded;
    Plan plan;
    std::mutex running;  ///< communicators of several threads may share a plan
  };

  Entry& find(const PlanKey& key) {
    Entry& entry = at(key);
    std::call_once(entry.built, [&] {
      entry.plan = make(key.device, key.shape);
      ++built_;
    });
    return entry;
  }

  bool reserve(const PlanKey& key) {
    const std::lock_guard lock(mutex_);
    auto& shapes = reserved_[{key.device, key.sharer}];
    if (shapes.size() < Sdpa::kMostReserved) shapes.insert(key.shape);
    return shapes.contains(key.shape);
  }

  void loadOnce(const PlanKey& key, const std::function<void()>& load) { std::call_once(at(key).loaded, load); }

  int64_t built() const { return built_; }

 private:
  Entry& at(const PlanKey& key) {
    const std::lock_guard lock(mutex_);
    return plans_[key];
  }

  Plan make(int device, const SdpaShape& shape) {
    Plan plan;
    try {
      const BorrowedHandle handle(device);
      plan.graph = Builder(shape).build();
      auto status = plan.graph->build(handle.get(), {fe::HeurMode_t::A});
      int64_t bytes = 0;
      if (status.is_good()) status = plan.graph->get_workspace_size(bytes);
      if (status.is_good()) {
        plan.workspace = static_cast<size_t>(bytes);
      } else {
        plan.refusal = status.get_message().empty() ? "no engine for this shape" : status.get_message();
      }
    } catch (const std::exception& error) {
      plan.refusal = error.what();
    }
    return plan;
  }

  std::mutex mutex_;
  std::map<PlanKey, Entry> plans_;
  std::map<std::pair<int, int>, std::set<SdpaShape>> reserved_;  ///< by device and sharer
  std::atomic<int64_t> built_{0};
};

}  // namespace

struct Sdpa::Rank {
  int sharer;
  int device = currentDevice();
  BorrowedHandle handle{device};

  PlanKey key(const SdpaShape& shape) const { return {device, sharer, shape}; }
};

const std::string& Sdpa::problem() {
  return cudnnProblem();
}

const std::string& Sdpa::kernels() {
  static const std::string text = [] {
    if (!problem().empty()) return "fp32 band kernels (cuDNN: " + problem() + ")";
    const auto version = cudnnGetVersion();
    return concat("cuDNN ", version / 10000, ".", version / 100 % 100, ".", version % 100);
  }();
  return text;
}

Sdpa::Sdpa(int sharer) {
  if (!problem().empty()) fail(seqparInvalidUsage, "attention by cuDNN: ", problem());
  rank_ = std::unique_ptr<Rank>(new Rank{sharer});
}

Sdpa::~Sdpa() = default;

std::string Sdpa::prepare(const SdpaShape& shape, size_t* workspaceBytes) {
  const Plan& plan = Plans::instance().find(rank_->key(shape)).plan;
  *workspaceBytes = plan.workspace;
  return plan.refusal;
}

bool Sdpa::reserve(const SdpaShape& shape) {
  return Plans::instance().reserve(rank_->key(shape));
}

void Sdpa::loadOnce(const SdpaShape& shape, const std::function<void()>& load) {
  Plans::instance().loadOnce(rank_->key(shape), load);
}

int64_t Sdpa::built() {
  return Plans::instance().built();
}

void Sdpa::run(const SdpaShape& shape, const SdpaPointers& pointers, void* workspace, void* stream) {
  auto& entry = Plans::instance().find(rank_->key(shape));
  const Plan& plan = entry.plan;
  if (!plan.refusal.empty()) fail(seqparUnhandledCudaError, "attention by cuDNN: ", plan.refusal);
  checkCudnn(cudnnSetStream(rank_->handle.get(), static_cast<cudaStream_t>(stream)), "cudnnSetStream");
  const auto bytes = [](const void* pointer) { return const_cast<void*>(pointer); };
  std::unordered_map<int64_t, void*> tensors{{kQ, bytes(pointers.q)},
                                             {kK, bytes(pointers.k)},
                                             {kV, bytes(pointers.v)},
                                             {kOut, pointers.out},
                                             {kLse, pointers.lse}};
  if (shape.backward) {
    tensors.insert({{kDOut, bytes(pointers.dOut)}, {kDq, pointers.dq}, {kDk, pointers.dk}, {kDv, pointers.dv}});
  }
  if (shape.padded || shape.ragged)
    tensors.insert({{kRows, bytes(pointers.rows)}, {kColumns, bytes(pointers.columns)}});
  if (shape.ragged) {
    tensors.insert({{kQOffset, bytes(pointers.qOffset)},
                    {kKOffset, bytes(pointers.kOffset)},
                    {kVOffset, bytes(pointers.vOffset)},
                    {kOutOffset, bytes(pointers.outOffset)},
                    {kLseOffset, bytes(pointers.lseOffset)}});
  }
  const std::lock_guard lock(entry.running);
  auto status = plan.graph->execute(rank_->handle.get(), tensors, workspace);
  if (status.is_bad()) fail(seqparUnhandledCudaError, "attention by cuDNN: ", status.get_message());
}

}  // namespace seqpar::attn
