// Host memory on the NUMA node of a GPU, through libnuma.
#pragma once

#include <cstddef>
#include <string>

namespace selftest {

// Nodes of this machine as libnuma counts them; 0 where the kernel has no NUMA support.
int numa_node_count();

// The node that a GPU hangs on, from sysfs; -1 where the machine does not say (one node, or a virtual machine).
int node_of_gpu(int device);

// The node that holds the page at `address`; -1 where the kernel does not say.
int node_of_memory(void* address);

// Page-locked memory of `bytes`, on `node` where that is not -1. Null, with a reason in `why`, where there is none.
void* pinned_on_node(std::size_t bytes, int node, std::string& why);
void free_pinned(void* address, std::size_t bytes);

}  // namespace selftest
