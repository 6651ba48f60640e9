#include "base/sgemm.h"

#include <oneapi/dnnl/dnnl.h>

#include "base/error.h"

// Of the OpenMP runtime that oneDNN runs on; declared here because not every compiler at hand brings its header.
extern "C" {
void omp_set_num_threads(int threads);  // NOLINT(readability-identifier-naming)
int omp_get_max_threads(void);          // NOLINT(readability-identifier-naming)
}

namespace seqpar {
namespace {

/// Keeps oneDNN on the calling thread: a rank's other processors belong to its caller and to other ranks.
class OneThread {
 public:
  OneThread() : before_(omp_get_max_threads()) {
    if (before_ != 1) omp_set_num_threads(1);
  }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;
  ~OneThread() {
    if (before_ != 1) omp_set_num_threads(before_);
  }

 private:
  int before_;
};

}  // namespace

void multiply(size_t m, size_t n, size_t k, Factor a, Factor b, bool accumulate, float* c, size_t strideC) {
  const OneThread oneThread;
  const auto size = [](size_t value) { return static_cast<dnnl_dim_t>(value); };
  const auto status =
      dnnl_sgemm(a.transposed ? 'T' : 'N', b.transposed ? 'T' : 'N', size(m), size(n), size(k), 1.0f, a.data,
                 size(a.stride), b.data, size(b.stride), accumulate ? 1.0f : 0.0f, c, size(strideC));
  if (status != dnnl_success) {
    fail(status == dnnl_out_of_memory ? seqparSystemError : seqparInternalError, "dnnl_sgemm of ", m, " x ", n, " x ",
         k, " returned status ", status);
  }
}

}  // namespace seqpar
