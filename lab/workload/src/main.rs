//! The only binary in the lab's image: the pause program of its sandboxes, the program of its
//! containers and of their hooks. It dies in every way a container can.
//!
//! Each life writes lines such as `{"event":"term","boot_ns":81234567,"pid":1}` to stdout:
//! `start` once it is ready to be signalled, `term` from inside the signal handler (or where the
//! signal was taken otherwise), `exit` immediately before it leaves by itself. The times are
//! CLOCK_BOOTTIME, the clock of the kernel's own records, so that what coroner measures can be
//! compared with what happened.
//!
//! Called as a network plugin, which `CNI_COMMAND` in its environment tells, it is one instead:
//! see [`cni`].

mod args;
mod beat;
mod behave;
mod cni;
mod http;
mod listen;
mod log;
mod process;

use std::process::ExitCode;

/// Exit status for a command line that makes no sense (EX_USAGE of sysexits.h).
const USAGE: u8 = 64;

fn main() -> ExitCode {
    if let Some(command) = std::env::var_os(cni::COMMAND) {
        return cni::answer(&command);
    }
    let words: Vec<String> = std::env::args().skip(1).collect();
    match args::parse(&words) {
        Ok(args::Parsed::Help) => {
            print!("{}", args::HELP);
            ExitCode::SUCCESS
        }
        Ok(args::Parsed::Run(behaviour)) => match behave::run(behaviour) {
            Ok(never) => match never {},
            Err(error) => {
                eprintln!("workload: {error}");
                ExitCode::FAILURE
            }
        },
        Err(error) => {
            eprintln!("workload: {error}\n\n{}", args::HELP);
            ExitCode::from(USAGE)
        }
    }
}
