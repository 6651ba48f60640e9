// CudaBlock's work per plan, for the expected calls: cuDNN's plans, the tables of bands, memory.
#include <algorithm>
#include <cstring>
#include <mutex>

#include "attn/block/cuda.h"
#include "base/log.h"
#include "device/setup_stream.h"
#include "device/upload.h"
#include "kernels/attn/softmax/launch.h"

namespace seqpar::attn {
namespace {

/// cuDNN's deterministic backward pass needs memory for all scores; above this limit the band kernels, which are always
/// deterministic, run instead.
constexpr size_t kMostDeterministicWorkspace = size_t{1} << 30;

/// Scores of a rectangle that may have a dense plan where rectangles change: a ragged call takes some percent longer,
/// building the plan as long as a hundred calls.
constexpr int64_t kLeastDense = int64_t{8192} * 8192;

BlockLimits limitsOf(const BlockShape& s, bool kernels) {
  BlockLimits limits;
  limits.batch = s.batch;
  limits.changing = s.changing;
  if (s.changing && !s.deterministic) limits.leastDense = kLeastDense;
  limits.cudnn = kernels && s.type != seqparFloat32 && s.softcap == 0 && s.phase == 0 &&
                 s.heads == s.kvHeads * s.group && s.headDim % 8 == 0 && s.valueDim % 8 == 0 &&
                 std::max(s.headDim, s.valueDim) <= 256 && Sdpa::problem().empty();
  return limits;
}

/// Whether cuDNN's gradients are right. For queries of 256 and values of 128, cuDNN 9.19 accepts a ragged backward call
/// and computes wrong gradients of a document's last tile.
bool hasGradients(const BlockShape& s) {
  constexpr int64_t kAnyDims = 128, kLatentDim = 192;  // DeepSeek's queries of 192 have values of 128
  return std::max(s.headDim, s.valueDim) <= kAnyDims || s.headDim == s.valueDim ||
         (s.headDim == kLatentDim && s.valueDim == kAnyDims);
}

std::string nameOf(const BlockShape& s, const BlockLimits& limits) {
  if (limits.cudnn) return "cuDNN";
  if (s.type == seqparFloat32 || Sdpa::problem().empty()) return "fp32 band kernels";
  static std::once_flag warned;
  std::call_once(warned, [] { notice("softmax attention on GPUs runs slowly, by ", Sdpa::kernels()); });
  return Sdpa::kernels();
}

SdpaStrides stridesOf(const Tensor& t) {
  return {t.batch > 1 ? t.batchStride : t.tokens * t.tokenStride, t.tokenStride, t.headStride};
}

int64_t clampBound(int64_t bound) {
  return std::clamp(bound, -softmax::Band::kUnbounded, softmax::Band::kUnbounded);
}

}  // namespace

CudaBlock::CudaBlock(CudaExec& exec, const BlockShape& shape, bool kernels)
    : Block(exec),
      exec_(exec),
      shape_(shape),
      limits_(limitsOf(shape, kernels)),
      kernels_(kernels),
      name_(nameOf(shape, limits_)),
      partial_(exec),
      sums_{SumScratch(exec), SumScratch(exec), SumScratch(exec)} {
  if (kernels && std::max(shape.headDim, shape.valueDim) > softmax::kMostBandDim) {
    fail(seqparInvalidUsage, "attention plan: head dimensions of ", shape.headDim, " and ", shape.valueDim,
         ", expected at most ", softmax::kMostBandDim, " on GPUs, or a kernel of the caller");
  }
  const CurrentDevice current(exec.device());
  if (limits_.cudnn) sdpa_.emplace(exec.sharer());
}

void CudaBlock::expect(std::span<const Rectangle> rectangles, int64_t rows, int64_t columns, Passes passes) {
  accumulates_ |= passes.accumulated && kernels_;
  if (!kernels_ || shape_.batch * shape_.heads == 0) return;  // a rank without heads
  if (Work* known = place(rectangles, rows, columns)) {
    known->passes.forward |= passes.forward;
    known->passes.backward |= passes.backward;
    known->passes.once &= passes.once;
    return;
  }
  works_.push_back({{rectangles.begin(), rectangles.end()}, rows, columns, passes, {}, {}, 0, 0});
}

template <typename Value>
size_t CudaBlock::constant(const std::vector<Value>& values) {
  constexpr size_t kAlignment = 16;
  const size_t offset = (image_.size() + kAlignment - 1) / kAlignment * kAlignment;
  image_.resize(offset + values.size() * sizeof(Value));
  std::memcpy(image_.data() + offset, values.data(), values.size() * sizeof(Value));
  return offset;
}

/// The plan of a ragged step in tensors of `rows` and `columns` tokens.
RaggedSizes CudaBlock::raggedSizes(const Prepared& prepared, int64_t rows, int64_t columns) const {
  const RaggedSizes sizes{static_cast<int64_t>(prepared.step.rectangles.size()), prepared.longestRows,
                          prepared.longestColumns, rows, columns};
  return rounds() ? roundedUp(sizes) : sizes;
}

/// Asks cuDNN for a plan; false if it refuses.
bool CudaBlock::build(Prepared& prepared, const Work& work, bool backward) {
  const auto& s = shape_;
  const auto& step = prepared.step;
  const bool ragged = step.kind == BlockStep::Kind::Ragged;
  const auto dense = [&](int64_t tokens, int64_t heads, int64_t dim) {
    return denseTensor(nullptr, s.type, s.batch, tokens, heads, dim);
  };
  auto& shape = prepared.shape;
  shape.backward = backward;
  shape.ragged = ragged;
  shape.deterministic = backward && s.deterministic;
  shape.bottomRight = step.bottomRight;
  shape.type = s.type;
  shape.batch = s.batch;
  shape.heads = s.heads;
  shape.kvHeads = s.kvHeads;
  shape.rows = prepared.longestRows;
  shape.columns = prepared.longestColumns;
  if (ragged) {
    const auto sizes = raggedSizes(prepared, work.rows, work.columns);
    shape.batch = sizes.count;
    shape.rows = sizes.rows;
    shape.columns = sizes.columns;
    if (backward && rounds()) {
      shape.allRows = sizes.allRows;
      shape.allColumns = sizes.allColumns;
    }
  }
  shape.headDim = s.headDim;
  shape.valueDim = s.valueDim;
  shape.left = step.left;
  shape.right = step.right;
  shape.scale = s.scale;
  // cuDNN before 9.26 returns NaN in dq if columns % 128 is 64 and a logarithm is below -88.7, and refuses a window
  // with more rows than columns, unless lengths are passed.
  shape.padded = !ragged && ((backward && shape.columns % 128 != 0) || (shape.left >= 0 && shape.rows > shape.columns));
  shape.q = stridesOf(dense(work.rows, rowHeads(), s.headDim));
  shape.k = stridesOf(dense(work.columns, s.kvHeads, s.headDim));
  shape.v = stridesOf(dense(work.columns, s.kvHeads, s.valueDim));
  shape.out = stridesOf(dense(work.rows, rowHeads(), s.valueDim));
  if (s.batch == 1) {
    // The stride is not used. It is equal in all plans of these sizes, whatever the lengths of the tensors.
    shape.q[0] = shape.rows * shape.q[1];
    shape.k[0] = shape.columns * shape.k[1];
    shape.v[0] = shape.columns * shape.v[1];
    shape.out[0] = shape.rows * shape.out[1];
  }
  if (backward) {
    // Gradients have the strides of their tensors.
    shape.dOut = shape.out;
    shape.dq = shape.q;
    shape.dk = shape.k;
    shape.dv = shape.v;
  }
  size_t bytes = 0;
  if (!ragged && s.changing && !sdpa_->reserve(shape)) return false;
  if (!sdpa_->prepare(shape, &bytes).empty()) return false;
  if (shape.deterministic && bytes > kMostDeterministicWorkspace) return false;
  workspaceBytes_ = std::max(workspaceBytes_, bytes);
  return true;
}

void CudaBlock::describe(Prepared& prepared) {
  const auto& step = prepared.step;
  std::vector<softmax::Band> bands;
  std::vector<int32_t> rows, columns;
  std::array<std::vector<int64_t>, 5> offsets;
  int64_t allRows = 0, allColumns = 0;
  const auto& s = shape_;
  auto& queries = prepared.queries;
  auto& keys = prepared.keys;
  for (const auto& r : step.rectangles) {
    queries = queries.with({r.row, r.rows});
    keys = keys.with({r.column, r.columns});
  }
  const auto offset = [&](int64_t row, int64_t column) {
    offsets[0].push_back(row * rowHeads() * s.headDim);
    offsets[1].push_back(column * s.kvHeads * s.headDim);
    offsets[2].push_back(column * s.kvHeads * s.valueDim);
    offsets[3].push_back(row * rowHeads() * s.valueDim);
    offsets[4].push_back(row * s.heads);
  };
  for (const auto& r : movedBy(step.rectangles, queries.first, keys.first)) {
    bands.push_back({r.row, r.rows, r.column, r.columns, clampBound(r.lower), clampBound(r.upper)});
    rows.push_back(static_cast<int32_t>(r.rows));
    columns.push_back(static_cast<int32_t>(r.columns));
    offset(r.row, r.column);
    allRows += r.rows;
    allColumns += r.columns;
    prepared.longestRows = std::max(prepared.longestRows, r.rows);
    prepared.longestColumns = std::max(prepared.longestColumns, r.columns);
  }
  offset(queries.count, keys.count);
  if (step.kind == BlockStep::Kind::Ragged) {
    const auto entries = static_cast<size_t>(raggedSizes(prepared, queries.count, keys.count).count);
    rows.resize(entries);
    columns.resize(entries);
    while (offsets[0].size() <= entries) offset(queries.count, keys.count);
  }
  if (step.kind == BlockStep::Kind::Single) {
    rows.assign(static_cast<size_t>(s.batch), rows.front());
    columns.assign(static_cast<size_t>(s.batch), columns.front());
  }
  prepared.allRows = allRows == queries.count;
  prepared.allColumns = allColumns == keys.count;
  prepared.bands = constant(bands);
  prepared.rows = constant(rows);
  prepared.columns = constant(columns);
  prepared.qOffset = constant(offsets[0]);
  prepared.kOffset = constant(offsets[1]);
  prepared.vOffset = constant(offsets[2]);
  prepared.outOffset = constant(offsets[3]);
  prepared.lseOffset = constant(offsets[4]);
}

std::vector<CudaBlock::Prepared> CudaBlock::prepareSteps(Work& work, bool backward) {
  auto joined = limits_;
  joined.sharedColumns = joined.join = !backward;
  joined.cudnn = limits_.cudnn && (!backward || hasGradients(shape_));
  auto ragged = joined, apart = joined, without = joined;
  ragged.leastDense = apart.leastDense = INT64_MAX;
  apart.join = false;
  without.cudnn = false;
  auto rest = work.rectangles;
  if (joined.cudnn && backward) rest = forBackward(rest);
  if (joined.cudnn && !backward) {
    auto arranged = arrangeForward(rest, joined, {shape_.heads, shape_.kvHeads, shape_.headDim, shape_.valueDim});
    rest = std::move(arranged.rectangles);
    std::vector<int32_t> order;
    for (const auto& run : arranged.order) {
      for (int64_t i = 0; i < run.count; ++i) order.push_back(static_cast<int32_t>(run.from + i));
    }
    work.ordered = std::ssize(order);
    if (!order.empty()) work.order = constant(order);
  }
  std::vector<Prepared> all;
  for (const auto& limits : {joined, ragged, apart, without}) {
    std::vector<Rectangle> refused;
    for (auto& step : stepsOf(rest, limits)) {
      Prepared prepared;
      prepared.step = std::move(step);
      describe(prepared);
      if (prepared.step.kind == BlockStep::Kind::Bands || build(prepared, work, backward)) {
        all.push_back(std::move(prepared));
      } else {
        refused.insert(refused.end(), prepared.step.rectangles.begin(), prepared.step.rectangles.end());
      }
    }
    rest = std::move(refused);
  }
  return all;
}

void CudaBlock::carve(Arena& arena) {
  if (!built_) {
    const CurrentDevice current(exec_.device());
    for (auto& work : works_) {
      if (work.passes.forward) work.forward = prepareSteps(work, false);
      if (work.passes.backward && shape_.training) work.backward = prepareSteps(work, true);
    }
    built_ = true;
  }
  constants_ = static_cast<std::byte*>(arena.take(image_.size()));
  if (!kernels_) return;
  int64_t rows = 0, columns = 0;
  for (const auto& work : works_) {
    rows = std::max(rows, work.rows);
    columns = std::max(columns, work.columns);
  }
  const auto& s = shape_;
  const auto queries = [&](int64_t dim) { return arena.tensor(s.type, s.batch, rows, rowHeads(), dim); };
  const auto keys = [&](int64_t dim) { return arena.tensor(s.type, s.batch, columns, s.kvHeads, dim); };
  const size_t slots = accumulates_ ? std::clamp<size_t>(mostParts(), 1, kMostPending) : 1;
  workspace_ = arena.take(workspaceBytes_);
  if (limits_.cudnn) {
    copies_[0] = queries(s.headDim);
    copies_[1] = keys(s.headDim);
    copies_[2] = keys(s.valueDim);
  }
  const auto takeForward = [&] {
    for (size_t i = 0; i < slots; ++i) out_[i] = queries(s.valueDim);
    for (auto& lse : lse_) lse = arena.rows(s.batch, s.heads, rows);
  };
  const auto takeBackward = [&] {
    if (!s.training) return;
    for (size_t i = 0; i < slots; ++i) {
      dq_[i] = queries(s.headDim);
      dk_[i] = keys(s.headDim);
      dv_[i] = keys(s.valueDim);
    }
    if (limits_.cudnn) copies_[3] = queries(s.valueDim);
    if (limits_.cudnn) copies_[4] = queries(s.valueDim);
    lseCopy_ = arena.rows(s.batch, s.heads, rows);
    if (needsOut()) delta_ = arena.rows(s.batch, s.heads, rows);
  };
  arena.alternatives(takeForward, takeBackward);
  partial_.give(out_, lse_);
  sums_[static_cast<size_t>(GradientOf::Queries)].give(dq_);
  sums_[static_cast<size_t>(GradientOf::Keys)].give(dk_);
  sums_[static_cast<size_t>(GradientOf::Values)].give(dv_);
}

size_t CudaBlock::mostParts() const {
  size_t most = 0;
  for (const auto& work : works_) {
    if (!work.passes.once) return SIZE_MAX;
    most = std::max({most, work.forward.size(), work.backward.size()});
  }
  return most;
}

KernelCalls CudaBlock::calls() const {
  KernelCalls calls;
  for (const auto& work : works_) {
    calls.forward += static_cast<int64_t>(work.forward.size());
    calls.backward += static_cast<int64_t>(work.backward.size());
  }
  return calls;
}

void CudaBlock::prepare() {
  const CurrentDevice current(exec_.device());
  checkCuda(softmax::prepareCombineKernels(), "loading kernels");
  if (kernels_) checkCuda(softmax::prepareBandKernels(), "loading the band kernels");
  if (!image_.empty()) upload(constants_, image_.data(), image_.size());
  for (const auto& work : works_) {
    for (const auto& prepared : work.forward) load(prepared);
    for (const auto& prepared : work.backward) load(prepared);
  }
}

/// cuDNN loads a plan's kernels at its first run, which may wait for the device while another rank's kernel waits for
/// this rank. Capturing a graph that is never launched loads them here.
void CudaBlock::load(const Prepared& prepared) {
  if (prepared.step.kind != BlockStep::Kind::Bands) sdpa_->loadOnce(prepared.shape, [&] { capture(prepared); });
}

void CudaBlock::capture(const Prepared& prepared) {
  const CaptureStream stream;
  SdpaPointers pointers;
  pointers.q = pointers.k = pointers.v = pointers.dOut = out_[0].data;
  pointers.out = pointers.dq = pointers.dk = pointers.dv = out_[0].data;
  pointers.lse = lse_[0].data;
  point(prepared, pointers);
  checkCuda(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
  cudaGraph_t graph = nullptr;
  try {
    sdpa_->run(prepared.shape, pointers, workspace_, stream.get());
  } catch (...) {
    noteCuda(cudaStreamEndCapture(stream.get(), &graph), "cudaStreamEndCapture");
    if (graph != nullptr) noteCuda(cudaGraphDestroy(graph), "cudaGraphDestroy");
    throw;
  }
  checkCuda(cudaStreamEndCapture(stream.get(), &graph), "cudaStreamEndCapture");
  cudaGraphExec_t ready = nullptr;
  const auto result = cudaGraphInstantiate(&ready, graph, 0);
  if (result == cudaSuccess) noteCuda(cudaGraphExecDestroy(ready), "cudaGraphExecDestroy");
  noteCuda(cudaGraphDestroy(graph), "cudaGraphDestroy");
  checkCuda(result, "cudaGraphInstantiate");
}

}  // namespace seqpar::attn
