// The sm_90 backward kernels for chunks of heads with channel decays, on an emulated CTA.
#include "common/covering.h"
#include "kernels/attn/linear/backward/channel_group_sm90.h"
#include "kernels/attn/linear/backward/channel_groups.h"
#include "kernels/attn/linear/backward/channel_maps_sm90.h"
#include "kernels/attn/linear/backward/channel_scale_sm90.h"
#include "kernels/attn/linear/backward/channel_states_sm90.h"
#include "kernels/attn/linear/backward/channel_within_sm90.h"
#include "linear_backward_check.h"
#include "rounded_terms.h"

using namespace seqpar;
using namespace seqpar::attn;
using namespace seqpar::attn::backward;
using namespace seqpar::attn::backward::test;
using namespace seqpar::test;

namespace {

template <class T>
struct ChannelGroupKernels {
  static constexpr bool kExact = false;
  static constexpr int kTogether = 1, kWithOneTerm = 1;
  static constexpr bool kScales = false, kSumsValues = true;
  using Number = T;
  using Record = sm90::ChunkRecord<T>;

  static void maps(const Task& task, uint64_t seed) { Kernels<T, kBlock, true>::maps(task, seed); }
  template <class Kernel>
  static void run(const sm90::ChannelTask& task, int64_t ctas, uint64_t seed) {
    emulator::run(static_cast<int>(ctas), Kernel::kThreads, sizeof(typename Kernel::Memory), seed,
                  [&] { Kernel::run(task); });
  }
  /// The kernels' results; returns whether decays of a chunk are strong.
  static bool computeAll(sm90::ChannelTask& task, uint64_t seed) {
    const auto count = static_cast<size_t>(task.batch * task.heads * task.chunksOfSegment);
    const auto elements = static_cast<size_t>(task.chunks.bytes(task) / 2);
    std::vector<Record> records(count);
    std::memset(static_cast<void*>(records.data()), 0xff, count * sizeof(Record));
    std::vector<uint16_t> before(elements + 64, 0xffff), after(elements + 64, 0xffff);
    uint32_t strong = 0;
    task.records = reinterpret_cast<char*>(records.data());
    task.strong = &strong;
    task.chunks.states = aligned(before);
    task.chunks.gradients = aligned(after);
    run<sm90::ChannelScaleKernel<T>>(task, static_cast<int64_t>(count), seed);
    if (seed % 2 == 0) {
      run<sm90::ChannelStatesKernel<T, kBlock>>(task, 3, seed);
    } else {
      run<sm90::ChannelStatesKernel<T, sm90::kPanel>>(task, 3, seed);
    }
    run<sm90::ChannelGroupKernel<T>>(task, 2, seed);
    if (!task.leavesStrong) run<sm90::ChannelWithinKernel<T>>(task, 2, seed);
    return strong != 0;
  }
  static void gradients(Task task, uint64_t seed) {
    task.together = 1;
    task.segments = task.mapCount = 1;
    task.segmentTokens = (task.tokens + kChunk - 1) / kChunk * kChunk;
    const bool narrow = task.dq.type != seqparFloat32, wide = seed % 3 != 0;
    std::fill_n(static_cast<float*>(task.dGates.data), task.batch * task.dGates.batch, 0.f);
    Task rounded = task;
    const Rounded<T> dq(rounded.dq, task, task.heads, task.dk, wide),
        dk(rounded.dkOut, task, task.heads, task.dk, wide), dv(rounded.dvOut, task, task.heads, task.dv, wide);
    sm90::ChannelTask to;
    REQUIRE(sm90::encodeGroup<T>(to, narrow ? task : rounded, chunkStatesOf(task, 1)));
    computeAll(to, seed);
    if (narrow) return;
    dq.expand(task.heads);
    dk.expand(task.heads);
    dv.expand(task.heads);
  }
  static void* aligned(std::vector<uint16_t>& numbers) {
    auto* data = numbers.data();
    while (reinterpret_cast<uintptr_t>(data) % 128 != 0) ++data;
    return data;
  }
};

BackwardShape channelShape(int64_t tokens, double decay, int heads, int dk, int dv) {
  BackwardShape shape = shapeOf(Gate::Channel, tokens, dk, dv, decay);
  shape.heads = shape.qkHeads = heads;
  shape.segmentTokens = (tokens + 63) / 64 * 64;
  return shape;
}
void check(const BackwardShape& shape) {
  checkKernels<Bf16, ChannelGroupKernels<Bf16>, true>(shape);
}

/// The maps of pieces, applied to the gradient of the final state, yield that of the initial one. Returns the number of
/// channels of pieces without a map.
int checkMaps(const BackwardShape& shape, int pieceChunks, uint64_t seed) {
  INFO(shape.name() << ", seed " << seed << ", pieces of " << pieceChunks);
  using Kernels = ChannelGroupKernels<Bf16>;
  const BackwardCase c(shape, seed);
  const LinearProblem problem = c.problem(c.q.data(), c.k.data(), c.v.data(), c.gates.data());
  sm90::ChannelTask to;
  const Task task = channelGroupsTask(problem, c.dOutput(c.dOut.data()));
  REQUIRE(sm90::encodeGroup<Bf16>(to, task, chunkStatesOf(task, 1)));
  const auto heads = static_cast<size_t>(task.batch * task.heads), dk = static_cast<size_t>(task.dk),
             dv = static_cast<size_t>(task.dv);
  to.pieceChunks = pieceChunks;
  to.pieces = (to.chunksOfSegment + pieceChunks - 1) / pieceChunks;
  const auto pieces = static_cast<size_t>(to.pieces);
  std::vector<Kernels::Record> records(heads * static_cast<size_t>(to.chunksOfSegment));
  std::vector<float> states(heads * pieces * dk * dv, NAN), logs(heads * pieces * dk, NAN);
  uint32_t strong = 0;
  to.records = reinterpret_cast<char*>(records.data());
  to.strong = &strong;
  to.maps = {states.data(), logs.data()};
  Kernels::run<sm90::ChannelScaleKernel<Bf16>>(to, static_cast<int64_t>(records.size()), seed);
  if (seed % 2 == 0) {
    Kernels::run<sm90::ChannelMapsKernel<Bf16, kBlock>>(to, 3, seed);
  } else {
    Kernels::run<sm90::ChannelMapsKernel<Bf16, sm90::kPanel>>(to, 3, seed);
  }
  int without = 0;
  std::vector<double> found;
  for (size_t head = 0; head < heads; ++head) {
    for (size_t i = 0; i < dk * dv; ++i) {
      double y = c.dFinal.empty() ? 0 : c.dFinal[head * dk * dv + i];
      for (size_t piece = pieces; piece-- > 0;) {
        const size_t map = head * pieces + piece;
        const float log = logs[map * dk + i / dv];
        without += log == kNoMap;
        y = log == kNoMap ? 0 : std::exp(double{log}) * y + states[map * dk * dv + i];
      }
      found.push_back(y);
    }
  }
  checkError("maps", found, c.expected.dInitial, 0x1p-7);
  return without;
}

}  // namespace

