/* A library that is linked with the driver, as Triton's and CuPy's are. */
#include <stdint.h>

int cuLaunchKernel(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, uint64_t *, void *);
int cuMemAlloc_v2(uint64_t *, uint64_t);

int direct_launch(uint64_t *parameters) { return cuLaunchKernel((void *)1, 1, 2, 3, 4, 5, 6, 7, (void *)8, parameters, (void *)9); }
int direct_allocate(uint64_t *address, uint64_t bytes) { return cuMemAlloc_v2(address, bytes); }
