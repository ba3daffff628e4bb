use super::*;

#[test]
fn what_is_returned_serves_the_next() {
    let bench = Bench::new();
    let rental = Rental::new(&bench.pool, DEFAULT);
    let first = rental.rent(Bytes::new(10_000)).unwrap();
    let address = first.address();
    assert!(first.size() >= Bytes::new(10_000));
    drop(first);
    assert_eq!(rental.figures().kept_blocks, 1);
    let again = rental.rent(Bytes::new(9_500)).unwrap();
    assert_eq!((again.address(), again.requested()), (address, Bytes::new(9_500)));
    let figures = rental.figures();
    assert_eq!((figures.hits, figures.misses, figures.kept_blocks), (1, 1, 0));
    assert_eq!(bench.pool.statistics().allocations, 1);
}

#[test]
fn the_smallest_that_fits_is_taken() {
    let bench = Bench::new();
    let rental = Rental::new(&bench.pool, DEFAULT);
    let sizes = [8192, 4096, 16384, 6144].map(Bytes::new);
    let rented = sizes.map(|size| rental.rent(size).unwrap());
    let small = rented[1].address();
    drop(rented);
    assert_eq!(rental.rent(Bytes::new(4000)).unwrap().address(), small);
}

#[test]
fn waste_has_a_bound() {
    let bench = Bench::new();
    let rental = RentalOptions::default().waste_percent(50).build(&bench.pool, DEFAULT);
    drop(rental.rent(Bytes::new(65536)).unwrap());
    assert_eq!(rental.rent(Bytes::new(65536 * 2 / 3 + 1)).unwrap().size(), Bytes::new(65536));
    let other = rental.rent(Bytes::new(65536 * 2 / 3 - 1)).unwrap();
    assert!(other.size() < Bytes::new(65536), "more than half was wasted");
    assert_eq!(rental.figures().misses, 2);
    drop(other);
    // Rounding to 512 B is no waste; and without any allowed, sizes are as asked.
    let exact = RentalOptions::default().waste_percent(0).build(&bench.pool, DEFAULT);
    assert_eq!(exact.rent(Bytes::new(1)).unwrap().size(), Bytes::new(512));
    drop(exact.rent(Bytes::new(2)).unwrap());
    assert_eq!(exact.figures().hits, 1);
    assert_eq!(exact.rent(Bytes::new(100_000)).unwrap().size(), Bytes::new(100_352));
}

#[test]
fn bounds_are_kept_and_the_oldest_goes_first() {
    let bench = Bench::new();
    let options = RentalOptions::default().most_bytes(Bytes::mib(4)).most_blocks(2);
    let rental = options.build(&bench.pool, DEFAULT);
    let [a, b, c] = [1, 1, 1].map(|size| rental.rent(Bytes::mib(size)).unwrap());
    let oldest = a.address();
    drop((a, b, c));
    let figures = rental.figures();
    assert_eq!((figures.kept_blocks, figures.kept_bytes), (2, Bytes::mib(2)));
    assert_eq!(figures.evictions, 1);
    assert!(Allocate::block_at(&bench.pool, oldest).is_none(), "another one went");
    // Larger than all that may be kept: it goes straight back, and the others stay.
    drop(rental.rent(Bytes::mib(5)).unwrap());
    assert_eq!(rental.figures().kept_blocks, 2);
    // One that fits only if others go.
    drop(rental.rent(Bytes::mib(4)).unwrap());
    assert_eq!(rental.figures().kept_bytes, Bytes::mib(4));
    assert_eq!(bench.live(), Bytes::mib(4));
    rental.clear();
    assert_eq!((bench.live(), rental.figures().kept_blocks), (Bytes::ZERO, 0));
}

#[test]
fn nothing_is_kept_where_nothing_may_be() {
    let bench = Bench::new();
    let rental = RentalOptions::default().most_blocks(0).build(&bench.pool, DEFAULT);
    drop(rental.rent(Bytes::mib(1)).unwrap());
    assert_eq!((bench.live(), rental.figures().evictions), (Bytes::ZERO, 1));
}

#[test]
fn no_bytes_and_too_many() {
    let bench = Bench::limited(Bytes::mib(64));
    let rental = Rental::new(&bench.pool, DEFAULT);
    assert!(rental.rent(Bytes::ZERO).unwrap().address().is_null());
    for absurd in [Bytes::MAX, Bytes::gib(1)] {
        assert!(matches!(rental.rent(absurd), Err(Error::OutOfMemory { .. })));
    }
    assert_eq!(rental.figures(), RentalFigures::default());
}

