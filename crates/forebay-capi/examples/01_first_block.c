/* 1. A block: allocated, written, read back, given back.
 *
 *   cc 01_first_block.c $(pkg-config --cflags --libs forebay) -Wl,-rpath,"$(pkg-config --variable=libdir forebay)" -o first_block && ./first_block
 */

#include <forebay.h>
#include <stdio.h>
#include <string.h>

int main(void) {
    /* Every call gives a status; the words for people are kept for each thread. */
    forebay_device device = {0};
    if (forebay_check() != FOREBAY_STATUS_OK || forebay_device_best(&device) != FOREBAY_STATUS_OK) {
        fprintf(stderr, "%s\n", forebay_last_error());
        return 1;
    }
    forebay_device_info info = {.struct_size = sizeof info};
    forebay_device_describe(device, &info);
    printf("%s: %llu MiB\n", info.name, (unsigned long long)(info.total_bytes >> 20));

    /* The pool that the whole process shares. Handles are numbers: zeros are none. */
    forebay_pool pool = {0};
    forebay_stream stream = {0}; /* the default stream */
    void *block = NULL;
    if (forebay_pool_of_process(device, &pool) != FOREBAY_STATUS_OK ||
        forebay_alloc(pool, 1 << 20, stream, &block) != FOREBAY_STATUS_OK) {
        fprintf(stderr, "%s\n", forebay_last_error());
        return 1;
    }

    /* Copies are enqueued on a stream, and done when it was waited for. */
    const char there[] = "to the device and back";
    char back[sizeof there] = "";
    forebay_copy_to_device(device, block, there, sizeof there, stream);
    forebay_copy_to_host(device, back, block, sizeof there, stream);
    forebay_stream_synchronize(device, stream);
    printf("%s\n", back);

    /* Given back in the order of the stream. Twice is an error, not a crash. */
    forebay_free(pool, block, stream);
    forebay_status again = forebay_free(pool, block, stream);
    printf("%s: %s\n", forebay_status_name((int)again), forebay_last_error());

    forebay_pool_close(pool, NULL);
    forebay_device_close(device);
    return strcmp(there, back) == 0 && again == FOREBAY_STATUS_DOUBLE_FREE ? 0 : 1;
}
