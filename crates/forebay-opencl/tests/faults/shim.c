/* An OpenCL library that refuses one call on demand, and passes all others on. It is linked with the real one, so that
 * functions which are not here are found there. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>

typedef void *object;
typedef int code;
typedef unsigned int uint;
typedef unsigned long long ulong;

/* How many calls pass before those that are refused, and how many those are. */
static int passes = 0, refusals = 0;
static code answer = 0;
static const char *refused = NULL;

/* Refuses `times` calls after `count` more of those below. */
void forebay_arm(int count, int times, code with)
{
    answer = with;
    refused = NULL;
    passes = count;
    __atomic_store_n(&refusals, times, __ATOMIC_SEQ_CST);
}

/* Refuses no call any more. The function that was refused, or null. */
const char *forebay_disarm(void)
{
    __atomic_store_n(&refusals, 0, __ATOMIC_SEQ_CST);
    return refused;
}

static int refuses(const char *name)
{
    if (__atomic_load_n(&refusals, __ATOMIC_SEQ_CST) <= 0 || __atomic_fetch_sub(&passes, 1, __ATOMIC_SEQ_CST) > 0)
        return 0;
    if (__atomic_fetch_sub(&refusals, 1, __ATOMIC_SEQ_CST) <= 0)
        return 0;
    refused = name;
    return 1;
}

static void *real(const char *name)
{
    static void *library = NULL;
    if (library == NULL)
        library = dlopen("libOpenCL.so.1", RTLD_NOW);
    return dlsym(library, name);
}

/* A function that answers with a code. */
#define CALL(name, parameters, arguments)                                                                              \
    code name parameters                                                                                               \
    {                                                                                                                  \
        if (refuses(#name))                                                                                            \
            return answer;                                                                                             \
        return ((code(*) parameters)real(#name))arguments;                                                             \
    }

/* A function that makes something, and writes the code to its last argument. */
#define MAKE(name, parameters, arguments)                                                                              \
    object name parameters                                                                                             \
    {                                                                                                                  \
        if (refuses(#name)) {                                                                                          \
            *error = answer;                                                                                           \
            return NULL;                                                                                               \
        }                                                                                                              \
        return ((object(*) parameters)real(#name))arguments;                                                           \
    }

/* A function that makes nothing: it cannot agree and give nothing. */
#define TELL(name, parameters, arguments)                                                                              \
    code name parameters                                                                                               \
    {                                                                                                                  \
        if (answer != 0 && refuses(#name))                                                                             \
            return answer;                                                                                             \
        return ((code(*) parameters)real(#name))arguments;                                                             \
    }

#define WAIT uint count, const object *events, object *event
#define W count, events, event

MAKE(clCreateBuffer, (object c, ulong f, size_t s, void *h, code *error), (c, f, s, h, error))
MAKE(clCreateSubBuffer, (object b, ulong f, uint t, const void *r, code *error), (b, f, t, r, error))
MAKE(clCreateCommandQueue, (object c, object d, ulong p, code *error), (c, d, p, error))
MAKE(clCreateUserEvent, (object c, code *error), (c, error))
MAKE(clCreateKernel, (object p, const char *n, code *error), (p, n, error))
MAKE(clEnqueueMapBuffer, (object q, object b, uint k, ulong f, size_t o, size_t s, WAIT, code *error),
     (q, b, k, f, o, s, W, error))
TELL(clSetKernelArg, (object k, uint i, size_t s, const void *v), (k, i, s, v))
CALL(clEnqueueNDRangeKernel,
     (object q, object k, uint d, const size_t *o, const size_t *g, const size_t *l, WAIT), (q, k, d, o, g, l, W))
CALL(clEnqueueWriteBuffer, (object q, object b, uint k, size_t o, size_t s, const void *p, WAIT),
     (q, b, k, o, s, p, W))
CALL(clEnqueueReadBuffer, (object q, object b, uint k, size_t o, size_t s, void *p, WAIT), (q, b, k, o, s, p, W))
CALL(clEnqueueCopyBuffer, (object q, object a, object b, size_t f, size_t t, size_t s, WAIT), (q, a, b, f, t, s, W))
CALL(clEnqueueFillBuffer, (object q, object b, const void *p, size_t w, size_t o, size_t s, WAIT),
     (q, b, p, w, o, s, W))
CALL(clEnqueueWriteBufferRect,
     (object q, object b, uint k, const size_t *o, const size_t *h, const size_t *r, size_t x, size_t y, size_t z,
      size_t a, const void *p, WAIT),
     (q, b, k, o, h, r, x, y, z, a, p, W))
CALL(clEnqueueReadBufferRect,
     (object q, object b, uint k, const size_t *o, const size_t *h, const size_t *r, size_t x, size_t y, size_t z,
      size_t a, void *p, WAIT),
     (q, b, k, o, h, r, x, y, z, a, p, W))
CALL(clEnqueueCopyBufferRect,
     (object q, object f, object t, const size_t *o, const size_t *h, const size_t *r, size_t x, size_t y, size_t z,
      size_t a, WAIT),
     (q, f, t, o, h, r, x, y, z, a, W))
CALL(clEnqueueSVMMigrateMem, (object q, uint n, const void **p, const size_t *s, ulong f, WAIT), (q, n, p, s, f, W))
CALL(clEnqueueMarkerWithWaitList, (object q, WAIT), (q, W))
CALL(clEnqueueBarrierWithWaitList, (object q, WAIT), (q, W))
TELL(clSetEventCallback, (object e, code t, void *f, void *d), (e, t, f, d))

/* What the device says its buffers are aligned to, in bits; the truth below zero. */
static long alignment = -1;

void forebay_align(long bits)
{
    alignment = bits;
}

code clGetDeviceInfo(object device, uint name, size_t size, void *value, size_t *needed)
{
    const uint mem_base_addr_align = 0x1019;
    if (name != mem_base_addr_align || alignment < 0)
        return ((code(*)(object, uint, size_t, void *, size_t *))real("clGetDeviceInfo"))(device, name, size, value, needed);
    if (value != NULL && size >= sizeof(uint))
        *(uint *)value = (uint)alignment;
    if (needed != NULL)
        *needed = sizeof(uint);
    return 0;
}

void *clSVMAlloc(object c, ulong f, size_t s, uint a)
{
    if (refuses("clSVMAlloc"))
        return NULL;
    return ((void *(*)(object, ulong, size_t, uint))real("clSVMAlloc"))(c, f, s, a);
}

/* Whether events can be asked about. */
static int hushed = 0;

void forebay_hush(int now)
{
    __atomic_store_n(&hushed, now, __ATOMIC_SEQ_CST);
}

code clGetEventInfo(object event, uint what, size_t room, void *value, size_t *length)
{
    typedef code (*asks)(object, uint, size_t, void *, size_t *);
    if (__atomic_load_n(&hushed, __ATOMIC_SEQ_CST))
        return -5;
    return ((asks)real("clGetEventInfo"))(event, what, room, value, length);
}
