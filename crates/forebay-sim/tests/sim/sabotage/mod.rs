//! The conformance suite can fail: devices with one thing wrong each, and the cases that tell.
//!
//! Each sabotage breaks one promise of the contract, in front of a simulated device that keeps it.
//! The cases named beside it must fail on it; and all cases must pass where nothing was tampered
//! with, so that it was the sabotage they saw.

// This file and its modules are tests alone, where a failed assumption should end the test.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout)]

mod bytes;
mod delegate;
mod figures;
mod order;
mod tamper;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use delegate::Delegate;
use forebay_core::Bytes;
use forebay_hal::conformance::{self, Case, Fixture, Outcome, Pair};
use forebay_hal::{Call, CallGroup, Capabilities, Device, Result};
use forebay_sim::{HandleReuse, MemoryModel, SimMachine, SimOptions};
use tamper::Tamper;

/// Simulated machines with a tamper in front of every device.
struct Tampered<F> {
    seed: AtomicU64,
    tamper: F,
    options: fn(SimOptions) -> SimOptions,
    /// Machines to look at afterwards, where a test wants to. They keep their devices alive.
    machines: Option<Mutex<Vec<SimMachine>>>,
}

impl<F: Fn() -> Arc<dyn Tamper> + Send + Sync + 'static> Tampered<F> {
    fn new(tamper: F) -> Self {
        Self { seed: AtomicU64::new(0), tamper, options: |options| options, machines: None }
    }

    fn fixture(self) -> Arc<dyn Fixture> {
        Arc::new(self)
    }

    fn machine(&self, devices: u32) -> Result<SimMachine> {
        let options = SimMachine::builder()
            .seed(self.seed.fetch_add(1, Ordering::Relaxed))
            .devices(devices)
            .capacity(Bytes::gib(1));
        let machine = (self.options)(options).build()?;
        if let Some(machines) = &self.machines {
            machines.lock().unwrap().push(machine.clone());
        }
        Ok(machine)
    }

    fn device(&self, machine: &SimMachine, ordinal: u32) -> Arc<dyn Device> {
        let inner = machine.device(ordinal).expect("the machine has that many");
        Delegate::new(inner, (self.tamper)())
    }
}

impl<F: Fn() -> Arc<dyn Tamper> + Send + Sync + 'static> Fixture for Tampered<F> {
    fn name(&self) -> &str {
        "tampered"
    }

    fn open(&self) -> Result<Arc<dyn Device>> {
        Ok(self.device(&self.machine(1)?, 0))
    }

    fn foreign_stream(&self) -> Option<Result<(Arc<dyn Device>, u64)>> {
        let given = || {
            let machine = self.machine(1)?;
            let raw = machine.device(0).expect("the machine has one").make_foreign_stream();
            Ok((self.device(&machine, 0), raw))
        };
        Some(given())
    }

    fn pair(&self) -> Option<Result<Pair>> {
        let pair = || {
            let machine = self.machine(2)?;
            Ok((self.device(&machine, 0), self.device(&machine, 1)))
        };
        Some(pair())
    }
}

fn case(name: &str) -> &'static Case {
    conformance::cases()
        .into_iter()
        .find(|case| case.name == name)
        .unwrap_or_else(|| panic!("there is no case {name}"))
}

/// A test for each sabotage: every one of these cases fails on it.
macro_rules! sabotages {
    ($($test:ident: $tamper:expr => [$($name:literal),+ $(,)?];)+) => {$(
        #[test]
        fn $test() {
            let fixture = Tampered::new(|| Arc::new($tamper)).fixture();
            for name in [$($name),+] {
                match conformance::run(case(name), &fixture) {
                    // Shown with `--nocapture`: it should be the sabotage that the text tells.
                    Outcome::Failed(text) => println!("{name}: {text}"),
                    outcome => panic!("{name}: {outcome:?}"),
                }
            }
        }
    )+};
}

