#include "attn/short_conv/conv.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "attn/agreement.h"
#include "attn/boundary.h"
#include "attn/exec/exec_scope.h"
#include "attn/packing.h"
#include "base/checked.h"
#include "base/convert.h"
#include "base/memory.h"
#include "base/versioned.h"
#include "seqpar/exchange.h"
#include "seqpar/layout.h"

namespace seqpar::attn::short_conv {
namespace {

constexpr const char* kCaller = "short convolution";

[[noreturn]] void refuse(const char* call, const char* field, int64_t value, const std::string& expected) {
  fail(seqparInvalidArgument, call, ": desc->", field, " is ", value, ", expected ", expected);
}

void requireRange(const char* call, const char* field, int64_t value, int64_t least, int64_t most) {
  if (value < least || value > most) refuse(call, field, value, concat(least, " to ", most));
}

std::vector<int64_t> lengthsOf(const char* call, const seqparShortConvDesc_t& d, int ranks) {
  if (d.tokensOfRanks != nullptr) return readLengths(call, d.tokensOfRanks, ranks);
  requireRange(call, "tokens", d.tokens, 0, int64_t{1} << 48);
  std::vector<int64_t> lengths(static_cast<size_t>(ranks));
  seqparLayout_t layout = SEQPAR_LAYOUT_INITIALIZER;
  layout.ranks = ranks;
  layout.tokens = d.tokens;
  for (int r = 0; r < ranks; ++r) {
    require(seqparLayoutLocalLength(&layout, r, &lengths[static_cast<size_t>(r)]), call, nullptr);
  }
  return lengths;
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
  int ranks = 1, rank = 0;
  if (comm != nullptr) {
    require(seqparCommCount(comm, &ranks), call, nullptr);
    require(seqparCommUserRank(comm, &rank), call, nullptr);
  }
  const auto lengths = lengthsOf(call, d, ranks);
  const int64_t longest = *std::max_element(lengths.begin(), lengths.end());
  countBytes(call, "x", {{"batch", d.batch}, {"tokens", longest}, {"channels", d.channels}, {"bytes", sizeof(float)}});
  countBytes(call, "weight", {{"channels", d.channels}, {"width", d.width}, {"bytes", sizeof(float)}});
  const int64_t begin = std::accumulate(lengths.begin(), lengths.begin() + rank, int64_t{0});
  const int64_t tokens = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
  auto bounds = readPacking(call, d.sequences, d.cuSeqlens, d.batch, tokens);
  if (bounds.empty()) bounds = {0, tokens};
  const seqparCompared_t all[] = {number("desc->batch", d.batch),        number("desc->channels", d.channels),
                                  number("desc->width", d.width),        number("desc->silu", d.silu),
                                  number("desc->dataType", d.dataType),  number("desc->weightType", d.weightType),
                                  number("desc->training", d.training),  number("desc->tokens", tokens),
                                  array("the tokens of ranks", lengths), array("desc->cuSeqlens", bounds)};
  requireAgreement(call, all, comm);
  passArguments_ = {number("the convolution's batch", d.batch), number("its channels", d.channels),
                    number("its width", d.width), number("its tokens", tokens),
                    number("a digest of its description", digestOf(all))};
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

  exec_ = makeExec(comm);
  passes_ = makePasses(shape_, training_, *exec_);
  Arena counting;
  carve(counting);
  memory_ = exec_->allocate(counting.used(), "the workspace of a short convolution");
  Arena arena(memory_.get());
  carve(arena);
  passes_->open();
  clearHalos();
}

Conv::~Conv() {
  exec_->drain();
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
  passes_->carve(arena);
}

void Conv::clearHalos() {
  const auto halo = [&](void* data, seqparDataType_t type) { return rows(data, type, shape_.halo()); };
  runOn(*exec_, nullptr, {}, [&] {
    exec_->follow();
    exec_->zero(halo(left_, shape_.type));
    if (training_) exec_->zero(halo(right_, seqparFloat32));
  });
  exec_->drain();
}

void Conv::place(const std::vector<int64_t>& bounds, int64_t begin, int64_t end) {
  const auto halo = static_cast<int64_t>(shape_.halo());
  allocateFor("the places of tokens in their sequences", 2 * shape_.tokens, [&] {
    shape_.before.reserve(shape_.tokens);  // allocates both before either is written
    shape_.behind.reserve(shape_.tokens);
  });
  size_t sequence = 0;
  for (int64_t t = begin; t < end; ++t) {
    while (bounds[sequence + 1] <= t) ++sequence;
    shape_.before.push_back(static_cast<uint8_t>(std::min(halo, t - bounds[sequence])));
    shape_.behind.push_back(static_cast<uint8_t>(std::min(halo, bounds[sequence + 1] - 1 - t)));
  }
}

Tensor Conv::rows(void* data, seqparDataType_t type, size_t tokens) const {
  return denseTensor(data, type, static_cast<int64_t>(shape_.batch), static_cast<int64_t>(tokens), 1,
                     static_cast<int64_t>(shape_.channels));
}

void Conv::packTail(const void* x) {
  const size_t edge = shape_.edge();
  if (edges_.size() == 1 || edge == 0) return;
  exec_->copy(
      rows(tail_, shape_.type, edge),
      tensor(const_cast<void*>(x)).rows(static_cast<int64_t>(shape_.tokens - edge), static_cast<int64_t>(edge)));
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
  require(seqparHaloExchange(edge, left, right, &halo, &shards, comm_, stream), kCaller, comm_);
}

void Conv::forward(const void* x, const void* weight, const void* bias, void* y, void* stream) {
  runPass("seqparShortConvForward", passArguments_, *exec_, comm_, stream, std::array{tensor(y)}, [&] {
    const Arrays arrays{x, weight, bias, left_, y};
    packTail(x);
    exec_->fork();
    exchange(tail_, left_, nullptr, shape_.type, exec_->side());
    passes_->forward(arrays, shape_.edge(), shape_.tokens);
    exec_->join();
    passes_->forward(arrays, 0, shape_.edge());
  });
}

void Conv::backward(const seqparShortConvBackwardArgs_t& args, void* stream) {
  runPass("seqparShortConvBackward", passArguments_, *exec_, comm_, stream, std::array{tensor(args.dx)}, [&] {
    const Arrays arrays{args.x,  args.weight, args.bias, left_,        nullptr,
                        args.dy, right_,      args.dx,   args.dWeight, args.dBias};
    packTail(args.x);
    exchange(tail_, left_, nullptr, shape_.type, exec_->main());
    if (edges_.size() > 1) passes_->edgeGradients(arrays, edge_);
    exchange(edge_, nullptr, right_, seqparFloat32, exec_->main());
    passes_->backward(arrays);
  });
}

}  // namespace seqpar::attn::short_conv
