/* 3. Limits, tags and figures: who has the memory, and what happens at the end of it.
 *
 *   cc 03_limits_and_tags.c $(pkg-config --cflags --libs forebay) -Wl,-rpath,"$(pkg-config --variable=libdir forebay)" -o limits && ./limits
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
    forebay_device device = {0};
    forebay_pool pool = {0};
    forebay_stream stream = {0};
    must(forebay_device_open("host", &device));
    /* Settings are those of FOREBAY_CONF, and stand above what the environment says. */
    must(forebay_pool_create(device, "max_bytes:64MiB,statistics:exact", &pool));

    void *weights = NULL, *activations = NULL;
    must(forebay_tag_enter("weights"));
    must(forebay_alloc(pool, 40 << 20, stream, &weights));
    must(forebay_tag_leave());

    /* Too much: the words say who has how much, and what would help. */
    forebay_status status = forebay_alloc(pool, 40 << 20, stream, &activations);
    printf("%s\n", forebay_last_error());

    /* A limit can be raised while the pool lives. */
    must(forebay_pool_set(pool, "max_bytes", "128MiB"));
    must(forebay_alloc(pool, 40 << 20, stream, &activations));

    forebay_statistics figures = {.struct_size = sizeof figures};
    must(forebay_pool_statistics(pool, &figures));
    printf("%llu blocks, %llu MiB live, %llu MiB held, %llu MiB at the most\n",
           (unsigned long long)figures.blocks, (unsigned long long)(figures.live_bytes >> 20),
           (unsigned long long)(figures.held_bytes >> 20), (unsigned long long)(figures.peak_live_bytes >> 20));

    char *summary = NULL;
    must(forebay_pool_summary(pool, &summary));
    printf("%s\n", summary);
    forebay_string_free(summary);

    must(forebay_free(pool, weights, stream));
    must(forebay_free(pool, activations, stream));
    uint64_t released = 0;
    must(forebay_pool_empty_cache(pool, &released));
    printf("%llu MiB given back\n", (unsigned long long)(released >> 20));
    must(forebay_pool_close(pool, NULL));
    must(forebay_device_close(device));
    return status == FOREBAY_STATUS_OUT_OF_MEMORY && figures.blocks == 2 ? 0 : 1;
}
