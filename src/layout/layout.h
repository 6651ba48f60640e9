// Which rank holds which tokens: the arithmetic of seqpar/layout.h.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "seqpar/layout.h"

namespace seqpar {

/// A location of a token: the rank and its local index.
struct TokenPlace {
  int rank = 0;
  int64_t local = 0;

  bool operator==(const TokenPlace&) const = default;
};

/// Throws InvalidArgument unless there is at least one sequence and cuSeqlens[sequences + 1] ascends from 0 to
/// `tokens`. `prefix` precedes the names of both arguments in errors.
void requireBounds(const char* call, const char* prefix, const int64_t* cuSeqlens, int64_t sequences, int64_t tokens);

/// Any layout. A rank stores its tokens in ascending order.
class Layout {
 public:
  /// Throws InvalidArgument in the name of `call` and `argument` if the fields are not valid. The arrays of `given`
  /// must outlive the layout.
  Layout(const char* call, const char* argument, const seqparLayout_t& given);

  int ranks() const { return parts_ * slices_; }
  int64_t tokens() const { return tokens_; }

  int64_t localLength(int rank) const;
  int64_t toGlobal(int rank, int64_t local) const;
  TokenPlace toLocal(int64_t global) const;
  /// Ascending, without empty runs.
  std::vector<seqparLayoutRun_t> runs(int rank) const;

 private:
  /// A sequence; its blocks or leftover tokens are dealt from part `first` on. A piece is a sequence on part `first`.
  struct Sequence {
    int64_t begin, length;
    int64_t first;
  };

  template <typename Visit>
  void forEachSequence(Visit visit) const;
  int64_t chunkBegin(const Sequence& sequence, int64_t chunk) const;
  int64_t chunkLength(const Sequence& sequence, int64_t chunk) const;
  int64_t chunks() const { return kind_ == seqparZigzag ? int64_t{2} * parts_ : parts_; }

  int64_t lengthOf(const Sequence& sequence, int64_t part) const;
  void appendRuns(const Sequence& sequence, int64_t part, std::vector<seqparLayoutRun_t>& runs) const;
  TokenPlace placeIn(const Sequence& sequence, int64_t index) const;

  int64_t partLength(int part) const;
  int64_t sliceBegin(int64_t partLength, int slice) const;

  int kind_;
  int parts_, slices_;
  int64_t tokens_, stripe_;
  std::span<const int64_t> bounds_;  ///< of packed sequences or pieces; empty: one sequence of all tokens
  std::span<const int> owners_;      ///< of pieces
};

}  // namespace seqpar
