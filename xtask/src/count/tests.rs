//! The samples are what cargo-nextest 0.9.143, libtest of Rust 1.95, libtest-mimic 0.8.2 and pytest 9.2
//! print.

use super::*;

const NEXTEST: &str = "\
   Compiling nx v0.1.0 (/tmp/nx)
    Finished `test` profile [unoptimized + debuginfo] target(s) in 5.13s
────────────
 Nextest run ID efa4fb67-cf32-45af-87d7-d6f7b4ebe367 with nextest profile: default
    Starting 6 tests across 2 binaries (3 tests skipped)
        SKIP [         ] (───) nx bare
        SKIP [         ] (───) nx gpu
        PASS [   0.010s] (1/6) nx ok
  stdout ───

    running 1 test
    hello
    test another ... ignored (words of a test, about a test)
    test ok ... ok

    test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 4 filtered out; finished in 0.00s


        FAIL [   0.112s] (2/6) nx fails
  stdout ───

    running 1 test
    test fails ... FAILED

    test result: FAILED. 0 passed; 1 failed; 0 ignored; 0 measured; 4 filtered out; finished in 0.10s

  stderr ───

    thread 'fails' (9650) panicked at src/lib.rs:4:37:

        SKIP [         ] (───) nx::mimic st
        PASS [   0.005s] (5/6) nx::mimic rt
  stdout ───

    running 1 test
    test rt ... ignored (the device has no peers (bit 8))

    test result: ok. 0 passed; 0 failed; 1 ignored; 0 measured; 3 filtered out; finished in 0.00s


────────────
     Summary [   5.015s] 6 tests run: 4 passed, 2 failed, 3 skipped
        FAIL [   0.112s] (2/6) nx fails
        FAIL [   0.006s] (3/6) nx::mimic bad
error: test run failed
";

const LIBTEST: &str = "\
running 4 tests
test bare ... ignored
test gpu ... ignored, needs a GPU
test ok ... ok
test fails ... FAILED

test result: FAILED. 2 passed; 1 failed; 2 ignored; 0 measured; 0 filtered out; finished in 5.00s

error: test failed, to rerun pass `--lib`
     Running tests/mimic.rs (target/debug/deps/mimic-9df01341951de5a0)

running 4 tests
test plain_long_name_here ... ok
test rt                   ... ignored (the device has no peers (bit 8))
test st                   ... ignored
test bad                  ... FAILED

test result: FAILED. 1 passed; 1 failed; 2 ignored; 0 measured; 7 filtered out; finished in 0.00s

   Doc-tests nx

running 0 tests

test result: ok. 0 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s
";

#[test]
fn nextest_is_read_and_self_withdrawn_tests_are_not_passes() {
    let (tally, skips) = nextest(NEXTEST).unwrap();
    assert_eq!(tally, Tally { passed: 3, failed: 2, skipped: 4 });
    let reason = "the device has no peers (bit 8)".to_owned();
    assert_eq!(skips, [Skip { what: "nx::mimic rt".into(), reason }]);
    assert_eq!(nextest_not_started(NEXTEST), ["nx bare", "nx gpu", "nx::mimic st"]);
}

#[test]
fn every_mishap_of_nextest_is_a_failure() {
    for (line, passed, failed, skipped) in [
        ("     Summary [   0.127s] 24 tests run: 24 passed, 0 skipped", 24, 0, 0),
        ("     Summary [   0.1s] 1 test run: 1 passed, 0 skipped", 1, 0, 0),
        (
            "     Summary [   9.1s] 5/9 tests run: 3 passed (1 slow, 1 leaky), 2 failed, 4 skipped",
            3,
            2,
            4,
        ),
        (
            "     Summary [   9.1s] 4 tests run: 1 passed, 1 exec failed, 2 timed out, 0 skipped",
            1,
            3,
            0,
        ),
    ] {
        let (tally, _) = nextest(line).unwrap();
        assert_eq!(tally, Tally { passed, failed, skipped }, "{line}");
    }
}

#[test]
fn no_summary_is_no_count() {
    for text in
        ["", "error: could not compile `nx`", "Summary [ 1s] nothing", "Summary [x] run: a b"]
    {
        assert_eq!(nextest(text), None, "{text}");
    }
    assert_eq!(libtest("error: could not compile `nx`"), None);
}

#[test]
fn libtest_is_summed_over_binaries() {
    let (tally, skips) = libtest(LIBTEST).unwrap();
    assert_eq!(tally, Tally { passed: 3, failed: 2, skipped: 4 });
    let skips: Vec<_> = skips.iter().map(|skip| (&*skip.what, &*skip.reason)).collect();
    assert_eq!(
        skips,
        [
            ("bare", NO_REASON),
            ("gpu", "needs a GPU"),
            ("rt", "the device has no peers (bit 8)"),
            ("st", NO_REASON),
        ]
    );
}

#[test]
fn only_what_failed_is_shown() {
    let shown = without_passed(NEXTEST);
    assert!(shown.contains("panicked at src/lib.rs:4:37"), "{shown}");
    assert!(shown.contains("Summary ["), "{shown}");
    assert!(!shown.contains("hello"), "{shown}");
    assert!(!shown.contains("PASS"), "{shown}");
    let compile = "   Compiling nx\nerror[E0308]: mismatched types\n";
    assert_eq!(without_passed(compile), compile);
}

#[test]
fn how_far_a_run_is_is_in_its_latest_telling_line() {
    let building = "   Compiling forebay-core v0.1.0 (/forebay/crates/forebay-core)\n\
                       Compiling forebay-hal v0.1.0 (/forebay/crates/forebay-hal)\nwarning: x\n";
    assert_eq!(progress(building).as_deref(), Some("compiling forebay-hal"));
    let testing = format!(
        "{building}        PASS [   0.010s] ( 12/300) forebay-host stream::tests::order\n\
         ──── STDOUT:\ntest stream::tests::order ... ok\nCompiling is a word\n"
    );
    assert_eq!(progress(&testing).as_deref(), Some("12 of 300 tests, in forebay-host"));
    assert_eq!(progress("nothing of the kind\n"), None);
}

#[test]
fn pytests_last_line_counts_and_skips_have_reasons() {
    let text = "\
......s...........F [100%]
=========================== short test summary info ============================
SKIPPED [2] python/tests/test_views.py:32: there is no cuda:0 here; a variable can name a driver
FAILED python/tests/test_pools.py::test_it - assert 1 == 2
1 failed, 158 passed, 2 skipped, 3 warnings in 4.41s
";
    let (tally, skips) = pytest(text).unwrap();
    assert_eq!(tally, Tally { passed: 158, failed: 1, skipped: 2 });
    assert_eq!(skips.len(), 2);
    assert_eq!(skips[0].what, "python/tests/test_views.py:32");
    assert!(skips[0].reason.starts_with("there is no cuda:0 here"), "{skips:?}");
    let (tally, _) = pytest("=== 7 passed, 1 error in 0.10s ===\n").unwrap();
    assert_eq!(tally, Tally { passed: 7, failed: 1, skipped: 0 });
    assert_eq!(pytest("ERROR: file or directory not found: python\n"), None);
    assert_eq!(pytest("no tests ran in 0.01s\n"), None);
}
