//! The `coroner` binary: everything is in the library.

fn main() -> std::process::ExitCode {
    coroner::cli::main()
}
