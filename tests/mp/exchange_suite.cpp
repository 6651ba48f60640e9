#include "exchange_suite.h"

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include "common/backend.h"

namespace seqpar::test {
namespace {

constexpr size_t kLongest = 3 << 20;
constexpr size_t kKeys = 4093;
constexpr size_t kLengths[] = {
    0, 1, 48, 49, 4095, 4096, 8191, 65536, 65537, (128 << 10) - 1, 128 << 10, 300001, (2 << 20) + 5, kLongest};

/// The bytes that a sender with this key sends. Copied and compared as a whole: byte by byte would take minutes under
/// the sanitizers.
const unsigned char* pattern(std::uint64_t key) {
  static const auto bytes = [] {
    std::vector<std::uint64_t> words((kLongest + kKeys) / sizeof(std::uint64_t) + 1);
    std::mt19937_64 random(1);
    for (auto& word : words) word = random();
    return words;
  }();
  return reinterpret_cast<const unsigned char*>(bytes.data()) + key % kKeys;
}

/// Bytes at an address that is a multiple of 64 plus `skew`, with a margin that must not change.
struct Buffer {
  Buffer(size_t length, size_t skew) : bytes(length + 192 + skew, 0xa5), size(length) {
    begin = 64 + (64 - reinterpret_cast<uintptr_t>(bytes.data()) % 64) % 64 + skew;
  }
  unsigned char* data() { return bytes.data() + begin; }
  Vector<unsigned char> bytes;
  size_t begin, size;
};

}  // namespace

void runExchangeSuite(seqparComm_t comm, std::uint64_t seed, int rounds) {
  int ranks = 0, rank = 0;
  expectSuccess(seqparCommCount(comm, &ranks), "seqparCommCount");
  expectSuccess(seqparCommUserRank(comm, &rank), "seqparCommUserRank");
  const Stream stream;
  std::mt19937_64 random(seed);
  for (int round = 0; round < rounds; ++round) {
    const int stride = static_cast<int>(random() % static_cast<std::uint64_t>(ranks));
    const bool ring = random() % 2 == 0;
    const bool onStream = random() % 2 == 0;
    std::vector<size_t> lengths(static_cast<size_t>(ranks));
    for (auto& length : lengths) length = kLengths[random() % std::size(kLengths)];
    const size_t skew = random() % 3;
    // An open chain does not wrap around from the last ranks to the first.
    const bool sends = ring || rank + stride < ranks;
    const bool receives = ring || rank - stride >= 0;
    const int to = sends ? (rank + stride) % ranks : SEQPAR_NO_PEER;
    const int from = receives ? (rank + ranks - stride) % ranks : SEQPAR_NO_PEER;

    Buffer out(sends ? lengths[static_cast<size_t>(rank)] : 0, skew);
    Buffer in(receives ? lengths[static_cast<size_t>(from)] : 0, 2 - skew);
    const auto key = [&](int sender) { return seed + static_cast<std::uint64_t>(round * ranks + sender); };
    if (out.size > 0) std::memcpy(out.data(), pattern(key(rank)), out.size);
    auto* const where = onStream ? stream.get() : backend()->noStream();
    expectSuccess(seqparSendRecv(out.data(), out.size, to, in.data(), in.size, from, comm, where), "seqparSendRecv",
                  comm);
    backend()->synchronize(where);

    Vector<unsigned char> expected(in.bytes.size(), 0xa5);
    if (in.size > 0) std::memcpy(expected.data() + in.begin, pattern(key(from)), in.size);
    if (in.bytes == expected) continue;
    const auto wrong = std::mismatch(in.bytes.begin(), in.bytes.end(), expected.begin()).first - in.bytes.begin();
    expect(false, "seed ", seed, ", round ", round, ", stride ", stride, ring ? ", ring" : ", chain", ": byte ",
           wrong - static_cast<std::ptrdiff_t>(in.begin), " of ", in.size, " from rank ", from, " is wrong");
  }
}

}  // namespace seqpar::test
