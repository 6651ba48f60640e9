// Admission of a connection by challenge and response, and the records of an admitted connection. No secret is sent.
//
//   rank -> root   Hello with the rank's nonce
//   root -> rank   Challenge with the root's nonce
//   rank -> root   Proof: HMAC(K, "rank proof" || T)
//   both           records, whose keys derive from K and T; the first one of the root contains its Answer
//
// K is the secret of the communicator, T = SHA-256("seqpar" || Hello || Challenge). Both nonces are fresh, so a
// recorded handshake is worthless; each direction has separate labels, so no message can be reflected.
#pragma once

#include <optional>
#include <span>

#include "base/sha256.h"
#include "bootstrap/token.h"
#include "bootstrap/wire.h"

namespace seqpar {

/// What both ends derive from the secret and the first two messages.
struct Session {
  Digest proof{};   ///< of the rank
  Digest toRoot{};  ///< key of the rank's records
  Digest toRank{};  ///< key of the root's records
};
Session makeSession(const Token& secret, std::span<const std::byte> hello, std::span<const std::byte> challenge);

/// A record: length, tag, payload. The tag authenticates the number of the record, its length and its payload, so that
/// records cannot be changed, dropped, repeated or reordered.
constexpr size_t kRecordHeadBytes = 20;
constexpr size_t kRecordPayload = 65536;
/// The bytes of a record with this head, at most those of the largest one.
size_t recordBytes(std::span<const std::byte, kRecordHeadBytes> head);

class Sealer {
 public:
  explicit Sealer(const Digest& key) : key_(key) {}
  /// `bytes` as records, appended to `out`.
  void seal(std::span<const std::byte> bytes, wire::Bytes& out);

 private:
  Digest key_;
  uint64_t next_ = 0;
};

class Opener {
 public:
  explicit Opener(const Digest& key) : key_(key) {}
  /// Appends to `out` the payloads of all records that are complete with `bytes`. False for a record with a wrong tag
  /// or length; no further bytes are accepted then. Stores at most one incomplete record.
  bool open(std::span<const std::byte> bytes, wire::Bytes& out);

 private:
  Digest key_;
  uint64_t next_ = 0;
  bool broken_ = false;
  wire::Bytes pending_;
};

}  // namespace seqpar