sabotages! {
    drops_event_wait: order::DropsEventWait => [
        "streams/event_orders_two_streams",
        "streams/event_orders_two_streams_round_after_round",
        "streams/event_orders_a_chain_of_three",
        "streams/events_order_a_diamond",
        "streams/events_order_a_diamond_round_after_round",
        "streams/one_event_holds_several_streams",
        "streams/a_task_waits_for_events",
        "streams/threads_make_and_destroy_while_others_work",
        "streams/an_event_orders_the_default_streams_of_two_threads",
        "peers/an_event_orders_two_devices",
    ];
    wait_follows_the_event: order::WaitFollowsTheEvent::default() => [
        "streams/a_wait_ignores_records_made_later",
        "streams/waiting_for_an_event_never_recorded_is_no_wait",
    ];
    keeps_the_first_record: order::KeepsTheFirstRecord::default() => [
        "streams/query_event_follows_the_latest_record",
        "streams/synchronize_event_shows_what_was_written",
    ];
    streams_always_done: order::StreamsAlwaysDone => [
        "streams/query_is_pending_while_held_then_done",
        "streams/event_orders_two_streams",
    ];
    events_always_done: order::EventsAlwaysDone => [
        "streams/query_event_follows_the_latest_record",
        "streams/an_event_outlives_its_stream",
    ];
    synchronize_returns_at_once: order::SynchronizeReturnsAtOnce => [
        "streams/synchronize_shows_what_was_written",
        "streams/work_of_one_stream_runs_in_order",
    ];
    synchronizes_too_much: order::SynchronizesTooMuch => [
        "streams/synchronize_event_waits_for_no_more_than_its_event",
    ];
    free_waits: order::FreeWaits => [
        "streams/giving_memory_back_does_not_wait_where_that_is_promised",
    ];
    destroy_waits: order::DestroyWaits => ["streams/destroying_a_busy_stream_does_not_wait"];
    work_goes_to_one_stream: order::WorkGoesToOneStream => [
        "streams/no_stream_waits_for_another",
        "streams/the_default_stream_waits_for_no_other",
        "streams/no_stream_waits_for_the_default",
    ];
    own_streams_are_one: order::OwnStreamsAreOne => [
        "streams/each_thread_has_a_default_stream_of_its_own",
        "streams/threads_default_streams_do_not_wait_for_each_other",
        "streams/another_threads_default_stream_is_refused_everywhere",
    ];
    synchronizes_own_thread_alone: order::SynchronizesOwnThreadAlone => [
        "streams/synchronize_device_waits_for_every_threads_default_stream",
    ];
    forgets_no_stream: order::ForgetsNoStream => [
        "streams/a_stream_not_adopted_is_refused",
        "streams/adopting_counts",
        "streams/forgetting_what_was_not_adopted_is_refused",
        "streams/a_foreign_stream_value_forgets_and_does_not_destroy",
    ];
    reuses_stream_ids: order::ReusesStreamIds => ["streams/ids_are_never_given_twice"];
    tasks_never_run: order::TasksNeverRun => [
        "streams/tasks_run_once_and_in_order",
        "streams/tasks_run_once_where_the_device_goes_first",
    ];
    tasks_run_at_once: order::TasksRunAtOnce => ["streams/tasks_run_between_the_work_around_them"];
    tasks_die_with_their_stream: order::TasksDieWithTheirStream::default() => [
        "streams/tasks_of_a_destroyed_stream_run_once",
    ];
    query_panics: order::QueryPanics => ["streams/an_event_never_recorded_is_reached"];

    copies_forget_the_tail: bytes::CopiesForgetTheTail { above: 0 } => [
        "transfers/odd_sizes_arrive_whole_and_alone_from_the_host",
        "transfers/odd_sizes_arrive_whole_and_alone_on_the_host",
        "transfers/odd_sizes_arrive_whole_and_alone_on_the_device",
        "transfers/planes_on_the_device",
    ];
    large_copies_forget_the_tail: bytes::CopiesForgetTheTail { above: 4 << 20 } => [
        "transfers/prime_megabytes_arrive_whole",
        "memory/odd_sizes_hold_their_bytes",
    ];
    fills_end_too_early: bytes::FillsMissTheEnd::ByOneTooFew => [
        "transfers/fills_of_one_byte",
        "transfers/a_fill_of_megabytes_reaches_the_end",
    ];
    fills_end_too_late: bytes::FillsMissTheEnd::ByOneTooMany => ["transfers/fills_of_one_byte"];
    ignores_pitch: bytes::IgnoresPitch => [
        "transfers/planes_from_the_host",
        "transfers/planes_to_the_host",
        "transfers/planes_on_the_device",
        "transfers/interleaved_rows_on_the_device",
        "transfers/fills_of_planes_leave_the_gaps",
    ];
    ignores_slice_pitch: bytes::IgnoresSlicePitch => [
        "transfers/volumes_from_the_host",
        "transfers/volumes_to_the_host",
        "transfers/volumes_on_the_device",
    ];
    fills_the_gaps: bytes::FillsTheGaps => ["transfers/fills_of_planes_leave_the_gaps"];
    fills_by_the_first_byte: bytes::FillsByTheFirstByte => [
        "transfers/fills_of_two_bytes",
        "transfers/fills_of_four_bytes",
    ];
    cuts_pitches_to_32_bits: bytes::CutsPitchesTo32Bits => [
        "transfers/a_pitch_above_four_gibibytes",
    ];
    peer_copies_forget_the_tail: bytes::PeerCopiesForgetTheTail => [
        "peers/peer_copies_arrive_whole_and_alone",
        "peers/peer_copies_need_no_enabling",
    ];
    decoding_forgets_the_tail: bytes::DecodingForgetsTheTail => [
        "transfers/blocks_are_decoded_and_nothing_else_is_written",
        "transfers/blocks_are_decoded_in_stream_order",
    ];
    prefetching_clears: bytes::PrefetchingClears => ["managed/prefetching_changes_no_byte"];

    wrong_free_memory: figures::WrongFreeMemory => [
        "info/free_and_held_never_exceed_total",
        "info/free_shrinks_by_what_is_held",
    ];
    held_forgotten: figures::HeldForgotten => [
        "memory/held_is_exact_for_whole_pages",
        "virtual/held_counts_pages_exactly",
        "virtual/a_released_page_goes_with_its_last_mapping",
        "managed/managed_memory_is_counted_apart",
    ];
    zero_allocation_takes_memory: figures::ZeroAllocationTakesMemory => [
        "memory/zero_bytes_is_null",
    ];
    alignment_ignored: figures::AlignmentIgnored => [
        "memory/every_alignment_up_to_a_device_page_is_kept",
    ];
    refusals_leak: figures::RefusalsLeak => [
        "memory/a_refused_allocation_takes_nothing",
        "memory/more_than_is_left_is_out_of_memory",
    ];
    errors_forget_the_size: figures::ErrorsForgetTheSize => [
        "memory/more_than_there_is_is_out_of_memory",
    ];
    errors_name_another_call: figures::ErrorsNameAnotherCall => ["memory/double_free_is_refused"];
    double_free_accepted: figures::DoubleFreeAccepted => [
        "memory/double_free_is_refused",
        "memory/free_of_an_inner_address_is_refused",
        "memory/free_of_an_unknown_address_is_refused",
    ];
    freed_memory_stays_known: figures::FreedMemoryStaysKnown::default() => [
        "info/freed_memory_is_not_classified",
    ];
    overlaps_mappings: figures::OverlapsMappings::default() => [
        "virtual/two_pages_stay_apart",
        "virtual/pages_can_be_put_in_any_order",
    ];
    maps_over_mappings: figures::MapsOverMappings => ["virtual/map_over_a_mapping_is_refused"];
    partial_unmap_accepted: figures::PartialUnmapAccepted => [
        "virtual/unmap_of_a_part_is_refused",
        "virtual/unmap_of_a_hole_is_refused",
        "virtual/unmap_of_nothing_is_refused",
    ];
    mappings_are_born_open: figures::MappingsAreBornOpen::default() => [
        "virtual/without_access_nothing_is_read_or_written",
        "virtual/access_does_not_survive_unmap",
    ];
    access_not_checked: figures::AccessNotChecked => [
        "virtual/read_access_refuses_writes",
        "virtual/access_can_be_taken_away",
    ];
    released_page_dies: figures::ReleasedPageDies::default() => [
        "virtual/a_released_page_lives_while_mapped",
        "virtual/a_region_with_mappings_is_busy",
    ];
    regions_are_never_busy: figures::RegionsAreNeverBusy => [
        "virtual/a_region_with_mappings_is_busy",
    ];
    every_page_is_shareable: figures::EveryPageIsShareable => [
        "sharing/a_page_not_shareable_is_refused",
    ];
    imports_any_size: figures::ImportsAnySize::default() => ["sharing/a_wrong_size_is_refused"];
    exports_a_copy: figures::ExportsACopy::default() => [
        "sharing/an_imported_page_is_the_exported_one",
        "sharing/a_shared_page_outlives_its_exporter",
    ];
    registers_twice: figures::RegistersTwice => ["pinned/registering_twice_is_refused"];
}

