#![no_main]

use bindery_sasl::plain;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    if let Ok(credentials) = plain::decode(data) {
        let again = plain::encode(&credentials);
        assert_eq!(plain::encode(&plain::decode(&again).expect("what was encoded")), again);
    }
});