TEST_CASE("backward kernels of chunks with channel decays") {
  check(channelShape(330, 0.05, 1, 256, 128));
  BackwardShape shape = channelShape(150, 0.2, 2, 256, 64);
  shape.batch = 2;
  shape.gateType = seqparBfloat16;
  check(shape);
  shape = channelShape(64, 0.02, 1, 144, 192);
  shape.states = false;
  check(shape);
  shape.tokens = 1;
  check(shape);
  check(channelShape(130, 0.35, 1, 192, 320));
  check(channelShape(130, 0.8, 1, 192, 64));
}

TEST_CASE("backward kernels of chunks with channel decays keep gradients of rows of very different magnitudes") {
  for (const double decay : thinned({0.35, 0.05, 2.0, 30.0})) {
    BackwardShape rows = channelShape(150, decay, 1, 256, 64);
    rows.smallest = 60;
    rows.largest = 20;
    checkNumbers<ChannelGroupKernels<Bf16>>(rows);
    rows.scalesKeys = true;
    rows.states = false;
    checkNumbers<ChannelGroupKernels<Bf16>>(rows);
  }
}

TEST_CASE("backward kernels of chunks with strong channel decays") {
  for (const double decay : thinned({1.5, 4.0, 30.0, kZeros})) check(channelShape(150, decay, 1, 256, 64));
  BackwardShape shape = channelShape(200, 2, 2, 160, 320);
  shape.gateType = seqparBfloat16;
  check(shape);
  shape.gateType = seqparFloat32;
  shape.mixed = true;
  check(shape);
  shape = channelShape(64, 5, 1, 144, 576);
  shape.batch = 2;
  shape.states = false;
  check(shape);
}

