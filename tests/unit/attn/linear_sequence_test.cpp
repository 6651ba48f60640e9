// LaunchSequence: the launches of every kind of call of linear attention on a GPU, as DevicePasses orders them. No
// kernel starts before memory that it accesses is ready, and exactly the expected kernels start early.
#include "kernels/attn/linear/sequence.h"

#include <catch2/catch.hpp>
#include <string>

using namespace seqpar::attn;

namespace {

/// Orders events of launches, independently of LaunchSequence: `before[a][b]`: event a happens before event b, and what
/// a wrote is visible to b.
class Events {
 public:
  Events(const std::vector<LaunchRecord>& launches, const std::vector<bool>& early)
      : launches_(launches), count_(1 + 3 * launches.size()), before_(count_ * count_, false) {
    for (size_t i = 0; i < launches.size(); ++i) {
      order(start(i), wait(i));
      order(wait(i), end(i));
      const size_t previous = i == 0 ? kCaller : end(i - 1);
      order(previous, early[i] ? wait(i) : start(i));
      if (!early[i] || i == 0) continue;
      order(launches[i - 1].trigger == Trigger::AfterWait ? wait(i - 1) : start(i - 1), start(i));
    }
    for (size_t via = 0; via < count_; ++via) {
      for (size_t a = 0; a < count_; ++a) {
        for (size_t b = 0; b < count_; ++b) {
          if (before_[a * count_ + via] && before_[via * count_ + b]) order(a, b);
        }
      }
    }
  }

  /// Whether launch i accesses all memory after earlier launches, and the caller, are done with it.
  bool safe(size_t i) const {
    const LaunchRecord& mine = launches_[i];
    if (mine.readsInputsEarly && !ordered(kCaller, start(i))) return false;
    for (size_t j = 0; j < i; ++j) {
      const LaunchRecord& other = launches_[j];
      const auto conflict = [&](const Buffers& reads, const Buffers& writes) {
        return reads.meets(other.earlyWrites) || reads.meets(other.writes) || writes.meets(other.earlyWrites) ||
               writes.meets(other.writes) || writes.meets(other.earlyReads) || writes.meets(other.reads);
      };
      if (conflict(mine.earlyReads, mine.earlyWrites) && !ordered(end(j), start(i))) return false;
      if (conflict(mine.reads, mine.writes) && !ordered(end(j), wait(i))) return false;
    }
    return true;
  }

 private:
  static constexpr size_t kCaller = 0;  // the end of all work before the call
  static size_t start(size_t i) { return 1 + 3 * i; }
  static size_t wait(size_t i) { return 2 + 3 * i; }
  static size_t end(size_t i) { return 3 + 3 * i; }
  void order(size_t a, size_t b) { before_[a * count_ + b] = true; }
  bool ordered(size_t a, size_t b) const { return before_[a * count_ + b]; }

  const std::vector<LaunchRecord>& launches_;
  size_t count_;
  std::vector<bool> before_;
};

struct Shape {
  int count = 1;  ///< segments
  Maps content = Maps::Prefix;
  bool keeps = false;    ///< the forward left its maps
  int64_t position = 0;  ///< of the scan; 2: the last rank
  bool initial = false;  ///< the first rank has an incoming state
  bool idle = false;     ///< the gradients leave SMs to the scan
};

/// The launches of one call, with memory of its own.
class Call {
 public:
  explicit Call(const Shape& shape) : shape_(shape) {}
  Call(const Call&) = delete;

  void states(bool map, bool early, bool folds = true) {
    SegmentStates pass;
    pass.maps = before_;
    const bool rank = map && shape_.content == Maps::Prefix;
    if (shape_.count - (map ? 0 : 1) == 0) return;
    add(recordOf(pass), early);
    if (folds && (shape_.content == Maps::Prefix || rank)) fold(before_, rank);
  }
  void stateGradients(bool map, bool early) {
    SegmentStates pass;
    pass.maps = after_;
    const bool rank = map && shape_.content == Maps::Prefix;
    if (shape_.count - (map ? 0 : 1) == 0) return;
    add(recordOf(pass), early);
    if (shape_.content == Maps::Prefix || rank) fold(after_, rank);
  }
  void scan(const StateMaps& maps, bool map, bool overlapsNext = false) {
    StateScan pass;
    pass.scan.position = shape_.position;
    pass.maps = shape_.content == Maps::PerSegment ? maps : StateMaps{&rankState_, &rankDecay_};
    pass.segments = !map ? 0 : shape_.content == Maps::PerSegment ? shape_.count : 1;
    pass.initial = shape_.initial ? &initial_ : nullptr;
    pass.incoming = &incoming_;
    pass.outgoing = &outgoing_;
    pass.overlapsNext = overlapsNext;
    // The first rank reads its incoming state early, after the kernel that computes it; the next kernel, its inputs.
    const bool readsInputs = overlapsNext || (shape_.position == 0 && shape_.initial);
    add(recordOf(pass), !readsInputs || !launches_.empty());
  }
  void outputs(const float* incoming, bool early, bool complete, int64_t begin = 0, bool lead = false) {
    Outputs pass;
    pass.maps = before_;
    pass.segments.count = lead ? 1 : shape_.count;
    pass.segments.begin = begin;
    pass.initial = incoming;
    pass.out = {&out_[0], 0, 1, 0};
    if (lead && shape_.count > 1) pass.tokens = Tokens::Lead;
    if (lead) pass.finalState = before_.lead;
    pass.mapsVisible = mapsVisible(pass, &sequence_);
    if (!lead && early) CHECK((pass.mapsVisible == Visible::AtStart) == complete);
    add(recordOf(pass), early);
  }
  void gradients(bool early) {
    Gradients pass;
    pass.before = before_;
    pass.after = after_;
    pass.content = shape_.content;
    pass.segments.count = shape_.count;
    pass.finalGradient = &incoming_;
    pass.workspace = &workspace_;
    const Visible before = beforeVisible(pass, &sequence_);
    if (early) CHECK((before == Visible::AtStart) == (shape_.keeps || shape_.count == 1));
    add(recordOf(pass, before), early);
  }
  void fold(const StateMaps& maps, bool rank) {
    Fold pass;
    pass.maps = maps;
    pass.leaves = shape_.content;
    if (rank) {
      pass.state = &rankState_;
      pass.logDecay = &rankDecay_;
    }
    add(recordOf(pass), true);
  }

