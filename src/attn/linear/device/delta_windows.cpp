#include "attn/linear/device/delta_windows.h"

#include <algorithm>

#include "attn/linear/device/delta_parts.h"
#include "attn/linear/device/delta_segments.h"
#include "attn/linear/device/parts.h"
#include "attn/linear/passes/beside.h"
#include "kernels/attn/linear/delta/half/memory_sm90.h"

namespace seqpar::attn::linear {
using delta::Step;
using delta::Task;

const char* whyNoDeltaKernel(const Shard& shard) {
  return shard.dk > kMostKeyDimension ? "headDim is above 256" : nullptr;
}

bool fitsHalf(const Shard& shard) {
  Task task;
  task.type = shard.type;
  task.dk = static_cast<int>(shard.dk);
  task.width = shard.family->find(kLogDecay) < shard.family->gateCount ? static_cast<int>(shard.width()) : 0;
  return delta::half::supports(task);
}

DeltaWindows::DeltaWindows(const Shard& shard, Exec& exec, std::unique_ptr<DeltaSteps> steps, size_t records, bool half,
                           int partChunks)
    : shard_(shard),
      exec_(exec),
      steps_(std::move(steps)),
      half_(half),
      reserves_(half && shard.reserves),
      partChunks_(partChunks),
      logDecay_(shard.family->find(kLogDecay)),
      beta_(shard.family->find(kBeta)) {
  if (shard_.batch == 0) return;
  for (const auto& piece : shard_.pieces) {
    for (size_t begin = 0; begin < piece.tokens; begin += delta::kRows) {
      delta::Chunk chunk;
      chunk.first = static_cast<int64_t>(piece.first + begin);
      chunk.rows = static_cast<int32_t>(std::min<size_t>(delta::kRows, piece.tokens - begin));
      chunk.begins = piece.begins && begin == 0 && shard_.sequences != 0 ? 1 : 0;
      chunk.sequence = static_cast<int64_t>(piece.sequence);
      chunks_.push_back(chunk);
    }
  }
  window_ =
      std::clamp<size_t>((records + shard_.allHeads() - 1) / shard_.allHeads(), 1, std::max<size_t>(chunks_.size(), 1));
}

void DeltaWindows::carve(Arena& arena) {
  const auto take = [&](size_t count) { return static_cast<float*>(arena.take(count * sizeof(float))); };
  deviceChunks_ = static_cast<delta::Chunk*>(arena.take(chunks_.size() * sizeof(delta::Chunk)));
  Task task = taskOf({});
  task.training = shard_.training;
  const int64_t bytes = half_ ? delta::half::recordBytes(task) : delta::recordNumbers(task) * int64_t{sizeof(float)};
  records_ = static_cast<float*>(arena.take(window_ * shard_.allHeads() * static_cast<size_t>(bytes)));
  running_ = take(shard_.states());
  marks_ = reinterpret_cast<uint32_t*>(take(delta::kMarksBefore + window_ * shard_.allHeads()));
  const auto takeSegments = [&] {
    const size_t transitions = shard_.allHeads() * shard_.dk * shard_.dk;
    return SegmentMemory{take(shard_.states()), take(shard_.states()), take(transitions)};
  };
  if (task.readsRows && steps_->sms() > 0) {
    segments_ = takeSegments();
    if (shard_.training) reverseSegments_ = takeSegments();
  }
  if (shard_.training) checkpoints_ = take(windows() * shard_.states());
  if (shard_.alone) return;
  rankStates_ = take(shard_.states());
  rankTransition_ = take(shard_.allHeads() * shard_.dk * shard_.dk);
  if (shard_.training) transposed_ = take(shard_.allHeads() * shard_.dk * shard_.dk);
}

void DeltaWindows::carveReserve(Arena& arena) {
  const auto bytes = static_cast<size_t>(delta::half::reservedBytes(taskOf({})));
  reserved_ = static_cast<char*>(arena.take(reserves_ ? chunks_.size() * shard_.allHeads() * bytes : 0));
}

void DeltaWindows::open() {
  steps_->upload(deviceChunks_, chunks_.data(), chunks_.size() * sizeof(delta::Chunk));
}

void DeltaWindows::copy(float* to, const float* from, size_t count) {
  const auto tensorOf = [&](float* data) {
    return denseTensor(data, seqparFloat32, 1, 1, 1, static_cast<int64_t>(count));
  };
  if (from == nullptr) return exec_.zero(tensorOf(to));
  exec_.copy(tensorOf(to), tensorOf(const_cast<float*>(from)));  // NOLINT(cppcoreguidelines-pro-type-const-cast)
}

Task DeltaWindows::taskOf(const Inputs& in) const {
  Task task;
  task.batch = static_cast<int64_t>(shard_.batch);
  task.tokens = static_cast<int64_t>(shard_.tokens);
  task.heads = static_cast<int>(shard_.heads);
  task.keyHeads = static_cast<int>(shard_.keyHeads);
  task.dk = static_cast<int>(shard_.dk);
  task.dv = static_cast<int>(shard_.dv);
  task.type = shard_.type;
  task.betaType = shard_.gateTypes[beta_];
  task.scale = shard_.scale;
  task.normalize = shard_.normalize;
  task.half = half_;
  task.q = inputOf(in.q);
  task.k = inputOf(in.k);
  task.v = inputOf(in.v);
  task.beta = inputOf(in.gates[beta_]);
  if (logDecay_ < shard_.family->gateCount) {
    task.width = static_cast<int>(shard_.width());
    task.gateType = shard_.gateTypes[logDecay_];
    task.gates = inputOf(in.gates[logDecay_]);
  }
  task.readsRows = steps_->readsRows(task);
  task.chunks = deviceChunks_;
  task.records = records_;
  task.reserves = reserves_;
  task.preparedStride = static_cast<int>(chunks_.size());
  task.initial = in.initial;
  return task;
}

void DeltaWindows::addGradients(const Gradients& to, Task& task) const {
  task.training = true;
  task.dOut = inputOf(to.dOut);
  task.dq = outputOf(to.dq);
  task.dk_ = outputOf(to.dk);
  task.dv_ = outputOf(to.dv);
  task.dBeta = outputOf(to.dGates[beta_]);
  if (logDecay_ < shard_.family->gateCount) task.dGates = outputOf(to.dGates[logDecay_]);
  task.dInitial = to.dInitial;
}

void DeltaWindows::select(Task& task, size_t window) const {
  task.first = static_cast<int>(window * window_);
  task.count = task.stride = static_cast<int>(std::min(window_, chunks_.size() - window * window_));
  task.reserved = reserves_ ? reserved_ + task.first * delta::half::reservedBytes(task) : nullptr;
  if (half_) delta::half::placeRecords(task);
}

void DeltaWindows::prepare(Task& task, size_t window) {
  select(task, window);
  if (!isPrepared(window, task.training)) run(Step::Prepare, task);
  markPrepared(window, task.training);
  if (task.keepsStates && !task.readsRows) prepared_.reset();  // D replaces U
}

void DeltaWindows::advance(Task& task, size_t window) {
  select(task, window);
  if (half_ && !isPrepared(window, task.training)) {
    task.sms = steps_->overlappingSms(task);
    if (planOverlap(task, partChunks_)) {
      startMarks(task);
      prepare(task, window);
      run(Step::Advance, task);
      task.marks = nullptr;
      return;
    }
  }
  const std::vector<int> parts = half_ ? partsOf(task, partChunks_) : std::vector<int>{task.count};
  if (isPrepared(window, task.training) || parts.size() == 1) {
    prepare(task, window);
    return runChains(Step::Advance, task);
  }
  Task part = task;
  const int64_t bytes = delta::half::recordBytes(task), reservedBytes = delta::half::reservedBytes(task);
  int first = 0;
  for (const int chunks : parts) {
    part.first = task.first + first;
    part.count = chunks;
    part.records = task.records + first * bytes / static_cast<int64_t>(sizeof(float));
    if (reserves_) part.reserved = task.reserved + first * reservedBytes;
    delta::half::placeRecords(part);
    part.overlaps = first > 0;
    if (first > 0) part.before = part.states;
    run(Step::Prepare, part);
    run(Step::Advance, part);
    first += chunks;
  }
  markPrepared(window, task.training);
}

void DeltaWindows::runChains(Step step, const Task& task, int busy) {
  SegmentPlan plan;
  if (segments_.states != nullptr) {
    plan = planSegments(step, task, chunks_.data() + task.first, steps_->sms() - busy, partChunks_);
  }
  if (plan.counts.empty()) return run(step, task);
  const bool reverse = step == Step::Retreat;
  const SegmentMemory& memory = reverse ? reverseSegments_ : segments_;
  Task segments = task;
  segments.segmentCount = 0;
  int first = 0;
  const auto add = [&](int count, const float* before, float* after, float* transition = nullptr) {
    segments.segments[segments.segmentCount++] = {reverse ? task.count - first - count : first, count, before, after,
                                                  transition};
    first += count;
  };
  if (plan.independent) {
    // The first segment may read the states before after the last one has stored those after it.
    float* const last = task.before == task.states ? memory.states : task.states;
    for (size_t i = 0; i < plan.counts.size(); ++i) {
      add(plan.counts[i], i == 0 ? task.before : nullptr, i + 1 == plan.counts.size() ? last : nullptr);
    }
    run(step, segments);
    if (last != task.states) copyStates(task.states, last);
    return;
  }
  add(plan.counts[0], task.before, memory.middle);
  add(plan.counts[1], nullptr, memory.states, memory.transition);
  run(step, segments);
  steps_->fold({memory.states, memory.transition, memory.middle, task.batch * task.heads, task.dk, task.dv},
               exec_.main());
  segments.segmentCount = 0;
  segments.overlaps = true;
  first = plan.counts[0];
  add(plan.counts[1], memory.middle, nullptr);
  add(plan.counts[2], memory.states, task.states);
  run(step, segments);
}

void DeltaWindows::startMarks(Task& task) {
  task.marks = marks_;
  copy(reinterpret_cast<float*>(marks_), nullptr, static_cast<size_t>(markCount(task)));
}

// Other ranks compute what this one waits for.
void DeltaWindows::prepareAhead(Task& task) {
  if (!chunks_.empty()) prepare(task, 0);
}

void DeltaWindows::startTransition(float* to, MapUse use) {
  const size_t count = shard_.allHeads() * shard_.dk * shard_.dk;
  if (use != MapUse::Whole) return copy(rankTransition_, nullptr, count);
  steps_->identity(to, static_cast<int64_t>(shard_.allHeads()), static_cast<int>(shard_.dk), exec_.main());
}

void DeltaWindows::startStates(Task& task, float* states, const float* before) {
  task.before = before;
  task.states = states;
  if (windows() == 0) copyStates(states, before);
}

void DeltaWindows::states(const Inputs& in, MapUse use) {
  discardRecords();
  Task task = taskOf(in);
  if (use == MapUse::Nothing) return prepareAhead(task);
  startTransition(rankTransition_, use);
  startStates(task, rankStates_, nullptr);
  if (use == MapUse::Whole) task.transition = rankTransition_;
  for (size_t w = 0; w < windows(); ++w) {
    advance(task, w);
    task.before = task.states;
  }
}

void DeltaWindows::outputs(const Inputs& in, const Tensor& out, const float* incoming) {
  forwardFrom(in, out, incoming, nullptr);
  discardRecords();
}

void DeltaWindows::forwardAlone(const Inputs& in, const Tensor& out, const float* incoming, float* final) {
  discardRecords();
  forwardFrom(in, out, incoming, final);
  discardRecords();
}

void DeltaWindows::forwardFrom(const Inputs& in, const Tensor& out, const float* incoming, float* final) {
  Task task = taskOf(in);
  task.out = outputOf(out);
  task.writesOut = true;
  startStates(task, final != nullptr ? final : running_, incoming);
  for (size_t w = 0; w < windows(); ++w) {
    advance(task, w);
    task.before = task.states;
  }
}

void DeltaWindows::stateGradients(const Inputs& in, const Gradients& to, MapUse use) {
  discardRecords();
  Task task = taskOf(in);
  addGradients(to, task);
  task.dInitial = nullptr;
  if (use == MapUse::Nothing) return prepareAhead(task);
  startTransition(transposed_, use);
  startStates(task, rankStates_, nullptr);
  if (use == MapUse::Whole) task.transition = transposed_;
  for (size_t w = windows(); w-- > 0;) {
    prepare(task, w);
    run(Step::Retreat, task);
    task.before = task.states;
  }
  if (use != MapUse::Whole) return;
  steps_->transpose(rankTransition_, transposed_, static_cast<int64_t>(shard_.allHeads()), static_cast<int>(shard_.dk),
                    exec_.main());
}

void DeltaWindows::recompute(const Inputs& in, const float* saved) {
  Task task = taskOf(in);
  task.training = half_;  // records as in the backward's other passes; those of fp32 need dOut
  for (size_t w = 0; w + 1 < windows(); ++w) {
    task.before = before(w, saved);
    task.states = checkpoint(w + 1);
    prepare(task, w);
    run(Step::Advance, task);
  }
}

void DeltaWindows::gradients(const Inputs& in, const Gradients& to, const float* saved, const float* incoming) {
  gradientsTo(running_, in, to, saved, incoming);
}

void DeltaWindows::gradientsTo(float* dBefore, const Inputs& in, const Gradients& to, const float* saved,
                               const float* incoming) {
  if (to.dInitial != nullptr) copy(to.dInitial, nullptr, shard_.sequences * shard_.heads * shard_.stateSize());
  Task task = taskOf(in);
  addGradients(to, task);
  task.keepsStates = true;
  const bool continued = shard_.pieces.empty() || shard_.pieces.back().reachesEnd;
  startStates(task, dBefore, continued ? incoming : nullptr);
  for (size_t w = windows(); w-- > 0;) {
    prepare(task, w);
    Beside beside(exec_);  // states and their gradients are independent; few heads leave SMs for both
    Task states = task;
    states.before = before(w, saved);
    states.states = checkpoint(w);  // those after the window are not used
    steps_->run(Step::Advance, states, exec_.side());
    runChains(Step::Retreat, task, static_cast<int>(shard_.allHeads()) * delta::half::stateSlices(task));
    beside.join();
    run(Step::Differentiate, task);
    task.before = task.states;
  }
}

void DeltaWindows::backwardAlone(const Inputs& in, const Gradients& to, const float* saved, const float* incoming,
                                 float* dBefore) {
  discardRecords();
  recompute(in, saved);
  gradientsTo(dBefore != nullptr ? dBefore : running_, in, to, saved, incoming);
}

}  // namespace seqpar::attn::linear
