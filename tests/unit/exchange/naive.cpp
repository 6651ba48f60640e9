#include "naive.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <numeric>
#include <stdexcept>
#include <utility>

namespace seqpar::test {
namespace {

void require(bool condition, const char* what) {
  if (!condition) throw std::runtime_error(what);
}

using Payloads = std::map<std::pair<int, int>, std::deque<std::byte>>;

/// All payloads, by (from, to).
template <typename Part>
Payloads payloadsOf(const std::vector<Part>& parts, const Buffers& sends) {
  Payloads payloads;
  for (size_t rank = 0; rank < parts.size(); ++rank) {
    for (const Transfer& transfer : parts[rank].sends) {
      const Bytes& buffer = sends[rank].at(static_cast<size_t>(transfer.region.buffer));
      auto& payload = payloads[{static_cast<int>(rank), transfer.peer}];
      for (const size_t at : bytesOf(transfer.region)) payload.push_back(buffer.at(at));
    }
  }
  return payloads;
}

void requireUsedUp(const Payloads& payloads) {
  for (const auto& [lane, payload] : payloads) require(payload.empty(), "more was sent than received");
}

}  // namespace

std::vector<size_t> bytesOf(const StridedRegion& region) {
  std::vector<size_t> all;
  for (size_t i = 0; i < region.count[0]; ++i) {
    for (size_t j = 0; j < region.count[1]; ++j) {
      for (size_t k = 0; k < region.count[2]; ++k) {
        for (size_t byte = 0; byte < region.run; ++byte) {
          all.push_back(region.offset + i * region.stride[0] + j * region.stride[1] + k * region.stride[2] + byte);
        }
      }
    }
  }
  return all;
}

void simulate(const std::vector<Route>& routes, const Buffers& sends, Buffers& receives) {
  Payloads payloads = payloadsOf(routes, sends);
  for (size_t rank = 0; rank < routes.size(); ++rank) {
    std::map<std::pair<int, size_t>, bool> written;
    for (const Transfer& transfer : routes[rank].receives) {
      auto& payload = payloads[{transfer.peer, static_cast<int>(rank)}];
      for (const size_t at : bytesOf(transfer.region)) {
        require(!payload.empty(), "more is received than was sent");
        require(!std::exchange(written[{transfer.region.buffer, at}], true), "received regions overlap");
        receives[rank].at(static_cast<size_t>(transfer.region.buffer)).at(at) = payload.front();
        payload.pop_front();
      }
    }
  }
  requireUsedUp(payloads);
}

void simulate(const std::vector<Reduction>& reductions, const Buffers& sends, Buffers& receives) {
  Payloads payloads = payloadsOf(reductions, sends);
  for (size_t rank = 0; rank < reductions.size(); ++rank) {
    for (const Sum& sum : reductions[rank].sums) {
      Bytes& buffer = receives[rank].at(static_cast<size_t>(sum.region.buffer));
      const auto places = bytesOf(sum.region);
      require(places.size() % sizeof(float) == 0, "a region is not made of whole elements");
      for (size_t i = 0; i < places.size(); i += sizeof(float)) {
        float value = 0;
        bool first = true;
        const auto add = [&](float term) { value = std::exchange(first, false) ? term : value + term; };
        if (sum.existing) {
          float term = 0;
          std::memcpy(&term, &buffer.at(places[i]), sizeof(term));
          add(term);
        }
        for (const int from : sum.from) {
          auto& payload = payloads[{from, static_cast<int>(rank)}];
          require(payload.size() >= sizeof(float), "more terms are added than were sent");
          float term = 0;
          std::array<std::byte, sizeof(float)> bytes{};
          std::copy_n(payload.begin(), bytes.size(), bytes.begin());
          payload.erase(payload.begin(), payload.begin() + sizeof(float));
          std::memcpy(&term, bytes.data(), sizeof(term));
          add(term);
        }
        if (!first) std::memcpy(&buffer.at(places[i]), &value, sizeof(value));
      }
    }
  }
  requireUsedUp(payloads);
}

std::vector<size_t> randomLengths(std::mt19937_64& random, size_t ranks, size_t most) {
  std::vector<size_t> lengths(ranks);
  for (size_t& length : lengths) length = random() % 4 == 0 ? 0 : random() % (most + 1);
  return lengths;
}

std::vector<int> inOrder(size_t count) {
  std::vector<int> ranks(count);
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

std::vector<int> shuffled(std::mt19937_64& random, size_t count) {
  auto ranks = inOrder(count);
  std::shuffle(ranks.begin(), ranks.end(), random);
  return ranks;
}

std::vector<const std::byte*> pointersTo(const std::vector<Bytes>& buffers) {
  std::vector<const std::byte*> pointers;
  for (const Bytes& buffer : buffers) pointers.push_back(buffer.data());
  return pointers;
}

std::vector<std::byte*> pointersTo(std::vector<Bytes>& buffers) {
  std::vector<std::byte*> pointers;
  for (Bytes& buffer : buffers) pointers.push_back(buffer.data());
  return pointers;
}

}  // namespace seqpar::test
