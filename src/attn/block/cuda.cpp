#include "attn/block/cuda.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "attn/block/tiles.h"
#include "kernels/attn/softmax/launch.h"

namespace seqpar::attn {
namespace {

/// cuDNN's deterministic backward wants memory for all scores; beyond this the band kernels, which are deterministic
/// anyhow, do it.
constexpr size_t kMostDeterministicWorkspace = size_t{1} << 30;

constexpr float kNothing = -std::numeric_limits<float>::infinity();

BlockLimits limitsOf(const BlockShape& s, bool kernels) {
  BlockLimits limits;
  limits.batch = s.batch;
  limits.cudnn = kernels && s.type != seqparFloat32 && s.softcap == 0 && s.phase == 0 &&
                 s.heads == s.kvHeads * s.group && s.headDim % 8 == 0 && s.valueDim % 8 == 0 &&
                 std::max(s.headDim, s.valueDim) <= 256 && Sdpa::problem().empty();
  return limits;
}

std::string nameOf(const BlockShape& s, const BlockLimits& limits) {
  if (limits.cudnn) return "cuDNN";
  if (s.type != seqparFloat32 && !Sdpa::problem().empty()) return "fp32 band kernels (cuDNN: " + Sdpa::problem() + ")";
  return "fp32 band kernels";
}

SdpaStrides stridesOf(const Tensor& t) {
  return {t.batch > 1 ? t.batchStride : t.tokens * t.tokenStride, t.tokenStride, t.headStride};
}

int64_t clampBound(int64_t bound) {
  return std::clamp(bound, -softmax::Band::kUnbounded, softmax::Band::kUnbounded);
}

/// Rows as cuDNN has them: [batch][heads][tokens] without gaps.
bool packed(const Rows& rows) {
  return rows.headStride == rows.tokens && (rows.batch == 1 || rows.batchStride == rows.heads * rows.tokens);
}

}  // namespace

CudaBlock::CudaBlock(CudaExec& exec, const BlockShape& shape, bool kernels)
    : exec_(exec),
      shape_(shape),
      limits_(limitsOf(shape, kernels)),
      kernels_(kernels),
      name_(nameOf(shape, limits_)),
      partial_(exec),
      sums_{PendingSum(exec), PendingSum(exec), PendingSum(exec)} {
  if (kernels && std::max(shape.headDim, shape.valueDim) > softmax::kMostBandDim) {
    fail(seqparInvalidUsage, "attention plan: head dimensions of ", shape.headDim, " and ", shape.valueDim,
         ", expected at most ", softmax::kMostBandDim, " on GPUs, or a kernel of the caller");
  }
  const CurrentDevice current(exec.device());
  if (limits_.cudnn) sdpa_.emplace();
}

void CudaBlock::expect(std::span<const Rectangle> rectangles, int64_t rows, int64_t columns, Passes passes) {
  if (!kernels_ || shape_.batch * shape_.heads == 0) return;  // a rank without heads
  if (Work* known = place(rectangles, rows, columns)) {
    known->passes.forward |= passes.forward;
    known->passes.backward |= passes.backward;
    return;
  }
  works_.push_back({{rectangles.begin(), rectangles.end()}, rows, columns, passes, {}, {}});
}

template <typename Value>
size_t CudaBlock::constant(const std::vector<Value>& values) {
  constexpr size_t kAlignment = 16;
  const size_t offset = (image_.size() + kAlignment - 1) / kAlignment * kAlignment;
  image_.resize(offset + values.size() * sizeof(Value));
  std::memcpy(image_.data() + offset, values.data(), values.size() * sizeof(Value));
  return offset;
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
  shape.batch = ragged ? static_cast<int64_t>(step.rectangles.size()) : s.batch;
  shape.heads = s.heads;
  shape.kvHeads = s.kvHeads;
  shape.rows = prepared.longestRows;
  shape.columns = prepared.longestColumns;
  shape.headDim = s.headDim;
  shape.valueDim = s.valueDim;
  shape.left = step.left;
  shape.right = step.right;
  shape.scale = s.scale;
  // Backward of cuDNN before 9.26 makes dq NaN where columns % 128 is 64 and a logarithm is below -88.7, and a window
  // with more rows than columns is refused, unless lengths are given.
  shape.padded = !ragged && ((backward && shape.columns % 128 != 0) || (shape.left >= 0 && shape.rows > shape.columns));
  shape.q = stridesOf(dense(work.rows, s.heads, s.headDim));
  shape.k = stridesOf(dense(work.columns, s.kvHeads, s.headDim));
  shape.v = stridesOf(dense(work.columns, s.kvHeads, s.valueDim));
  if (s.batch == 1 && !ragged) {
    // As stridesOf() has them for a part of the tokens.
    shape.q[0] = shape.rows * shape.q[1];
    shape.k[0] = shape.columns * shape.k[1];
    shape.v[0] = shape.columns * shape.v[1];
  }
  const bool whole = ragged || backward;
  shape.out = stridesOf(dense(whole ? work.rows : shape.rows, s.heads, s.valueDim));
  if (s.batch == 1) shape.out[0] = shape.rows * shape.out[1];
  if (backward) {
    shape.dOut = shape.out;
    shape.dq = stridesOf(dense(ragged ? work.rows : shape.rows, s.heads, s.headDim));
    shape.dk = stridesOf(dense(ragged ? work.columns : shape.columns, s.kvHeads, s.headDim));
    shape.dv = stridesOf(dense(ragged ? work.columns : shape.columns, s.kvHeads, s.valueDim));
  }
  size_t bytes = 0;
  if (!sdpa_->prepare(shape, &bytes).empty()) return false;
  if (shape.deterministic && bytes > kMostDeterministicWorkspace) return false;
  workspaceBytes_ = std::max(workspaceBytes_, bytes);
  return true;
}

void CudaBlock::describe(Prepared& prepared, const Work& work) {
  const auto& step = prepared.step;
  std::vector<softmax::Band> bands;
  std::vector<int32_t> rows, columns;
  std::array<std::vector<int64_t>, 5> offsets;
  int64_t allRows = 0, allColumns = 0;
  const auto& s = shape_;
  const auto offset = [&](int64_t row, int64_t column) {
    offsets[0].push_back(row * s.heads * s.headDim);
    offsets[1].push_back(column * s.kvHeads * s.headDim);
    offsets[2].push_back(column * s.kvHeads * s.valueDim);
    offsets[3].push_back(row * s.heads * s.valueDim);
    offsets[4].push_back(row * s.heads);
  };
  for (const auto& r : step.rectangles) {
    bands.push_back({r.row, r.rows, r.column, r.columns, clampBound(r.lower), clampBound(r.upper)});
    rows.push_back(static_cast<int32_t>(r.rows));
    columns.push_back(static_cast<int32_t>(r.columns));
    offset(r.row, r.column);
    allRows += r.rows;
    allColumns += r.columns;
    prepared.longestRows = std::max(prepared.longestRows, r.rows);
    prepared.longestColumns = std::max(prepared.longestColumns, r.columns);
  }
  offset(work.rows, work.columns);
  if (step.kind == BlockStep::Kind::Single) {
    rows.assign(static_cast<size_t>(s.batch), rows.front());
    columns.assign(static_cast<size_t>(s.batch), columns.front());
  }
  prepared.allRows = allRows == work.rows;
  prepared.allColumns = allColumns == work.columns;
  prepared.bands = constant(bands);
  prepared.rows = constant(rows);
  prepared.columns = constant(columns);
  prepared.qOffset = constant(offsets[0]);
  prepared.kOffset = constant(offsets[1]);
  prepared.vOffset = constant(offsets[2]);
  prepared.outOffset = constant(offsets[3]);
  prepared.lseOffset = constant(offsets[4]);
}

std::vector<CudaBlock::Prepared> CudaBlock::prepareSteps(const Work& work, bool backward) {
  std::vector<Prepared> all;
  std::vector<Rectangle> refused;
  const auto append = [&](BlockStep step) {
    Prepared prepared;
    prepared.step = std::move(step);
    describe(prepared, work);
    if (prepared.step.kind != BlockStep::Kind::Bands && !build(prepared, work, backward)) {
      refused.insert(refused.end(), prepared.step.rectangles.begin(), prepared.step.rectangles.end());
      return;
    }
    all.push_back(std::move(prepared));
  };
  for (auto& step : stepsOf(work.rectangles, limits_)) append(std::move(step));
  if (!refused.empty()) {
    auto without = limits_;
    without.cudnn = false;
    for (auto& step : stepsOf(refused, without)) append(std::move(step));
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
  workspace_ = arena.take(workspaceBytes_);
  for (size_t i = 0; i < (keeps_ ? kMostPending : 1); ++i) {
    out_[i] = arena.tensor(s.type, s.batch, rows, s.heads, s.valueDim);
    lse_[i] = arena.rows(s.batch, s.heads, rows);
    if (!s.training) continue;
    dq_[i] = arena.tensor(s.type, s.batch, rows, s.heads, s.headDim);
    dk_[i] = arena.tensor(s.type, s.batch, columns, s.kvHeads, s.headDim);
    dv_[i] = arena.tensor(s.type, s.batch, columns, s.kvHeads, s.valueDim);
  }
  if (limits_.cudnn) {
    copies_[0] = arena.tensor(s.type, s.batch, rows, s.heads, s.headDim);
    copies_[1] = arena.tensor(s.type, s.batch, columns, s.kvHeads, s.headDim);
    copies_[2] = arena.tensor(s.type, s.batch, columns, s.kvHeads, s.valueDim);
    for (size_t i : {3, 4}) {
      if (s.training) copies_[i] = arena.tensor(s.type, s.batch, rows, s.heads, s.valueDim);
    }
  }
  if (!s.training) return;
  lseCopy_ = arena.rows(s.batch, s.heads, rows);
  if (needsOut()) delta_ = arena.rows(s.batch, s.heads, rows);
}

void CudaBlock::prepare() {
  const CurrentDevice current(exec_.device());
  checkCuda(softmax::prepareCombineKernels(), "loading kernels");
  if (kernels_) checkCuda(softmax::prepareBandKernels(), "loading the band kernels");
  if (!image_.empty()) {
    checkCuda(cudaMemcpy(constants_, image_.data(), image_.size(), cudaMemcpyHostToDevice), "cudaMemcpy");
  }
  for (const auto& work : works_) {
    for (const auto& prepared : work.forward) load(prepared);
    for (const auto& prepared : work.backward) load(prepared);
  }
}

/// cuDNN loads a plan's kernels when it is first run, which may wait for the device, where another rank's kernel may
/// wait for this one. A graph that is never launched makes it do so now.
void CudaBlock::load(const Prepared& prepared) {
  if (prepared.step.kind == BlockStep::Kind::Bands) return;
  const auto stream = makeStream();
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

CudaBlock::Work* CudaBlock::place(std::span<const Rectangle> rectangles, int64_t rows, int64_t columns) {
  const auto found = std::find_if(works_.begin(), works_.end(), [&](const Work& work) {
    return work.rows == rows && work.columns == columns &&
           std::equal(work.rectangles.begin(), work.rectangles.end(), rectangles.begin(), rectangles.end());
  });
  return found == works_.end() ? nullptr : &*found;
}

const CudaBlock::Work& CudaBlock::find(std::span<const Rectangle> rectangles, int64_t rows, int64_t columns) {
  const Work* work = place(rectangles, rows, columns);
  if (work == nullptr) {
    fail(seqparInternalError, "attention plan: ", rectangles.size(), " rectangles of ", rows, " rows and ", columns,
         " columns were not expected");
  }
  return *work;
}

void CudaBlock::point(const Prepared& p, SdpaPointers& pointers) const {
  pointers.rows = constantAt<int32_t>(p.rows);
  pointers.columns = constantAt<int32_t>(p.columns);
  pointers.qOffset = constantAt<int64_t>(p.qOffset);
  pointers.kOffset = constantAt<int64_t>(p.kOffset);
  pointers.vOffset = constantAt<int64_t>(p.vOffset);
  pointers.outOffset = constantAt<int64_t>(p.outOffset);
  pointers.lseOffset = constantAt<int64_t>(p.lseOffset);
}

softmax::BandProblem CudaBlock::bandProblem(const Prepared& prepared, const BlockInputs& in) const {
  const auto& s = shape_;
  softmax::BandProblem problem;
  problem.batch = s.batch;
  problem.heads = s.heads;
  problem.kvHeads = s.kvHeads;
  problem.group = s.group;
  problem.phase = s.phase;
  problem.headDim = s.headDim;
  problem.valueDim = s.valueDim;
  problem.scale = s.scale;
  problem.softcap = s.softcap;
  problem.bands = constantAt<softmax::Band>(prepared.bands);
  problem.count = static_cast<int64_t>(prepared.step.rectangles.size());
  problem.longestRows = prepared.longestRows;
  problem.longestColumns = prepared.longestColumns;
  problem.q = viewOf(in.q);
  problem.k = viewOf(in.k);
  problem.v = viewOf(in.v);
  return problem;
}

/// A step's result in a scratch slot.
softmax::Part CudaBlock::runForward(const Prepared& prepared, const BlockInputs& in, size_t slot) {
  const auto& s = shape_;
  const bool single = prepared.step.kind == BlockStep::Kind::Single;
  const auto& first = prepared.step.rectangles.front();
  const int64_t rows = single ? first.rows : in.q.tokens;
  const auto out = denseTensor(out_[slot].data, s.type, s.batch, rows, s.heads, s.valueDim);
  const auto lse = denseRows(lse_[slot].data, s.batch, s.heads, rows);
  softmax::Part part{viewOf(out), viewOf(lse), single ? first.row : 0, rows};
  SdpaPointers pointers;
  pointers.out = out.data;
  pointers.lse = lse.data;
  if (single) {
    const auto q = in.q.rows(first.row, first.rows);
    const auto k = in.k.rows(first.column, first.columns), v = in.v.rows(first.column, first.columns);
    pointers.q = q.data;
    pointers.k = k.data;
    pointers.v = v.data;
    point(prepared, pointers);
    sdpa_->run(prepared.shape, pointers, workspace_, exec_.stream());
    return part;
  }
  if (!prepared.allRows) exec_.fill(lse, kNothing);
  if (prepared.step.kind == BlockStep::Kind::Ragged) {
    part.lse = {lse.data, 0, 1, s.heads};
    pointers.q = in.q.data;
    pointers.k = in.k.data;
    pointers.v = in.v.data;
    point(prepared, pointers);
    sdpa_->run(prepared.shape, pointers, workspace_, exec_.stream());
    return part;
  }
  auto problem = bandProblem(prepared, in);
  problem.out = part.out;
  problem.lse = part.lse;
  checkCuda(softmax::launchBandForward(problem, exec_.stream()), "attention of bands");
  return part;
}

void CudaBlock::clear(const Partial& partial) {
  if (keeps_) {
    partial_.clear(partial);
  } else {
    exec_.fill(partial.lse, kNothing);
  }
}

/// A plan of cuDNN is for certain strides, and must not be built now: it takes a second, and its kernels' loading may
/// wait for the device. What is not dense is copied.
Tensor CudaBlock::denseCopy(const Tensor& tensor, const Tensor& scratch) {
  const bool dense = tensor.dense();
  const auto made = denseTensor(dense ? tensor.data : scratch.data, tensor.type, tensor.batch, tensor.tokens,
                                tensor.heads, tensor.dim);
  if (!dense) exec_.copy(made, tensor);
  return made;
}

BlockInputs CudaBlock::denseInputs(const BlockInputs& in) {
  if (!limits_.cudnn) return in;
  return {denseCopy(in.q, copies_[0]), denseCopy(in.k, copies_[1]), denseCopy(in.v, copies_[2])};
}

void CudaBlock::forward(const BlockInputs& in, std::span<const Rectangle> rectangles, const Partial& into) {
  if (rectangles.empty() || shape_.batch * shape_.heads == 0) return;
  const Work& work = find(rectangles, in.q.tokens, in.k.tokens);
  const bool kept = partial_.holds(into);
  if (!kept) partial_.settle();
  const auto inputs = denseInputs(in);
  for (const auto& prepared : work.forward) {
    const auto part = runForward(prepared, inputs, kept ? partial_.slot() : 0);
    if (kept) {
      partial_.add(part);
    } else {
      partial_.mergeNow(into, part);
    }
  }
}

void CudaBlock::merge(const Partial& into, const Partial& from) {
  partial_.settle();
  partial_.mergeNow(into, {viewOf(from.out), viewOf(from.lse), 0, from.out.tokens});
}

void CudaBlock::finish(const Partial& partial, const float* sinks, const Tensor& out, const Rows& lse) {
  if (partial_.holds(partial)) {
    partial_.finish(sinks, out, lse);
  } else {
    partial_.finishNow(partial, sinks, out, lse);
  }
}

void CudaBlock::delta(const Tensor& out, const Tensor& dOut, const Rows& delta) {
  checkCuda(softmax::launchDelta(viewOf(out), viewOf(dOut), viewOf(delta), out.batch, out.tokens, out.heads, out.dim,
                                 exec_.stream()),
            "rowsum(dOut * out)");
}

/// A step's gradients in scratch slots: dq, dk, dv.
std::array<softmax::Part, 3> CudaBlock::runBackward(const Prepared& prepared, const BlockGradientInputs& in,
                                                    const std::array<size_t, 3>& slots, bool& haveDelta) {
  const auto& s = shape_;
  const bool single = prepared.step.kind == BlockStep::Kind::Single;
  const auto& first = prepared.step.rectangles.front();
  const int64_t rows = single ? first.rows : in.q.tokens, columns = single ? first.columns : in.k.tokens;
  const auto dq = denseTensor(dq_[slots[0]].data, s.type, s.batch, rows, s.heads, s.headDim);
  const auto dk = denseTensor(dk_[slots[1]].data, s.type, s.batch, columns, s.kvHeads, s.headDim);
  const auto dv = denseTensor(dv_[slots[2]].data, s.type, s.batch, columns, s.kvHeads, s.valueDim);
  const int64_t row = single ? first.row : 0, column = single ? first.column : 0;
  const std::array<softmax::Part, 3> parts{
      {{viewOf(dq), {}, row, rows}, {viewOf(dk), {}, column, columns}, {viewOf(dv), {}, column, columns}}};
  SdpaPointers pointers;
  pointers.dq = dq.data;
  pointers.dk = dk.data;
  pointers.dv = dv.data;
  if (single) {
    const auto q = in.q.rows(row, rows), out = in.out.rows(row, rows), dOut = in.dOut.rows(row, rows);
    const auto k = in.k.rows(column, columns), v = in.v.rows(column, columns);
    auto lse = in.lse.rows(row, rows);
    if (!packed(lse)) {
      const auto copy = denseRows(lseCopy_.data, s.batch, s.heads, rows);
      exec_.copy(copy, lse);
      lse = copy;
    }
    pointers.q = q.data;
    pointers.k = k.data;
    pointers.v = v.data;
    pointers.out = out.data;
    pointers.dOut = dOut.data;
    pointers.lse = lse.data;
    point(prepared, pointers);
    sdpa_->run(prepared.shape, pointers, workspace_, exec_.stream());
    return parts;
  }
  if (!prepared.allRows) exec_.zero(dq);
  if (!prepared.allColumns) {
    exec_.zero(dk);
    exec_.zero(dv);
  }
  const BlockInputs inputs{in.q, in.k, in.v};
  if (prepared.step.kind == BlockStep::Kind::Ragged) {
    checkCuda(
        softmax::launchRows({lseCopy_.data, 0, 1, s.heads}, viewOf(in.lse), 0, s.batch, rows, s.heads, exec_.stream()),
        "copying rows");
    pointers.q = in.q.data;
    pointers.k = in.k.data;
    pointers.v = in.v.data;
    pointers.out = in.out.data;
    pointers.dOut = in.dOut.data;
    pointers.lse = lseCopy_.data;
    point(prepared, pointers);
    // What it does not write of its workspace it may read.
    sdpa_->run(prepared.shape, pointers, workspace_, exec_.stream());
    return parts;
  }
  auto deltas = in.delta;
  if (needsOut()) {
    deltas = denseRows(delta_.data, s.batch, s.heads, rows);
    if (!haveDelta) delta(in.out, in.dOut, deltas);
    haveDelta = true;
  }
  auto problem = bandProblem(prepared, inputs);
  problem.lse = viewOf(in.lse);
  problem.delta = viewOf(deltas);
  problem.dOut = viewOf(in.dOut);
  problem.dq = parts[0].out;
  problem.dk = parts[1].out;
  problem.dv = parts[2].out;
  checkCuda(softmax::launchBandQueries(problem, exec_.stream()), "gradients of bands' queries");
  checkCuda(softmax::launchBandKeys(problem, exec_.stream()), "gradients of bands' keys");
  return parts;
}

void CudaBlock::backward(const BlockGradientInputs& in, std::span<const Rectangle> rectangles,
                         const BlockGradients& into) {
  if (rectangles.empty() || shape_.batch * shape_.heads == 0) return;
  const Work& work = find(rectangles, in.q.tokens, in.k.tokens);
  const std::array<Tensor, 3> targets{into.dq, into.dk, into.dv};
  std::array<bool, 3> kept{};
  for (size_t i = 0; i < targets.size(); ++i) {
    kept[i] = sums_[i].holds(targets[i]);
    if (!kept[i]) sums_[i].settle();
  }
  bool haveDelta = false;
  auto inputs = in;
  if (limits_.cudnn) {
    const auto dense = denseInputs({in.q, in.k, in.v});
    inputs.q = dense.q;
    inputs.k = dense.k;
    inputs.v = dense.v;
    inputs.out = denseCopy(in.out, copies_[3]);
    inputs.dOut = denseCopy(in.dOut, copies_[4]);
  }
  for (const auto& prepared : work.backward) {
    std::array<size_t, 3> slots{};
    for (size_t i = 0; i < slots.size(); ++i) slots[i] = kept[i] ? sums_[i].slot() : 0;
    const auto parts = runBackward(prepared, inputs, slots, haveDelta);
    for (size_t i = 0; i < parts.size(); ++i) {
      if (kept[i]) {
        sums_[i].add(parts[i]);
      } else {
        sums_[i].addNow(targets[i], parts[i]);
      }
    }
  }
}

void CudaBlock::clear(GradientOf which, const Tensor& sum) {
  if (keeps_) {
    sums_[static_cast<size_t>(which)].clear(sum);
  } else {
    exec_.zero(sum);
  }
}

void CudaBlock::finish(const Tensor& sum, std::span<const Addend> addends, const Tensor& out) {
  for (auto& pending : sums_) {
    if (pending.holds(sum)) return pending.finish(addends, out);
  }
  sums_.front().finishNow(sum, addends, out);
}

void CudaBlock::addTo(const Tensor& total, const Tensor& sum) {
  for (auto& pending : sums_) {
    if (pending.holds(sum)) return pending.addTo(total);
  }
  exec_.add(total, sum);
}

void CudaBlock::settle(const Tensor& sum) {
  for (auto& pending : sums_) {
    if (pending.holds(sum)) pending.settle();
  }
}

void CudaBlock::sinkGradient(const float* sinks, const Rows& lse, const Rows& delta, float* dSinks) {
  checkCuda(softmax::launchSinkGradient(sinks, viewOf(lse), viewOf(delta), dSinks, lse.batch, lse.tokens, lse.heads,
                                        exec_.stream()),
            "gradient of sinks");
}

std::unique_ptr<Block> makeCudaBlock(Exec& exec, const BlockShape& shape) {
  const bool own = shape.kernel.forward == nullptr;
  auto block = std::make_unique<CudaBlock>(static_cast<CudaExec&>(exec), shape, own);
  if (own) return block;
  return std::make_unique<TiledBlock>(exec, shape, std::move(block));
}

}  // namespace seqpar::attn
