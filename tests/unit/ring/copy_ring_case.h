// Rings that copy engines move: their forms, and one rank's part of them on a device that the CPU plays.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstring>
#include <deque>
#include <memory>
#include <ostream>
#include <random>
#include <string>
#include <vector>

#include "bootstrap/bootstrap.h"
#include "common/ranks.h"
#include "common/timeouts.h"
#include "cpu_cuda.h"
#include "ring/ring.h"

namespace seqpar::test {

inline constexpr char kEngine[] = "copy engines, no SM";
inline constexpr std::size_t kLarge = std::size_t{1} << 20;
inline constexpr std::size_t kMostScratch = 2 * kLarge;

struct Form {
  std::vector<int> order;  ///< ranks by place
  int inner = 0;
  bool changed = false, keepHome = false, reverse = false;
  std::vector<bool> givesHome;  ///< by rank
  int givesScratch = -1;        ///< the rank that does; -1: none
  int steps = 0;
  int tensors = 1;
  std::vector<std::size_t> bytes;  ///< [place][tensor]
};

inline Form plainForm(int ranks, int steps) {
  Form form;
  for (int rank = 0; rank < ranks; ++rank) form.order.push_back(rank);
  form.givesHome.assign(static_cast<std::size_t>(ranks), false);
  form.steps = steps;
  form.bytes.assign(static_cast<std::size_t>(ranks), kLarge);
  return form;
}

inline Form randomForm(int ranks, std::mt19937_64& random) {
  Form form = plainForm(ranks, random() % 2 == 0 ? 0 : ranks);
  std::shuffle(form.order.begin(), form.order.end(), random);
  do {
    form.inner = 1 + static_cast<int>(random() % static_cast<std::uint64_t>(ranks));
  } while (ranks % form.inner != 0);
  form.changed = random() % 2 == 0;
  form.keepHome = random() % 2 == 0;
  form.reverse = random() % 2 == 0;
  for (std::size_t rank = 0; rank < form.givesHome.size(); ++rank) {
    form.givesHome[rank] = random() % 2 == 0;
  }
  form.tensors = 1 + static_cast<int>(random() % 3);
  constexpr std::size_t kLengths[] = {0, 1, 513, 70001, kLarge, kLarge + 4099};
  form.bytes.clear();
  for (int i = 0; i < ranks * form.tensors; ++i) form.bytes.push_back(kLengths[random() % std::size(kLengths)]);
  form.bytes[random() % form.bytes.size()] = kLarge + random() % 5;  // some tensor must be large
  return form;
}

inline std::ostream& operator<<(std::ostream& out, const Form& form) {
  out << "ring of";
  for (const int rank : form.order) out << ' ' << rank;
  return out << ", inner " << form.inner << (form.changed ? ", changed" : "") << (form.keepHome ? ", home kept" : "")
             << (form.reverse ? ", reverse" : "") << ", " << form.steps << " steps, " << form.tensors << " tensors";
}

/// One rank of a communicator on a device.
struct Rank {
  std::shared_ptr<Communicator> comm;
  int rank, ranks;
  cudaStream_t stream = nullptr;

  Rank(Allgather& meeting, std::chrono::milliseconds timeout, int device)
      : rank(meeting.rank()), ranks(meeting.size()) {
    CommConfig config;
    config.device = device;
    config.timeout = timeout;
    config.hostId = "here";
    cudaSetDevice(device);
    cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, 0);
    comm = std::make_shared<Communicator>(meeting, config);
  }
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;
  ~Rank() { cudaStreamDestroy(stream); }

  void synchronize() const { cudaStreamSynchronize(stream); }
};

class OpenRing {
 public:
  OpenRing(const Rank& self, const Form& form, std::uint64_t seed) : self_(self), form_(form), seed_(seed) {
    const int places = self.ranks;
    RingSpec spec;
    spec.place = static_cast<int>(std::find(form.order.begin(), form.order.end(), self.rank) - form.order.begin());
    spec.ranks = form.order;
    spec.form = {places,        form.inner == 0 ? places : form.inner,    form.reverse, !form.changed,
                 form.keepHome, form.steps == 0 ? places - 1 : form.steps};
    for (int place = 0; place < places; ++place) {
      spec.bytes.emplace_back();
      for (int i = 0; i < form.tensors; ++i) spec.bytes.back().push_back(bytesOf(place, i));
    }
    RingBuffers buffers;
    for (int i = 0; i < form.tensors; ++i) home_.emplace_back(bytesOf(spec.place, i) + kLarge);
    if (form.givesHome[static_cast<std::size_t>(self.rank)]) {
      for (auto& tensor : home_) buffers.home.push_back(reinterpret_cast<std::byte*>(tensor.data()));
    }
    if (form.givesScratch == self.rank) {
      const int sets = ringSchedule(spec.form, spec.place).sets;
      for (int set = 1; set < sets; ++set) {
        buffers.scratch.emplace_back();
        for (int i = 0; i < form.tensors; ++i) {
          scratch_.emplace_back(kMostScratch);
          buffers.scratch.back().push_back(reinterpret_cast<std::byte*>(scratch_.back().data()));
        }
      }
    }
    ring_ = std::make_unique<Ring>(self.comm, std::move(spec), std::move(buffers));
  }

