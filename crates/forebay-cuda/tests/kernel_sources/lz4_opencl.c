/* As lz4.c, with the kernel built and run by an OpenCL implementation: LANES work items for each block. */
#define CL_TARGET_OPENCL_VERSION 120
#include <CL/cl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    cl_ulong data_size, to_size, block_size, blocks;
} sizes;

static cl_context context;
static cl_command_queue queue;

static void check(cl_int code, int line)
{
    if (code != CL_SUCCESS) {
        fprintf(stderr, "line %d: OpenCL says %d\n", line, code);
        exit(3);
    }
}
#define CHECK(call) check(call, __LINE__)

static char *text_of(const char *path)
{
    FILE *file = fopen(path, "r");
    char *text = calloc(1, 1 << 20);
    if (file == NULL || text == NULL || fread(text, 1, (1 << 20) - 1, file) == 0)
        exit(4);
    fclose(file);
    return text;
}

/* A buffer of at least one byte, with what comes in next or with a byte that nothing writes. */
static cl_mem buffer(size_t size, int from_input)
{
    cl_int code;
    void *bytes = malloc(size + 1);
    cl_mem memory = clCreateBuffer(context, CL_MEM_READ_WRITE, size + 1, NULL, &code);
    CHECK(code);
    memset(bytes, 0xa5, size + 1);
    if (from_input && fread(bytes, 1, size, stdin) != size)
        exit(4);
    CHECK(clEnqueueWriteBuffer(queue, memory, CL_TRUE, 0, size + 1, bytes, 0, NULL, NULL));
    free(bytes);
    return memory;
}

static void put(cl_mem memory, size_t size)
{
    unsigned char *bytes = malloc(size + 1);
    CHECK(clEnqueueReadBuffer(queue, memory, CL_TRUE, 0, size + 1, bytes, 0, NULL, NULL));
    /* The byte after the last. */
    if (bytes[size] != 0xa5)
        exit(7);
    fwrite(bytes, 1, size, stdout);
    free(bytes);
}

int main(void)
{
    cl_platform_id platform;
    cl_device_id device;
    cl_int code;
    sizes size;
    const char *text = text_of(KERNEL_SOURCE);
    CHECK(clGetPlatformIDs(1, &platform, NULL));
    CHECK(clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 1, &device, NULL));
    context = clCreateContext(NULL, 1, &device, NULL, NULL, &code);
    CHECK(code);
    queue = clCreateCommandQueue(context, device, 0, &code);
    CHECK(code);
    cl_program program = clCreateProgramWithSource(context, 1, &text, NULL, &code);
    CHECK(code);
    CHECK(clBuildProgram(program, 1, &device, "-Werror", NULL, NULL));
    cl_kernel kernel = clCreateKernel(program, "forebay_lz4_decode", &code);
    CHECK(code);
    while (fread(&size, sizeof size, 1, stdin) == 1) {
        cl_mem ends = buffer(size.blocks * 8, 1), data = buffer(size.data_size, 1);
        cl_mem to = buffer(size.to_size, 0), statuses = buffer(size.blocks * 4, 0);
        cl_uint block_size = (cl_uint)size.block_size, blocks = (cl_uint)size.blocks;
        size_t group = LANES, items = group * (size.blocks + 1);
        CHECK(clSetKernelArg(kernel, 0, sizeof data, &data));
        CHECK(clSetKernelArg(kernel, 1, sizeof size.data_size, &size.data_size));
        CHECK(clSetKernelArg(kernel, 2, sizeof ends, &ends));
        CHECK(clSetKernelArg(kernel, 3, sizeof to, &to));
        CHECK(clSetKernelArg(kernel, 4, sizeof size.to_size, &size.to_size));
        CHECK(clSetKernelArg(kernel, 5, sizeof block_size, &block_size));
        CHECK(clSetKernelArg(kernel, 6, sizeof blocks, &blocks));
        CHECK(clSetKernelArg(kernel, 7, sizeof statuses, &statuses));
        CHECK(clEnqueueNDRangeKernel(queue, kernel, 1, NULL, &items, &group, 0, NULL, NULL));
        put(statuses, size.blocks * 4);
        put(to, size.to_size);
        CHECK(clReleaseMemObject(ends));
        CHECK(clReleaseMemObject(data));
        CHECK(clReleaseMemObject(to));
        CHECK(clReleaseMemObject(statuses));
    }
    return fflush(stdout) == 0 ? 0 : 6;
}
