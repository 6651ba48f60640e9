// Times of the element-wise All-Scan kernels.
#pragma once

namespace seqpar::test {

/// Prints a table: each algorithm at each size, for 2, 4 and 8 ranks on `gpus` GPUs.
void benchScanKernels(int gpus);

}  // namespace seqpar::test
