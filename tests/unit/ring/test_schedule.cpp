// The schedules of rings, executed for all places together in memory.
#include <catch2/catch.hpp>
#include <set>
#include <vector>

#include "ring/schedule.h"

using namespace seqpar;

namespace {

constexpr size_t kCacheLine = 64;
/// Empty, less than a slice, a little more than one, many slices and a rest.
const std::vector<size_t> kTensors{0, 40, (64 << 10) + 1, (1 << 20) + 200};

/// The owner of the tensor in each line of a buffer.
using Tensor = std::vector<int>;
using Set = std::vector<Tensor>;

Set filled(int origin) {
  Set set;
  for (const size_t bytes : kTensors) set.emplace_back((bytes + kCacheLine - 1) / kCacheLine, origin);
  return set;
}

/// The order that the public header documents, implemented independently.
int expectedOrigin(const RingForm& form, int place, int step) {
  const int windows = form.places / form.inner;
  const int sign = form.reverse ? 1 : -1;
  const int window = place / form.inner + sign * (step / form.inner) + form.places * windows;
  const int number = place % form.inner + sign * (step % form.inner) + form.places * form.inner;
  return window % windows * form.inner + number % form.inner;
}

class World {
 public:
  explicit World(const RingForm& form) : form_(form) {
    for (int place = 0; place < form.places; ++place) {
      schedules_.push_back(ringSchedule(form, place));
      sets_.emplace_back(static_cast<size_t>(schedules_.back().sets), filled(-1));
      sets_.back()[0] = filled(place);
      current_.push_back(0);
    }
  }

  size_t steps() const { return schedules_[0].steps.size(); }
  int sets() const { return schedules_[0].sets; }
  const Set& current(int place) const { return setOf(place, current_[static_cast<size_t>(place)]); }
  const Set& home(int place) const { return setOf(place, 0); }

  void take(size_t step) {
    const auto before = sets_;
    for (int place = 0; place < form_.places; ++place) takePart(place, step, before);
    for (int place = 0; place < form_.places; ++place) {
      current_[static_cast<size_t>(place)] = stepOf(place, step).current;
    }
  }

 private:
  const RingStep& stepOf(int place, size_t step) const { return schedules_[static_cast<size_t>(place)].steps[step]; }
  const Set& setOf(int place, int set) const { return sets_[static_cast<size_t>(place)][static_cast<size_t>(set)]; }

  void takePart(int place, size_t step, const std::vector<std::vector<Set>>& before) {
    std::set<int> senders, receivers, written;
    for (const auto& move : stepOf(place, step).moves) {
      CHECK(senders.insert(move.from).second);
      CHECK(receivers.insert(move.to).second);
      CHECK(written.insert(move.receiveSet).second);
      CHECK(move.from != place);
      CHECK(move.to != place);
      const RingMove& remote = matching(move, place, step);
      CHECK(remote.sendOrigin == move.receiveOrigin);
      CHECK(remote.receiveSet == move.receiveSet);
      CHECK(remote.slice == move.slice);
      CHECK(remote.slices == move.slices);
      copy(before[static_cast<size_t>(move.from)][static_cast<size_t>(remote.sendSet)],
           sets_[static_cast<size_t>(place)][static_cast<size_t>(move.receiveSet)], move);
    }
    // Meanwhile, the caller reads the current tensor, and other movements read the tensors that they send.
    CHECK(written.count(current_[static_cast<size_t>(place)]) == 0);
    for (const auto& move : stepOf(place, step).moves) CHECK(written.count(move.sendSet) == 0);
  }

  const RingMove& matching(const RingMove& move, int place, size_t step) const {
    for (const auto& remote : stepOf(move.from, step).moves) {
      if (remote.to == place) return remote;
    }
    FAIL("nobody sends what place " << place << " receives from " << move.from);
    return move;
  }

  static void copy(const Set& from, Set& to, const RingMove& move) {
    for (size_t tensor = 0; tensor < kTensors.size(); ++tensor) {
      const Slice slice = sliceOf(kTensors[tensor], move.slice, move.slices);
      REQUIRE(slice.offset + slice.bytes <= kTensors[tensor]);
      for (size_t line = slice.offset / kCacheLine; line * kCacheLine < slice.offset + slice.bytes; ++line) {
        to[tensor][line] = from[tensor][line];
      }
    }
  }

  RingForm form_;
  std::vector<RingSchedule> schedules_;
  std::vector<std::vector<Set>> sets_;  ///< [place][set]
  std::vector<int> current_;
};

void checkForm(const RingForm& form) {
  CAPTURE(form.places, form.inner, form.reverse, form.unchanged, form.keepHome, form.steps);
  World world(form);
  CHECK(world.sets() <= (form.keepHome ? 5 : 4));
  REQUIRE(world.steps() == static_cast<size_t>(form.steps));
  std::vector<std::set<int>> seen(static_cast<size_t>(form.places));
  for (int step = 0; step <= form.steps; ++step) {
    for (int place = 0; place < form.places; ++place) {
      const int origin = expectedOrigin(form, place, step);
      CHECK(ringOrigin(form, place, step) == origin);
      CHECK(world.current(place) == filled(origin));
      if (form.keepHome) CHECK(world.home(place) == filled(place));
      const bool isNew = seen[static_cast<size_t>(place)].insert(origin).second;
      CHECK(isNew == (step < form.places));
    }
    if (step < form.steps) world.take(static_cast<size_t>(step));
  }
}

}  // namespace

TEST_CASE("every form of a ring shows every block to every rank once") {
  for (int places = 1; places <= 12; ++places) {
    for (int inner = 1; inner <= places; ++inner) {
      if (places % inner != 0) continue;
      for (int bits = 0; bits < 8; ++bits) {
        for (const int steps : {places - 1, places}) {
          checkForm({places, inner, (bits & 1) != 0, (bits & 2) != 0, (bits & 4) != 0, steps});
        }
      }
    }
  }
}

TEST_CASE("a round may end after any number of steps") {
  for (int steps = 0; steps <= 12; ++steps) {
    for (const int inner : {1, 2, 3, 4, 6, 12}) {
      checkForm({12, inner, false, true, false, steps});
      checkForm({12, inner, true, true, true, steps});
    }
  }
}

TEST_CASE("a double ring crosses between windows once for each window") {
  for (const bool unchanged : {true, false}) {
    const RingForm form{12, 4, false, unchanged, false, 11};
    double crossed = 0, all = 0;
    for (int place = 0; place < form.places; ++place) {
      for (const auto& step : ringSchedule(form, place).steps) {
        for (const auto& move : step.moves) {
          all += 1.0 / move.slices;
          if (move.to / form.inner != place / form.inner) crossed += 1.0 / move.slices;
        }
      }
    }
    CHECK(crossed == Approx(12 * 2));
    CHECK(all == Approx(12 * 11));
  }
}

TEST_CASE("slices cover a tensor in order and have the size of a message") {
  for (const size_t bytes : {size_t{0}, size_t{1}, size_t{64} << 10, (size_t{64} << 10) + 1, size_t{1000003}}) {
    for (const int slices : {1, 2, 3, 7, 64}) {
      CAPTURE(bytes, slices);
      size_t covered = 0;
      for (int slice = 0; slice < slices; ++slice) {
        const Slice part = sliceOf(bytes, slice, slices);
        CHECK(part.offset == covered);
        CHECK((part.offset % 64 == 0 || part.bytes == 0));
        covered += part.bytes;
        CHECK((part.bytes == 0 || part.bytes >= (size_t{64} << 10) || covered == bytes));
      }
      CHECK(covered == bytes);
    }
  }
}