  void check() const {
    const Events events(launches_, early_);
    for (size_t i = 0; i < launches_.size(); ++i) {
      INFO("launch " << i << " of " << launches_.size());
      CHECK(events.safe(i));
    }
  }
  const StateMaps& before() const { return before_; }
  const StateMaps& after() const { return after_; }
  const float* incoming() const { return &incoming_; }
  const float* initial() const { return shape_.initial ? &initial_ : nullptr; }

 private:
  void add(const LaunchRecord& record, bool early) {
    INFO("launch " << launches_.size());
    launches_.push_back(record);
    early_.push_back(sequence_.add(record));
    CHECK(early_.back() == early);
  }

  Shape shape_;
  LaunchSequence sequence_;
  std::vector<LaunchRecord> launches_;
  std::vector<bool> early_;
  float memory_[6] = {}, rankState_ = 0, rankDecay_ = 0, initial_ = 0, incoming_ = 0, outgoing_ = 0, workspace_ = 0;
  char out_[256] = {};
  StateMaps before_{&memory_[0], &memory_[1], &memory_[4]}, after_{&memory_[2], &memory_[3], &memory_[5]};
};

/// All combinations of a shape.
template <class Act>
void eachShape(const Act& act) {
  for (int bits = 0; bits < 3 * 32; ++bits) {
    const auto bit = [&](int which) { return (bits >> which & 1) != 0; };
    const Shape shape{bit(0) ? 2 : 1, bit(1) ? Maps::PerSegment : Maps::Prefix, bit(2), bits / 32, bit(3), bit(4)};
    INFO("count " << shape.count << ", per segment " << (shape.content == Maps::PerSegment) << ", keeps " << shape.keeps
                  << ", position " << shape.position << ", initial " << shape.initial << ", idle " << shape.idle);
    act(shape);
  }
}

}  // namespace

TEST_CASE("launch sequences of the forward around a scan") {
  eachShape([](const Shape& shape) {
    Call call(shape);
    const bool first = shape.position == 0, map = shape.position < 2;
    call.states(map, false);
    call.scan(call.before(), map);
    call.outputs(first ? call.initial() : call.incoming(), shape.count > 1, first);
    call.check();
  });
}

TEST_CASE("launch sequences of the forward alone, with and without a lead") {
  eachShape([](const Shape& shape) {
    for (const bool lead : {false, true}) {
      Call call(shape);
      const bool several = shape.count > 1;
      if (!lead) {
        call.states(false, false);
        call.outputs(call.initial(), several, false);
      } else {
        constexpr bool kFolds = false;  // the fold follows the lead
        call.states(false, false, kFolds);
        call.outputs(call.initial(), several, false, 0, true);
        if (several && shape.content == Maps::Prefix) call.fold(call.before(), false);
        call.outputs(call.before().lead, several, false, 64);
      }
      call.check();
    }
  });
}

TEST_CASE("launch sequences of the backward around a scan") {
  eachShape([](const Shape& shape) {
    Call call(shape);
    const bool first = shape.position == 0, map = shape.position < 2, again = !shape.keeps;
    if (map && !first && again) return;  // the scan is on another stream, and gradients start after both
    call.stateGradients(map, false);
    if (map) call.scan(call.after(), map);
    if (again) call.states(false, true);
    if (!map) call.scan(call.after(), map, shape.idle);
    call.gradients(shape.content == Maps::PerSegment && (shape.count > 1 || map || shape.idle));
    call.check();
  });
}

TEST_CASE("launch sequences of the backward alone") {
  eachShape([](const Shape& shape) {
    Call call(shape);
    if (!shape.keeps) call.states(false, false);
    call.stateGradients(false, !shape.keeps);
    call.gradients(shape.content == Maps::PerSegment && shape.count > 1);
    call.check();
  });
}

TEST_CASE("launch sequences detect conflicts before griddepcontrol.wait") {
  const float a = 0, b = 0;
  LaunchRecord writer;
  writer.earlyWrites = {&a};
  writer.trigger = Trigger::AtStart;
  LaunchRecord reader;
  reader.earlyReads = {&a};
  LaunchSequence sequence;
  CHECK(!sequence.isComplete(&b));
  CHECK(sequence.add(writer));
  CHECK(!sequence.isComplete(&a));
  CHECK(sequence.isComplete(&b));
  CHECK(!sequence.add(reader));
  CHECK(sequence.isComplete(&a));
  CHECK(!sequence.add(writer));
  LaunchRecord inputs;
  inputs.readsInputsEarly = true;
  sequence.end();
  CHECK(sequence.add(writer));
  CHECK(!sequence.add(inputs));
  CHECK(sequence.add(inputs));

  std::vector<LaunchRecord> launches{writer, reader};
  CHECK(!Events(launches, {true, true}).safe(1));
  CHECK(Events(launches, {true, false}).safe(1));
}
