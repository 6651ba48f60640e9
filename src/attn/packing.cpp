#include "attn/packing.h"

#include "base/checked.h"
#include "base/error.h"

namespace seqpar::attn {

std::vector<int64_t> readPacking(const char* call, int64_t sequences, const int64_t* cuSeqlens, int64_t batch,
                                 int64_t tokens) {
  constexpr int64_t kMost = static_cast<int64_t>(SEQPAR_MOST_BUFFER_BYTES / sizeof(int64_t)) - 1;
  if (sequences < 0 || sequences > kMost) {
    fail(seqparInvalidArgument, call, ": desc->sequences is ", sequences, ", expected ",
         sequences < 0 ? "at least 0" : concat("at most ", kMost));
  }
  if (sequences == 0) return {};
  if (cuSeqlens == nullptr) {
    fail(seqparInvalidArgument, call, ": desc->cuSeqlens is NULL, expected [", sequences + 1, "] numbers");
  }
  if (batch != 1) fail(seqparInvalidArgument, call, ": desc->batch is ", batch, ", expected 1 with packed sequences");
  requireArray(call, "desc->cuSeqlens", cuSeqlens, static_cast<size_t>(sequences + 1) * sizeof(int64_t),
               alignof(int64_t));
  // Checks each bound before it reads the next: with a wrong `sequences`, memory after the array is unlikely to pass.
  for (int64_t i = 0; i <= sequences; ++i) {
    const int64_t bound = cuSeqlens[i], least = i == 0 ? 0 : cuSeqlens[i - 1];
    if (bound < least || (i == 0 && bound != 0)) {
      fail(seqparInvalidArgument, call, ": desc->cuSeqlens[", i, "] is ", bound, ", expected ",
           i == 0 ? "0" : concat("at least cuSeqlens[", i - 1, "], ", least));
    }
    if (bound > tokens || (i == sequences && bound != tokens)) {
      fail(seqparInvalidArgument, call, ": desc->cuSeqlens[", i, "] is ", bound, ", expected ",
           i == sequences ? "" : "at most ", tokens, ", the number of tokens");
    }
  }
  return {cuSeqlens, cuSeqlens + sequences + 1};
}

std::vector<int64_t> readLengths(const char* call, const int64_t* tokensOfRanks, int ranks) {
  requireArray(call, "desc->tokensOfRanks", tokensOfRanks, static_cast<size_t>(ranks) * sizeof(int64_t),
               alignof(int64_t));
  std::vector<int64_t> lengths(tokensOfRanks, tokensOfRanks + ranks);
  for (int r = 0; r < ranks; ++r) {
    const int64_t length = lengths[static_cast<size_t>(r)];
    if (length < 0 || length > (int64_t{1} << 48)) {
      fail(seqparInvalidArgument, call, ": desc->tokensOfRanks[", r, "] is ", length, ", expected 0 to 2^48");
    }
  }
  return lengths;
}

void requireUse(const char* call, seqparComm_t comm, bool onDevice, void* stream) {
  seqparResult_t state = seqparSuccess;
  if (comm != nullptr && seqparCommGetAsyncError(comm, &state) == seqparInvalidArgument) {
    seqparCommCallBegin(call, nullptr, 0, comm, nullptr);  // so that seqparGetLastError() names this call
    fail(seqparInvalidArgument, call, ": the communicator was freed, expected one that outlives its plans");
  }
  if (state != seqparSuccess) fail(state, call, ": the communicator is lost: ", seqparGetLastError(comm));
  if (!onDevice && stream != nullptr &&
      seqparStreamQuery(static_cast<seqparStream_t>(stream)) == seqparInvalidArgument) {
    fail(seqparInvalidArgument, call, ": stream is ", stream,
         ", expected NULL or a host stream that was created and not freed");
  }
}

}  // namespace seqpar::attn
