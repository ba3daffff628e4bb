//! Plain memory.

use forebay_core::{Address, Alignment, Bytes, GIB, MIB, Random};

use super::prelude::*;
use crate::Call;

cases! { Memory "memory":
    zero_bytes_is_null,
    freeing_null_does_nothing,
    every_alignment_up_to_a_device_page_is_kept,
    an_absurd_alignment_is_kept_or_refused,
    odd_sizes_hold_their_bytes needs DATA,
    allocations_do_not_overlap needs DATA,
    memory_can_be_had_again_after_free,
    held_is_exact_for_whole_pages,
    held_covers_odd_sizes_and_comes_back,
    more_than_there_is_is_out_of_memory,
    more_than_is_left_is_out_of_memory,
    sizes_near_the_end_of_numbers_are_refused,
    a_refused_allocation_takes_nothing,
    double_free_is_refused,
    free_of_an_inner_address_is_refused,
    free_of_an_unknown_address_is_refused,
    a_refused_free_changes_nothing needs DATA,
    random_programs_keep_their_figures,
}

/// Gives back by a call that must be refused, or by one the bench does not record.
fn raw_free(bench: &Bench, address: Address) -> crate::Result<()> {
    // SAFETY: no work uses the address: cases call this with memory that is idle, or with an
    // address the device must not know.
    unsafe { bench.device().free(address) }
}

fn zero_bytes_is_null(bench: &Bench) -> Verdict {
    for alignment in [Alignment::ONE, Alignment::BLOCK, Alignment::GIB] {
        let memory = bench.device().allocate(Bytes::ZERO, alignment)?;
        ensure_equal!("the address of no bytes", memory, Address::NULL);
    }
    ensure_equal!("bytes held for no bytes", bench.held()?, Bytes::ZERO);
    Ok(())
}

fn freeing_null_does_nothing(bench: &Bench) -> Verdict {
    let memory = bench.allocate(MIB)?;
    let before = bench.held()?;
    for _ in 0..3 {
        raw_free(bench, Address::NULL)?;
    }
    ensure_equal!("bytes held after freeing null", bench.held()?, before);
    bench.free(memory)
}

fn every_alignment_up_to_a_device_page_is_kept(bench: &Bench) -> Verdict {
    let own = bench.device().descriptor().alignment;
    for shift in 0..=21 {
        let asked = Alignment::new(1 << shift)?;
        for size in [1, 4097] {
            let memory = bench.allocate_aligned(size, asked)?;
            ensure!(
                memory.is_aligned_to(asked),
                "{size} B asked at a multiple of {asked} are at {memory}"
            );
            ensure!(
                memory.is_aligned_to(own),
                "{size} B are at {memory}, not a multiple of the device's own {own}"
            );
            ensure!(!memory.is_null(), "{size} B are at null");
        }
    }
    Ok(())
}

fn an_absurd_alignment_is_kept_or_refused(bench: &Bench) -> Verdict {
    for shift in [30, 40, 62, 63] {
        let asked = Alignment::new(1 << shift)?;
        let before = bench.held()?;
        match bench.device().allocate(Bytes::new(1), asked) {
            Ok(memory) => {
                ensure!(memory.is_aligned_to(asked), "asked at {asked}, given {memory}");
                raw_free(bench, memory)?;
            }
            error => refused(Call::Allocate, "an absurd alignment", error)?,
        }
        ensure_equal!("bytes held afterwards", bench.held()?, before);
    }
    Ok(())
}

fn odd_sizes_hold_their_bytes(bench: &Bench) -> Verdict {
    // 2097143 is the largest prime below 2 MiB; 7 and 13 MiB divide into no power of two.
    let sizes = [1, 2, 3, 511, 513, 4095, 4097, 65_537, 2_097_143, 7 * MIB, 13 * MIB + 1];
    for (size, seed) in sizes.into_iter().zip(1..) {
        let memory = bench.allocate(size)?;
        let right = picture(seed, size);
        bench.write(memory, &right)?;
        bench.ensure_holds(&format!("{size} B"), memory, &right)?;
        bench.free(memory)?;
    }
    Ok(())
}

