// The hop and its wire data: against fp64, exactly, and bitwise between all ways to request equal results.
#include <catch2/catch.hpp>
#include <cmath>
#include <random>

#include "affine_case.h"
#include "base/simd.h"
#include "common/covering.h"
#include "scan/affine/elementwise_kernels.h"
#include "unit/seed.h"

using namespace seqpar;
using namespace seqpar::test;

namespace {

template <size_t N, class T>
T pick(std::mt19937& random, const T (&from)[N]) {
  return from[std::uniform_int_distribution<size_t>(0, N - 1)(random)];
}

void setFlags(Case& c, std::mt19937& random) {
  const unsigned char choices[] = {0, 0, SEQPAR_SCAN_RESET_IN, SEQPAR_SCAN_CUT, SEQPAR_SCAN_RESET_IN | SEQPAR_SCAN_CUT};
  for (unsigned char& flags : c.problem.headFlags) flags = pick(random, choices);
}

size_t terms(const Case& c) {
  return c.problem.op == seqparScanMatrix ? c.problem.dk + 1 : 2;
}

void checkAgainstReference(Case& c, seqparDataType_t xType, std::mt19937& random) {
  const size_t parts[] = {1, 2, 3, 7, 64, 1000};
  const size_t count = pick(random, parts);
  const Tensor x(generate(c.problem.elements(), normal(random)), xType);
  CAPTURE(c.problem.op, c.problem.direction, c.problem.heads, c.problem.dk, c.problem.dv, count);
  CAPTURE(typeName(c.problem.stateType), typeName(c.problem.wireType), typeName(xType), c.problem.decayForm);
  const Reference expected(c, x.floats());
  const Tensor sent = c.hop(x, xType, count);
  const auto error = [&](const Tensor& got, const std::vector<double>& values) {
    return worstError(got.floats(), values, expected.magnitude, terms(c), got.type());
  };
  REQUIRE(error(c.total, expected.total) <= 1.0);
  REQUIRE(error(sent, expected.total) <= 1.0);
  REQUIRE(error(c.prefix, expected.prefix) <= 1.0);
}

}  // namespace

TEST_CASE("a hop agrees with fp64: every operator, direction and combination of types") {
  const seqpar::test::Seed seed;
  std::mt19937 random(seed);
  for (const seqparScanOp_t op : kOps) {
    for (const seqparDirection_t direction : kDirections) {
      for (const seqparDataType_t state : kTypes) {
        for (const seqparDataType_t wire : kTypes) {
          for (const seqparDataType_t x : kTypes) {
            for (const size_t dv : {16, 37}) {
              Case c(op, 3, 20, dv, state, wire, normal(random), normal(random));
              c.problem.direction = direction;
              setFlags(c, random);
              checkAgainstReference(c, x, random);
            }
          }
        }
      }
    }
  }
}

TEST_CASE("a hop agrees with fp64: every shape, blocks of any number") {
  const seqpar::test::Seed seed;
  std::mt19937 random(seed);
  for (const seqparScanOp_t op : kOps) {
    for (const size_t heads : {1, 3}) {
      for (const size_t dk : {1, 3, 16, 17, 64, 128}) {
        for (const size_t dv : {1, 3, 16, 17, 64, 128}) {
          Case c(op, heads, dk, dv, pick(random, kTypes), pick(random, kTypes), normal(random), normal(random),
                 random() % 2 == 0);
          c.problem.direction = pick(random, kDirections);
          setFlags(c, random);
          checkAgainstReference(c, pick(random, kTypes), random);
        }
      }
    }
  }
}

TEST_CASE("log-decays are exponentiated, and -inf discards the state") {
  const seqpar::test::Seed seed;
  std::mt19937 random(seed);
  const Generator logs = [&random] {
    return random() % 5 == 0 ? -INFINITY : -std::exponential_distribution<float>()(random);
  };
  for (const seqparScanOp_t op : {seqparScanScalar, seqparScanDiag}) {
    for (const seqparDecayForm_t form : {seqparDecayLog, seqparDecayLog2}) {
      Case c(op, 20, 9, 33, seqparFloat32, seqparFloat32, normal(random), logs);
      c.problem.decayForm = form;
      checkAgainstReference(c, seqparFloat32, random);
      std::vector<float> coefficients(c.transition.size());
      const auto map = c.affine();
      map->packCoefficients(map->split(1).front(), coefficients.data());
      for (size_t i = 0; i < coefficients.size(); ++i) {
        if (std::isinf(c.transition[i])) CHECK(coefficients[i] == 0.0F);
      }
    }
  }
}

