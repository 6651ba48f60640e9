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

using Strings = std::map<std::pair<int, int>, std::deque<std::byte>>;

/// All strings, by (from, to).
template <typename Part>
Strings stringsOf(const std::vector<Part>& parts, const Buffers& sends) {
  Strings strings;
  for (size_t rank = 0; rank < parts.size(); ++rank) {
    for (const Transfer& transfer : parts[rank].sends) {
      const Bytes& buffer = sends[rank].at(static_cast<size_t>(transfer.piece.buffer));
      auto& string = strings[{static_cast<int>(rank), transfer.peer}];
      for (const size_t at : bytesOf(transfer.piece)) string.push_back(buffer.at(at));
    }
  }
  return strings;
}

void requireUsedUp(const Strings& strings) {
  for (const auto& [lane, string] : strings) require(string.empty(), "more was sent than received");
}

}  // namespace

std::vector<size_t> bytesOf(const Piece& piece) {
  std::vector<size_t> all;
  for (size_t i = 0; i < piece.count[0]; ++i) {
    for (size_t j = 0; j < piece.count[1]; ++j) {
      for (size_t k = 0; k < piece.count[2]; ++k) {
        for (size_t byte = 0; byte < piece.run; ++byte) {
          all.push_back(piece.offset + i * piece.stride[0] + j * piece.stride[1] + k * piece.stride[2] + byte);
        }
      }
    }
  }
  return all;
}

void simulate(const std::vector<Route>& routes, const Buffers& sends, Buffers& receives) {
  Strings strings = stringsOf(routes, sends);
  for (size_t rank = 0; rank < routes.size(); ++rank) {
    std::map<std::pair<int, size_t>, bool> written;
    for (const Transfer& transfer : routes[rank].receives) {
      auto& string = strings[{transfer.peer, static_cast<int>(rank)}];
      for (const size_t at : bytesOf(transfer.piece)) {
        require(!string.empty(), "more is received than was sent");
        require(!std::exchange(written[{transfer.piece.buffer, at}], true), "received pieces overlap");
        receives[rank].at(static_cast<size_t>(transfer.piece.buffer)).at(at) = string.front();
        string.pop_front();
      }
    }
  }
  requireUsedUp(strings);
}

void simulate(const std::vector<Reduction>& reductions, const Buffers& sends, Buffers& receives) {
  Strings strings = stringsOf(reductions, sends);
  for (size_t rank = 0; rank < reductions.size(); ++rank) {
    for (const Sum& sum : reductions[rank].sums) {
      Bytes& buffer = receives[rank].at(static_cast<size_t>(sum.piece.buffer));
      const auto places = bytesOf(sum.piece);
      require(places.size() % sizeof(float) == 0, "a piece is not made of whole elements");
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
          auto& string = strings[{from, static_cast<int>(rank)}];
          require(string.size() >= sizeof(float), "more terms are added than were sent");
          float term = 0;
          std::array<std::byte, sizeof(float)> bytes{};
          std::copy_n(string.begin(), bytes.size(), bytes.begin());
          string.erase(string.begin(), string.begin() + sizeof(float));
          std::memcpy(&term, bytes.data(), sizeof(term));
          add(term);
        }
        if (!first) std::memcpy(&buffer.at(places[i]), &value, sizeof(value));
      }
    }
  }
  requireUsedUp(strings);
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
