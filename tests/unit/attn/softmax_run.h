// One rank's part of a softmax problem: through the plan object, and the comparison with the definition.
#pragma once

#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <type_traits>

#include "base/convert.h"
#include "placement.h"
#include "seqpar/attn.h"
#include "seqpar/layout.h"
#include "softmax_case.h"

namespace seqpar::attn::test {

/// One rank's shard of an array [batch][tokens][heads][dim], in the caller's type and order.
class Shard {
 public:
  Shard(seqparDataType_t type, int64_t batch, std::vector<int64_t> globals, int64_t heads, int64_t dim, bool headsFirst)
      : type_(type), batch_(batch), globals_(std::move(globals)), heads_(heads), dim_(dim), headsFirst_(headsFirst) {
    bytes_.assign(static_cast<size_t>(batch * tokens() * heads * dim) * sizeOf(type), std::byte{0xff});  // NaN
  }

  int64_t tokens() const { return static_cast<int64_t>(globals_.size()); }
  seqparAttnTensor_t view() {
    void* const data = bytes_.empty() ? nullptr : placed_ == nullptr ? bytes_.data() : placed_;
    if (!headsFirst_) return {data, 0, 0, 0};
    return {data, heads_ * tokens() * dim_, dim_, tokens() * dim_};
  }
  /// `odd`: one element behind a multiple of 16 bytes.
  void place(const Placement* placement, int rank, bool odd) {
    if (placement == nullptr) return;
    const size_t before = odd ? sizeOf(type_) : 0;
    placed_ = static_cast<std::byte*>(placement->allocate(rank, bytes_.size() + before)) + before;
    placement->copy(rank, placed_, bytes_.data(), bytes_.size());
  }
  void fetch(const Placement* placement, int rank) {
    if (placement != nullptr) placement->copy(rank, bytes_.data(), placed_, bytes_.size());
  }

  void take(const std::vector<double>& whole, int64_t wholeTokens) {
    each(wholeTokens, [&](size_t from, std::byte* to) {
      const auto number = static_cast<float>(whole[from]);
      fromFloat(&number, to, type_, 1);
    });
  }
  void give(std::vector<double>& whole, int64_t wholeTokens) {
    each(wholeTokens, [&](size_t to, std::byte* from) {
      float number = 0;
      toFloat(from, type_, &number, 1);
      whole[to] = static_cast<double>(number);
    });
  }

 private:
  template <typename Body>
  void each(int64_t wholeTokens, Body body) {
    for (int64_t b = 0; b < batch_; ++b) {
      for (int64_t t = 0; t < tokens(); ++t) {
        for (int64_t h = 0; h < heads_; ++h) {
          for (int64_t e = 0; e < dim_; ++e) {
            const int64_t row = headsFirst_ ? (b * heads_ + h) * tokens() + t : (b * tokens() + t) * heads_ + h;
            const int64_t global = ((b * wholeTokens + globals_[static_cast<size_t>(t)]) * heads_ + h) * dim_ + e;
            body(static_cast<size_t>(global), bytes_.data() + static_cast<size_t>(row * dim_ + e) * sizeOf(type_));
          }
        }
      }
    }
  }

  seqparDataType_t type_;
  int64_t batch_;
  std::vector<int64_t> globals_;
  int64_t heads_, dim_;
  bool headsFirst_;
  std::vector<std::byte> bytes_;
  void* placed_ = nullptr;
};

/// A float array without a shape on the host, and its copy in the memory of the rank.
class PlacedFloats {
 public:
  PlacedFloats(std::vector<float>& host, const Placement* placement, int rank, bool odd)
      : host_(host), placement_(placement), rank_(rank) {
    if (placement == nullptr) return;
    placed_ = static_cast<float*>(placement->allocate(rank, bytes() + sizeof(float))) + (odd ? 1 : 0);
    placement->copy(rank, placed_, host.data(), bytes());
  }
  float* data() { return placement_ == nullptr ? host_.data() : placed_; }
  void fetch() {
    if (placement_ != nullptr) placement_->copy(rank_, host_.data(), placed_, bytes());
  }

