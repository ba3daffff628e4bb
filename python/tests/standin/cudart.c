/* A stand-in for the CUDA runtime, over the driver made of the simulated device.
 *
 * PyTorch's CUDA wheels run with it where there is no GPU and none of NVIDIA's libraries: memory, streams,
 * events and captures go to the driver that FOREBAY_CUDA_DRIVER names, and kernels do nothing. What PyTorch
 * calls and is not here is a generated stub that returns zero (see standin.py).
 *
 * CUDA_MAJOR is 12 or 13, for the few functions and structures that differ. RUNTIME_VERSION is the version
 * PyTorch was built with, such as 13000.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef void *Handle; /* A stream, an event, a graph or a context. */

enum { SUCCESS = 0, INVALID_VALUE = 1, INVALID_DEVICE = 101, NO_DRIVER = 35, NOT_SUPPORTED = 801 };

static void *library;
static int started;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static __thread int last_error;

static void start(void);

static void *function(const char *name) {
    pthread_once(&once, start);
    return library ? dlsym(library, name) : NULL;
}

/* Calls a function of the driver. What the driver lacks is not supported. Arguments are pointers and integers of
 * their full width, as the function has no prototype here. */
#define CALL(name, ...)                                                                                           \
    ({                                                                                                            \
        static int (*called)();                                                                                   \
        if (!called) called = function(#name);                                                                    \
        called ? called(__VA_ARGS__) : NOT_SUPPORTED;                                                             \
    })

static void start(void) {
    const char *path = getenv("FOREBAY_CUDA_DRIVER");
    library = dlopen(path ? path : "libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    int (*init)(unsigned) = library ? (int (*)(unsigned))dlsym(library, "cuInit") : NULL;
    started = init ? init(0) : NO_DRIVER;
}

/* The codes of the runtime are the driver's. Each failure is the thread's last error until somebody asks. */
static int answer(int code) {
    if (code) last_error = code;
    return code;
}

/* Makes the device's primary context, the one forebay uses, the thread's current one. */
static int use_device(int device) {
    Handle context = NULL;
    pthread_once(&once, start);
    if (started) return started;
    int code = CALL(cuDevicePrimaryCtxRetain, &context, device);
    return code ? code : CALL(cuCtxSetCurrent, context);
}

/* A thread without a context uses device 0. */
static int ready(void) {
    Handle context = NULL;
    pthread_once(&once, start);
    if (started) return started;
    int code = CALL(cuCtxGetCurrent, &context);
    return code || context ? code : use_device(0);
}

/* Answers with a function of the driver, called in the thread's context. */
#define FORWARD(name, ...)                                                                                        \
    do {                                                                                                          \
        int code_ = ready();                                                                                      \
        return answer(code_ ? code_ : CALL(name, __VA_ARGS__));                                                   \
    } while (0)

/* Errors. */

int cudaGetLastError(void) {
    int code = last_error;
    last_error = SUCCESS;
    return code;
}

int cudaPeekAtLastError(void) { return last_error; }

const char *cudaGetErrorName(int code) {
    static __thread char text[32];
    snprintf(text, sizeof text, code == 2 ? "cudaErrorMemoryAllocation" : "cudaError %d", code);
    return code ? text : "cudaSuccess";
}

const char *cudaGetErrorString(int code) {
    static __thread char text[64];
    snprintf(text, sizeof text, code == 2 ? "out of memory" : "error %d of the stand-in runtime", code);
    return code ? text : "no error";
}

/* Versions and the driver's functions. */

int cudaRuntimeGetVersion(int *version) { return *version = RUNTIME_VERSION, SUCCESS; }

int cudaDriverGetVersion(int *version) {
    pthread_once(&once, start);
    return answer(CALL(cuDriverGetVersion, version));
}

static int unsupported(void) { return NOT_SUPPORTED; }

/* PyTorch insists on functions it never calls here, so what the driver lacks answers that it is not supported. */
int cudaGetDriverEntryPointByVersion(const char *name, void **found, unsigned version, unsigned long long flags,
                                     int *status) {
    int ignored = 0;
    pthread_once(&once, start);
    if (!status) status = &ignored;
    if (CALL(cuGetProcAddress_v2, name, found, version, flags, status)) *found = function(name);
    if (!*found) *found = unsupported;
    return *status = 0, SUCCESS;
}

int cudaGetDriverEntryPoint(const char *name, void **found, unsigned long long flags, int *status) {
    return cudaGetDriverEntryPointByVersion(name, found, RUNTIME_VERSION, flags, status);
}

/* Devices. */

int cudaGetDeviceCount(int *count) {
    *count = 0;
    pthread_once(&once, start);
    return answer(started ? started : CALL(cuDeviceGetCount, count));
}

int cudaGetDevice(int *device) {
    *device = 0;
    pthread_once(&once, start);
    if (!started) CALL(cuCtxGetDevice, device); /* It has no answer, and 0 stays, where there is no context. */
    return answer(started);
}

int cudaSetDevice(int device) {
    int count = 0;
    int code = cudaGetDeviceCount(&count);
    if (!code && (device < 0 || device >= count)) code = INVALID_DEVICE;
    return answer(code ? code : use_device(device));
}

int cudaDeviceSynchronize(void) { FORWARD(cuCtxSynchronize); }

int cudaDeviceGetAttribute(int *value, int attribute, int device) {
    FORWARD(cuDeviceGetAttribute, value, attribute, device);
}

int cudaDeviceGetPCIBusId(char *text, int length, int device) {
    snprintf(text, length, "0000:%02x:00.0", device + 1);
    return SUCCESS;
}

int cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    FORWARD(cuCtxGetStreamPriorityRange, least, greatest);
}

int cudaDeviceCanAccessPeer(int *can, int device, int peer) { FORWARD(cuDeviceCanAccessPeer, can, device, peer); }

int cudaDeviceEnablePeerAccess(int peer, unsigned flags) {
    Handle context = NULL;
    int code = ready();
    if (!code) code = CALL(cuDevicePrimaryCtxRetain, &context, peer);
    return answer(code ? code : CALL(cuCtxEnablePeerAccess, context, flags));
}

/* Where each property lies in the structure of CUDA 12 and of CUDA 13, and how wide it is. */
#define AT(twelve, thirteen) (CUDA_MAJOR == 12 ? (twelve) : (thirteen))
#define PROPERTY(type, offset, value) (*(type *)((char *)properties + (offset)) = (value))

static int device_properties(void *properties, int device) {
    size_t total = 0;
    int code = ready();
    if (!code) code = CALL(cuDeviceTotalMem_v2, &total, device);
    if (code) return answer(code);
    memset(properties, 0, AT(1032, 1008));
    strcpy(properties, "forebay stand-in");
    PROPERTY(char, 256, device + 1);            /* uuid */
    PROPERTY(size_t, 288, total);               /* totalGlobalMem */
    PROPERTY(size_t, 296, 48 << 10);            /* sharedMemPerBlock */
    PROPERTY(int, 304, 65536);                  /* regsPerBlock */
    PROPERTY(int, 308, 32);                     /* warpSize */
    PROPERTY(size_t, 312, 0x7fffffff);          /* memPitch */
    PROPERTY(int, 320, 1024);                   /* maxThreadsPerBlock */
    PROPERTY(int, 324, 1024);                   /* maxThreadsDim, three of them */
    PROPERTY(int, 328, 1024);
    PROPERTY(int, 332, 64);
    PROPERTY(int, 336, 0x7fffffff);             /* maxGridSize, three of them */
    PROPERTY(int, 340, 65535);
    PROPERTY(int, 344, 65535);
    PROPERTY(size_t, 352, 65536);               /* totalConstMem */
    PROPERTY(int, 360, 9);                      /* major; minor stays 0 */
    PROPERTY(size_t, 368, 512);                 /* textureAlignment */
    PROPERTY(size_t, 376, 32);                  /* texturePitchAlignment */
    PROPERTY(int, AT(388, 384), 132);           /* multiProcessorCount */
    PROPERTY(int, AT(400, 392), 1);             /* canMapHostMemory */
    PROPERTY(int, AT(576, 560), 1);             /* concurrentKernels */
    PROPERTY(int, AT(584, 568), device + 1);    /* pciBusID */
    PROPERTY(int, AT(600, 584), 3);             /* asyncEngineCount */
    PROPERTY(int, AT(604, 588), 1);             /* unifiedAddressing */
    PROPERTY(int, AT(612, 592), 5120);          /* memoryBusWidth */
    PROPERTY(int, AT(616, 596), 50 << 20);      /* l2CacheSize */
    PROPERTY(int, AT(624, 604), 2048);          /* maxThreadsPerMultiProcessor */
    PROPERTY(int, AT(628, 608), 1);             /* streamPrioritiesSupported */
    PROPERTY(size_t, AT(640, 624), 228 << 10);  /* sharedMemPerMultiprocessor */
    PROPERTY(int, AT(648, 632), 65536);         /* regsPerMultiprocessor */
    PROPERTY(int, AT(652, 636), 1);             /* managedMemory */
    PROPERTY(size_t, AT(696, 672), 227 << 10);  /* sharedMemPerBlockOptin */
    PROPERTY(int, AT(712, 688), 32);            /* maxBlocksPerMultiProcessor */
    return SUCCESS;
}

int cudaGetDeviceProperties(void *properties, int device) { return device_properties(properties, device); }
int cudaGetDeviceProperties_v2(void *properties, int device) { return device_properties(properties, device); }

/* Memory. */

int cudaMemGetInfo(size_t *unused, size_t *total) { FORWARD(cuMemGetInfo_v2, unused, total); }

int cudaMalloc(void **memory, size_t size) {
    *memory = NULL;
    if (!size) return SUCCESS;
    FORWARD(cuMemAlloc_v2, memory, size);
}

int cudaFree(void *memory) {
    int code = ready(); /* cudaFree(NULL) is how programs make the context. */
    if (code || !memory) return answer(code);
    CALL(forebay_fake_wait); /* The real driver waits for the device before it frees. */
    return answer(CALL(cuMemFree_v2, memory));
}

int cudaMallocManaged(void **memory, size_t size, unsigned flags) { FORWARD(cuMemAllocManaged, memory, size, flags); }

int cudaMallocAsync(void **memory, size_t size, Handle stream) { return cudaMalloc(memory, size); }
int cudaFreeAsync(void *memory, Handle stream) { return cudaFree(memory); }

int cudaHostAlloc(void **memory, size_t size, unsigned flags) {
    *memory = NULL;
    if (!size) return SUCCESS;
    FORWARD(cuMemHostAlloc, memory, size, flags);
}

int cudaMallocHost(void **memory, size_t size) { return cudaHostAlloc(memory, size, 0); }

int cudaFreeHost(void *memory) {
    if (!memory) return SUCCESS;
    FORWARD(cuMemFreeHost, memory);
}

int cudaHostRegister(void *memory, size_t size, unsigned flags) {
    FORWARD(cuMemHostRegister_v2, memory, size, flags);
}

int cudaHostUnregister(void *memory) { FORWARD(cuMemHostUnregister, memory); }

int cudaHostGetDevicePointer(void **device, void *host, unsigned flags) {
    FORWARD(cuMemHostGetDevicePointer_v2, device, host, flags);
}

int cudaDeviceGetDefaultMemPool(Handle *pool, int device) { FORWARD(cuDeviceGetDefaultMemPool, pool, device); }
int cudaMemPoolGetAttribute(Handle pool, int name, void *value) { FORWARD(cuMemPoolGetAttribute, pool, name, value); }
int cudaMemPoolSetAttribute(Handle pool, int name, void *value) { FORWARD(cuMemPoolSetAttribute, pool, name, value); }
int cudaMemPoolTrimTo(Handle pool, size_t keep) { FORWARD(cuMemPoolTrimTo, pool, keep); }

/* What an address is, as cudaPointerGetAttributes begins. */
struct Attributes {
    int type; /* 0 is memory CUDA does not know, 1 pinned, 2 a device's, 3 managed. */
    int device;
    void *device_pointer, *host_pointer;
};

static struct Attributes attributes_of(const void *memory) {
    int names[] = {2, 8, 9}; /* The kind of memory, whether it is managed, and the device. */
    unsigned kind = 0;
    char managed = 0;
    int device = 0;
    void *values[] = {&kind, &managed, &device};
    int failed = CALL(cuPointerGetAttributes, 3u, names, values, memory);
    if (failed || kind == 0) return (struct Attributes){0, -2, NULL, (void *)memory};
    void *host = kind == 1 || managed ? (void *)memory : NULL;
    return (struct Attributes){managed ? 3 : (int)kind, device, (void *)memory, host};
}

int cudaPointerGetAttributes(struct Attributes *attributes, const void *memory) {
    int code = ready();
    if (!code) *attributes = attributes_of(memory);
    return answer(code);
}

/* Copies and fills. */

int cudaStreamIsCapturing(Handle stream, int *status) { FORWARD(cuStreamIsCapturing, stream, status); }

static int peer_copy(void *to, int to_device, const void *from, int from_device, size_t size, Handle stream) {
    Handle to_context = NULL, from_context = NULL;
    int code = CALL(cuDevicePrimaryCtxRetain, &to_context, to_device);
    if (!code) code = CALL(cuDevicePrimaryCtxRetain, &from_context, from_device);
    return code ? code : CALL(cuMemcpyPeerAsync, to, to_context, from, from_context, size, stream);
}

int cudaMemcpyPeerAsync(void *to, int to_device, const void *from, int from_device, size_t size, Handle stream) {
    int code = ready();
    if (code || !size) return answer(code);
    return answer(peer_copy(to, to_device, from, from_device, size, stream));
}

int cudaMemcpyAsync(void *to, const void *from, size_t size, int kind, Handle stream) {
    int capturing = 0;
    int code = ready();
    if (!code) code = CALL(cuStreamIsCapturing, stream, &capturing);
    if (code || !size || capturing) return answer(code);
    struct Attributes target = attributes_of(to), source = attributes_of(from);
    if (target.type >= 2 && source.type >= 2 && target.device != source.device)
        return answer(peer_copy(to, target.device, from, source.device, size, stream));
    int on_host = target.type < 2 && source.type < 2;
    if (!on_host) code = CALL(cuMemcpyAsync, to, from, size, stream);
    /* A copy with pageable memory is done when the call returns: the program may then reuse that memory. */
    if (!code && (target.type == 0 || source.type == 0 || on_host)) code = CALL(cuStreamSynchronize, stream);
    if (!code && on_host) memmove(to, from, size);
    return answer(code);
}

int cudaMemcpy(void *to, const void *from, size_t size, int kind) {
    int code = cudaMemcpyAsync(to, from, size, kind, NULL);
    return code ? code : answer(CALL(cuStreamSynchronize, NULL));
}

int cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t rows,
                      int kind, Handle stream) {
    int code = SUCCESS;
    for (size_t row = 0; row < rows && !code; row++)
        code = cudaMemcpyAsync((char *)to + row * to_pitch, (const char *)from + row * from_pitch, width, kind, stream);
    return code;
}

