//! What can be typed.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

/// Memory for accelerators: devices, pools, transfers, and what they do.
#[derive(Clone, Debug, PartialEq, Eq, Parser)]
#[command(name = "forebay", version, arg_required_else_help = true)]
pub struct Forebay {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What `forebay` can do.
#[derive(Clone, Debug, PartialEq, Eq, Subcommand)]
#[non_exhaustive]
pub enum Command {
    /// Say what this machine offers, which settings are in force, and what to mend.
    ///
    /// Tries the host device with a small piece of work. Exits with 0 where it does it, whether or
    /// not there is an accelerator.
    Doctor(DoctorOptions),
}

/// The options of `forebay doctor`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Args)]
#[non_exhaustive]
pub struct DoctorOptions {
    /// Print one JSON object on one line, with "schema": "forebay.doctor.v1".
    #[arg(long)]
    pub json: bool,

    /// Read the machine's files (/proc, /sys, /etc, /dev, libraries) below this directory. For
    /// tests: devices are not opened then, as they belong to another machine.
    #[arg(long, hide = true, value_name = "DIR")]
    pub root: Option<PathBuf>,
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use clap::CommandFactory;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_definition_is_sound() {
        Forebay::command().debug_assert();
    }

    #[test]
    fn what_is_documented_is_understood() {
        let parsed = Forebay::try_parse_from(["forebay", "doctor", "--json"]).unwrap();
        assert_eq!(parsed.command, Command::Doctor(DoctorOptions { json: true, root: None }));
    }

    /// Words that mean something, and any others, some of them no text.
    fn argument() -> impl Strategy<Value = OsString> {
        let known = [
            "doctor",
            "--json",
            "--root",
            "--root=",
            "/",
            "--",
            "-",
            "--help",
            "-h",
            "--version",
            "-V",
            "help",
            "--json=1",
            "-j",
            "",
        ];
        prop_oneof![
            prop::sample::select(known.to_vec()).prop_map(OsString::from),
            any::<String>().prop_map(OsString::from),
            prop::collection::vec(1_u8.., 0..12).prop_map(|bytes| {
                use std::os::unix::ffi::OsStringExt;
                OsString::from_vec(bytes)
            }),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn no_arguments_bring_it_down(arguments in prop::collection::vec(argument(), 0..6)) {
            if let Err(refusal) = Forebay::try_parse_from(arguments) {
                prop_assert!([0, 2].contains(&refusal.exit_code()));
                prop_assert!(!refusal.to_string().is_empty());
            }
        }
    }
}
