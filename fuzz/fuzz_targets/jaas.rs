#![no_main]

use bindery_sasl::jaas::Configuration;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(file) = Configuration::parse(text) {
        for section in file.sections() {
            assert!(file.section(&section.name).is_some());
            let _ = (section.users(), section.login());
        }
    }
});
