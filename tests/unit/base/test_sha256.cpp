// SHA-256 and HMAC-SHA-256 against the vectors of FIPS 180-4 and RFC 4231.
#include <catch2/catch.hpp>
#include <random>
#include <string>
#include <vector>

#include "base/sha256.h"
#include "unit/seed.h"

using namespace seqpar;

namespace {

std::string hex(const Digest& digest) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const std::byte byte : digest) {
    text += kDigits[std::to_integer<unsigned>(byte) >> 4];
    text += kDigits[std::to_integer<unsigned>(byte) & 15];
  }
  return text;
}

std::string sha(const std::string& text) {
  return hex(Sha256().add(text).finish());
}

std::string hmac(const std::string& key, const std::string& text) {
  return hex(HmacSha256(std::as_bytes(std::span(key.data(), key.size()))).add(text).finish());
}

}  // namespace

TEST_CASE("SHA-256 has the digests of FIPS 180-4") {
  CHECK(sha("") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  CHECK(sha("abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  CHECK(sha("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq") ==
        "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  CHECK(sha(std::string(1000000, 'a')) == "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST_CASE("SHA-256 does not depend on the division of its input") {
  const seqpar::test::Seed seed;
  std::mt19937 random(seed);
  for (size_t length = 0; length < 200; ++length) {
    std::string text(length, ' ');
    for (char& one : text) one = static_cast<char>(random());
    Sha256 parts;
    for (size_t at = 0; at < length;) {
      const size_t step = std::min<size_t>(random() % 70, length - at);
      parts.add(std::string_view(text).substr(at, step));
      at += step;
    }
    CHECK(hex(parts.finish()) == sha(text));
  }
}

TEST_CASE("HMAC-SHA-256 has the codes of RFC 4231") {
  CHECK(hmac(std::string(20, '\x0b'), "Hi There") ==
        "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  CHECK(hmac("Jefe", "what do ya want for nothing?") ==
        "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  CHECK(hmac(std::string(20, '\xaa'), std::string(50, '\xdd')) ==
        "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe");
  CHECK(hmac(std::string(131, '\xaa'), "Test Using Larger Than Block-Size Key - Hash Key First") ==
        "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

TEST_CASE("secrets of equal bytes and sizes are equal") {
  const std::vector<std::byte> one(32, std::byte{7});
  CHECK(equalSecrets(one, one));
  CHECK_FALSE(equalSecrets(one, std::span(one).first(31)));
  for (size_t at = 0; at < one.size(); ++at) {
    auto other = one;
    other[at] ^= std::byte{1};
    CHECK_FALSE(equalSecrets(one, other));
  }
}
