//! Named shared buffers, in one process and between several, some of which are killed.
//!
//! A plain program that starts itself for every further process. `FOREBAY_TEST_DEVICES` says on which devices, as
//! `host,sim,cuda:0`; without it all three, CUDA over the fake driver. `FOREBAY_KILL_ROUNDS` says how many processes are
//! killed: 200 on the host and 20 elsewhere, if it does not. The cases run one after another, since they count the open descriptors of the process.

#[cfg(target_os = "linux")]
mod cases;
#[cfg(target_os = "linux")]
mod kill;
#[cfg(target_os = "linux")]
mod locks;
#[cfg(target_os = "linux")]
mod monitored;
#[cfg(target_os = "linux")]
mod party;
#[cfg(target_os = "linux")]
#[allow(dead_code, reason = "it has more hands than these cases need")]
#[path = "../on_device/stage.rs"]
mod stage;

#[cfg(not(target_os = "linux"))]
fn main() {}

#[cfg(target_os = "linux")]
use linux::{Step, ensure, main};

#[cfg(target_os = "linux")]
mod linux {
    use std::path::PathBuf;
    use std::process::ExitCode;

    use libtest_mimic::{Arguments, Completion, Failed, Trial};

    use super::stage::Stage;
    use super::{cases, kill, locks, monitored, party};

    /// What a case gives.
    pub(crate) type Step<T = ()> = Result<T, Failed>;

    /// Fails a case with what it says, unless something holds.
    macro_rules! ensure {
        ($holds:expr, $($words:tt)+) => {
            if !$holds {
                return Err(libtest_mimic::Failed::from(format!($($words)+)));
            }
        };
    }
    pub(crate) use ensure;

    type Case = fn(&str) -> Step;

    const CASES: [(&str, Case); 18] = [
        ("what one handle writes the other reads", cases::data),
        ("another type, length or kind of device is refused", cases::refusals),
        ("names that are not valid are refused", cases::names),
        ("a name is free as soon as its last handle is dropped", cases::names_end),
        ("of many threads that create a name one wins", cases::creating_threads),
        ("of many processes that create a name one wins", cases::creating_processes),
        ("a process that creates or opens always gets the one buffer", cases::create_or_open),
        ("the buffer survives its creator", cases::death_of_the_creator),
        ("a stopped process is an error in time, and no obstacle beside another", cases::stopped),
        ("another user is refused, unless asked for", cases::other_user),
        ("a forked child keeps neither name nor lock", locks::forked),
        ("threads and processes exclude each other", locks::exclusion),
        ("a lock has a limit, and is not taken twice", locks::limits),
        ("the lock of a killed process is free", locks::killed_holder),
        ("a process is monitored until it is killed", monitored::life),
        ("a forked child is monitored by itself", monitored::forked),
        ("another user cannot monitor", monitored::other_user),
        ("killed processes leave nothing behind", kill::rounds),
    ];

    /// Where cargo has put the driver: beside the test, or a folder up.
    fn fake_driver() -> PathBuf {
        let test = std::env::current_exe().unwrap_or_default();
        let mut folders = test.ancestors().skip(1).take(2);
        let driver = folders.find_map(|folder| {
            Some(folder.join("libforebay_cuda_fake_driver.so")).filter(|path| path.exists())
        });
        driver.unwrap_or_else(|| "libforebay_cuda_fake_driver.so".into())
    }

    /// Why a case cannot run on a device, if it cannot.
    fn reason_to_skip(case: Case, device: &str) -> Option<&'static str> {
        let is = |other: Case| core::ptr::fn_addr_eq(case, other);
        let needs_root = is(cases::other_user) || is(monitored::other_user);
        // SAFETY: it has no conditions.
        if needs_root && unsafe { libc::geteuid() } != 0 {
            return Some("only root can become another user");
        }
        if is(cases::other_user) && device.starts_with("cuda") {
            return Some("which users have the GPU is the machine's matter");
        }
        let forks = is(locks::forked) || is(monitored::forked) || is(monitored::other_user);
        (forks && device != "host").then_some("a fork or user is the same on every device")
    }

    pub(crate) fn main() -> ExitCode {
        // SAFETY: no other thread is there yet.
        unsafe { std::env::set_var("FOREBAY_MONITOR", "on") };
        if let Some(code) = party::run_if_named() {
            return code;
        }
        let named = std::env::var("FOREBAY_TEST_DEVICES").unwrap_or_else(|_| {
            // SAFETY: no other thread runs yet.
            unsafe { std::env::set_var("FOREBAY_CUDA_DRIVER", fake_driver()) };
            "host,sim,cuda:0".to_owned()
        });
        let mut trials = Vec::new();
        for name in named.split(',').map(str::trim).filter(|name| !name.is_empty()) {
            match Stage::open(name) {
                Ok(_) => trials.extend(CASES.iter().map(|&(case, run)| {
                    let name = name.to_owned();
                    Trial::ignorable_test(format!("{name}: {case}"), move || {
                        if let Some(reason) = reason_to_skip(run, &name) {
                            return Ok(Completion::ignored_with(format!("skipped: {reason}")));
                        }
                        run(&name).map(|()| Completion::Completed)
                    })
                })),
                Err(missing) => {
                    let completion = Completion::ignored_with(format!("skipped: {missing}"));
                    trials.push(Trial::ignorable_test(name, move || Ok(completion)));
                }
            }
        }
        let mut arguments = Arguments::from_args();
        arguments.test_threads = Some(1);
        libtest_mimic::run(&arguments, trials).exit_code()
    }
}
