#include "ring_suite.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <vector>

#include "common/backend.h"
#include "ring_gradients.h"
#include "seqpar/ring.h"

namespace seqpar::test {
namespace {

constexpr size_t kLongest = (2 << 20) + 5;
constexpr size_t kKeys = 4093;
constexpr size_t kLengths[] = {0, 1, 63, 4095, 8192, 65536, 65537, (128 << 10) - 1, 128 << 10, 200001, kLongest};

/// What belongs to this key, of any length. Streams copy from it.
const unsigned char* pattern(std::uint64_t key) {
  using Words = Vector<std::uint64_t>;
  static const Words& bytes = *[] {  // never destroyed: the backend that owns the memory may be destroyed earlier
    auto words = std::make_unique<Words>((kLongest + kKeys) / sizeof(std::uint64_t) + 1);
    std::mt19937_64 random(2);
    for (auto& word : *words) word = random();
    return words.release();
  }();
  return reinterpret_cast<const unsigned char*>(bytes.data()) + key % kKeys;
}

std::uint64_t keyOf(std::uint64_t seed, int round, int rank, int tensor) {
  return seed + static_cast<std::uint64_t>((round * 64 + rank) * 64 + tensor);
}

/// A ring and how its caller treats it.
struct Form {
  std::vector<int> ranks;  ///< in ring order
  int inner = 0;
  bool reverse = false, unchanged = true, keepHome = false;
  int steps = 0;
  std::vector<std::vector<size_t>> bytes;  ///< [place][tensor]
  bool callersBuffers = false;
  bool onStream = false;

  int places() const { return static_cast<int>(ranks.size()); }
  int tensors() const { return static_cast<int>(bytes.front().size()); }
  bool keepsHome() const {
    return keepHome || std::any_of(bytes.begin(), bytes.end(), [&](const auto& row) { return row != bytes.front(); });
  }
};

std::ostream& operator<<(std::ostream& out, const Form& form) {
  out << "ring of";
  for (const int rank : form.ranks) out << ' ' << rank;
  return out << ", inner " << form.inner << (form.reverse ? ", reverse" : "") << (form.unchanged ? "" : ", changed")
             << (form.keepHome ? ", home kept" : "") << ", " << form.steps << " steps"
             << (form.callersBuffers ? ", caller's buffers" : "") << (form.onStream ? ", on a stream" : "");
}

/// As the public header states it.
int originOf(const Form& form, int place, int step) {
  const int inner = form.inner == 0 ? form.places() : form.inner;
  const int windows = form.places() / inner;
  const int sign = form.reverse ? 1 : -1;
  const int window = (place / inner + sign * (step / inner) + 2 * windows) % windows;
  return window * inner + (place % inner + sign * (step % inner) + 2 * inner) % inner;
}

/// What a buffer held at a point of a stream.
struct Seen {
  Vector<unsigned char> bytes;
  const unsigned char* expected;

  bool right() const { return std::equal(bytes.begin(), bytes.end(), expected); }
};

/// One rank's part of a ring.
class RingRun {
 public:
  RingRun(seqparComm_t comm, int rank, const Form& form, std::uint64_t seed) : comm_(comm), form_(form), seed_(seed) {
    place_ = static_cast<int>(std::find(form.ranks.begin(), form.ranks.end(), rank) - form.ranks.begin());
    if (form.onStream) own_.emplace();
    stream_ = own_ ? own_->get() : backend()->noStream();
    open();
  }
  RingRun(const RingRun&) = delete;
  RingRun& operator=(const RingRun&) = delete;
  void close() {
    backend()->barrier();
    expectSuccess(seqparRingDestroy(ring_), "seqparRingDestroy");
    backend()->barrier();
  }