/// Counts how each call ended, and changes nothing.
#[derive(Debug, Default)]
struct Tally {
    ends: Mutex<BTreeMap<(Call, bool), u64>>,
}

/// A tally shared by all devices of a test.
#[derive(Debug, Clone, Default)]
struct Counts(Arc<Tally>);

impl Tamper for Counts {
    fn ended(&self, call: Call, succeeded: bool) {
        *self.0.ends.lock().unwrap().entry((call, succeeded)).or_default() += 1;
    }
}

#[test]
fn all_cases_pass_untampered_and_make_every_call() {
    let counts = Counts::default();
    let shared = counts.clone();
    let fixture = Tampered::new(move || Arc::new(shared.clone())).fixture();
    let failed: Vec<_> = conformance::cases()
        .into_iter()
        .map(|case| (case.name, conformance::run(case, &fixture)))
        .filter(|(_, outcome)| *outcome != Outcome::Passed)
        .collect();
    assert!(failed.is_empty(), "{failed:#?}");

    let ends = counts.0.ends.lock().unwrap();
    for &call in Call::ALL {
        // Names that are no calls of the contract.
        if matches!(call, Call::Open | Call::Launch) {
            continue;
        }
        assert!(ends.contains_key(&(call, true)), "no case makes {call} succeed");
        // These have no argument that could be wrong.
        let cannot_be_refused = [
            Call::MemoryInfo,
            Call::Classify,
            Call::SynchronizeDevice,
            Call::CreateStream,
            Call::CreateEvent,
        ];
        if !cannot_be_refused.contains(&call) {
            assert!(ends.contains_key(&(call, false)), "no case sees {call} refused");
        }
    }
}

