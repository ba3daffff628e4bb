//! Random transfers of every shape, against an oracle of both sides.

use forebay_core::Random;

use super::*;

/// Indices that a region touches, in order: of the host's side and of the array.
fn touched(
    region: (usize, usize, usize),
    host: [usize; 2],
    device: [usize; 2],
) -> Vec<(usize, usize)> {
    let (width, rows, slices) = region;
    let mut places = Vec::new();
    for slice in 0..slices {
        for row in 0..rows {
            for column in 0..width {
                let at = |pitch: [usize; 2]| slice * pitch[1] + row * pitch[0] + column;
                places.push((at(host), at(device)));
            }
        }
    }
    places
}

#[test]
fn transfers_of_every_shape_agree_with_an_oracle() {
    for seed in 0..150 {
        let mut random = Random::new(seed);
        let mut below = |bound: u64| usize::try_from(random.below(bound)).unwrap();
        let options = small().slots(1 + below(4)).threads(1 + below(3));
        let bench = Bench::with(own_memory().seed(seed), options);
        let mut array = bench.array(20_000);
        array.fill(0).unwrap();
        let mut oracle = vec![0_u8; 20_000];
        for round in 0..12_u64 {
            let first = below(2000);
            let is_upload = below(2) == 0;
            let priority = [Priority::Low, Priority::Normal, Priority::High][below(3)];
            if below(3) == 0 {
                let length = below(18_000);
                let region = first..first + length;
                if is_upload {
                    let from = data(length, seed ^ round);
                    let ticket = bench.engine.upload(from.clone(), array).at(first);
                    let ticket = ticket.priority(priority).submit().unwrap();
                    array = if below(2) == 0 { ticket.wait() } else { ticket.order() }.unwrap().1;
                    oracle[region].copy_from_slice(&from);
                } else {
                    let mut back = vec![1; length];
                    let scoped = bench.engine.scope(|transfers| {
                        let transfer = transfers.download(&array, &mut back).at(first);
                        transfer.priority(priority).submit().unwrap().wait()
                    });
                    scoped.unwrap().unwrap();
                    assert!(back == oracle[region], "seed {seed}, round {round}");
                }
                continue;
            }
            let (width, rows, slices) = (below(60), below(12), below(4));
            let mut pitch = || {
                let row = width + below(3);
                [row, row * (rows + below(2))]
            };
            let (host, device) = (pitch(), pitch());
            let region = Region::volume(width, rows, slices);
            let region = region.host_pitch(host[0], host[1]).device_pitch(device[0], device[1]);
            let places = touched((width, rows, slices), host, device);
            let length = places.last().map_or(0, |last| last.0 + 1);
            let mut near = data(length, seed ^ round);
            if is_upload {
                for (host, device) in places {
                    oracle[first + device] = near[host];
                }
                let scoped = bench.engine.scope(|transfers| {
                    let transfer = transfers.upload(&near, &mut array).at(first).region(region);
                    transfer.priority(priority).submit().unwrap().wait()
                });
                scoped.unwrap().unwrap();
            } else {
                let mut expected = near.clone();
                for (host, device) in places {
                    expected[host] = oracle[first + device];
                }
                let transfer = bench.engine.download(array, near).at(first).region(region);
                (array, near) = transfer.submit().unwrap().wait().unwrap();
                assert!(near == expected, "seed {seed}, round {round}");
            }
        }
        assert!(array.to_vec().unwrap() == oracle, "seed {seed}");
        assert!(bench.engine.statistics().pinned <= bench.engine.options().max_pinned());
        bench.nothing_was_found();
    }
}
