#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| coroner_fuzz_targets::report(bytes));
