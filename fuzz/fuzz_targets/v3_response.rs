#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    if let Err(error) = bindery_fuzz::checks::v3_response(data) {
        panic!("{error}");
    }
});