TEST_CASE("backward kernels of chunks with strong channel decays compute gradients of 0 for decays of 0") {
  const Seed seed;
  BackwardShape shape = channelShape(130, 2, 2, 160, 64);
  shape.mixed = true;
  shape.states = false;
  const BackwardCase c(shape, seed);
  const Found found = gradientsOf<ChannelGroupKernels<Bf16>, true>(c, seed);
  const auto* gates = reinterpret_cast<const float*>(c.gates.data());
  size_t zeros = 0, wrong = 0;
  for (size_t i = 0; i < found.gates.size(); ++i) {
    if (std::isfinite(gates[i])) continue;
    ++zeros;
    wrong += found.gates[i] != 0;
  }
  CHECK(zeros > 0);
  CHECK(wrong == 0);
}

TEST_CASE("backward kernels of chunks with channel decays can leave strong ones to others") {
  const Seed seed;
  for (const double decay : {0.3, 0.8, 2.4, 30.0, kZeros}) {
    const BackwardCase c(channelShape(130, decay, 2, 160, 64), seed);
    const LinearProblem problem = c.problem(c.q.data(), c.k.data(), c.v.data(), c.gates.data());
    const Task task = channelGroupsTask(problem, c.dOutput(c.dOut.data()));
    sm90::ChannelTask to;
    REQUIRE(sm90::encodeGroup<Bf16>(to, task, chunkStatesOf(task, 1)));
    to.leavesStrong = true;
    CHECK(ChannelGroupKernels<Bf16>::computeAll(to, seed) == (decay > 1));
  }
}

TEST_CASE("maps of pieces of chunks with channel decays yield the gradient of the initial state") {
  const Seed seed;
  CHECK(checkMaps(channelShape(460, 0.05, 1, 256, 128), 3, seed) == 0);
  BackwardShape shape = channelShape(200, 0.1, 2, 144, 192);
  shape.batch = 2;
  shape.states = false;
  CHECK(checkMaps(shape, 2, seed) == 0);
  CHECK(checkMaps(channelShape(600, 0.35, 1, 256, 64), 1, seed + 1) > 0);
  checkMaps(channelShape(150, 2, 1, 256, 64), 1, seed);
  checkMaps(channelShape(150, 30, 1, 256, 64), 2, seed);
}

TEST_CASE("chunks with channel decays are processed in parallel if they and heads suffice") {
  LinearProblem problem;
  problem.gate = Gate::Channel;
  problem.tokens = 8192;
  problem.heads = problem.qkHeads = 4;
  problem.dk = 256;
  problem.dv = 512;
  const Segments segments{1, 8192};
  CHECK(formsChannelGroups(problem, segments));
  const auto rejects = [&](const auto& change) {
    LinearProblem other = problem;
    change(other);
    return !formsChannelGroups(other, segments);
  };
  CHECK(rejects([](LinearProblem& p) { p.gate = Gate::Token; }));
  CHECK(rejects([](LinearProblem& p) { p.type = seqparFloat16; }));
  CHECK(rejects([](LinearProblem& p) { p.qkHeads = 2; }));
  CHECK(rejects([](LinearProblem& p) { p.dk = 128; }));
  CHECK(rejects([](LinearProblem& p) { p.dv = 480; }));
  CHECK(rejects([](LinearProblem& p) { p.dv = 256; }));
  CHECK(rejects([](LinearProblem& p) { p.tokens = 1024; }));
  CHECK(rejects([](LinearProblem& p) { p.tokens = 131072; }));
  const Workspace workspace = workspaceOf(problem, segments, true);
  CHECK(workspace.records >= 0);
  CHECK(workspace.anyStrong >= workspace.chunkGradients + chunkRecordsBytes(problem));
  CHECK(workspaceOf(problem, segments).anyStrong < 0);
}

TEST_CASE("backward kernels of chunks with channel decays only round states and gradients to 16 bits") {
  const Seed seed;
  BackwardShape shape = channelShape(64, 0.1, 1, 256, 64);
  shape.states = false;
  shape.type = seqparBfloat16;
  const BackwardCase c(shape, seed);
  const Found found = gradientsOf<ChannelGroupKernels<Bf16>, true>(c, seed);
  checkError("gates", found.gates, c.expectedGates(), 0x1p-10);
}
