// torch's own header without operator registration, which it includes for whoever registers operators.
#pragma once
#include <ATen/ATen.h>
#define SM120_WITHOUT_LIBRARY
#include_next <torch/types.h>
#undef SM120_WITHOUT_LIBRARY
