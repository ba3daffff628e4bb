//! HIP over the fake CUDA driver, libraries that answer nonsense, and our declarations beside AMD's. One program, because
//! each costs a link.

#[path = "../../../forebay-cuda/tests/fake_driver/mod.rs"]
mod fake_driver;
#[path = "../fake_hip/mod.rs"]
mod fake_hip;
#[path = "../gpu/mod.rs"]
mod gpu;
#[path = "../../../forebay-cuda/tests/rounds/mod.rs"]
mod rounds;

mod drivers;
mod nonsense;
mod oracle;
