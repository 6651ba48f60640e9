// Creation of communicators in a process that lacks descriptors.
#include <fcntl.h>
#include <sys/resource.h>

#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "common/ranks.h"
#include "common/sanitized.h"

using namespace seqpar::test;
using Catch::Matchers::Contains;

namespace {

/// Leaves `spare` descriptors to the process.
class FewDescriptors {
 public:
  explicit FewDescriptors(int spare) {
    getrlimit(RLIMIT_NOFILE, &before_);
    for (int number = 0, found = 0; found < spare; ++number) {
      if (fcntl(number, F_GETFD) < 0) ++found;
      limit_ = static_cast<rlim_t>(number) + 1;
    }
    rlimit few = before_;
    few.rlim_cur = limit_;
    setrlimit(RLIMIT_NOFILE, &few);
  }
  FewDescriptors(const FewDescriptors&) = delete;
  FewDescriptors& operator=(const FewDescriptors&) = delete;
  ~FewDescriptors() { setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_{};
  rlim_t limit_ = 0;
};

}  // namespace

#ifndef SEQPAR_SANITIZED  // UndefinedBehaviorSanitizer needs descriptors to check virtual calls
TEST_CASE("a communicator that lacks descriptors is an error that says so, without a timeout") {
  // Between too few for the first socket and enough for the connections of some ranks.
  const int spare = GENERATE(1, 6, 11, 14);
  CAPTURE(spare);
  std::vector<seqparComm_t> comms(6);
  setenv("SEQPAR_TIMEOUT", "0", 1);
  seqparResult_t result = seqparSuccess;
  {
    const FewDescriptors few(spare);
    result = seqparCommInitAll(comms.data(), static_cast<int>(comms.size()), nullptr);
  }
  unsetenv("SEQPAR_TIMEOUT");
  CHECK(result != seqparSuccess);
  CHECK_THAT(seqparGetLastError(nullptr), Contains("seqparCommInitAll") && Contains("Too many open files"));
  for (auto* comm : comms) CHECK(comm == nullptr);
}
#endif