int cudaMemsetAsync(void *memory, int value, size_t size, Handle stream) {
    if (!size) return SUCCESS;
    FORWARD(cuMemsetD8Async, memory, (unsigned char)value, size, stream);
}

int cudaMemset(void *memory, int value, size_t size) { return cudaMemsetAsync(memory, value, size, NULL); }

/* Streams and events. */

int cudaStreamCreateWithPriority(Handle *stream, unsigned flags, int priority) {
    FORWARD(cuStreamCreateWithPriority, stream, flags, priority);
}

int cudaStreamCreateWithFlags(Handle *stream, unsigned flags) {
    return cudaStreamCreateWithPriority(stream, flags, 0);
}

int cudaStreamCreate(Handle *stream) { return cudaStreamCreateWithPriority(stream, 0, 0); }
int cudaStreamDestroy(Handle stream) { FORWARD(cuStreamDestroy_v2, stream); }
int cudaStreamQuery(Handle stream) { FORWARD(cuStreamQuery, stream); }
int cudaStreamSynchronize(Handle stream) { FORWARD(cuStreamSynchronize, stream); }
int cudaStreamGetPriority(Handle stream, int *priority) { FORWARD(cuStreamGetPriority, stream, priority); }
int cudaStreamGetId(Handle stream, unsigned long long *id) { FORWARD(cuStreamGetId, stream, id); }

