#include "numa_host.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include <cuda_runtime_api.h>
#include <numa.h>
#include <numaif.h>

namespace selftest {

// No other function of libnuma may be called where this answers -1 (numa(3)).
static bool has_numa() {
  static const bool answer = numa_available() != -1;
  return answer;
}

int numa_node_count() { return has_numa() ? numa_num_configured_nodes() : 0; }

int node_of_gpu(int device) {
  char id[32] = {};
  if (cudaDeviceGetPCIBusId(id, sizeof id, device) != cudaSuccess) return -1;
  std::string lower(id);
  std::transform(lower.begin(), lower.end(), lower.begin(), [](unsigned char c) { return std::tolower(c); });
  std::ifstream file("/sys/bus/pci/devices/" + lower + "/numa_node");
  int node = -1;
  return file >> node ? node : -1;
}

int node_of_memory(void* address) {
  int node = -1;
  if (!has_numa() || get_mempolicy(&node, nullptr, 0, address, MPOL_F_NODE | MPOL_F_ADDR) != 0) return -1;
  return node;
}

void* pinned_on_node(std::size_t bytes, int node, std::string& why) {
  // Without a node the memory still comes from libnuma's allocator: on the node of the CPU that first touches it.
  void* address = nullptr;
  if (has_numa()) {
    address = node >= 0 && node <= numa_max_node() ? numa_alloc_onnode(bytes, node) : numa_alloc_local(bytes);
  } else if (posix_memalign(&address, 4096, bytes) != 0) {
    address = nullptr;
  }
  if (address == nullptr) {
    why = "the system gave no memory";
    return nullptr;
  }
  std::memset(address, 0, bytes);  // first touch: the pages exist, and on their node, before they are locked
  const cudaError_t error = cudaHostRegister(address, bytes, cudaHostRegisterDefault);
  if (error != cudaSuccess) {
    why = cudaGetErrorString(error);
    (void)cudaGetLastError();
    has_numa() ? numa_free(address, bytes) : std::free(address);
    return nullptr;
  }
  return address;
}

void free_pinned(void* address, std::size_t bytes) {
  (void)cudaHostUnregister(address);  // fails only at the end of the process, when the driver is gone already
  has_numa() ? numa_free(address, bytes) : std::free(address);
}

}  // namespace selftest
