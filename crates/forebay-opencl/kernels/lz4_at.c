/* The kernel of lz4.c for arguments that begin inside their buffers: OpenCL passes buffers, not addresses. */
KERNEL void forebay_lz4_decode_at(const GLOBAL u8 *data, u64 data_at, u64 data_size, const GLOBAL u8 *ends,
                                  u64 ends_at, GLOBAL u8 *to, u64 to_at, u64 to_size, u32 block_size, u32 blocks,
                                  GLOBAL u8 *statuses, u64 statuses_at)
{
    forebay_lz4_decode(data + data_at, data_size, (const GLOBAL u64 *)(ends + ends_at), to + to_at, to_size, block_size,
                       blocks, (GLOBAL u32 *)(statuses + statuses_at));
}
