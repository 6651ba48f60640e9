// Times of the forward kernels of linear attention.
#pragma once

namespace seqpar::test {

/// Prints a table: milliseconds of a replayed graph and of each pass, and GB/s of the least traffic, inputs read once
/// and outputs written once. 0: all ran.
int benchLinearForward();

}  // namespace seqpar::test
