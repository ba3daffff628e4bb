//! The same trials on the host, whose streams are threads that really run beside each other.

use forebay_core::Bytes;

use crate::trial::{Program, Room, Run, Script, Setting};

fn setting(seed: u64) -> Setting {
    // A granule of the host is 2 MiB where the system has huge pages: room for several.
    let capacity = Bytes::mib(256);
    Setting { capacity, largest_page: Bytes::mib(4), room: Room::Pages, ..Setting::tight(seed) }
}

#[test]
fn programs_of_many_seeds_on_the_host() {
    for seed in 0..12 {
        let setting = setting(seed);
        let program = Program::of_seed(seed, 300, 4 << 20);
        let run = Run::new(setting, setting.host(), Script::NONE).unwrap();
        let played = run.play(&program);
        played.unwrap_or_else(|failure| panic!("{setting:?}: {failure}"));
    }
}

#[test]
fn a_pool_on_the_host_dropped_with_live_blocks_leaves_nothing() {
    for seed in 0..8 {
        let setting = setting(seed);
        let program = Program::of_seed(seed, 60, 4 << 20);
        let run = Run::new(setting, setting.host(), Script::NONE).unwrap();
        let played = run.play_and_abandon(&program);
        played.unwrap_or_else(|failure| panic!("{setting:?}: {failure}"));
    }
}