/// What is kept must not be why there is none left.
#[test]
fn what_is_kept_goes_before_there_is_no_memory() {
    let bench = Bench::limited(Bytes::mib(64));
    let rental = Rental::new(&bench.pool, DEFAULT);
    let rented = [1; 5].map(|_| rental.rent(Bytes::mib(10)).unwrap());
    drop(rented);
    assert_eq!(rental.figures().kept_blocks, 5);
    let large = rental.rent(Bytes::mib(60)).unwrap();
    assert_eq!(rental.figures().kept_blocks, 0);
    assert_eq!(bench.live(), large.size());
}

#[test]
fn what_outlives_its_rental_goes_back_all_the_same() {
    let bench = Bench::new();
    let rental = Rental::new(&bench.pool, DEFAULT);
    let rented = rental.rent(Bytes::mib(1)).unwrap();
    drop(rental.rent(Bytes::mib(2)).unwrap());
    drop(rental);
    assert_eq!(bench.live(), Bytes::mib(3));
    drop(rented);
    assert_eq!(bench.live(), Bytes::ZERO);
}

/// A block that another stream used is in order when the next one has it.
#[test]
fn returns_wait_for_noted_streams() {
    let bench = Bench::new();
    let side = bench.stream();
    let rental = Rental::new(&bench.pool, DEFAULT);
    let rented = rental.rent(Bytes::mib(1)).unwrap();
    bench.write("side", rented.block(), side);
    rented.used_on(side);
    drop(rented);
    let again = rental.rent(Bytes::mib(1)).unwrap();
    assert_eq!(rental.figures().hits, 1);
    bench.write("again", again.block(), DEFAULT);
    bench.assert_no_race();
}

#[test]
fn any_call_may_fail_and_rentals_lose_nothing() {
    let turn = counting_lost();
    sweep(|bench| {
        let Ok(side) = bench.device.create_stream(Priority::Normal) else { return };
        let before = lost_frees().count;
        let rental = Rental::new(&bench.pool, DEFAULT);
        for size in [1000, 900, 3 << 20, 800, 2 << 20] {
            if let Ok(rented) = rental.rent(Bytes::new(size)) {
                rented.used_on(side);
            }
        }
        assert_eq!(lost_frees().count, before);
    });
    drop(turn);
}

#[test]
fn threads_rent_from_one_rental() {
    let bench = Bench::new();
    let options = RentalOptions::default().most_blocks(3).most_bytes(Bytes::mib(1));
    let rental = options.build(&bench.pool, DEFAULT);
    let held = Mutex::new(std::collections::BTreeSet::new());
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let (rental, held) = (rental.clone(), &held);
            scope.spawn(move || {
                for round in 0..500 {
                    let rented =
                        rental.rent(Bytes::new(1000 + round * 37 % 5000 + thread)).unwrap();
                    assert!(held.lock().unwrap().insert(rented.address()), "rented twice");
                    held.lock().unwrap().remove(&rented.address());
                }
            });
        }
    });
    let figures = rental.figures();
    assert_eq!(figures.hits + figures.misses, 2000);
    assert!(figures.kept_blocks <= 3 && figures.hits > 0, "{figures:?}");
    drop(rental);
    assert_eq!(bench.live(), Bytes::ZERO);
}

/// Returned while work is captured: what only its own stream used is kept, what others used goes to the
/// pool, and nothing is recorded.
#[test]
fn returned_while_work_is_captured_nothing_is_recorded() {
    let bench = Bench::new();
    let [own, other] = [(); 2].map(|()| bench.stream());
    let rental = Rental::new(&bench.pool, own);
    let (plain, used) = (rental.rent(Bytes::mib(1)).unwrap(), rental.rent(Bytes::mib(2)).unwrap());
    used.used_on(other);
    let before = super::owned::seen_by_a_capture(&bench);
    let capture = bench.pool.capture().unwrap();
    drop(plain);
    drop(used);
    assert_eq!(super::owned::seen_by_a_capture(&bench), before);
    assert_eq!((rental.figures().kept_blocks, bench.live()), (1, Bytes::mib(1)));
    drop(rental.rent(Bytes::mib(1)).unwrap());
    assert_eq!(rental.figures().hits, 1);
    drop(capture);
    rental.clear();
    bench.pool.trim(Bytes::ZERO).unwrap();
    assert_eq!(bench.pool.held(), Bytes::ZERO);
}
