// torch's own header without device_of(list of tensors), the one thing that needs IListRef.h and with it IValue.
#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/ScalarType.h>

namespace at {
struct sm120_no_list {  // stands in that overload's declaration; nothing can make one
  sm120_no_list() = delete;
  bool empty() const;
  Tensor front() const;
};
}  // namespace at

#define SM120_WITHOUT_LISTS
#define ITensorListRef sm120_no_list
#include_next <ATen/DeviceGuard.h>
#undef ITensorListRef
#undef SM120_WITHOUT_LISTS
