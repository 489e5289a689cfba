#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    if let Err(error) = bindery_fuzz::checks::bodies(data) {
        panic!("{error}");
    }
});