int cudaStreamWaitEvent(Handle stream, Handle event, unsigned flags) {
    FORWARD(cuStreamWaitEvent, stream, event, flags);
}

int cudaLaunchHostFunc(Handle stream, void (*called)(void *), void *data) {
    FORWARD(cuLaunchHostFunc, stream, called, data);
}

struct Callback {
    void (*called)(Handle stream, int status, void *data);
    Handle stream;
    void *data;
};

static void call_back(void *callback) {
    struct Callback made = *(struct Callback *)callback;
    free(callback);
    made.called(made.stream, SUCCESS, made.data);
}

int cudaStreamAddCallback(Handle stream, void (*called)(Handle, int, void *), void *data, unsigned flags) {
    struct Callback *callback = malloc(sizeof *callback);
    if (!callback) return answer(2);
    *callback = (struct Callback){called, stream, data};
    return cudaLaunchHostFunc(stream, call_back, callback);
}

int cudaEventCreateWithFlags(Handle *event, unsigned flags) { FORWARD(cuEventCreate, event, flags); }
int cudaEventCreate(Handle *event) { return cudaEventCreateWithFlags(event, 0); }
int cudaEventDestroy(Handle event) { FORWARD(cuEventDestroy_v2, event); }
int cudaEventQuery(Handle event) { FORWARD(cuEventQuery, event); }
int cudaEventSynchronize(Handle event) { FORWARD(cuEventSynchronize, event); }
int cudaEventRecord(Handle event, Handle stream) { FORWARD(cuEventRecord, event, stream); }

