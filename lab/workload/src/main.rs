//! The only binary in the lab's image: the pause program of its sandboxes, the program of its containers and of their
//! hooks. It terminates in every way a container can.
//!
//! Each process writes lines such as `{"event":"term","boot_ns":81234567,"pid":1}` to stdout: `start` once it is ready to
//! be signalled, `term` from inside the signal handler (or where the signal was taken otherwise), `exit` immediately
//! before it exits. The times are CLOCK_BOOTTIME, the clock of the kernel's own records.

mod args;
mod behave;
mod http;
mod log;
mod process;
mod serve;

use clap::Parser as _;
use std::process::ExitCode;

fn main() -> ExitCode {
    match behave::run(args::Workload::parse().behaviour) {
        Ok(never) => match never {},
        Err(error) => {
            eprintln!("workload: {error}");
            ExitCode::FAILURE
        }
    }
}
