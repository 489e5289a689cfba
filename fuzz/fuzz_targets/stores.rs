#![no_main]

use bindery_tls::store::{Password, StoreContents, StoreFile};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let store = StoreFile::new("store", "fuzz");
    let contents = StoreContents::new(data, Some(Password::new("words of a store")));
    if let Ok(found) = store.authorities(&contents) {
        assert!(!found.is_empty());
    }
    if let Ok(identity) = store.identity(&contents) {
        assert!(!identity.certificates.is_empty());
    }
});
