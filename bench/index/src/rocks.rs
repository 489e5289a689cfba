//! The few calls of RocksDB's C interface that are measured (`rocksdb/c.h` of librocksdb-dev). LZ4, Bloom filters of 10
//! bits, a block cache of its own; each batch is one synced write.

use std::ffi::{CStr, CString, c_char, c_int, c_uchar, c_void};
use std::path::Path;
use std::ptr;

type Handle = *mut c_void;

unsafe extern "C" {
    fn rocksdb_options_create() -> Handle;
    fn rocksdb_options_set_create_if_missing(options: Handle, on: c_uchar);
    fn rocksdb_options_set_compression(options: Handle, kind: c_int);
    fn rocksdb_block_based_options_create() -> Handle;
    fn rocksdb_cache_create_lru(bytes: usize) -> Handle;
    fn rocksdb_block_based_options_set_block_cache(options: Handle, cache: Handle);
    fn rocksdb_filterpolicy_create_bloom_full(bits_per_key: f64) -> Handle;
    fn rocksdb_block_based_options_set_filter_policy(options: Handle, policy: Handle);
    fn rocksdb_options_set_block_based_table_factory(options: Handle, table: Handle);
    fn rocksdb_open(options: Handle, path: *const c_char, error: *mut *mut c_char) -> Handle;
    fn rocksdb_close(db: Handle);
    fn rocksdb_writeoptions_create() -> Handle;
    fn rocksdb_writeoptions_set_sync(options: Handle, on: c_uchar);
    fn rocksdb_writebatch_create() -> Handle;
    fn rocksdb_writebatch_put(
        batch: Handle,
        key: *const u8,
        key_len: usize,
        value: *const u8,
        value_len: usize,
    );
    fn rocksdb_writebatch_delete(batch: Handle, key: *const u8, key_len: usize);
    fn rocksdb_writebatch_clear(batch: Handle);
    fn rocksdb_write(db: Handle, options: Handle, batch: Handle, error: *mut *mut c_char);
    fn rocksdb_readoptions_create() -> Handle;
    fn rocksdb_get_pinned(
        db: Handle,
        options: Handle,
        key: *const u8,
        len: usize,
        error: *mut *mut c_char,
    ) -> Handle;
    fn rocksdb_pinnableslice_destroy(slice: Handle);
    fn rocksdb_create_iterator(db: Handle, options: Handle) -> Handle;
    fn rocksdb_iter_seek_for_prev(iterator: Handle, key: *const u8, len: usize);
    fn rocksdb_iter_valid(iterator: Handle) -> c_uchar;
    fn rocksdb_iter_destroy(iterator: Handle);
}

/// An open database. One thread uses it.
pub struct Rocks {
    db: Handle,
    write: Handle,
    read: Handle,
    batch: Handle,
}

fn check(error: *mut c_char) {
    if !error.is_null() {
        // SAFETY: RocksDB gives a terminated string, which lives until the process ends.
        let text = unsafe { CStr::from_ptr(error) };
        panic!("RocksDB: {}", text.to_string_lossy());
    }
}

impl Rocks {
    pub fn open(dir: &Path, cache_bytes: usize) -> Rocks {
        let path = CString::new(dir.to_str().expect("a readable path")).expect("no zero inside");
        let mut error = ptr::null_mut();
        // SAFETY: each handle is used as the header says; the options live until the process ends.
        let rocks = unsafe {
            let options = rocksdb_options_create();
            rocksdb_options_set_create_if_missing(options, 1);
            rocksdb_options_set_compression(options, 4);
            let table = rocksdb_block_based_options_create();
            rocksdb_block_based_options_set_block_cache(table, rocksdb_cache_create_lru(cache_bytes));
            let policy = rocksdb_filterpolicy_create_bloom_full(10.0);
            rocksdb_block_based_options_set_filter_policy(table, policy);
            rocksdb_options_set_block_based_table_factory(options, table);
            let write = rocksdb_writeoptions_create();
            rocksdb_writeoptions_set_sync(write, 1);
            let db = rocksdb_open(options, path.as_ptr(), &mut error);
            Rocks { db, write, read: rocksdb_readoptions_create(), batch: rocksdb_writebatch_create() }
        };
        check(error);
        rocks
    }

    pub fn put(&mut self, key: &[u8; 16], value: &[u8; 16]) {
        // SAFETY: the batch copies what it is given.
        unsafe { rocksdb_writebatch_put(self.batch, key.as_ptr(), 16, value.as_ptr(), 16) }
    }

    pub fn delete(&mut self, key: &[u8; 16]) {
        // SAFETY: as above.
        unsafe { rocksdb_writebatch_delete(self.batch, key.as_ptr(), 16) }
    }

    pub fn commit(&mut self) {
        let mut error = ptr::null_mut();
        // SAFETY: the handles are open.
        unsafe {
            rocksdb_write(self.db, self.write, self.batch, &mut error);
            rocksdb_writebatch_clear(self.batch);
        }
        check(error);
    }

    pub fn get(&self, key: &[u8; 16]) -> bool {
        let mut error = ptr::null_mut();
        // SAFETY: the handles are open; the slice is given back at once.
        let is_found = unsafe {
            let slice = rocksdb_get_pinned(self.db, self.read, key.as_ptr(), 16, &mut error);
            if !slice.is_null() {
                rocksdb_pinnableslice_destroy(slice);
            }
            !slice.is_null()
        };
        check(error);
        is_found
    }

    /// True when there is a key at or below.
    pub fn has_at_or_below(&self, key: &[u8; 16]) -> bool {
        // SAFETY: the handles are open; the iterator goes at once.
        unsafe {
            let iterator = rocksdb_create_iterator(self.db, self.read);
            rocksdb_iter_seek_for_prev(iterator, key.as_ptr(), 16);
            let is_valid = rocksdb_iter_valid(iterator) != 0;
            rocksdb_iter_destroy(iterator);
            is_valid
        }
    }
}

impl Drop for Rocks {
    fn drop(&mut self) {
        // SAFETY: nothing uses it any more.
        unsafe { rocksdb_close(self.db) }
    }
}
