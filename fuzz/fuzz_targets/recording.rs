#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| coroner_fuzz_targets::recording(bytes));

// Bytes alone seldom make another document.
libfuzzer_sys::fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    let odd = coroner_fuzz_targets::odd_line(&data[..size], seed);
    match odd.filter(|odd| odd.len() <= max_size && seed.count_ones() % 2 == 0) {
        Some(odd) => {
            data[..odd.len()].copy_from_slice(&odd);
            odd.len()
        }
        None => libfuzzer_sys::fuzzer_mutate(data, size, max_size),
    }
});