TEST_CASE("small integers and powers of two give the exact result, rounded once to each type") {
  const seqpar::test::Seed seed;
  std::mt19937 random(seed);
  for (const seqparScanOp_t op : kOps) {
    for (const seqparDirection_t direction : kDirections) {
      for (const seqparDataType_t state : kTypes) {
        for (const seqparDataType_t wire : kTypes) {
          for (const size_t dv : {1, 48, 50}) {
            Case c(op, 3, 70, dv, state, wire, small(random), powers(random));
            c.problem.direction = direction;
            setFlags(c, random);
            CAPTURE(op, direction, typeName(state), typeName(wire), dv);
            const Tensor x(generate(c.problem.elements(), small(random)), seqparFloat32);
            const Reference expected(c, x.floats());
            const Tensor sent = c.hop(x, pick(random, kTypes), 1 + random() % 20);
            REQUIRE(c.total.floats() ==
                    Tensor(std::vector<float>(expected.total.begin(), expected.total.end()), state).floats());
            REQUIRE(sent.floats() ==
                    Tensor(std::vector<float>(expected.total.begin(), expected.total.end()), wire).floats());
            REQUIRE(c.prefix.floats() ==
                    Tensor(std::vector<float>(expected.prefix.begin(), expected.prefix.end()), state).floats());
          }
        }
      }
    }
  }
}

TEST_CASE("blocks and alignment do not change the bits of a result") {
  const seqpar::test::Seed seed;
  for (const seqparScanOp_t op : kOps) {
    for (const auto& [dk, dv] : {std::pair<size_t, size_t>{40, 5}, {17, 64}, {128, 100}, {400, 128}}) {
      for (const seqparDataType_t type : kTypes) {
        std::vector<std::byte> total, wire;
        for (const size_t parts : {1, 3, 11, 500}) {
          for (const bool skewed : {false, true}) {
            if (!covers(parts == 3 || parts == 500, static_cast<size_t>(type), skewed, 2)) continue;
            std::mt19937 random(seed);
            Case c(op, 3, dk, dv, type, type, normal(random), normal(random), skewed);
            const Tensor x(generate(c.problem.elements(), normal(random)), type);
            const Tensor sent = c.hop(x, type, parts);
            if (total.empty()) {
              total = c.total.bits();
              wire = sent.bits();
            }
            CAPTURE(op, c.problem.dk, c.problem.dv, typeName(type), parts, skewed);
            REQUIRE(c.total.bits() == total);
            REQUIRE(sent.bits() == wire);
          }
        }
      }
    }
  }
}

TEST_CASE("non-temporal stores write the same bits") {
  const seqpar::test::Seed seed;
  for (const seqparScanOp_t op : kOps) {
    for (const auto& [dk, dv] : {std::pair<size_t, size_t>{16, 64}, {7, 33}, {1, 16}}) {
      for (const seqparDataType_t type : kTypes) {
        for (const seqparDataType_t wireType : kTypes) {
          const auto sent = [&, dk = dk, dv = dv](Store store, size_t skew) {
            std::mt19937 random(seed);
            Case c(op, 3, dk, dv, type, wireType, normal(random), normal(random));
            setFlags(c, random);
            const Tensor x(generate(c.problem.elements(), normal(random)), wireType);
            return c.hop(x, wireType, 2, store, skew).bits();
          };
          CAPTURE(op, dk, dv, typeName(type), typeName(wireType));
          const auto cached = sent(Store::Cached, 0);
          CHECK(sent(Store::Streamed, 0) == cached);
          CHECK(sent(Store::Streamed, sizeOf(wireType)) == cached);
        }
      }
    }
  }
}

