#include "exchange_suite.h"

#include <random>
#include <vector>

#include "common/ranks.h"

namespace seqpar::test {
namespace {

constexpr size_t kLengths[] = {
    0, 1, 48, 49, 4095, 4096, 8191, 65536, 65537, 300001, 1 << 20, (2 << 20) - 1, 2 << 20, (2 << 20) + 5, 5 << 20};

unsigned char patternAt(size_t index, std::uint64_t key) {
  return static_cast<unsigned char>((index * 2654435761u + key) >> 7);
}

/// Bytes at an address that is a multiple of 64 plus `skew`, with a margin that must stay as it is.
struct Buffer {
  Buffer(size_t length, size_t skew) : bytes(length + 192 + skew, 0xa5), size(length) {
    begin = 64 + (64 - reinterpret_cast<uintptr_t>(bytes.data()) % 64) % 64 + skew;
  }
  unsigned char* data() { return bytes.data() + begin; }
  std::vector<unsigned char> bytes;
  size_t begin, size;
};

}  // namespace

void runExchangeSuite(seqparComm_t comm, std::uint64_t seed, int rounds) {
  int ranks = 0, rank = 0;
  expectSuccess(seqparCommCount(comm, &ranks), "seqparCommCount");
  expectSuccess(seqparCommUserRank(comm, &rank), "seqparCommUserRank");
  seqparStream_t stream = nullptr;
  expectSuccess(seqparStreamCreate(&stream), "seqparStreamCreate");
  std::mt19937_64 random(seed);
  for (int round = 0; round < rounds; ++round) {
    const int stride = static_cast<int>(random() % static_cast<std::uint64_t>(ranks));
    const bool ring = random() % 2 == 0;
    const bool onStream = random() % 2 == 0;
    std::vector<size_t> lengths(static_cast<size_t>(ranks));
    for (auto& length : lengths) length = kLengths[random() % std::size(kLengths)];
    const size_t skew = random() % 3;
    // In an open chain nothing goes round from the last ranks to the first.
    const bool sends = ring || rank + stride < ranks;
    const bool receives = ring || rank - stride >= 0;
    const int to = sends ? (rank + stride) % ranks : SEQPAR_NO_PEER;
    const int from = receives ? (rank + ranks - stride) % ranks : SEQPAR_NO_PEER;

    Buffer out(sends ? lengths[static_cast<size_t>(rank)] : 0, skew);
    Buffer in(receives ? lengths[static_cast<size_t>(from)] : 0, 2 - skew);
    const auto key = [&](int sender) { return seed + static_cast<std::uint64_t>(round * ranks + sender); };
    for (size_t i = 0; i < out.size; ++i) out.data()[i] = patternAt(i, key(rank));
    expectSuccess(seqparSendRecv(out.data(), out.size, to, in.data(), in.size, from, comm, onStream ? stream : nullptr),
                  "seqparSendRecv", comm);
    if (onStream) expectSuccess(seqparStreamSynchronize(stream), "seqparStreamSynchronize");

    for (size_t i = 0; i < in.bytes.size(); ++i) {
      const bool inside = i >= in.begin && i < in.begin + in.size;
      const unsigned char expected = inside ? patternAt(i - in.begin, key(from)) : 0xa5;
      expect(in.bytes[i] == expected, "seed ", seed, ", round ", round, ", stride ", stride,
             ring ? ", ring" : ", chain", ": byte ",
             static_cast<std::ptrdiff_t>(i) - static_cast<std::ptrdiff_t>(in.begin), " of ", in.size, " from rank ",
             from, " is ", int{in.bytes[i]}, ", expected ", int{expected});
    }
  }
  expectSuccess(seqparStreamDestroy(stream), "seqparStreamDestroy");
}

}  // namespace seqpar::test
