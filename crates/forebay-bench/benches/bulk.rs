//! Whether hand-written copies, fills and comparisons of host memory beat the standard library's.
//!
//! `cargo bench -p forebay-bench --bench bulk [ROUNDS]`: for each size, rounds in which every contestant takes a turn, so that
//! all of them see the same machine; the median of the rounds in GB/s, and how much the best hand-written one gains.
//! docs/performance.md has the figures, and what was concluded from them.
#![allow(clippy::print_stdout, reason = "its output")]

#[cfg(target_arch = "x86_64")]
mod bulk {
    use core::arch::x86_64::*;
    use core::hint::black_box;
    use std::time::Instant;

    use forebay_core::{Alignment, Bytes};
    use forebay_host::{HostAllocation, HostOptions};

    /// Bytes that a contestant moves in one round of a size, at least.
    const ROUND: usize = 64 << 20;

    type Work = unsafe fn(&mut [u8], &[u8]);

    unsafe fn std_copy(to: &mut [u8], from: &[u8]) {
        to.copy_from_slice(from);
    }

    unsafe fn std_fill(to: &mut [u8], _: &[u8]) {
        to.fill(black_box(7));
    }

    unsafe fn std_compare(to: &mut [u8], from: &[u8]) {
        assert!(black_box(&*to) == black_box(from));
    }

    /// # Safety
    ///
    /// The processor has AVX2; both slices are as long and a multiple of 64 B.
    #[target_feature(enable = "avx2")]
    unsafe fn avx2_copy(to: &mut [u8], from: &[u8]) {
        for (to, from) in to.chunks_exact_mut(64).zip(from.chunks_exact(64)) {
            let (to, from) = (to.as_mut_ptr().cast::<__m256i>(), from.as_ptr().cast::<__m256i>());
            // SAFETY: 64 bytes are at each; memory of a `HostAllocation` is aligned.
            unsafe {
                let (one, two) = (_mm256_load_si256(from), _mm256_load_si256(from.add(1)));
                _mm256_stream_si256(to, one);
                _mm256_stream_si256(to.add(1), two);
            }
        }
        _mm_sfence();
    }

    /// # Safety
    ///
    /// As [`avx2_copy`], with AVX-512.
    #[target_feature(enable = "avx512f")]
    unsafe fn avx512_copy(to: &mut [u8], from: &[u8]) {
        for (to, from) in to.chunks_exact_mut(64).zip(from.chunks_exact(64)) {
            // SAFETY: as above.
            unsafe {
                let value = _mm512_load_si512(from.as_ptr().cast());
                _mm512_stream_si512(to.as_mut_ptr().cast(), value);
            }
        }
        _mm_sfence();
    }

    /// # Safety
    ///
    /// As [`avx2_copy`].
    #[target_feature(enable = "avx2")]
    unsafe fn avx2_fill(to: &mut [u8], _: &[u8]) {
        let value = _mm256_set1_epi8(7);
        for to in to.chunks_exact_mut(32) {
            // SAFETY: as above.
            unsafe { _mm256_stream_si256(to.as_mut_ptr().cast(), value) };
        }
        _mm_sfence();
    }

    /// # Safety
    ///
    /// As [`avx512_copy`].
    #[target_feature(enable = "avx512f")]
    unsafe fn avx512_fill(to: &mut [u8], _: &[u8]) {
        let value = _mm512_set1_epi8(7);
        for to in to.chunks_exact_mut(64) {
            // SAFETY: as above.
            unsafe { _mm512_stream_si512(to.as_mut_ptr().cast(), value) };
        }
        _mm_sfence();
    }