TEST_CASE("outputs in place and unused outputs") {
  const seqpar::test::Seed seed;
  for (const seqparScanOp_t op : kOps) {
    for (const seqparDirection_t direction : kDirections) {
      for (const seqparDataType_t type : kTypes) {
        for (const size_t dv : {7, 64}) {
          const auto make = [&](std::mt19937& random) {
            auto c = std::make_unique<Case>(op, 4, 24, dv, type, seqparFloat32, normal(random), normal(random));
            c->problem.direction = direction;
            setFlags(*c, random);
            return c;
          };
          std::mt19937 random(seed);
          const auto plain = make(random);
          const Tensor x(generate(plain->problem.elements(), normal(random)), type);
          const size_t parts = 1 + random() % 9;
          CAPTURE(op, direction, typeName(type), dv, parts);
          const Tensor sent = plain->hop(x, type, parts);
          for (const bool prefixInPlace : {true, false}) {
            for (const bool other : {true, false}) {
              random.seed(seed);
              const auto c = make(random);
              ScanProblem& p = c->problem;
              p.prefix = prefixInPlace ? c->state.data() : other ? c->prefix.data() : nullptr;
              p.total = !prefixInPlace ? c->state.data() : other ? c->total.data() : nullptr;
              CHECK(c->hop(x, type, parts).bits() == sent.bits());
              CHECK(c->state.bits() == (prefixInPlace ? plain->prefix : plain->total).bits());
              if (other && prefixInPlace) CHECK(c->total.bits() == plain->total.bits());
              if (other && !prefixInPlace) CHECK(c->prefix.bits() == plain->prefix.bits());
            }
          }
          for (const bool wantPrefix : {true, false}) {
            random.seed(seed);
            const auto c = make(random);
            const auto untouched = c->total.bits();
            (wantPrefix ? c->problem.total : c->problem.prefix) = nullptr;
            const auto map = c->affine();
            for (const Block block : map->split(parts))
              map->hop(block, {c->pack(block, x, type).data(), type}, nullptr);
            CHECK(c->prefix.bits() == (wantPrefix ? plain->prefix.bits() : untouched));
            CHECK(c->total.bits() == (wantPrefix ? untouched : plain->total.bits()));
          }
        }
      }
    }
  }
}

TEST_CASE("position 0 sends its state before any input") {
  const seqpar::test::Seed seed;
  std::mt19937 random(seed);
  for (const seqparScanOp_t op : kOps) {
    for (const seqparDataType_t wire : kTypes) {
      for (const bool given : {true, false}) {
        Case c(op, 5, 12, 40, pick(random, kTypes), wire, normal(random), normal(random));
        setFlags(c, random);
        const Tensor initial(generate(c.problem.elements(), normal(random)), c.problem.stateType);
        c.problem.first = true;
        c.problem.initial = given ? initial.data() : nullptr;
        const Reference expected(c, given ? initial.floats() : std::vector<float>(c.problem.elements()));
        const auto map = c.affine();
        for (const Block block : map->split(7)) {
          std::vector<std::byte> packed(map->stateElements(block) * sizeOf(wire));
          std::vector<std::byte> hopped(packed.size());
          std::vector<float> coefficients(map->coefficientElements(block), 5.0F);
          map->packState(block, packed.data());
          map->packCoefficients(block, coefficients.data());
          map->hop(block, {}, hopped.data());
          CHECK(packed == hopped);
          CHECK(coefficients == std::vector<float>(coefficients.size(), 0.0F));
        }
        CHECK(worstError(c.total.floats(), expected.total, expected.magnitude, terms(c), c.problem.stateType) <= 1.0);
        CHECK(worstError(c.prefix.floats(), expected.prefix, expected.magnitude, terms(c), c.problem.stateType) <= 1.0);
        if (!given) CHECK(c.total.bits() == c.state.bits());
      }
    }
  }
}

