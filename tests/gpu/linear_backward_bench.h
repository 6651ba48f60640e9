// Times of the backward kernels of linear attention.
#pragma once

/// Prints a table; `filter`: only rows whose name has it. Gives 0, or 1 after a CUDA error.
int benchLinearBackward(const char* filter);
