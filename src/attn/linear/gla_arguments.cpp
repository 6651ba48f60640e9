#include "attn/linear/gla_arguments.h"

#include <cmath>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <limits>
#include <vector>

#include "attn/boundary.h"
#include "base/versioned.h"

namespace seqpar::attn {
namespace {

size_t checkSize(const char* call, const char* name, int64_t value, int64_t least) {
  if (value < least) {
    fail(seqparInvalidArgument, call, ": params->", name, " is ", value, ", expected at least ", least);
  }
  return static_cast<size_t>(value);
}

/// The product, which must leave room for bytes and for the workspace's small factor.
size_t checkProduct(const char* call, std::initializer_list<size_t> sizes) {
  constexpr size_t kMost = std::numeric_limits<size_t>::max() / 64;
  size_t product = 1;
  for (const size_t size : sizes) {
    if (size != 0 && product > kMost / size) {
      fail(seqparInvalidArgument, call,
           ": params' sizes overflow: batch * heads * (tokens or dk) * (dk or dv) is more than ", kMost);
    }
    product *= size;
  }
  return product;
}

void checkEnumerator(const char* call, const char* name, int value, int last) {
  if (value < 0 || value > last) {
    fail(seqparInvalidArgument, call, ": params->", name, " is ", value, ", expected 0 to ", last);
  }
}

struct Buffer {
  const char* name;
  const void* data;
  size_t numbers;
  bool required;
  bool output;
};

void checkBuffers(const char* call, const std::vector<Buffer>& buffers) {
  for (const auto& buffer : buffers) {
    if (buffer.required && buffer.numbers > 0 && buffer.data == nullptr) {
      fail(seqparInvalidArgument, call, ": ", buffer.name, " is NULL, expected ", buffer.numbers, " numbers");
    }
  }
  const auto overlap = [](const Buffer& a, const Buffer& b) {
    const std::less<> before;
    const auto begin = [](const Buffer& x) { return static_cast<const float*>(x.data); };
    return a.data != nullptr && b.data != nullptr && before(begin(a), begin(b) + b.numbers) &&
           before(begin(b), begin(a) + a.numbers);
  };
  for (size_t i = 0; i < buffers.size(); ++i) {
    for (size_t j = i + 1; j < buffers.size(); ++j) {
      if ((buffers[i].output || buffers[j].output) && overlap(buffers[i], buffers[j])) {
        fail(seqparInvalidArgument, call, ": ", buffers[i].name, " at ", buffers[i].data, " (", buffers[i].numbers,
             " numbers) overlaps ", buffers[j].name, " at ", buffers[j].data, " (", buffers[j].numbers,
             " numbers), expected outputs to be apart from all other arrays");
      }
    }
  }
}

}  // namespace

GlaArguments checkGla(const char* call, const void* q, const void* k, const void* v, const float* logDecay,
                      const float* initial, void* out, float* savedState, float* finalState,
                      const seqparGlaParams_t* given, seqparComm_t comm) {
  const seqparGlaParams_t defaults = SEQPAR_GLA_PARAMS_INITIALIZER;
  const auto params = readVersioned(call, "params", given, defaults);
  GlaArguments arguments;
  GlaProblem& problem = arguments.problem;
  problem.batch = checkSize(call, "batch", params.batch, 1);
  problem.tokens = checkSize(call, "tokens", params.tokens, 0);
  problem.heads = checkSize(call, "heads", params.heads, 1);
  problem.dk = checkSize(call, "dk", params.dk, 1);
  problem.dv = checkSize(call, "dv", params.dv, 1);
  const size_t rows = checkProduct(call, {problem.batch, problem.tokens, problem.heads});
  const size_t queries = checkProduct(call, {rows, problem.dk});
  const size_t values = checkProduct(call, {rows, problem.dv});
  const size_t states = checkProduct(call, {problem.batch, problem.heads, problem.dk, problem.dv});
  checkProduct(call, {states, problem.chunks() + 1});
  if (params.dataType != seqparFloat32) {
    fail(seqparInvalidArgument, call, ": params->dataType is ", params.dataType, ", expected ", seqparFloat32,
         " (seqparFloat32)");
  }
  checkEnumerator(call, "wireType", params.wireType, seqparBfloat16);
  checkEnumerator(call, "algorithm", params.algorithm, SEQPAR_SCAN_ALGORITHMS);
  if (params.blocks < 0)
    fail(seqparInvalidArgument, call, ": params->blocks is ", params.blocks, ", expected at least 0");
  if (!std::isfinite(params.scale)) {
    fail(seqparInvalidArgument, call, ": params->scale is ", params.scale, ", expected a finite number");
  }
  problem.scale = params.scale != 0 ? params.scale : static_cast<float>(1 / std::sqrt(static_cast<double>(problem.dk)));

  if (comm != nullptr) {
    int rank = 0, device = SEQPAR_HOST_DEVICE;
    require(seqparCommCount(comm, &arguments.ranks), call, nullptr);
    require(seqparCommUserRank(comm, &rank), call, nullptr);
    require(seqparCommDevice(comm, &device), call, nullptr);
    if (device != SEQPAR_HOST_DEVICE) {
      fail(seqparInvalidUsage, call, ": comm is of device ", device, ", expected a communicator of host memory");
    }
    if (rank != 0) initial = nullptr;
  }
  checkBuffers(call, {{"q", q, queries, true, false},
                      {"k", k, queries, true, false},
                      {"v", v, values, true, false},
                      {"logDecay", logDecay, queries, true, false},
                      {"initial", initial, states, false, false},
                      {"out", out, values, true, true},
                      {"savedState", savedState, states, false, true},
                      {"finalState", finalState, states, false, true}});
  problem.q = static_cast<const float*>(q);
  problem.k = static_cast<const float*>(k);
  problem.v = static_cast<const float*>(v);
  problem.logDecay = logDecay;
  problem.out = static_cast<float*>(out);
  arguments.initial = initial;
  arguments.savedState = savedState;
  arguments.finalState = finalState;
  arguments.comm = comm;
  auto& scan = arguments.scan;
  scan.op = seqparScanDiag;
  scan.decayForm = seqparDecayLog;
  scan.heads = static_cast<int64_t>(problem.allHeads());
  scan.dk = params.dk;
  scan.dv = params.dv;
  scan.wireType = params.wireType;
  scan.algorithm = params.algorithm;
  scan.blocks = params.blocks;
  return arguments;
}

}  // namespace seqpar::attn
