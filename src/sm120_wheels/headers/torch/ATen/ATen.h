// The tensor, dispatch macros and device_of; operators only as far as an included header asks for them one by one.
#pragma once
#ifndef AT_PER_OPERATOR_HEADERS
#define AT_PER_OPERATOR_HEADERS  // torch's own switch: its headers then include the operators they need, not all 1,300
#endif
#include <ATen/DeviceGuard.h>
#include <ATen/Dispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/sum.h>  // at::sum_out
