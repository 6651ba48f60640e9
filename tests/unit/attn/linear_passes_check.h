// Passes of linear attention compared with the recurrence. Between the passes the ranks' maps are composed one after
// the other.
#pragma once

#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <functional>
#include <numeric>
#include <random>
#include <sstream>

#include "attn/exec/host.h"
#include "attn/linear/passes/passes.h"
#include "base/convert.h"
#include "support/linear_case.h"

namespace seqpar::attn::linear::test {

using namespace seqpar::test;

using Maker = std::function<std::unique_ptr<Passes>(const Shard&, Exec&)>;

/// A caller's array of some type.
struct Array {
  std::vector<std::byte> bytes;
  Tensor tensor;
  Array(int type, size_t batch, size_t tokens, size_t heads, size_t dim) {
    const auto as = [](size_t x) { return static_cast<int64_t>(x); };
    tensor = denseTensor(nullptr, static_cast<seqparDataType_t>(type), as(batch), as(tokens), as(heads), as(dim));
    bytes.assign(tensor.bytes() + 1, std::byte{0xff});
    tensor.data = bytes.data();
  }
  void set(const std::vector<float>& numbers) { fromFloat(numbers.data(), tensor.data, tensor.type, numbers.size()); }
  std::vector<float> get() const {
    std::vector<float> numbers(static_cast<size_t>(tensor.elements()));
    toFloat(tensor.data, tensor.type, numbers.data(), numbers.size());
    return numbers;
  }
};

inline std::vector<float> slice(const LinearCase& c, const std::vector<float>& numbers, size_t row, size_t begin,
                                size_t end) {
  std::vector<float> part;
  for (size_t b = 0; b < c.batch; ++b) {
    const auto at = numbers.begin() + static_cast<long>(b * c.tokens * row);
    part.insert(part.end(), at + static_cast<long>(begin * row), at + static_cast<long>(end * row));
  }
  return part;
}

inline Bounded slice(const LinearCase& c, const Bounded& all, size_t row, size_t begin, size_t end) {
  Bounded part;
  for (size_t b = 0; b < c.batch; ++b) {
    const auto first = static_cast<long>((b * c.tokens + begin) * row),
               last = static_cast<long>((b * c.tokens + end) * row);
    part.value.insert(part.value.end(), all.value.begin() + first, all.value.begin() + last);
    part.magnitude.insert(part.magnitude.end(), all.magnitude.begin() + first, all.magnitude.begin() + last);
  }
  return part;
}

inline Gates gatesOf(const LinearCase& c, const Array& gate, const Array& beta) {
  if (!c.hasBeta()) return {c.hasGate() ? gate.tensor : Tensor{}};
  return c.hasGate() ? Gates{gate.tensor, beta.tensor} : Gates{beta.tensor};
}

struct Rank {
  size_t begin, end;
  Shard shard;
  HostExec exec;
  std::unique_ptr<Passes> passes;
  std::shared_ptr<void> memory;
  std::vector<std::byte> reserve;
  Array q, k, v, gate, beta, out, dOut, dq, dk, dv, dGate, dBeta;
  std::vector<float> saved, incoming, final, dBefore, dInitial;
  Inputs in;
  Gradients gradients;

  Rank(const LinearCase& c, size_t first, size_t behind, bool alone, int threads, const Maker& make)
      : begin(first),
        end(behind),
        exec(threads, nullptr),
        q(c.dataType, c.batch, end - begin, c.keyHeads, c.dk),
        k(q),
        v(c.dataType, c.batch, end - begin, c.heads, c.dv),
        gate(c.gateType, c.perHead() ? 1 : c.batch, c.perHead() ? 1 : end - begin, c.heads,
             std::max<size_t>(1, c.gateWidth())),
        beta(c.betaType, c.batch, end - begin, c.heads, 1),
        out(v),
        dOut(v),
        dq(q),
        dk(q),
        dv(v),
        dGate(gate),
        dBeta(beta) {
    shard.family = findFamily(c.family);
    shard.batch = c.batch;
    shard.tokens = end - begin;
    shard.heads = c.heads;
    shard.keyHeads = c.keyHeads;
    shard.dk = c.dk;
    shard.dv = c.dv;
    shard.sequences = c.cuSeqlens.empty() ? 0 : c.cuSeqlens.size() - 1;
    shard.scale = c.scale;
    shard.normalize = c.normalize;
    shard.alone = alone;
    shard.pieces = cutIntoPieces(c.cuSeqlens, static_cast<int64_t>(begin), static_cast<int64_t>(end));
    shard.type = static_cast<seqparDataType_t>(c.dataType);
    if (c.hasBeta()) shard.gateTypes = {c.hasGate() ? c.gateType : c.betaType, c.betaType};
    passes = make(shard, exec);
    Arena counting;
    passes->carve(counting);
    memory = exec.allocate(counting.used(), "a test");
    std::memset(memory.get(), 0xff, counting.used());
    Arena arena(memory.get());
    passes->carve(arena);
    Arena reserved;
    passes->carveReserve(reserved);
    useReserve(std::vector<std::byte>(reserved.used(), std::byte{0xff}));
    passes->open();
    for (auto* array : {&k, &out, &dOut, &dq, &dk, &dv, &dGate, &q, &v, &gate, &beta, &dBeta})
      array->tensor.data = array->bytes.data();
    q.set(slice(c, c.q, c.keyHeads * c.dk, begin, end));
    k.set(slice(c, c.k, c.keyHeads * c.dk, begin, end));
    v.set(slice(c, c.v, c.heads * c.dv, begin, end));
    dOut.set(slice(c, c.dOut, c.heads * c.dv, begin, end));
    if (c.hasBeta()) beta.set(slice(c, c.beta, c.heads, begin, end));
    if (c.hasGate()) gate.set(c.perHead() ? c.gate : slice(c, c.gate, c.heads * c.gateWidth(), begin, end));
    for (auto* states : {&saved, &incoming, &final, &dBefore}) states->assign(c.states(), NAN);
    dInitial.assign(shard.sequences * c.heads * c.dk * c.dv, NAN);
    in = {q.tensor, k.tensor, v.tensor, gatesOf(c, gate, beta),
          c.cuSeqlens.empty() || !c.hasInitial ? nullptr : c.initial.data()};
    gradients = {dOut.tensor,
                 dq.tensor,
                 dk.tensor,
                 dv.tensor,
                 gatesOf(c, dGate, dBeta),
                 shard.sequences == 0 ? nullptr : dInitial.data()};
  }

