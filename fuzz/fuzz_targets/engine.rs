#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| coroner_fuzz_targets::engine(bytes));

// Bytes alone seldom make another document.
libfuzzer_sys::fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    coroner_fuzz_targets::mutated(data, size, max_size, seed)
        .unwrap_or_else(|| libfuzzer_sys::fuzzer_mutate(data, size, max_size))
});