/// Runs the cases of some groups on machines of other kinds; tells how many passed.
fn passed_on(options: fn(SimOptions) -> SimOptions, groups: &[CallGroup]) -> usize {
    let untampered = || Arc::new(Counts::default()) as Arc<dyn Tamper>;
    let fixture = Tampered { options, ..Tampered::new(untampered) }.fixture();
    let (mut passed, mut failed) = (0, Vec::new());
    for case in conformance::cases() {
        if !groups.is_empty() && !groups.contains(&case.group) {
            continue;
        }
        match conformance::run(case, &fixture) {
            Outcome::Passed => passed += 1,
            Outcome::Skipped(_) => {}
            Outcome::Failed(text) => failed.push((case.name, text)),
        }
    }
    assert!(failed.is_empty(), "{failed:#?}");
    passed
}

#[test]
fn a_device_without_data_is_tested_as_far_as_it_goes() {
    let passed = passed_on(|options| options.memory(MemoryModel::Phantom), &[]);
    assert!(passed >= 75, "{passed} cases passed");
}

#[test]
fn a_bare_device_is_tested_as_far_as_it_goes() {
    let keeps = |options: SimOptions| options.without(Capabilities::all() - Capabilities::DATA);
    let passed = passed_on(keeps, &[]);
    assert!(passed >= 75, "{passed} cases passed");
}

#[test]
fn handles_may_come_back() {
    let passed = passed_on(|options| options.handles(HandleReuse::AtOnce), &[CallGroup::Streams]);
    assert!(passed >= 40, "{passed} cases passed");
}

/// The suite must not race itself: a device would be blamed for it.
#[test]
fn the_suite_makes_no_mistake_in_ordering() {
    let fixture = Arc::new(Tampered {
        machines: Some(Mutex::default()),
        ..Tampered::new(|| Arc::new(Counts::default()) as Arc<dyn Tamper>)
    });
    let shared: Arc<dyn Fixture> = Arc::clone(&fixture) as Arc<dyn Fixture>;
    for case in conformance::cases() {
        // The machine keeps its devices alive for us, so their end cannot be seen here.
        if case.name.contains("device_goes") || case.name.contains("devices_come") {
            continue;
        }
        let _ = conformance::run(case, &shared);
        let machines = std::mem::take(&mut *fixture.machines.as_ref().unwrap().lock().unwrap());
        for machine in machines {
            let findings: Vec<_> = machine.findings().iter().map(ToString::to_string).collect();
            assert!(findings.is_empty(), "{}: {findings:#?}", case.name);
        }
    }
}

#[test]
fn a_device_that_hangs_fails_its_case_in_time() {
    let fixture = Tampered::new(|| Arc::new(order::SynchronizeHangs)).fixture();
    let case = case("streams/synchronize_device_covers_every_stream");
    let outcome = conformance::run_within(Duration::from_secs(1), case, &fixture);
    let Outcome::Failed(text) = outcome else { panic!("{outcome:?}") };
    assert!(text.starts_with("not done after 1 s"), "{text}");
}

#[test]
fn a_panic_is_told_as_one() {
    let fixture = Tampered::new(|| Arc::new(order::QueryPanics)).fixture();
    let outcome = conformance::run(case("streams/an_event_never_recorded_is_reached"), &fixture);
    assert_eq!(outcome, Outcome::Failed("a call panicked: on purpose".to_owned()));
}
