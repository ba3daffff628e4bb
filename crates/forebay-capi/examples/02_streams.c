/* 2. Streams: memory is used and given back in their order, and nobody waits on the host.
 *
 *   cc 02_streams.c $(pkg-config --cflags --libs forebay) -Wl,-rpath,"$(pkg-config --variable=libdir forebay)" -o streams && ./streams
 */

#include <forebay.h>
#include <stdio.h>
#include <stdlib.h>

static void must(forebay_status status) {
    if (status != FOREBAY_STATUS_OK) {
        fprintf(stderr, "%s: %s\n", forebay_status_name((int)status), forebay_last_error());
        exit(1);
    }
}

int main(void) {
    /* The simulated accelerator runs work late, as a GPU does. */
    forebay_device device = {0};
    forebay_pool pool = {0};
    forebay_stream compute = {0}, copy = {0};
    must(forebay_device_open("sim", &device));
    must(forebay_pool_create(device, NULL, &pool));
    must(forebay_stream_create(device, 0, &compute));
    must(forebay_stream_create(device, 0, &copy));

    void *first = NULL, *second = NULL;
    must(forebay_alloc(pool, 1 << 20, compute, &first));
    must(forebay_fill(device, first, 1 << 20, 7, 1, compute));

    /* Freed while the fill has not run yet: what comes next on the same stream comes after it. */
    must(forebay_free(pool, first, compute));
    must(forebay_alloc(pool, 1 << 20, compute, &second));
    printf("the same memory again: %s\n", first == second ? "yes" : "no");

    /* Used on a further stream: say so, and it is not given to others before that is done. */
    unsigned char byte = 0;
    must(forebay_fill(device, second, 1 << 20, 9, 1, compute));
    must(forebay_stream_synchronize(device, compute));
    must(forebay_copy_to_host(device, &byte, second, 1, copy));
    must(forebay_record_use(pool, second, copy));
    must(forebay_free(pool, second, compute));
    must(forebay_stream_synchronize(device, copy));
    printf("byte: %d\n", byte);

    /* A stream of your own, as a cudaStream_t, is adopted by forebay_stream_adopt. Pools are told when one is closed. */
    must(forebay_stream_close(copy));
    must(forebay_stream_close(compute));
    uint64_t left = 0;
    must(forebay_pool_close(pool, &left));
    must(forebay_device_close(device));
    return left == 0 && byte == 9 ? 0 : 1;
}