  void run(int round) {
    std::vector<Seen> seen;
    // In some rounds, some ranks' home tensors are in different memory.
    const bool elsewhere = (round + place_) % 2 == 1;
    if (elsewhere) {
      expectSuccess(seqparRingResetFrom(ring_, elsewherePointers_.data()), "seqparRingResetFrom", comm_);
    } else {
      expectSuccess(seqparRingReset(ring_), "seqparRingReset", comm_);
    }
    fill(round, elsewhere);
    const int steps = form_.steps == 0 ? form_.places() - 1 : form_.steps;
    for (int step = 0; step <= steps; ++step) {
      if (step < steps) expectSuccess(seqparRingPost(ring_, stream_), "seqparRingPost", comm_);
      checkSource(step);
      for (int tensor = 0; tensor < form_.tensors(); ++tensor) seen.push_back(look(round, step, tensor));
      if (step < steps) expectSuccess(seqparRingWait(ring_, stream_), "seqparRingWait", comm_);
    }
    backend()->synchronize(stream_);
    for (size_t i = 0; i < seen.size(); ++i) {
      const auto tensors = static_cast<size_t>(form_.tensors());
      expect(seen[i].right(), "seed ", seed_, ", ", form_, ": round ", round, ", step ", i / tensors, ", tensor ",
             i % tensors, " of ", seen[i].bytes.size(), " bytes is wrong at place ", place_);
    }
    checkMargins();
    if (elsewhere) {
      checkOwn(round, elsewhere_, "own tensors elsewhere were");
    } else if (form_.keepsHome() && form_.callersBuffers) {
      checkOwn(round, memory_, "home was");
    }
  }

 private:
  static constexpr size_t kMargin = 64;

  void open() {
    seqparRingParams_t params = SEQPAR_RING_PARAMS_INITIALIZER;
    std::vector<size_t> sizes;
    for (const auto& row : form_.bytes) sizes.insert(sizes.end(), row.begin(), row.end());
    params.direction = form_.reverse ? seqparReverse : seqparForward;
    params.ranks = form_.ranks.data();
    params.nranks = form_.places();
    params.inner = form_.inner;
    params.unchanged = form_.unchanged ? 1 : 0;
    params.keepHome = form_.keepHome ? 1 : 0;
    params.steps = form_.steps;
    params.tensors = form_.tensors();
    params.bytes = sizes.data();
    params.uneven = 1;
    if (form_.callersBuffers) {
      int sets = 0;
      expectSuccess(seqparRingScratch(&params, comm_, &sets), "seqparRingScratch", comm_);
      for (int i = 0; i < (sets + 1) * form_.tensors(); ++i) {
        const auto tensor = static_cast<size_t>(i % form_.tensors());
        size_t most = 0;
        for (const auto& row : form_.bytes) most = std::max(most, row[tensor]);
        const bool home = i < form_.tensors();  // no larger than it must be
        memory_.emplace_back((home ? form_.bytes[static_cast<size_t>(place_)][tensor] : most) + kMargin, 0xa5);
        pointers_.push_back(memory_.back().data());
      }
      params.home = pointers_.data();
      params.scratch = pointers_.data() + form_.tensors();
    }
    for (const size_t bytes : form_.bytes[static_cast<size_t>(place_)]) {
      elsewhere_.emplace_back(bytes + kMargin, 0xa5);
      elsewherePointers_.push_back(elsewhere_.back().data());
    }
    expectSuccess(seqparRingCreate(&ring_, &params, comm_), "seqparRingCreate", comm_);
    backend()->barrier();
  }

  std::pair<void*, size_t> current(int tensor) {
    void* pointer = nullptr;
    size_t bytes = 0;
    expectSuccess(seqparRingCurrent(ring_, tensor, &pointer, &bytes), "seqparRingCurrent", comm_);
    return {pointer, bytes};
  }

  void fill(int round, bool elsewhere) {
    for (int tensor = 0; tensor < form_.tensors(); ++tensor) {
      const auto [pointer, bytes] = current(tensor);
      expect(bytes == form_.bytes[static_cast<size_t>(place_)][static_cast<size_t>(tensor)], form_, ": own tensor ",
             tensor, " has ", bytes, " bytes");
      const auto index = static_cast<size_t>(tensor);
      if (elsewhere) {
        expect(pointer == elsewherePointers_[index], form_, ": own tensors are not elsewhere");
      } else if (form_.callersBuffers) {
        expect(pointer == pointers_[index], form_, ": home is elsewhere");
      }
      if (bytes > 0) backend()->copy(pointer, pattern(keyOf(seed_, round, place_, tensor)), bytes, stream_);
    }
  }

