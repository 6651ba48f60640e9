#include "scan/matrix_product.h"

#include <oneapi/dnnl/dnnl.h>

#include "base/error.h"

// Declared here because not every compiler brings omp.h.
extern "C" {
int omp_get_max_threads(void);        // NOLINT(readability-identifier-naming)
void omp_set_num_threads(int count);  // NOLINT(readability-identifier-naming)
}

namespace seqpar {
namespace {

/// OpenMP regions of this thread have one thread while it lives: a rank's processors belong to its caller.
class OneThread {
 public:
  OneThread() : before_(omp_get_max_threads()) { omp_set_num_threads(1); }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;
  ~OneThread() { omp_set_num_threads(before_); }

 private:
  int before_;
};

}  // namespace

void multiply(bool transposed, size_t rows, size_t columns, size_t inner, const float* a, size_t strideA,
              const float* b, size_t strideB, bool add, float* c, size_t strideC) {
  const OneThread alone;
  const auto size = [](size_t value) { return static_cast<dnnl_dim_t>(value); };
  const dnnl_status_t status = dnnl_sgemm(transposed ? 'T' : 'N', 'N', size(rows), size(columns), size(inner), 1.0F, a,
                                          size(strideA), b, size(strideB), add ? 1.0F : 0.0F, c, size(strideC));
  if (status != dnnl_success) {
    fail(seqparInternalError, "dnnl_sgemm of ", rows, " x ", columns, " x ", inner, " returned status ",
         static_cast<int>(status), ", expected ", static_cast<int>(dnnl_success));
  }
}

}  // namespace seqpar
