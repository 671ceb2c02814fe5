// Left out only where torch/types.h beside this folder includes it.
#ifndef SM120_WITHOUT_LIBRARY
#include_next <torch/library.h>
#endif
