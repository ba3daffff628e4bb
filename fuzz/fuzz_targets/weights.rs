//! `forebay_fuzz::weights` under libFuzzer; without it, over the files named on the command line.
#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    forebay_fuzz::weights(input);
});

#[cfg(not(fuzzing))]
fn main() -> std::io::Result<()> {
    for file in std::env::args_os().skip(1) {
        forebay_fuzz::weights(&std::fs::read(file)?);
    }
    Ok(())
}
