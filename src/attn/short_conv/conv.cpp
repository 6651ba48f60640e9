#include "attn/short_conv/conv.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>

#include "attn/boundary.h"
#include "attn/exec/exec_scope.h"
#include "attn/linear/host/vector.h"
#include "base/checked.h"
#include "base/convert.h"
#include "base/versioned.h"
#include "seqpar/exchange.h"
#include "seqpar/layout.h"

namespace seqpar::attn::short_conv {
namespace {

constexpr const char* kWho = "short convolution";

[[noreturn]] void refuse(const char* call, const char* field, int64_t value, const std::string& expected) {
  fail(seqparInvalidArgument, call, ": desc->", field, " is ", value, ", expected ", expected);
}

void requireRange(const char* call, const char* field, int64_t value, int64_t least, int64_t most) {
  if (value < least || value > most) refuse(call, field, value, concat(least, " to ", most));
}

std::vector<int64_t> lengthsOf(const char* call, const seqparShortConvDesc_t& d, int ranks) {
  constexpr int64_t kMost = int64_t{1} << 48;
  std::vector<int64_t> lengths(static_cast<size_t>(ranks));
  if (d.tokensOfRanks != nullptr) {
    std::copy_n(d.tokensOfRanks, ranks, lengths.begin());
    for (const int64_t length : lengths) requireRange(call, "tokensOfRanks[...]", length, 0, kMost);
    return lengths;
  }
  requireRange(call, "tokens", d.tokens, 0, kMost);
  seqparLayout_t layout = SEQPAR_LAYOUT_INITIALIZER;
  layout.ranks = ranks;
  layout.tokens = d.tokens;
  for (int r = 0; r < ranks; ++r) {
    require(seqparLayoutLocalLength(&layout, r, &lengths[static_cast<size_t>(r)]), call, nullptr);
  }
  return lengths;
}

std::vector<int64_t> packingOf(const char* call, const seqparShortConvDesc_t& d, int64_t tokens) {
  if (d.sequences < 0) refuse(call, "sequences", d.sequences, "at least 0");
  if (d.sequences == 0) return {0, tokens};
  if (d.cuSeqlens == nullptr) {
    fail(seqparInvalidArgument, call, ": desc->cuSeqlens is NULL, expected [", d.sequences + 1, "] numbers");
  }
  if (d.batch != 1) refuse(call, "batch", d.batch, "1 with packed sequences");
  std::vector<int64_t> bounds(d.cuSeqlens, d.cuSeqlens + d.sequences + 1);
  if (!std::is_sorted(bounds.begin(), bounds.end()) || bounds.front() != 0 || bounds.back() != tokens) {
    fail(seqparInvalidArgument, call, ": desc->cuSeqlens goes from ", bounds.front(), " to ", bounds.back(),
         ", expected to ascend from 0 to ", tokens, ", the number of tokens");
  }
  return bounds;
}

}  // namespace

Conv::Conv(const char* call, const seqparShortConvDesc_t* given, seqparComm_t comm) : comm_(comm) {
  const seqparShortConvDesc_t defaults = SEQPAR_SHORT_CONV_INITIALIZER;
  const auto d = readVersioned(call, "desc", given, defaults);
  requireRange(call, "batch", d.batch, 1, int64_t{1} << 32);
  requireRange(call, "channels", d.channels, 1, int64_t{1} << 32);
  requireRange(call, "width", d.width, 1, SEQPAR_SHORT_CONV_WIDTH);
  requireRange(call, "silu", d.silu, 0, 1);
  requireRange(call, "dataType", d.dataType, seqparFloat32, seqparBfloat16);
  requireRange(call, "weightType", d.weightType, seqparFloat32, seqparBfloat16);
  requireRange(call, "training", d.training, 0, 1);
  int ranks = 1, rank = 0, device = SEQPAR_HOST_DEVICE;
  if (comm != nullptr) {
    require(seqparCommCount(comm, &ranks), call, nullptr);
    require(seqparCommUserRank(comm, &rank), call, nullptr);
    require(seqparCommDevice(comm, &device), call, nullptr);
  }
  if (device != SEQPAR_HOST_DEVICE) {
    fail(seqparInvalidUsage, call, ": comm is of device ", device, ", expected a communicator of host memory");
  }
  const auto lengths = lengthsOf(call, d, ranks);
  const int64_t longest = *std::max_element(lengths.begin(), lengths.end());
  countBytes(call, "x", {{"batch", d.batch}, {"tokens", longest}, {"channels", d.channels}, {"bytes", sizeof(float)}});
  countBytes(call, "weight", {{"channels", d.channels}, {"width", d.width}, {"bytes", sizeof(float)}});
  const int64_t begin = std::accumulate(lengths.begin(), lengths.begin() + rank, int64_t{0});
  const auto bounds = packingOf(call, d, std::accumulate(lengths.begin(), lengths.end(), int64_t{0}));
  shape_.batch = static_cast<size_t>(d.batch);
  shape_.tokens = static_cast<size_t>(lengths[static_cast<size_t>(rank)]);
  shape_.channels = static_cast<size_t>(d.channels);
  shape_.width = static_cast<size_t>(d.width);
  shape_.silu = d.silu != 0;
  shape_.type = static_cast<seqparDataType_t>(d.dataType);
  shape_.weightType = static_cast<seqparDataType_t>(d.weightType);
  training_ = d.training != 0;
  for (const int64_t length : lengths) edges_.push_back(std::min<int64_t>(length, d.width - 1));
  place(bounds, begin, begin + lengths[static_cast<size_t>(rank)]);

  auto exec = makeExec(comm);
  exec_.reset(dynamic_cast<HostExec*>(exec.get()));
  static_cast<void>(exec.release());
  Arena counting;
  carve(counting);
  memory_ = exec_->allocate(counting.used());
  std::memset(memory_.get(), 0, counting.used());  // halos beyond the ends
  Arena arena(memory_.get());
  carve(arena);
}

void Conv::carve(Arena& arena) {
  const size_t row = shape_.batch * shape_.channels;
  tail_ = arena.take(row * shape_.edge() * sizeOf(shape_.type));
  left_ = arena.take(row * shape_.halo() * sizeOf(shape_.type));
  const auto numbers = [&](size_t count) { return static_cast<float*>(arena.take(count * sizeof(float))); };
  if (training_) {
    edge_ = numbers(row * shape_.edge());
    right_ = numbers(row * shape_.halo());
  }
  scratch_ = numbers(static_cast<size_t>(exec_->pool().threads()) * scratchNumbers(shape_));
}

void Conv::place(const std::vector<int64_t>& bounds, int64_t begin, int64_t end) {
  const auto halo = static_cast<int64_t>(shape_.halo());
  shape_.before.reserve(shape_.tokens);  // all or nothing, before any of it is touched
  shape_.behind.reserve(shape_.tokens);
  size_t sequence = 0;
  for (int64_t t = begin; t < end; ++t) {
    while (bounds[sequence + 1] <= t) ++sequence;
    shape_.before.push_back(static_cast<uint8_t>(std::min(halo, t - bounds[sequence])));
    shape_.behind.push_back(static_cast<uint8_t>(std::min(halo, bounds[sequence + 1] - 1 - t)));
  }
}

Tensor Conv::tensor(void* data) const {
  return denseTensor(data, shape_.type, static_cast<int64_t>(shape_.batch), static_cast<int64_t>(shape_.tokens), 1,
                     static_cast<int64_t>(shape_.channels));
}

void Conv::packTail(const void* x) {
  if (edges_.size() == 1) return;
  exec_->launch([this, x] {
    const size_t row = shape_.channels * sizeOf(shape_.type), edge = shape_.edge();
    for (size_t b = 0; b < shape_.batch && edge > 0; ++b) {
      std::memcpy(static_cast<std::byte*>(tail_) + b * edge * row,
                  static_cast<const std::byte*>(x) + ((b + 1) * shape_.tokens - edge) * row, edge * row);
    }
  });
}

void Conv::exchange(const void* edge, void* left, void* right, seqparDataType_t type, void* stream) {
  if (edges_.size() == 1 || shape_.halo() == 0) return;
  seqparShards_t shards = SEQPAR_SHARDS_INITIALIZER;
  shards.dataType = type;
  shards.outer = static_cast<int64_t>(shape_.batch);
  shards.inner = static_cast<int64_t>(shape_.channels);
  shards.tokensOfMembers = edges_.data();
  seqparHalo_t halo = SEQPAR_HALO_INITIALIZER;
  (left != nullptr ? halo.left : halo.right) = static_cast<int64_t>(shape_.halo());
  require(seqparHaloExchange(edge, left, right, &halo, &shards, comm_, stream), kWho, comm_);
}

void Conv::forward(const void* x, const void* weight, const void* bias, void* y, void* stream) {
  const ExecScope scope(*exec_, stream, std::array{tensor(y)});
  const Arrays arrays{x, weight, bias, left_, y};
  const auto tokens = [this, arrays](size_t first, size_t last) {
    if (first >= last) return;
    exec_->launch([this, arrays, first, last] {
      // Tasks are blocks of channels and stretches of tokens.
      constexpr size_t kStretch = 4 * kTokens;
      const size_t stretches = (last - first + kStretch - 1) / kStretch;
      exec_->pool().each(shape_.blocks() * stretches, [&](size_t task, int thread) {
        const size_t begin = first + task % stretches * kStretch;
        short_conv::forward(shape_, arrays, task / stretches, begin, std::min(begin + kStretch, last), scratch(thread));
      });
    });
  };
  packTail(x);
  exec_->fork();
  exchange(tail_, left_, nullptr, shape_.type, exec_->side());
  tokens(shape_.edge(), shape_.tokens);
  exec_->join();
  tokens(0, shape_.edge());
}

void Conv::backward(const seqparShortConvBackwardArgs_t& args, void* stream) {
  const ExecScope scope(*exec_, stream, std::array{tensor(args.dx)});
  const Arrays arrays{args.x,  args.weight, args.bias, left_,        nullptr,
                      args.dy, right_,      args.dx,   args.dWeight, args.dBias};
  packTail(args.x);
  exchange(tail_, left_, nullptr, shape_.type, exec_->main());
  if (edges_.size() > 1) {
    exec_->launch([this, arrays] {
      exec_->pool().each(shape_.blocks(), [&](size_t block, int thread) {
        edgeGradients(shape_, arrays, block, edge_, scratch(thread));
      });
    });
  }
  exchange(edge_, nullptr, right_, seqparFloat32, exec_->main());
  exec_->launch([this, arrays] {
    exec_->pool().each(shape_.blocks(),
                       [&](size_t block, int thread) { short_conv::backward(shape_, arrays, block, scratch(thread)); });
  });
}

}  // namespace seqpar::attn::short_conv