int cudaEventRecordWithFlags(Handle event, Handle stream, unsigned flags) { return cudaEventRecord(event, stream); }

int cudaEventElapsedTime(float *milliseconds, Handle first, Handle last) {
    FORWARD(cuEventElapsedTime, milliseconds, first, last);
}

/* Captures. A graph has no contents, and a launch does nothing. */

int cudaThreadExchangeStreamCaptureMode(int *mode) { FORWARD(cuThreadExchangeStreamCaptureMode, mode); }
int cudaStreamBeginCapture(Handle stream, int mode) { FORWARD(cuStreamBeginCapture_v2, stream, mode); }
int cudaStreamEndCapture(Handle stream, Handle *graph) { FORWARD(cuStreamEndCapture, stream, graph); }

int cudaStreamGetCaptureInfo_v2(Handle stream, int *status, unsigned long long *id, Handle *graph,
                                const Handle **dependencies, size_t *count) {
    FORWARD(cuStreamGetCaptureInfo_v2, stream, status, id, graph, dependencies, count);
}

int cudaStreamGetCaptureInfo_v3(Handle stream, int *status, unsigned long long *id, Handle *graph,
                                const Handle **dependencies, const void **edges, size_t *count) {
    if (edges) *edges = NULL;
    return cudaStreamGetCaptureInfo_v2(stream, status, id, graph, dependencies, count);
}

