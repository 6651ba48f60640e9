// The caller's own allgather.
#include "base/error.h"
#include "bootstrap/bootstrap.h"

namespace seqpar {
namespace {

class OobAllgather final : public Allgather {
 public:
  explicit OobAllgather(const seqparOob_t& oob) : oob_(oob) {}

  int rank() const override { return oob_.rank; }
  int size() const override { return oob_.nranks; }

  void gather(std::span<const std::byte> mine, std::span<std::byte> all) override {
    if (all.size() != mine.size() * static_cast<size_t>(size())) {
      fail(seqparInternalError, "gather: ", mine.size(), " bytes of each of ", size(), " ranks into ", all.size());
    }
    const int code = oob_.allgather(mine.data(), all.data(), mine.size(), oob_.context);
    if (code != 0) fail(seqparRemoteError, "oob->allgather returned ", code, " on rank ", rank(), ", expected 0");
  }

 private:
  seqparOob_t oob_;
};

}  // namespace

std::unique_ptr<Allgather> wrapOob(const seqparOob_t& oob) {
  if (oob.allgather == nullptr) fail(seqparInvalidArgument, "oob->allgather is NULL, expected a function");
  if (oob.nranks < 1) fail(seqparInvalidArgument, "oob->nranks is ", oob.nranks, ", expected at least 1");
  if (oob.rank < 0 || oob.rank >= oob.nranks) {
    fail(seqparInvalidArgument, "oob->rank is ", oob.rank, ", expected 0..", oob.nranks - 1);
  }
  return std::make_unique<OobAllgather>(oob);
}

}  // namespace seqpar