  void checkSource(int step) {
    seqparRingInfo_t info = SEQPAR_RING_INFO_INITIALIZER;
    expectSuccess(seqparRingQuery(ring_, &info), "seqparRingQuery", comm_);
    const int expected = form_.ranks[static_cast<size_t>(originOf(form_, place_, step))];
    expect(info.step == step && info.source == expected, form_, ": step ", info.step, " has source ", info.source,
           ", expected ", expected, " at step ", step);
  }

  Seen look(int round, int step, int tensor) {
    const int origin = originOf(form_, place_, step);
    const auto [pointer, bytes] = current(tensor);
    expect(bytes == form_.bytes[static_cast<size_t>(origin)][static_cast<size_t>(tensor)], form_, ": tensor ", tensor,
           " of step ", step, " has ", bytes, " bytes");
    Seen seen{Vector<unsigned char>(bytes), pattern(keyOf(seed_, round, origin, tensor))};
    if (bytes > 0) backend()->copy(seen.bytes.data(), pointer, bytes, stream_);
    return seen;
  }

  void checkMargins() const {
    for (const auto* buffers : {&memory_, &elsewhere_}) {
      for (const auto& buffer : *buffers) {
        const bool intact = std::all_of(buffer.end() - kMargin, buffer.end(), [](auto byte) { return byte == 0xa5; });
        expect(intact, "seed ", seed_, ", ", form_, ": written beyond a buffer");
      }
    }
  }

  void checkOwn(int round, const std::vector<Vector<unsigned char>>& memory, const char* what) const {
    for (int tensor = 0; tensor < form_.tensors(); ++tensor) {
      const size_t bytes = form_.bytes[static_cast<size_t>(place_)][static_cast<size_t>(tensor)];
      const auto* expected = pattern(keyOf(seed_, round, place_, tensor));
      expect(std::equal(expected, expected + bytes, memory[static_cast<size_t>(tensor)].begin()), "seed ", seed_, ", ",
             form_, ": ", what, " overwritten");
    }
  }

