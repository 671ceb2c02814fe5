// What kernels use of torch's C++ interface: torch::Tensor, factories (torch::empty …), types and their names.
#pragma once
#include <torch/types.h>