fn allocations_do_not_overlap(bench: &Bench) -> Verdict {
    let sizes = [1, 3, 64, 511, 512, 513, 4095, 4096, 4097, 70_001];
    let blocks = (0..60_u64)
        .zip(sizes.into_iter().cycle())
        .map(|(seed, size)| Ok((seed, size, bench.allocate(size)?)))
        .collect::<Result<Vec<_>, Failure>>()?;
    for &(seed, size, memory) in &blocks {
        bench.write(memory, &picture(seed, size))?;
    }
    for &(seed, size, memory) in &blocks {
        let what = format!("block {seed} of {size} B, after all others were written");
        bench.ensure_holds(&what, memory, &picture(seed, size))?;
    }
    Ok(())
}

fn memory_can_be_had_again_after_free(bench: &Bench) -> Verdict {
    // On a small device this asks for more in all than there is, so each must come back.
    let total = bench.info()?.total.get();
    let size = (total / 4).clamp(MIB, 64 * MIB);
    for _ in 0..2 * (total / size).min(64) {
        let memory = bench.allocate(size)?;
        bench.free(memory)?;
    }
    Ok(())
}

fn held_is_exact_for_whole_pages(bench: &Bench) -> Verdict {
    // Multiples of 2 MiB leave no device a reason to round.
    let (one, two) = (bench.allocate(2 * MIB)?, bench.allocate(6 * MIB)?);
    ensure_equal!("bytes held", bench.held()?, Bytes::mib(8));
    bench.free(one)?;
    ensure_equal!("bytes held after one free", bench.held()?, Bytes::mib(6));
    bench.free(two)?;
    ensure_equal!("bytes held after both", bench.held()?, Bytes::ZERO);
    Ok(())
}

fn held_covers_odd_sizes_and_comes_back(bench: &Bench) -> Verdict {
    for size in [1, 511, 513, 4097, MIB + 1] {
        let memory = bench.allocate(size)?;
        let held = bench.held()?.get();
        // A device may count whole pages, and some have pages of 2 MiB; none may count more.
        ensure!(
            held >= size && held <= size.next_multiple_of(2 * MIB),
            "{held} B are held for {size} B given out"
        );
        bench.free(memory)?;
        ensure_equal!(format!("bytes held after {size} B came back"), bench.held()?, Bytes::ZERO);
    }
    Ok(())
}

fn more_than_there_is_is_out_of_memory(bench: &Bench) -> Verdict {
    let total = bench.info()?.total;
    for beyond in [1, 4097, GIB, 1 << 40] {
        let size = Bytes::new(total.get() + beyond);
        let result = bench.device().allocate(size, Alignment::BLOCK);
        let shortage = out_of_memory(Call::Allocate, size, result)?;
        ensure_equal!("the total in the error", shortage.total, total);
    }
    Ok(())
}

fn more_than_is_left_is_out_of_memory(bench: &Bench) -> Verdict {
    let memory = bench.allocate(64 * MIB)?;
    let info = bench.info()?;
    let size = Bytes::new(info.total.get() - info.held.get() + 1);
    let result = bench.device().allocate(size, Alignment::BLOCK);
    let shortage = out_of_memory(Call::Allocate, size, result)?;
    ensure!(
        shortage.free < size,
        "{} B were refused with {} B free",
        size.get(),
        shortage.free.get()
    );
    ensure_equal!("bytes held after the refusal", bench.held()?, info.held);
    bench.free(memory)
}