  seqparComm_t comm_;
  const Form& form_;
  std::uint64_t seed_;
  int place_ = 0;
  std::optional<Stream> own_;
  void* stream_ = nullptr;
  seqparRing_t ring_ = nullptr;
  std::vector<Vector<unsigned char>> memory_, elsewhere_;
  std::vector<void*> pointers_;
  std::vector<const void*> elsewherePointers_;
};

std::vector<std::vector<size_t>> randomSizes(std::mt19937_64& random, int places, bool large) {
  const size_t choices = large ? std::size(kLengths) : std::size(kLengths) - 1;
  const size_t tensors = 1 + random() % 4;
  std::vector<std::vector<size_t>> sizes(static_cast<size_t>(places));
  std::vector<size_t> row(tensors);
  const bool uneven = random() % 2 == 0;
  for (size_t place = 0; place < sizes.size(); ++place) {
    for (auto& bytes : row) bytes = place == 0 || uneven ? kLengths[random() % choices] : bytes;
    sizes[place] = row;
  }
  return sizes;
}

void randomTreatment(std::mt19937_64& random, Form& form) {
  form.reverse = random() % 2 == 0;
  form.unchanged = random() % 2 == 0;
  form.keepHome = random() % 2 == 0;
  form.callersBuffers = random() % 2 == 0;
  form.onStream = random() % 2 == 0;
  form.steps = random() % 2 == 0 ? 0 : form.places();
}

void runForm(seqparComm_t comm, int rank, const Form& form, std::uint64_t seed) {
  if (std::find(form.ranks.begin(), form.ranks.end(), rank) == form.ranks.end()) return;
  RingRun ring(comm, rank, form, seed);
  for (int round = 0; round < 2; ++round) ring.run(round);
  ring.close();
}

void runAllFactorizations(seqparComm_t comm, int rank, int ranks, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  for (int inner = 1; inner <= ranks; ++inner) {
    if (ranks % inner != 0) continue;
    for (const bool unchanged : {true, false}) {
      Form form;
      form.ranks.resize(static_cast<size_t>(ranks));
      std::iota(form.ranks.begin(), form.ranks.end(), 0);
      randomTreatment(random, form);
      form.inner = inner;
      form.unchanged = unchanged;
      form.bytes = randomSizes(random, ranks, inner == 2);
      runForm(comm, rank, form, seed);
    }
  }
}

/// All ranks congruent modulo a stride form a ring, in a shuffled order; all these rings run concurrently.
void runStrides(seqparComm_t comm, int rank, int ranks, std::uint64_t seed, int rounds) {
  std::mt19937_64 random(seed + 1);
  for (int round = 0; round < rounds; ++round) {
    const int stride = 1 + static_cast<int>(random() % static_cast<std::uint64_t>(ranks));
    std::vector<Form> forms(static_cast<size_t>(stride));
    for (int first = 0; first < stride; ++first) {
      Form& form = forms[static_cast<size_t>(first)];
      for (int member = first; member < ranks; member += stride) form.ranks.push_back(member);
      std::shuffle(form.ranks.begin(), form.ranks.end(), random);
      randomTreatment(random, form);
      form.bytes = randomSizes(random, form.places(), round == 0);
    }
    runForm(comm, rank, forms[static_cast<size_t>(rank % stride)], seed + static_cast<std::uint64_t>(round));
  }
}

/// Step t of a balanced schedule: rank r sends to r + t: keys and values if that rank is larger, else its one
/// query tensor, so that the other rank helps.
void runHelpers(seqparComm_t comm, int rank, int ranks, std::uint64_t seed) {
  const std::vector<std::vector<size_t>> lengths{{100001, 2 << 20}, {70000}};
  const auto kindOf = [&](int from, int to) { return to > from ? size_t{0} : size_t{1}; };
  const Stream stream;
  for (int shift = 0; shift < ranks; ++shift) {
    const int to = (rank + shift) % ranks;
    const int from = (rank + ranks - shift) % ranks;
    const auto& sendBytes = lengths[kindOf(rank, to)];
    const auto& receiveBytes = lengths[kindOf(from, rank)];
    std::vector<const void*> send;
    std::vector<void*> receive;
    std::vector<Vector<unsigned char>> memory, sent;
    for (size_t i = 0; i < sendBytes.size(); ++i) {
      const auto* bytes = pattern(keyOf(seed, shift, rank, static_cast<int>(i)));
      sent.emplace_back(bytes, bytes + sendBytes[i]);
      send.push_back(sent.back().data());
    }
    for (const size_t bytes : receiveBytes) {
      memory.emplace_back(bytes, 0xee);
      receive.push_back(memory.back().data());
    }
    seqparShiftParams_t params = SEQPAR_SHIFT_PARAMS_INITIALIZER;
    params.sendPeer = to;
    params.sendTensors = static_cast<int>(send.size());
    params.sendBuffers = send.data();
    params.sendBytes = sendBytes.data();
    params.receivePeer = from;
    params.receiveTensors = static_cast<int>(receive.size());
    params.receiveBuffers = receive.data();
    params.receiveBytes = receiveBytes.data();
    auto* const where = shift % 2 == 0 ? stream.get() : backend()->noStream();
    expectSuccess(seqparShift(&params, comm, where), "seqparShift", comm);
    backend()->synchronize(where);
    for (size_t i = 0; i < memory.size(); ++i) {
      const auto* expected = pattern(keyOf(seed, shift, from, static_cast<int>(i)));
      expect(std::equal(memory[i].begin(), memory[i].end(), expected), "shift by ", shift, ": tensor ", i, " from ",
             from, " is wrong");
    }
  }
}

}  // namespace

void runRingSuite(seqparComm_t comm, std::uint64_t seed, int rounds) {
  int ranks = 0, rank = 0;
  expectSuccess(seqparCommCount(comm, &ranks), "seqparCommCount");
  expectSuccess(seqparCommUserRank(comm, &rank), "seqparCommUserRank");
  runAllFactorizations(comm, rank, ranks, seed);
  runStrides(comm, rank, ranks, seed, rounds);
  for (int inner = 1; inner <= ranks; ++inner) {
    if (ranks % inner == 0) runRingGradients(comm, rank, ranks, inner);
  }
  runHelpers(comm, rank, ranks, seed);
}

}  // namespace seqpar::test