#if CUDA_MAJOR == 12
int cudaStreamGetCaptureInfo(Handle stream, int *status, unsigned long long *id) {
    return cudaStreamGetCaptureInfo_v2(stream, status, id, NULL, NULL, NULL);
}
#else
int cudaStreamGetCaptureInfo(Handle stream, int *status, unsigned long long *id, Handle *graph,
                             const Handle **dependencies, const void **edges, size_t *count) {
    return cudaStreamGetCaptureInfo_v3(stream, status, id, graph, dependencies, edges, count);
}
#endif

int cudaGraphInstantiate(Handle *made, Handle graph, unsigned long long flags) { return *made = graph, SUCCESS; }
int cudaGraphInstantiateWithFlags(Handle *made, Handle graph, unsigned long long flags) {
    return *made = graph, SUCCESS;
}

/* PyTorch warns of graphs without nodes, so each has one. */
int cudaGraphGetNodes(Handle graph, Handle *nodes, size_t *count) {
    if (nodes && *count) nodes[0] = graph;
    return *count = 1, SUCCESS;
}

int cudaGraphNodeGetDependencies(Handle node, Handle *nodes, void *edges_or_count, size_t *count) {
    size_t *place = CUDA_MAJOR == 12 ? edges_or_count : count;
    return *place = 0, SUCCESS;
}

/* Kernels. A launch that is told no by this never happens. */
unsigned __cudaPushCallConfiguration(void) { return 1; }

int cudaFuncGetAttributes(void *attributes, const void *kernel) {
    memset(attributes, 0, 56);
    *(int *)((char *)attributes + 24) = 1024; /* maxThreadsPerBlock */
    *(int *)((char *)attributes + 28) = 32;   /* numRegs */
    *(int *)((char *)attributes + 32) = 90;   /* ptxVersion */
    *(int *)((char *)attributes + 36) = 90;   /* binaryVersion */
    return SUCCESS;
}

int cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *kernel, int size, size_t shared) {
    return *blocks = 2, SUCCESS;
}

int cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *kernel, int size, size_t shared,
                                                           unsigned flags) {
    return *blocks = 2, SUCCESS;
}

int cudaGetSymbolAddress(void **address, const void *symbol) {
    static char nowhere[1 << 16];
    return *address = nowhere, SUCCESS;
}

/* Sharing between processes is refused. */
int cudaIpcGetMemHandle(void *handle, void *memory) { return answer(NOT_SUPPORTED); }
int cudaIpcOpenMemHandle(void **memory, ...) { return answer(NOT_SUPPORTED); }
int cudaIpcGetEventHandle(void *handle, Handle event) { return answer(NOT_SUPPORTED); }
int cudaIpcOpenEventHandle(Handle *event, ...) { return answer(NOT_SUPPORTED); }