fn sizes_near_the_end_of_numbers_are_refused(bench: &Bench) -> Verdict {
    for size in [u64::MAX, u64::MAX - 511, u64::MAX - 4096, 1 << 63, (1 << 63) + 1, i64::MAX as u64]
    {
        for alignment in [Alignment::ONE, Alignment::BLOCK, Alignment::DEVICE_PAGE] {
            let result = bench.device().allocate(Bytes::new(size), alignment);
            if let Err(crate::Error::OutOfMemory { requested, .. }) = &result {
                ensure_equal!("the size in the error", requested.get(), size);
            }
            refused(Call::Allocate, &format!("{size} B"), result)?;
        }
    }
    Ok(())
}

fn a_refused_allocation_takes_nothing(bench: &Bench) -> Verdict {
    let kept = bench.allocate(MIB)?;
    let before = bench.info()?;
    let class = bench.device().classify(kept)?;
    for _ in 0..50 {
        let size = Bytes::new(before.total.get() + 1);
        refused(Call::Allocate, "too much", bench.device().allocate(size, Alignment::BLOCK))?;
    }
    ensure_equal!("bytes held", bench.held()?, before.held);
    ensure_equal!("the kept memory's class", bench.device().classify(kept)?, class);
    bench.free(kept)
}

fn double_free_is_refused(bench: &Bench) -> Verdict {
    let (kept, freed) = (bench.allocate(4096)?, bench.allocate(4096)?);
    bench.free(freed)?;
    let before = bench.held()?;
    for _ in 0..2 {
        invalid(Call::Free, "freed memory", raw_free(bench, freed))?;
    }
    ensure_equal!("bytes held after the refusals", bench.held()?, before);
    bench.free(kept)
}

fn free_of_an_inner_address_is_refused(bench: &Bench) -> Verdict {
    let memory = bench.allocate(MIB)?;
    for offset in [1, 512, 4096, MIB - 1, MIB] {
        let inner = Address::new(memory.get() + offset);
        invalid(Call::Free, &format!("byte {offset} of 1 MiB"), raw_free(bench, inner))?;
    }
    bench.free(memory)
}

fn free_of_an_unknown_address_is_refused(bench: &Bench) -> Verdict {
    let foreign = bench.blank(4096, 0)?;
    for (what, address) in [
        ("the first byte of all", Address::new(1)),
        ("4 KiB", Address::new(4096)),
        ("memory of the host", foreign.address()),
        ("the last address", Address::new(u64::MAX)),
    ] {
        invalid(Call::Free, what, raw_free(bench, address))?;
    }
    Ok(())
}

fn a_refused_free_changes_nothing(bench: &Bench) -> Verdict {
    let size = 70_001;
    let memory = bench.allocate(size)?;
    let right = picture(5, size);
    bench.write(memory, &right)?;
    let before = (bench.held()?, bench.device().classify(memory)?);
    invalid(Call::Free, "an inner address", raw_free(bench, Address::new(memory.get() + 512)))?;
    ensure_equal!(
        "bytes held and class after the refusal",
        (bench.held()?, bench.device().classify(memory)?),
        before
    );
    bench.ensure_holds("the memory after the refusal", memory, &right)
}

fn random_programs_keep_their_figures(bench: &Bench) -> Verdict {
    let mut random = Random::new(0x_f0_7e_ba_11);
    let mut live: Vec<(Address, u64)> = Vec::new();
    let mut held = 0;
    for step in 0..400 {
        if live.len() < 24 && random.chance(3, 5) {
            let size = 2 * MIB * random.between(1, 3);
            let memory = bench.allocate(size)?;
            let clash = live.iter().find(|(start, length)| {
                memory.get() < start.get() + length && start.get() < memory.get() + size
            });
            ensure!(clash.is_none(), "step {step}: {size} B at {memory} overlap {clash:?}");
            live.push((memory, size));
            held += size;
        } else if let Some(place) = random.index(live.len()) {
            let (memory, size) = live.swap_remove(place);
            bench.free(memory)?;
            held -= size;
        }
        ensure_equal!(format!("step {step}: bytes held"), bench.held()?.get(), held);
    }
    Ok(())
}
