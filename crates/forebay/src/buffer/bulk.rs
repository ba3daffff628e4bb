//! Fills large host memory faster than the standard library does.
//!
//! Stores that bypass the caches need not read memory first, which makes fills of 64 MiB and more over twice as fast.
//! Copies and comparisons use the standard library. See docs/performance.md for figures.

use bytemuck::Pod;

/// Smallest fill, in bytes, that bypasses the caches. Below this, bypassing is no faster with AVX2 and would leave the
/// written data out of the caches.
#[cfg(target_arch = "x86_64")]
const LARGE: usize = 64 << 20;

/// Sets all of `to` to one value.
pub(super) fn fill<T: Pod>(to: &mut [T], value: T) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if size_of_val(to) >= LARGE
        && 32_usize.is_multiple_of(size_of::<T>())
        && is_x86_feature_detected!("avx2")
    {
        let mut pattern = [0_u8; 32];
        let value = bytemuck::bytes_of(&value);
        pattern.chunks_exact_mut(value.len()).for_each(|part| part.copy_from_slice(value));
        // SAFETY: the processor has AVX2.
        return unsafe { fill_past_caches(bytemuck::cast_slice_mut(to), pattern) };
    }
    to.fill(value);
}

/// Repeats `pattern` over `to`.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[target_feature(enable = "avx2")]
fn fill_past_caches(to: &mut [u8], mut pattern: [u8; 32]) {
    use core::arch::x86_64::{__m256i, _mm_sfence, _mm256_loadu_si256, _mm256_stream_si256};

    // SAFETY: a vector is any 32 bytes.
    let (head, body, tail) = unsafe { to.align_to_mut::<__m256i>() };
    head.iter_mut().zip(pattern.iter().cycle()).for_each(|(to, &byte)| *to = byte);
    // Continue the pattern where the head ended.
    pattern.rotate_left(head.len() % 32);
    // SAFETY: 32 bytes are there.
    let vector = unsafe { _mm256_loadu_si256(pattern.as_ptr().cast()) };
    for to in body {
        // SAFETY: it is a vector, aligned, and borrowed mutably.
        unsafe { _mm256_stream_si256(to, vector) };
    }
    // Fence: such stores are not ordered with others, and any thread that reads the memory later must see them.
    #[allow(unused_unsafe, reason = "newer compilers call it safe here")]
    // SAFETY: every x86-64 processor has it.
    unsafe {
        _mm_sfence();
    }
    tail.iter_mut().zip(pattern).for_each(|(to, byte)| *to = byte);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check<T: Pod + PartialEq + core::fmt::Debug>(memory: &mut [u8], value: T) {
        for (start, end) in [(0, 0), (size_of::<T>(), 3 * size_of::<T>()), (64, 1)] {
            memory.fill(0xee);
            let length = memory.len();
            let all = memory.get_mut(start..length - end).unwrap();
            let fit = all.len() / size_of::<T>() * size_of::<T>();
            let part: &mut [T] = bytemuck::cast_slice_mut(all.get_mut(..fit).unwrap());
            fill(part, value);
            assert!(part.iter().all(|one| *one == value), "{value:?}, {start}");
            let around = memory[..start].iter().chain(&memory[start + fit..]);
            assert!(around.copied().all(|byte| byte == 0xee), "{value:?}, {start}");
        }
    }

    #[test]
    fn large_and_small_memory_is_filled_to_the_last_element_and_no_further() {
        for size in [1000, (64 << 20) + 4096 + 24] {
            let mut memory = vec![0_u64; size / 8 + 1];
            let memory = bytemuck::cast_slice_mut(&mut memory);
            check(memory, 7_u8);
            check(memory, 0x1234_u16);
            check(memory, [1.5_f32, -2.5]);
            check(memory, [1_u8, 2, 3]);
            check(memory, [1_u64, 2, 3, 4]);
        }
    }
}