 private:
  size_t bytes() const { return host_.size() * sizeof(float); }

  std::vector<float>& host_;
  const Placement* placement_;
  int rank_;
  float* placed_ = nullptr;
};

/// Value of the elements that belong to other ranks.
constexpr double kElsewhere = 1e200;

/// Results for the whole sequence.
struct SoftmaxResult {
  std::vector<double> out, lse, dq, dk, dv, dSinks;

  explicit SoftmaxResult(const SoftmaxCase& c, double nothing)
      : out(c.dOut.size(), nothing),
        lse(static_cast<size_t>(c.spec.batch * c.spec.heads * c.spec.tokens), nothing),
        dq(c.q.size(), nothing),
        dk(c.k.size(), nothing),
        dv(c.v.size(), nothing) {}
};

/// "" or the text of a call's failure.
inline std::string check(seqparResult_t result, const char* call) {
  if (result == seqparSuccess) return "";
  const std::string text = seqparAttnGetLastError();
  return std::string(call) + ": " + (text.empty() ? seqparGetErrorString(result) : text);
}

/// The global indices of a rank's tokens.
inline std::vector<int64_t> globalsOf(const seqparLayout_t& layout, const std::vector<int64_t>& lengths, int rank) {
  std::vector<int64_t> globals;
  if (!lengths.empty()) {
    int64_t before = 0;
    for (int r = 0; r < rank; ++r) before += lengths[static_cast<size_t>(r)];
    for (int64_t t = 0; t < lengths[static_cast<size_t>(rank)]; ++t) globals.push_back(before + t);
    return globals;
  }
  int64_t length = 0;
  if (seqparLayoutLocalLength(&layout, rank, &length) != seqparSuccess) return {};
  globals.resize(static_cast<size_t>(length));
  if (length > 0) seqparLayoutGlobals(&layout, rank, globals.data());
  return globals;
}

/// Options of a run in addition to the spec.
struct RunOptions {
  bool onStream = false;
  bool ownWorkspace = false;
  int rounds = 1;  ///< of forward and backward
  const seqparAttnKernel_t* kernel = nullptr;
  const Placement* placement = nullptr;
};

/// One rank's part: creates the plan, runs it, and stores its tokens' results in `result`.
inline std::string runRank(const SoftmaxCase& c, int rank, int ranks, seqparComm_t comm, const RunOptions& options,
                           SoftmaxResult& result, std::vector<float>& dSinks) {
  const auto& s = c.spec;
  auto desc = s.desc();
  desc.kernel = options.kernel;
  const auto given = s.layout(ranks);
  if (s.layoutKind >= 0) desc.layout = &given;
  const auto givenKeys = s.kvLayout(ranks);
  if (!s.kvPieceOwners.empty()) desc.kvLayout = &givenKeys;
  seqparAttnPlan_t made = nullptr;
  if (auto e = check(seqparAttnPlanCreate(&made, &desc, comm), "create"); !e.empty()) return e;
  const std::unique_ptr<std::remove_pointer_t<seqparAttnPlan_t>, decltype(&seqparAttnPlanDestroy)> plan(
      made, &seqparAttnPlanDestroy);
  seqparLayout_t layout = SEQPAR_LAYOUT_INITIALIZER;
  int64_t tokens = 0;
  if (auto e = check(seqparAttnPlanLayout(made, &layout, &tokens), "layout"); !e.empty()) return e;
  const auto globals = globalsOf(layout, s.tokensOfRanks, rank);
  if (static_cast<int64_t>(globals.size()) != tokens) return "the plan's number of tokens is not the layout's";
  auto keyGlobals = globals;
  if (s.kvTokens != 0) {
    layout.tokens = s.kvTokens;
    layout.ranks = ranks;
    keyGlobals = globalsOf(s.kvPieceOwners.empty() ? layout : givenKeys, {}, rank);
  }

  const auto* const placement = options.placement;
  size_t bytes = 0;
  seqparAttnPlanWorkspaceSize(made, &bytes);
  const std::unique_ptr<void, decltype(&std::free)> onHost(
      options.ownWorkspace && placement == nullptr ? std::aligned_alloc(256, bytes + 256 - bytes % 256) : nullptr,
      &std::free);
  void* const workspace =
      options.ownWorkspace && placement != nullptr ? placement->allocate(rank, bytes) : onHost.get();
  if (auto e = check(seqparAttnPlanPrepare(made, workspace, options.ownWorkspace ? bytes : 0), "prepare"); !e.empty()) {
    return e;
  }

  const auto shard = [&](const std::vector<int64_t>& at, int64_t heads, int64_t dim) {
    return Shard(s.type, s.batch, at, heads, dim, s.headsFirst);
  };
  auto q = shard(globals, s.heads, s.headDim), dq = q, out = shard(globals, s.heads, s.valueDim), dOut = out;
  auto k = shard(keyGlobals, s.kvHeads, s.headDim), dk = k, v = shard(keyGlobals, s.kvHeads, s.valueDim), dv = v;
  q.take(c.q, s.tokens);
  k.take(c.k, s.keys());
  v.take(c.v, s.keys());
  dOut.take(c.dOut, s.tokens);
  std::vector<float> lse(static_cast<size_t>(s.batch * s.heads * tokens), NAN);
  std::vector<float> sinks(c.sinks.begin(), c.sinks.end());
  dSinks.assign(sinks.size(), NAN);
  for (auto* each : {&q, &k, &v, &out, &dOut, &dq, &dk, &dv}) each->place(placement, rank, s.odd);
  PlacedFloats lseAt(lse, placement, rank, s.odd), sinksAt(sinks, placement, rank, s.odd);
  PlacedFloats dSinksAt(dSinks, placement, rank, s.odd);

  // The reserve belongs to its pass: another forward pass, with other inputs (first NaN), runs between a pass and its
  // backward pass.
  size_t reserveBytes = 0;
  seqparAttnPlanReserveSize(made, &reserveBytes);
  Reserve reserve(reserveBytes, placement, rank), otherReserve(reserveBytes, placement, rank);
  auto otherOut = out;
  std::vector<float> otherLse = lse;
  if (s.reserve) otherOut.place(placement, rank, s.odd);
  PlacedFloats otherLseAt(otherLse, s.reserve ? placement : nullptr, rank, s.odd);

  const auto calls = [&](void* stream) -> std::string {
    for (int round = 0; round < options.rounds; ++round) {
      seqparAttnForwardArgs_t f = SEQPAR_ATTN_FORWARD_INITIALIZER;
      f.q = q.view();
      f.k = k.view();
      f.v = v.view();
      f.out = out.view();
      f.lse = lseAt.data();
      f.sinks = sinksAt.data();
      f.reserve = reserve.data();
      if (auto e = check(seqparAttnForward(made, &f, stream), "forward"); !e.empty()) return e;
      if (s.reserve) {
        auto other = f;
        other.q = dq.view();
        other.k = dk.view();
        other.v = dv.view();
        other.out = otherOut.view();
        other.lse = otherLseAt.data();
        other.reserve = otherReserve.data();
        if (auto e = check(seqparAttnForward(made, &other, stream), "another forward"); !e.empty()) return e;
      }
      seqparAttnBackwardArgs_t b = SEQPAR_ATTN_BACKWARD_INITIALIZER;
      b.q = f.q;
      b.k = f.k;
      b.v = f.v;
      b.out = f.out;
      b.lse = lseAt.data();
      b.sinks = sinksAt.data();
      b.dOut = dOut.view();
      b.dq = dq.view();
      b.dk = dk.view();
      b.dv = dv.view();
      b.dSinks = dSinksAt.data();
      b.reserve = reserve.data();
      if (auto e = check(seqparAttnBackward(made, &b, stream), "backward"); !e.empty()) return e;
    }
    return "";
  };
  if (placement != nullptr) {
    placement->barrier();
    auto e = placement->run(rank, calls);
    placement->barrier();
    if (!e.empty()) return e;
  } else {
    seqparStream_t stream = nullptr;
    if (options.onStream) seqparStreamCreate(&stream);
    const std::unique_ptr<std::remove_pointer_t<seqparStream_t>, decltype(&seqparStreamDestroy)> streamOwner(
        stream, &seqparStreamDestroy);
    if (auto e = calls(stream); !e.empty()) return e;
    if (stream != nullptr && seqparStreamSynchronize(stream) != seqparSuccess) return "synchronize";
  }
  for (auto* each : {&out, &dq, &dk, &dv}) each->fetch(placement, rank);
  lseAt.fetch();
  dSinksAt.fetch();
  out.give(result.out, s.tokens);
  dq.give(result.dq, s.tokens);
  dk.give(result.dk, s.keys());
  dv.give(result.dv, s.keys());
  for (int64_t unit = 0; unit < s.batch * s.heads; ++unit) {
    for (int64_t t = 0; t < tokens; ++t) {
      result.lse[static_cast<size_t>(unit * s.tokens + globals[static_cast<size_t>(t)])] =
          static_cast<double>(lse[static_cast<size_t>(unit * tokens + t)]);
    }
  }
  return "";
}

inline double epsilonOf(seqparDataType_t type) {
  return type == seqparFloat32 ? 0x1p-24 : type == seqparFloat16 ? 0x1p-11 : 0x1p-8;
}

/// The first element with an error above the rounding bound, or "". Sums of n terms with relative error u are off by at
/// most n u times the sum of the terms' sizes; results are rounded to the type, and `out` is rounded before delta is
/// computed from it. bf16 kernels also round the weights and the gradients of scores: once in `out`, hence in delta.
inline std::string difference(const char* name, const std::vector<double>& got, const Numbers& expected,
                              const SoftmaxSpec& s, int ranks) {
  const auto terms = static_cast<double>(2 * (s.headDim + s.valueDim) + s.keys() + s.tokens + 32);
  double bound = 2 * terms * 0x1p-24 + (s.type == seqparBfloat16 ? 4 : 3) * epsilonOf(s.type);
  if (s.wireType != seqparFloat32) bound += 2 * ranks * epsilonOf(s.wireType);
  for (size_t i = 0; i < got.size(); ++i) {
    if (got[i] == expected.value[i] || got[i] == kElsewhere) continue;
    const double least = s.type == seqparFloat16 ? 0x1p-24 : 1e-30;
    if (!(std::abs(got[i] - expected.value[i]) <= bound * expected.size[i] + least)) {
      std::ostringstream text;
      text << name << "[" << i << "] is " << got[i] << ", expected " << expected.value[i] << " within "
           << bound * expected.size[i];
      return text.str();
    }
  }
  return "";
}

/// All differences; dSinks is compared where it is set.
inline std::string differences(const SoftmaxCase& c, const SoftmaxAnswer& answer, const SoftmaxResult& result,
                               int ranks) {
  for (const auto& text :
       {difference("out", result.out, answer.out, c.spec, ranks),
        difference("lse", result.lse, answer.lse, c.spec, ranks), difference("dq", result.dq, answer.dq, c.spec, ranks),
        difference("dk", result.dk, answer.dk, c.spec, ranks), difference("dv", result.dv, answer.dv, c.spec, ranks),
        difference("dSinks", result.dSinks, answer.dSinks, c.spec, ranks)}) {
    if (!text.empty()) return text;
  }
  return "";
}

inline std::string differences(const SoftmaxCase& c, const SoftmaxResult& result, int ranks) {
  return differences(c, SoftmaxAnswer(c), result, ranks);
}

}  // namespace seqpar::attn::test