  std::string engine() const { return ring_->backendName(); }
  std::string reason() const { return ring_->reason(); }
  void post() { ring_->post({nullptr, self_.stream}); }
  void wait() { ring_->wait({nullptr, self_.stream}); }
  void reset() { ring_->reset(); }
  int wrong() const { return *wrong_; }
  /// Whether the current tensor is in the buffer of the round's beginning.
  bool isHome() const {
    const std::byte* const last = ring_->current(0);
    ring_->reset();
    return last == ring_->current(0);
  }

  void resetFromElsewhere() {
    std::vector<const std::byte*> own;
    for (int tensor = 0; tensor < form_.tensors; ++tensor) {
      const auto number = static_cast<std::size_t>(tensor);
      if (elsewhere_.size() <= number) elsewhere_.emplace_back(ring_->ownBytes(number));
      own.push_back(reinterpret_cast<const std::byte*>(elsewhere_[number].data()));
    }
    ring_->reset(own);
  }

  void fillHome(int round) {
    eachTensor([&](int tensor, unsigned char* at, std::size_t bytes) {
      const auto value = valueOf(round, self_.rank, tensor);
      onCpuStream(self_.stream, [=] { std::memset(at, value, bytes); });
    });
  }

  int steps() const { return form_.steps == 0 ? self_.ranks - 1 : form_.steps; }

  /// A round that is left after `steps` steps.
  void round(int number, int steps) {
    // A tensor that is changed in transit is first changed at home.
    if (number % 2 == 1 && !form_.changed) {
      resetFromElsewhere();
    } else {
      reset();
    }
    fillHome(number);
    for (int step = 0; step <= steps; ++step) {
      if (form_.changed) change();
      if (step < steps) post();
      check(number, form_.changed ? step + 1 : 0);
      if (step < steps) wait();
    }
  }

  /// Counts tensors that are not what they must be, on the stream.
  void check(int round, int added) {
    const int place = ring_->origin();
    const int source = form_.order[static_cast<std::size_t>(place)];
    eachTensor([&](int tensor, const unsigned char* at, std::size_t bytes) {
      expect(bytes == bytesOf(place, tensor), "a tensor has ", bytes, " bytes");
      const auto value = static_cast<unsigned char>(valueOf(round, source, tensor) + added);
      onCpuStream(self_.stream, [=, wrong = wrong_] {
        *wrong += std::all_of(at, at + bytes, [=](auto byte) { return byte == value; }) ? 0 : 1;
      });
    });
  }

 private:
  void change() {
    eachTensor([&](int, unsigned char* at, std::size_t bytes) {
      onCpuStream(self_.stream, [=] {
        for (std::size_t i = 0; i < bytes; ++i) ++at[i];
      });
    });
  }
  unsigned char valueOf(int round, int rank, int tensor) const {
    return static_cast<unsigned char>(seed_ + static_cast<unsigned>(round * 31 + rank * 7 + tensor * 3));
  }
  std::size_t bytesOf(int place, int tensor) const {
    return form_.bytes[static_cast<std::size_t>(place * form_.tensors + tensor)];
  }
  template <typename Body>
  void eachTensor(Body body) {
    for (int tensor = 0; tensor < form_.tensors; ++tensor) {
      const auto number = static_cast<std::size_t>(tensor);
      const std::size_t bytes = ring_->currentBytes(number);
      if (bytes > 0) body(tensor, reinterpret_cast<unsigned char*>(ring_->current(number)), bytes);
    }
  }

  const Rank& self_;
  Form form_;
  std::uint64_t seed_;
  std::vector<std::vector<unsigned char>> home_;
  std::deque<std::vector<unsigned char>> scratch_, elsewhere_;
  std::unique_ptr<Ring> ring_;
  std::shared_ptr<int> wrong_ = std::make_shared<int>(0);  ///< belongs to the stream
};

}  // namespace seqpar::test
