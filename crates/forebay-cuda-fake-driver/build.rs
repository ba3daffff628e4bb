//! Leaves out what only a debugger reads: many tests load a copy of this library, and 16 MB take longer than the test.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if std::env::var("CARGO_CFG_TARGET_OS").is_ok_and(|system| system == "linux") {
        println!("cargo::rustc-link-arg-cdylib=-Wl,--strip-debug");
    }
}