    /// # Safety
    ///
    /// As [`avx2_copy`].
    #[target_feature(enable = "avx2")]
    unsafe fn avx2_compare(to: &mut [u8], from: &[u8]) {
        let equal = to.chunks_exact(128).zip(from.chunks_exact(128)).all(|(one, two)| {
            let (one, two) = (one.as_ptr().cast::<__m256i>(), two.as_ptr().cast::<__m256i>());
            let differ = (0..4).fold(_mm256_setzero_si256(), |differ, at| {
                // SAFETY: as above.
                let (one, two) =
                    unsafe { (_mm256_load_si256(one.add(at)), _mm256_load_si256(two.add(at))) };
                _mm256_or_si256(differ, _mm256_xor_si256(one, two))
            });
            _mm256_testz_si256(differ, differ) == 1
        });
        assert!(black_box(equal));
    }

    /// # Safety
    ///
    /// As [`avx512_copy`].
    #[target_feature(enable = "avx512f")]
    unsafe fn avx512_compare(to: &mut [u8], from: &[u8]) {
        let equal = to.chunks_exact(256).zip(from.chunks_exact(256)).all(|(one, two)| {
            let (one, two) = (one.as_ptr().cast::<__m512i>(), two.as_ptr().cast::<__m512i>());
            let differ = (0..4).fold(_mm512_setzero_si512(), |differ, at| {
                // SAFETY: as above.
                let (one, two) =
                    unsafe { (_mm512_load_si512(one.add(at)), _mm512_load_si512(two.add(at))) };
                _mm512_or_si512(differ, _mm512_xor_si512(one, two))
            });
            _mm512_test_epi64_mask(differ, differ) == 0
        });
        assert!(black_box(equal));
    }

    pub(crate) fn main() -> Result<(), Box<dyn std::error::Error>> {
        let rounds = std::env::args().filter_map(|argument| argument.parse().ok()).next();
        let rounds: usize = rounds.unwrap_or(9);
        if !is_x86_feature_detected!("avx2") || !is_x86_feature_detected!("avx512f") {
            println!("this processor has no AVX2 or no AVX-512: nothing to compare");
            return Ok(());
        }
        let work: [(&str, [Work; 3]); 3] = [
            ("copy", [std_copy, avx2_copy, avx512_copy]),
            ("fill", [std_fill, avx2_fill, avx512_fill]),
            ("compare", [std_compare, avx2_compare, avx512_compare]),
        ];
        println!(
            "| | size | std GB/s | AVX2 | AVX-512 | best against std |\n|---|---|---|---|---|---|"
        );
        for (name, contestants) in work {
            for shift in [10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30] {
                let size = Bytes::new(1 << shift);
                let make = || HostAllocation::new(size, Alignment::HOST_PAGE, &HostOptions::new());
                let (mut to, mut from) = (make()?, make()?);
                to.touch(1);
                from.touch(1);
                let times = (ROUND >> shift).max(1);
                let mut speeds = [const { Vec::new() }; 3];
                for round in 0..=rounds {
                    for (work, speeds) in contestants.iter().zip(&mut speeds) {
                        let began = Instant::now();
                        for _ in 0..times {
                            // SAFETY: the features are there, and sizes are multiples of 256 B.
                            unsafe {
                                work(black_box(to.as_mut_slice()), black_box(from.as_slice()))
                            };
                        }
                        let moved = (times << shift) as f64;
                        // The first round warms up.
                        if round > 0 {
                            speeds.push(moved / began.elapsed().as_secs_f64() / 1e9);
                        }
                    }
                }
                let [std, avx2, avx512] = speeds.map(|mut speeds| {
                    speeds.sort_by(f64::total_cmp);
                    speeds.get(speeds.len() / 2).copied().unwrap_or_default()
                });
                let gain = (avx2.max(avx512) / std - 1.0) * 100.0;
                println!("| {name} | {size} | {std:.1} | {avx2:.1} | {avx512:.1} | {gain:+.0} % |");
            }
        }
        Ok(())
    }
}

#[cfg(target_arch = "x86_64")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    bulk::main()
}

#[cfg(not(target_arch = "x86_64"))]
fn main() {
    println!("the hand-written contestants are for x86-64");
}
