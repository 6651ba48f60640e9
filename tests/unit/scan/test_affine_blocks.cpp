// Division of states into blocks, and composition of maps.
#include <catch2/catch.hpp>
#include <cmath>
#include <filesystem>
#include <random>

#include "affine_case.h"
#include "unit/seed.h"

using namespace seqpar;
using namespace seqpar::test;

namespace {

/// A map in wire form: coefficients and state of one block, fp32.
struct Packed {
  std::vector<float> a, s;

  Packed(const Case& c, Block block) {
    const auto map = c.affine();
    a.resize(map->coefficientElements(block));
    s.resize(map->stateElements(block));
    map->packCoefficients(block, a.data());
    map->packState(block, s.data());
  }
};

Packed compose(const Case& shape, Block block, const Packed& later, Packed earlier) {
  shape.affine()->compose(block, later.a.data(), {later.s.data(), seqparFloat32}, earlier.a.data(), earlier.s.data());
  return earlier;
}

}  // namespace

TEST_CASE("blocks cover the state in order, are no more than asked for, and nearly equal") {
  for (const seqparScanOp_t op : kOps) {
    for (const size_t heads : {1, 2, 5}) {
      for (const size_t dv : {1, 3, 16, 17, 100, 128}) {
        std::mt19937 random(1);
        Case c(op, heads, 9, dv, seqparFloat32, seqparFloat32, small(random), powers(random));
        const auto map = c.affine();
        const Block whole = map->split(1).front();
        REQUIRE(map->stateElements(whole) == c.problem.elements());
        for (const size_t parts : {1, 2, 3, 4, 7, 10, 31, 1000}) {
          for (const bool again : {false, true}) {
            // A second cut of the last block of a first.
            const Block parent = again ? map->split(3).back() : whole;
            const std::vector<Block> blocks = again ? map->split(parent, parts) : map->split(parts);
            CAPTURE(op, heads, dv, parts, again);
            REQUIRE(!blocks.empty());
            REQUIRE(blocks.size() <= parts);
            REQUIRE(blocks.front().begin == parent.begin);
            REQUIRE(blocks.back().end == parent.end);
            size_t sum = 0, least = SIZE_MAX, most = 0;
            for (size_t i = 0; i < blocks.size(); ++i) {
              if (i > 0) REQUIRE(blocks[i].begin == blocks[i - 1].end);
              const size_t elements = map->stateElements(blocks[i]);
              REQUIRE(elements > 0);
              sum += elements;
              least = std::min(least, elements);
              most = std::max(most, elements);
              if (op != seqparScanMatrix && i > 0) REQUIRE(blocks[i].begin % 16 == 0);
              if (op == seqparScanMatrix && parts <= heads && !again) REQUIRE(elements % (9 * dv) == 0);
            }
            REQUIRE(sum == map->stateElements(parent));
            const size_t grain = op != seqparScanMatrix ? 16 : parts / heads > 1 ? 9 * 16 : 9 * dv;
            if (op == seqparScanMatrix && dv % 16 != 0) continue;  // the last panel of each head is narrower
            if (!again) REQUIRE(most - least < 2 * grain);
          }
        }
      }
    }
  }
}

TEST_CASE("an empty state has no blocks") {
  for (const seqparScanOp_t op : kOps) {
    std::mt19937 random(1);
    Case c(op, 0, 4, 4, seqparFloat32, seqparFloat32, small(random), powers(random));
    CHECK(c.affine()->split(4).empty());
  }
}

TEST_CASE("composition is associative and equals two hops, exactly for small values") {
  const seqpar::test::Seed seed;
  std::mt19937 random(seed);
  for (const seqparScanOp_t op : kOps) {
    for (const seqparDirection_t direction : kDirections) {
      for (const size_t dv : {3, 16, 70}) {
        const auto make = [&] {
          // Matrices are kept small in number, so that three of them in a row stay exact.
          auto c = std::make_unique<Case>(op, 3, 7, dv, seqparFloat32, seqparFloat32, small(random), powers(random));
          c->problem.direction = direction;
          c->problem.headFlags[random() % 3] = static_cast<unsigned char>(random() % 4);
          return c;
        };
        const auto first = make(), second = make(), third = make();
        const Tensor x(generate(first->problem.elements(), small(random)), seqparFloat32);
        const size_t parts = 1 + random() % 12;
        CAPTURE(op, direction, dv, parts);
        for (const Block block : first->affine()->split(parts)) {
          const Packed p1(*first, block), p2(*second, block), p3(*third, block);
          const Packed left = compose(*first, block, compose(*first, block, p3, p2), p1);
          const Packed right = compose(*first, block, p3, compose(*first, block, p2, p1));
          REQUIRE(left.a == right.a);
          REQUIRE(left.s == right.s);

          // Hops through the three.
          std::vector<std::byte> state = first->pack(block, x, seqparFloat32);
          for (const Case* c : {first.get(), second.get(), third.get()}) {
            std::vector<std::byte> next(state.size());
            c->affine()->hop(block, {state.data(), seqparFloat32}, next.data());
            state = next;
          }
          // And the composed map, applied as if x were an earlier map's state.
          Packed applied = p1;
          const std::vector<std::byte> dense = first->pack(block, x, seqparFloat32);
          std::memcpy(applied.s.data(), dense.data(), dense.size());
          applied = compose(*first, block, left, applied);
          std::vector<float> hopped(state.size() / sizeof(float));
          std::memcpy(hopped.data(), state.data(), state.size());
          REQUIRE(applied.s == hopped);
        }
      }
    }
  }
}