  void useReserve(std::vector<std::byte> bytes) {
    reserve = std::move(bytes);
    Arena arena(reserve.data());
    passes->carveReserve(arena);
  }

  /// total = A x + S, with the flags' meaning.
  std::vector<float> apply(const std::vector<float>& x, seqparDirection_t direction) const {
    std::vector<float> total(x.size());
    const size_t size = shard.stateSize(), width = shard.width(), rows = shard.dk, columns = shard.dv;
    const StateMap map = passes->map();
    const bool cut = shard.flags(direction) != 0;
    for (size_t h = 0; h < shard.allHeads(); ++h) {
      for (size_t i = 0; i < size; ++i) {
        double sum = 0;
        if (map.kind == seqparScanMatrix) {
          for (size_t d = 0; d < rows && !cut; ++d) {
            const size_t at = direction == seqparForward ? i / columns * rows + d : d * rows + i / columns;
            sum += static_cast<double>(map.transition[h * rows * rows + at]) *
                   static_cast<double>(x[h * size + d * columns + i % columns]);
          }
        } else {
          const float factor = map.transition[h * width + (width == 1 ? 0 : i / columns)];
          sum = static_cast<double>(cut || factor == 0 ? 0 : factor * x[h * size + i]);
        }
        total[h * size + i] = static_cast<float>(static_cast<double>(map.states[h * size + i]) + sum);
      }
    }
    return total;
  }
};

/// Empty, or by how much the norm of the errors of a kernel with 16-bit operands exceeds the bound.
///
/// A result passes at most 16 roundings, each by at most half an ulp: of an input's row, a score, T, W, U, D, a state
/// or a gradient of these, and of the result. Their errors are independent, so their squares add up. The rounding
/// errors of a sum's terms are independent, as the terms are, so the norms of both grow with the root of the number of
/// terms, and their ratio is that of one term. An operand below the smallest normal number of fp16 has an error of up
/// to 2^-25 instead. This holds for well-conditioned cases of many elements, not for every random one.
inline std::string farInNorm(const Bounded& expected, const std::vector<float>& found, int type) {
  constexpr double kRoundings = 16;
  const double halfUlp = type == seqparBfloat16 ? 0x1p-8 : 0x1p-11, least = type == seqparBfloat16 ? 0 : 0x1p-25;
  double error = 0, norm = 0, terms = 0;
  for (size_t i = 0; i < found.size(); ++i) {
    error += std::pow(static_cast<double>(found[i]) - expected.value[i], 2);
    norm += std::pow(expected.value[i], 2);
    terms += std::pow(expected.magnitude[i] + 1, 2);
  }
  const double allowed = std::sqrt(kRoundings) * (halfUlp * std::sqrt(norm) + least * std::sqrt(terms));
  if (std::sqrt(error) <= allowed) return "";
  std::ostringstream text;
  text << "the norm of " << found.size() << " errors is " << std::sqrt(error) << ", expected at most " << allowed
       << ", the values' is " << std::sqrt(norm);
  return text.str();
}

/// `norms`: also compares norms.
inline void check(const LinearCase& c, const std::vector<size_t>& lengths, int threads,
                  const Maker& make = makeHostPasses, double moreTerms = 0, bool norms = false) {
  std::vector<size_t> borders(lengths.size() + 1, 0);
  std::partial_sum(lengths.begin(), lengths.end(), borders.begin() + 1);
  REQUIRE(borders.back() == c.tokens);
  const LinearReference expected(c, borders);
  const double terms = static_cast<double>(3 * c.tokens + c.dk + c.dv + 100) + moreTerms;
  const auto compare = [&](const char* name, const Bounded& exact, const std::vector<float>& found, int type) {
    INFO(name);
    CHECK(farFrom(exact, found, terms, type) == "");
    if (norms) CHECK(farInNorm(exact, found, c.dataType) == "");
  };
  const size_t count = lengths.size();
  const bool alone = count == 1;
  std::vector<std::unique_ptr<Rank>> ranks;
  for (size_t r = 0; r < count; ++r) {
    ranks.push_back(std::make_unique<Rank>(c, borders[r], borders[r + 1], alone, threads, make));
  }
  const std::vector<float> zeros(c.states(), 0.0f);

  std::vector<float> x = c.cuSeqlens.empty() && c.hasInitial ? c.initial : zeros;
  for (auto& rank : ranks) {
    rank->exec.begin(nullptr);
    rank->saved = x;
    if (alone) {
      rank->passes->forwardAlone(rank->in, rank->out.tensor, x.data(), rank->final.data());
      x = rank->final;
    } else {
      if (rank->shard.flags(seqparForward) & SEQPAR_SCAN_RESET_IN) rank->saved = zeros;
      rank->passes->states(rank->in, MapUse::Whole);
      x = rank->apply(x, seqparForward);
      rank->passes->besideScan(rank->in);
      rank->exec.join();  // as for a scan; otherwise overlapped work would outlive the passes
      rank->passes->outputs(rank->in, rank->out.tensor, rank->saved.data());
    }
  }
  compare("final", expected.final, x, seqparFloat32);

  std::vector<float> y = c.hasFinalGradient ? c.dFinal : zeros;
  for (size_t r = count; r-- > 0;) {
    auto& rank = *ranks[r];
    const std::vector<std::byte> reserve = rank.reserve;
    rank.useReserve(std::vector<std::byte>(reserve));  // at another address
    if (alone) {
      rank.passes->backwardAlone(rank.in, rank.gradients, rank.saved.data(), y.data(), rank.dBefore.data());
      y = rank.dBefore;
    } else {
      rank.incoming = (rank.shard.flags(seqparReverse) & SEQPAR_SCAN_RESET_IN) != 0 ? zeros : y;
      rank.passes->stateGradients(rank.in, rank.gradients, MapUse::Whole);
      y = rank.apply(y, seqparReverse);
      rank.passes->recompute(rank.in, rank.saved.data());
      rank.exec.join();
      rank.passes->gradients(rank.in, rank.gradients, rank.saved.data(), rank.incoming.data());
    }
    CHECK(rank.reserve == reserve);
  }
  if (c.cuSeqlens.empty()) compare("dInitial", expected.dInitial, y, seqparFloat32);

  std::vector<float> dInitial(expected.dInitial.value.size(), 0.0f), dFixed(c.heads, 0.0f);
  for (size_t r = 0; r < count; ++r) {
    const auto& rank = *ranks[r];
    const size_t begin = borders[r], end = borders[r + 1];
    CAPTURE(r, begin, end);
    compare("out", slice(c, expected.out, c.heads * c.dv, begin, end), rank.out.get(), c.dataType);
    compare("dq", slice(c, expected.dq, c.keyHeads * c.dk, begin, end), rank.dq.get(), c.dataType);
    compare("dk", slice(c, expected.dk, c.keyHeads * c.dk, begin, end), rank.dk.get(), c.dataType);
    compare("dv", slice(c, expected.dv, c.heads * c.dv, begin, end), rank.dv.get(), c.dataType);
    if (c.gateWidth() != 0) {
      compare("dGate", slice(c, expected.dGate, c.heads * c.gateWidth(), begin, end), rank.dGate.get(), c.gateType);
    }
    if (c.hasBeta()) {
      compare("dBeta", slice(c, expected.dBeta, c.heads, begin, end), rank.dBeta.get(), c.betaType);
    }
    if (c.perHead()) {
      const auto mine = rank.dGate.get();
      for (size_t h = 0; h < c.heads; ++h) dFixed[h] += mine[h];
    }
    for (size_t i = 0; i < rank.dInitial.size(); ++i) dInitial[i] += rank.dInitial[i];
  }
  if (c.perHead()) compare("dGate", expected.dGate, dFixed, seqparFloat32);
  if (!c.cuSeqlens.empty()) compare("dInitial", expected.dInitial, dInitial, seqparFloat32);
}

inline LinearCase makeCase(int family, size_t tokens, DecayStrength strength) {
  LinearCase c;
  c.family = family;
  c.tokens = tokens;
  c.heads = 2;
  c.keyHeads = 1;
  c.dk = 9;
  c.dv = 5;
  c.strength = strength;
  c.hasInitial = c.hasFinalGradient = true;
  return c;
}

}  // namespace seqpar::attn::linear::test
