// c10/util/ApproximateClock.h wants one instruction, __rdtsc, of all that this header declares; the vector extensions
// are in immintrin.h, which sources that use them include by name.
#pragma once
#if __has_include(<x86gprintrin.h>)
#include <x86gprintrin.h>
#else
#include_next <x86intrin.h>
#endif