TEST_CASE("composition reads later states of any type, and a missing state as zeros") {
  const seqpar::test::Seed seed;
  std::mt19937 random(seed);
  for (const seqparScanOp_t op : kOps) {
    for (const seqparDataType_t type : kTypes) {
      Case earlier(op, 2, 6, 20, seqparFloat32, seqparFloat32, small(random), powers(random));
      Case later(op, 2, 6, 20, seqparFloat32, type, small(random), powers(random));
      const auto map = later.affine();
      for (const Block block : map->split(3)) {
        std::vector<float> a(map->coefficientElements(block));
        std::vector<std::byte> s(map->stateElements(block) * sizeOf(type));
        map->packCoefficients(block, a.data());
        map->packState(block, s.data());
        Packed got(earlier, block);
        const Packed original = got;
        map->compose(block, a.data(), {s.data(), type}, nullptr, got.s.data());
        std::vector<float> hopped(got.s.size());
        later.problem.wireType = seqparFloat32;
        later.affine()->hop(block, {original.s.data(), seqparFloat32}, hopped.data());
        later.problem.wireType = type;
        REQUIRE(got.s == hopped);
        REQUIRE(got.a == original.a);

        std::vector<float> without = original.s;
        map->compose(block, a.data(), {nullptr, type}, nullptr, without.data());
        std::vector<float> wide(got.s.size());
        toFloat(s.data(), type, wide.data(), wide.size());
        for (size_t i = 0; i < wide.size(); ++i) REQUIRE(without[i] + wide[i] == got.s[i]);
      }
    }
  }
}

TEST_CASE("a composition is discarded where either part is") {
  for (const seqparScanOp_t op : kOps) {
    for (const bool laterForgets : {true, false}) {
      std::mt19937 random(1);
      Case forgetful(op, 1, 4, 8, seqparFloat32, seqparFloat32, small(random), [] { return 1.0F; });
      forgetful.problem.headFlags[0] = SEQPAR_SCAN_CUT;
      Case poisoned(
          op, 1, 4, 8, seqparFloat32, seqparFloat32, [] { return NAN; }, [] { return NAN; });
      const Block block = forgetful.affine()->split(1).front();
      const Packed cut(forgetful, block), poison(poisoned, block);
      const Packed both =
          laterForgets ? compose(forgetful, block, cut, poison) : compose(forgetful, block, poison, cut);
      CAPTURE(op, laterForgets);
      CHECK(both.a == std::vector<float>(both.a.size(), 0.0F));
      if (laterForgets) CHECK(both.s == cut.s);
    }
  }
}

TEST_CASE("convert copies a block between types") {
  std::mt19937 random(1);
  for (const seqparScanOp_t op : kOps) {
    Case c(op, 2, 6, 20, seqparFloat32, seqparFloat32, small(random), powers(random));
    const auto map = c.affine();
    for (const Block block : map->split(5)) {
      const std::vector<float> values = generate(map->stateElements(block), small(random));
      for (const seqparDataType_t from : kTypes) {
        for (const seqparDataType_t to : kTypes) {
          const Tensor source(values, from);
          Tensor target(values.size(), to);
          map->convert(block, source.values(), target.data(), to);
          REQUIRE(target.floats() == values);
          map->convert(block, {nullptr, from}, target.data(), to);
          REQUIRE(target.floats() == std::vector<float>(values.size(), 0.0F));
        }
      }
    }
  }
}

TEST_CASE("after refresh(), a map has the coefficients of the present arrays") {
  const auto op = GENERATE(seqparScanScalar, seqparScanDiag);
  const auto form = GENERATE(seqparDecayLinear, seqparDecayLog2);
  const unsigned flags = GENERATE(0U, unsigned{SEQPAR_SCAN_CUT});
  CAPTURE(op, form, flags);
  std::mt19937 random(1);
  Case c(op, 3, 5, 16, seqparFloat32, seqparFloat32, small(random), powers(random));
  c.problem.decayForm = form;
  c.problem.headFlags[1] = static_cast<unsigned char>(flags);
  const auto map = c.affine();
  std::vector<float> later = c.transition;
  for (float& value : later) value += 1;
  c.problem.transition = later.data();
  map->refresh();

  const Block all{0, c.problem.elements()};
  std::vector<float> got(map->coefficientElements(all)), expected(got.size());
  map->packCoefficients(all, got.data());
  const size_t each = expected.size() / c.problem.heads;
  for (size_t i = 0; i < expected.size(); ++i) {
    expected[i] = form == seqparDecayLinear ? later[i] : std::exp2(later[i]);
    if (flags != 0 && i / each == 1) expected[i] = 0;
  }
  CHECK(got == expected);
}

TEST_CASE("matrix products stay in the calling thread") {
  const auto threads = [] {
    const std::filesystem::directory_iterator tasks("/proc/self/task");
    return std::distance(begin(tasks), end(tasks));
  };
  std::mt19937 random(1);
  Case c(seqparScanMatrix, 2, 256, 256, seqparFloat32, seqparFloat32, small(random), powers(random));
  const Tensor x(generate(c.problem.elements(), small(random)), seqparFloat32);
  const auto before = threads();
  c.hop(x, seqparFloat32, 1);
  CHECK(threads() == before);
}
