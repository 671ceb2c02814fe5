// Left out only where ATen/DeviceGuard.h beside this folder includes it.
#ifndef SM120_WITHOUT_LISTS
#include_next <ATen/core/IListRef.h>
#endif
