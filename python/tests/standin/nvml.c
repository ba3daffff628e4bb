/* A stand-in for NVIDIA's management library: as many devices as the driver simulates, and nothing else about them.
 * PyTorch counts devices with it, and looks one up by its address on the bus before it asks for shared memory. */
#include <stdlib.h>
#include <string.h>

int nvmlInit(void) { return 0; }
int nvmlInit_v2(void) { return 0; }
int nvmlShutdown(void) { return 0; }

int nvmlDeviceGetCount_v2(unsigned *count) {
    const char *devices = getenv("FOREBAY_FAKE_GPUS");
    return *count = devices ? atoi(devices) : 2, 0;
}

int nvmlDeviceGetHandleByPciBusId_v2(const char *address, void **device) { return *device = (void *)address, 0; }

/* No process is named in PyTorch's errors. */
int nvmlDeviceGetComputeRunningProcesses(void *device, unsigned *count, void *processes) { return *count = 0, 0; }

/* Behind the version that the caller sets, the zeros say that the device is in no fabric. */
int nvmlDeviceGetGpuFabricInfoV(void *device, void *information) {
    return memset((char *)information + 4, 0, 32), 0;
}