TEST_CASE("discarded values leave no trace, kept values do") {
  const float inf = INFINITY;
  for (const float poison : {std::nanf(""), inf, -inf}) {
    for (const seqparScanOp_t op : kOps) {
      for (const seqparDataType_t type : kTypes) {
        for (const unsigned char flags : {0, 1, 2, 3}) {
          for (const size_t dv : {3, 32}) {
            std::mt19937 random(1);
            Case c(op, 2, 5, dv, type, type, small(random), [] { return 0.5F; });
            c.problem.headFlags[1] = flags;
            CAPTURE(poison, op, typeName(type), static_cast<int>(flags), dv);
            const Tensor x(std::vector<float>(c.problem.elements(), poison), type);
            const std::vector<float> s = c.state.floats();
            const std::vector<float> sent = c.hop(x, type, 1).floats();
            const std::vector<float> total = c.total.floats();
            const std::vector<float> prefix = c.prefix.floats();
            for (size_t e = 0; e < s.size(); ++e) {
              const bool flagged = e >= s.size() / 2;
              const bool forgets = flagged && flags != 0;
              REQUIRE((forgets ? total[e] == s[e] : !std::isfinite(total[e])));
              REQUIRE((forgets ? sent[e] == s[e] : !std::isfinite(sent[e])));
              const bool reset = flagged && (flags & SEQPAR_SCAN_RESET_IN) != 0;
              REQUIRE((reset ? prefix[e] == 0.0F : !std::isfinite(prefix[e])));
            }
          }
        }
      }
    }
  }
}

TEST_CASE("a factor of 0, of either sign or from a logarithm, discards NaN and infinity") {
  for (const float poison : {std::nanf(""), INFINITY}) {
    for (const size_t dv : {1, 3, 16, 40}) {
      for (const seqparDecayForm_t form : {seqparDecayLinear, seqparDecayLog, seqparDecayLog2}) {
        const float zero = form == seqparDecayLinear ? -0.0F : -INFINITY;
        std::mt19937 random(2);
        int row = 0;
        Case c(seqparScanDiag, 3, 8, dv, seqparFloat32, seqparFloat32, small(random),
               [&] { return row++ % 2 == 0 ? zero : 0.25F; });
        c.problem.decayForm = form;
        c.hop(Tensor(std::vector<float>(c.problem.elements(), poison), seqparFloat32), seqparFloat32, 3);
        const std::vector<float> s = c.state.floats();
        const std::vector<float> total = c.total.floats();
        for (size_t e = 0; e < s.size(); ++e) {
          CAPTURE(poison, dv, form, e);
          REQUIRE(((e / dv) % 2 == 0 ? total[e] == s[e] : !std::isfinite(total[e])));
        }
      }
    }
  }
}

TEST_CASE("kernels of every instruction set give the same exact results and write only their output") {
  const seqpar::test::Seed seed;
  std::mt19937 random(seed);
  for (const seqparDataType_t xType : kTypes) {
    for (const seqparDataType_t sType : kTypes) {
      for (const seqparDataType_t wType : kTypes) {
        for (const size_t span : {1, 16, 48}) {
          const size_t count = 1 + random() % 200;
          CAPTURE(typeName(xType), typeName(sType), typeName(wType), span, count);
          const Tensor x(generate(count, small(random)), xType);
          const Tensor s(generate(count, small(random)), sType);
          const std::vector<float> c = generate(count, powers(random));
          std::vector<std::vector<std::byte>> results;
          for (const Isa isa : supportedIsas()) {
            Tensor prefix(count + 32, sType), total(count + 32, sType), wire(count + 32, wType);
            HopRun run;
            run.x = x.data();
            run.s = s.data();
            run.prefix = prefix.data();
            run.total = total.data();
            run.wire = wire.data();
            run.coefficients = c.data();
            run.span = span;
            run.skip = span == 48 ? 16 : 0;
            run.count = count;
            hopKernels(isa).kernel[xType][sType][wType](run);
            std::vector<std::byte> all = prefix.bits();
            for (const Tensor* more : {&total, &wire}) {
              const std::vector<std::byte> bits = more->bits();
              all.insert(all.end(), bits.begin(), bits.end());
            }
            results.push_back(all);
            REQUIRE(results.back() == results.front());
            const size_t end = count * sizeOf(wType);
            const std::vector<std::byte> bits = wire.bits();
            REQUIRE(std::all_of(bits.begin() + static_cast<std::ptrdiff_t>(end), bits.end(),
                                [](std::byte b) { return b == std::byte{0xa5}; }));
          }
        }
      }
    }
  }
}
