// The backward kernels of linear attention against the fp64 reference. Exit status 77: no GPU. Arguments: --small for
// few cases, --groups for groups of heads with token decays or none, --channels for those with channel decays; then a
// seed, and I N for part I of N of the groups.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <future>
#include <limits>
#include <memory>
#include <thread>
#include <vector>

#include "common/draw_seed.h"
#include "kernels/attn/linear/pairs.h"
#include "linear_backward_run.h"

namespace {

using namespace seqpar;
using namespace seqpar::attn;
using namespace seqpar::test;

void report(const BackwardCase& c, uint64_t seed, const Errors& errors, const char* what = "") {
  std::printf("%s %s%s:%s (seed %llu)\n", errors.good ? "ok    " : "FAILED", what, c.shape.name().c_str(),
              errors.text.c_str(), static_cast<unsigned long long>(seed));
  if (!errors.good) ++failures;
}

/// Against the reference; then from a graph with few CTAs into poisoned memory, to the same bits; then gradients
/// without the map of all tokens.
void check(const BackwardCase& c, uint64_t seed, bool odd = false) {
  Run run(c, odd);
  run.launch({});
  checkCuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  Errors errors;
  run.compare(errors);
  const auto first = run.results();
  run.poisonResults();
  cudaStream_t stream;
  cudaGraph_t graph;
  cudaGraphExec_t replay;
  checkCuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
  checkCuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "cudaStreamBeginCapture");
  run.launch({stream, 3});
  checkCuda(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
  checkCuda(cudaGraphInstantiateWithFlags(&replay, graph, 0), "cudaGraphInstantiate");
  checkCuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  checkCuda(cudaGraphLaunch(replay, stream), "cudaGraphLaunch");
  checkCuda(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  if (run.results() != first) {
    errors.text += " other bits with 3 CTAs!!";
    errors.good = false;
  }
  run.mapWanted = false;
  run.poisonResults();
  run.launch({});
  checkCuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  const auto alone = run.results();
  if (!std::equal(alone.begin() + Run::kFirstGradient, alone.end(), first.begin() + Run::kFirstGradient)) {
    errors.text += " other gradients without the map!!";
    errors.good = false;
  }
  cudaGraphExecDestroy(replay);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
  report(c, seed, errors, odd ? "odd addresses, " : "");
}

/// Two ranks by hand: each has a part of the tokens; their maps are combined here, as All-Scan would.
void checkRanks(BackwardShape shape, int64_t cutAt, uint64_t seed) {
  const BackwardCase whole(shape, seed);
  LinearShape first = whole.reference;
  first.tokens = cutAt;
  const LinearOutputs states = linearReference(first, whole.inputs);  // reads the first tokens only: batch is 1
  std::vector<float> incoming = whole.dFinal;
  Errors errors;
  for (int rank = 1; rank >= 0; --rank) {
    const int64_t from = rank == 0 ? 0 : cutAt, count = rank == 0 ? cutAt : shape.tokens - cutAt;
    BackwardCase part(whole);
    part.shape.tokens = count;
    part.segments.count = 1;
    part.segments.tokens = (count + kChunkTokens - 1) / kChunkTokens * kChunkTokens;
    const auto rows = [&](Bytes& all) {
      const auto width = static_cast<int64_t>(all.size()) / shape.tokens;
      all = Bytes(all.begin() + from * width, all.begin() + (from + count) * width);
    };
    for (Bytes* tensor : {&part.q, &part.k, &part.v, &part.dOut, &part.gates}) rows(*tensor);
    const auto numbers = [&](std::vector<double>& all) {
      const auto width = static_cast<int64_t>(all.size()) / shape.tokens;
      all = std::vector<double>(all.begin() + from * width, all.begin() + (from + count) * width);
    };
    numbers(part.expected.dq);
    numbers(part.expected.dk);
    numbers(part.expected.dv);
    numbers(part.expected.dLogDecay);
    part.reference.tokens = count;
    part.before.assign(whole.stateGradient.size(), std::nanf(""));  // of one segment, none is read
    part.beforeLog.assign(whole.logDecay.size(), std::nanf(""));
    part.after.assign(whole.stateGradient.size(), 0);
    part.afterLog.assign(whole.logDecay.size(), 0);
    if (rank == 1) part.initial.assign(states.finalState.begin(), states.finalState.end());
    part.dFinal = incoming;
    Run run(part);
    run.launch({});
    checkCuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    const auto map = valuesOf(run.stateGradient.host(), seqparFloat32),
               logs = valuesOf(run.logDecay.host(), seqparFloat32);
    run.compareGradients(errors);
    for (size_t i = 0; i < incoming.size(); ++i) {
      const size_t row = logs.size() == whole.logDecay.size() && shape.gate == Gate::Channel
                             ? i / shape.dv
                             : i / (shape.dv * shape.dk);
      incoming[i] = static_cast<float>(std::exp(logs[row]) * incoming[i] + map[i]);
    }
    if (rank == 0) {
      const Tolerance most = toleranceOf(shape);
      const auto own = valuesOf(run.dInitial.host(), seqparFloat32);
      errors.add("dInitial", own, whole.expected.dInitial, most.values(), most.least);
      errors.add("map", std::vector<double>(incoming.begin(), incoming.end()), whole.expected.dInitial, most.values(),
                 most.least);
    }
  }
  report(whole, seed, errors, "two ranks, ");
}

/// The references take longer than the GPU does, so they are computed on all cores.
void checkThese(const std::vector<BackwardShape>& shapes, uint64_t seed, bool odd = false) {
  std::vector<std::future<std::unique_ptr<BackwardCase>>> cases;
  const size_t ahead = std::max(std::thread::hardware_concurrency(), 1u);
  for (size_t i = 0, next = 0; i < shapes.size(); ++i) {
    for (; next < std::min(i + ahead, shapes.size()); ++next) {
      cases.push_back(std::async(std::launch::async, [&shapes, seed, next] {
        return std::make_unique<BackwardCase>(shapes[next], seed + next);
      }));
    }
    check(*cases[i].get(), seed + i, odd);
  }
}

/// part, parts: only each `parts`-th of the groups.
void checkAll(uint64_t seed, bool small, bool groups, size_t part, size_t parts) {
  const double kSlow = 0.002, kMiddle = 0.05, kStrong = 30, kForgets = std::numeric_limits<double>::infinity();
  constexpr int kKeyHeadsOfGroups = 12;
  BackwardShape base;
  base.dk = base.dv = 128;
  base.segmentTokens = 128;
  std::vector<BackwardShape> shapes;
  const auto with = [&](const std::function<void(BackwardShape&)>& change) {
    BackwardShape shape = base;
    change(shape);
    shapes.push_back(shape);
  };
  const std::vector<int64_t> lengths =
      small ? std::vector<int64_t>{65} : std::vector<int64_t>{0, 1, 2, 15, 63, 64, 65, 1000, 2041};
  for (const int64_t tokens : lengths) {
    for (const Gate gate : {Gate::Channel, Gate::Token}) {
      with([&](auto& s) { s.tokens = tokens, s.gate = gate, s.segmentTokens = tokens > 500 ? 256 : 64; });
    }
  }
  if (small) {
    checkThese(shapes, seed);
    return checkRanks(base, 33, seed);
  }
  for (const int type : {seqparBfloat16, seqparFloat16, seqparFloat32}) {
    for (const Gate gate : {Gate::None, Gate::Head, Gate::Token, Gate::Channel}) {
      with([&](auto& s) { s.type = type, s.gate = gate, s.tokens = 300, s.heads = 4, s.qkHeads = 2; });
      with([&](auto& s) {
        s.type = type, s.gate = gate, s.tokens = 200, s.batch = 2, s.heads = 3, s.qkHeads = 3, s.states = false,
        s.dk = s.dv = 64;
      });
    }
    with([&](auto& s) { s.type = type, s.gateType = seqparBfloat16, s.tokens = 300, s.heads = 2, s.qkHeads = 2; });
    with([&](auto& s) {
      s.type = type, s.gateType = seqparBfloat16, s.tokens = 130, s.heads = 2, s.dk = 256, s.dv = 256;
    });
    for (const Gate gate : {Gate::Token, Gate::Channel}) {
      for (const double decay : {kSlow, kMiddle, 1.0, kStrong, kForgets, 0.0}) {
        with([&](auto& s) { s.type = type, s.gate = gate, s.tokens = 400, s.decay = decay; });
      }
      with(
          [&](auto& s) { s.type = type, s.gate = gate, s.tokens = 333, s.starts = {0, 1, 2, 64, 100, 101, 128, 320}; });
      with([&](auto& s) {
        s.type = type, s.gate = gate, s.tokens = 333, s.starts = {-5, 77, 200, 900}, s.decay = kForgets;
      });
    }
  }
  for (const auto& [dk, dv] : {std::pair{16, 16},
                               {16, 128},
                               {48, 80},
                               {64, 128},
                               {96, 64},
                               {112, 112},
                               {128, 256},
                               {256, 128},
                               {256, 256},
                               {144, 208}}) {
    for (const Gate gate : {Gate::Token, Gate::Channel}) {
      with([&, dk = dk, dv = dv](auto& s) {
        s.dk = dk, s.dv = dv, s.gate = gate, s.tokens = 150, s.heads = 2, s.qkHeads = 1;
      });
    }
  }
  for (const Gate gate : {Gate::None, Gate::Head, Gate::Token}) {
    for (const double decay : {kSlow, 1.0, kForgets}) {
      with([&](auto& s) {
        s.gate = gate, s.tokens = 400, s.decay = decay, s.heads = s.qkHeads = 2, s.inputGates = true;
      });
      for (const int keyHeads : {1, 3}) {  // pairs of heads
        with([&](auto& s) {
          s.gate = gate, s.tokens = 430, s.decay = decay, s.heads = 12, s.qkHeads = keyHeads,
          s.dk = keyHeads == 1 ? 96 : 128, s.dv = 64, s.inputGates = true,
          s.content = keyHeads == 1 ? Maps::PerSegment : Maps::Prefix;
        });
      }
      for (const int keys : {64, 256}) {  // pairs of heads, or of blocks of keys
        with([&](auto& s) {
          s.gate = gate, s.tokens = 430, s.decay = decay, s.heads = 4, s.qkHeads = keys == 64 ? 2 : 1, s.dk = keys,
          s.dv = 64, s.inputGates = true, s.content = keys == 64 ? Maps::PerSegment : Maps::Prefix;
        });
      }
      with([&](auto& s) {
        s.gate = gate, s.tokens = 430, s.decay = decay, s.heads = 2, s.qkHeads = 1, s.dk = 208, s.dv = 128,
        s.inputGates = true;
      });
      with([&](auto& s) {
        s.type = seqparFloat16, s.gate = gate, s.tokens = 300, s.decay = decay, s.heads = 4, s.qkHeads = 1, s.dv = 64;
      });
    }
  }
  for (const int columns : {64, kWideColumns}) {
    for (const double decay : {kSlow, 1.0, kForgets}) {  // groups of heads
      with([&](auto& s) {
        s.gate = decay == 1.0 ? Gate::Head : Gate::Token, s.tokens = 600, s.decay = decay, s.heads = 48,
        s.qkHeads = kKeyHeadsOfGroups;
        s.dk = decay == kSlow ? 96 : decay == kForgets && columns == 64 ? 64 : 128, s.dv = columns;
        s.inputGates = decay != 1.0, s.content = decay == kForgets ? Maps::PerSegment : Maps::Prefix;
      });
    }
  }
  for (const int columns : {64, 128, 256}) {
    for (const double decay : {kSlow, 1.0, kForgets}) {  // with two blocks of keys
      with([&](auto& s) {
        s.gate = decay == kSlow ? Gate::None : decay == 1.0 ? Gate::Head : Gate::Token;
        s.tokens = 600, s.decay = decay, s.heads = 48 * 64 / columns, s.qkHeads = kKeyHeadsOfGroups;
        s.dk = decay == kSlow ? 144 : 256, s.dv = columns;
        s.inputGates = decay != 1.0 && columns <= 128, s.content = decay == kForgets ? Maps::PerSegment : Maps::Prefix;
      });
    }
  }
  for (const int type : {seqparBfloat16, seqparFloat16, seqparFloat32}) {
    for (const Gate gate : {Gate::None, Gate::Token, Gate::Channel}) {
      for (const double decay : {kSlow, 1.0, kForgets}) {
        with([&](auto& s) {
          s.type = type, s.gate = gate, s.tokens = 500, s.heads = s.qkHeads = decay == kSlow ? 40 : 3, s.decay = decay,
          s.content = Maps::PerSegment;
        });
      }
    }
  }
  for (const int type : {seqparBfloat16, seqparFloat16}) {
    for (const double decay : {kSlow, kMiddle, 1.0, kStrong, kForgets}) {  // two short heads per CTA
      with([&](auto& s) {
        s.type = type, s.tokens = 500, s.decay = decay, s.heads = s.qkHeads = decay == kSlow ? 70 : 3;
        s.dk = s.dv = 64, s.content = Maps::PerSegment;
      });
      with([&](auto& s) {
        s.type = type, s.tokens = 333, s.decay = decay, s.heads = 4, s.qkHeads = 2, s.dk = 48, s.dv = 64;
        s.gateType = seqparBfloat16, s.starts = {-5, 77, 200, 900};
      });
    }
  }
  if (groups) std::erase_if(shapes, [](const auto& shape) { return shape.qkHeads != kKeyHeadsOfGroups; });
  if (groups) {
    std::vector<BackwardShape> own;
    for (size_t i = part; i < shapes.size(); i += parts) own.push_back(shapes[i]);
    shapes = own;
  }
  checkThese(shapes, seed);
  if (groups) return;
  for (const Gate gate : {Gate::Channel, Gate::Token}) {
    for (const double decay : {kSlow, 1.0}) {
      BackwardShape shape = base;
      shape.gate = gate;
      shape.tokens = 700;
      shape.decay = decay;
      checkRanks(shape, 301, seed++);
      if (gate != Gate::Channel) continue;
      shape.dk = shape.dv = 64;
      shape.heads = shape.qkHeads = 3;
      checkRanks(shape, 301, seed++);
    }
  }
}

BackwardShape wideChannelShape(double decay) {
  BackwardShape shape;
  shape.tokens = 860;
  shape.decay = decay;
  shape.dk = shape.dv = 256;
  shape.heads = shape.qkHeads = 8;
  shape.segmentTokens = 448;
  shape.content = Maps::PerSegment;
  return shape;
}

/// Heads with channel decays and keys of more than 128 channels: chunks in parallel.
void checkChannelGroups(uint64_t seed) {
  const double kForgets = std::numeric_limits<double>::infinity();
  std::vector<BackwardShape> shapes;
  for (const double decay : {0.002, 0.05, 0.3, 0.8, 1.5, 4.0, 30.0, kForgets}) {
    BackwardShape shape = wideChannelShape(decay);
    shapes.push_back(shape);
    if (decay > 0.3) continue;
    shape.heads = shape.qkHeads = 5;  // too few
    shapes.push_back(shape);
    shape.gateType = seqparBfloat16;
    shape.dk = 144;
    shape.dv = 320;
    shape.tokens = 705;
    shape.heads = shape.qkHeads = 9;
    shape.batch = decay < 0.01 ? 2 : 1;
    shapes.push_back(shape);
    shape.gateType = seqparFloat32;
    shape.mixed = true;
    shapes.push_back(shape);
  }
  checkThese(shapes, seed);
}

/// The same heads with mild and strong decays, and gradients that kernels cannot write in units of 16 bytes.
void checkOddAddresses(uint64_t seed) {
  std::vector<BackwardShape> shapes;
  for (const double decay : {0.05, 30.0}) shapes.push_back(wideChannelShape(decay));
  checkThese(shapes, seed, true);
}

}  // namespace

int main(int argc, char** argv) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::printf("skipped: no GPU\n");
    return 77;
  }
  const auto has = [&](const char* option) { return argc > 1 && std::strcmp(argv[1], option) == 0; };
  const auto number = [&](int i, uint64_t other) { return argc > i ? std::strtoull(argv[i], nullptr, 10) : other; };
  const uint64_t seed = number(2, seqpar::test::drawSeed());
  const bool odd = has("--odd");
  if (!has("--groups") && !odd) checkChannelGroups(seed);
  if (!has("--groups") && !has("--channels")) checkOddAddresses(seed);
  if (!has("--channels") && !odd) checkAll(seed, has("--small"), has("--groups"), number(3, 0), number(4, 1));
  std::printf(failures == 0 ? "all good\n" : "%d FAILED\n", failures);
  return failures == 0 ? 0 : 1;
}
