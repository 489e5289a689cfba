//! What TLS may hold for a connection: its memory is charged by that, and the link of the connection
//! (`connection::transport::tls`) keeps to it.

use super::OFFER_BYTES_MAX;

/// Plaintext of the largest record: the most that is encrypted ahead of the kernel.
pub(crate) const RECORD_BYTES: usize = 16 * 1024;
/// The largest record on the wire: its header, and the most that a cipher of TLS 1.2 may add.
const RECORD_WIRE_BYTES: usize = RECORD_BYTES + 2048 + 5;
/// State of a session besides its records: keys, hashes.
const SESSION_BYTES: usize = 8 * 1024;
/// The most of a first message of a handshake. Those in use have less than 2 KiB.
pub(crate) const HELLO_BYTES_MAX: usize = 8 * 1024;
/// The most of all messages of a handshake: far longer chains of certificates than any in use. Without this limit the library
/// would assemble messages of 64 KiB.
pub(crate) const HANDSHAKE_BYTES_MAX: usize = 20 * 1024;
/// See invariant 3 of the link (`connection::transport::tls`).
pub(crate) const BARREN_BYTES_MAX: usize = 24 * 1024;
/// See invariant 3 of the link (`connection::transport::tls`). The shortest request, of 24 bytes, needs less than this even in two
/// records, one of them for its length.
pub(crate) const PLAINTEXT_WEIGHT: usize = 4;
/// By how much the library grows its buffer for a read.
const READ_STEP_BYTES: usize = 4096;
/// Size of the library's buffer for received bytes, which doubles until a record or a handshake message fits.
const RECEIVED_BYTES: usize = 32 * 1024;
/// The most that this bookie sends in a handshake: its certificates and the names of authorities, and what is around them.
const OFFERED_BYTES: usize = OFFER_BYTES_MAX + 2048;
/// The most that TLS holds for a connection: the buffer of received bytes, what they decrypted to, one record on its way out,
/// and the session. During the handshake the same: instead of plaintext and the record the first message, and what this bookie
/// offers.
pub(crate) const HELD_BYTES_MAX: usize = RECEIVED_BYTES + 2 * RECORD_WIRE_BYTES + SESSION_BYTES;
/// The most that TLS holds besides when clients have certificates: the library keeps all messages of the handshake until those
/// are checked, in memory that doubles as it grows, and the certificates as long as the connection.
pub(crate) const CLIENT_AUTH_BYTES: usize = 2 * (HANDSHAKE_BYTES_MAX + OFFERED_BYTES) + HANDSHAKE_BYTES_MAX;
const _: () = assert!(
    RECEIVED_BYTES >= BARREN_BYTES_MAX + 2 * READ_STEP_BYTES && BARREN_BYTES_MAX > HANDSHAKE_BYTES_MAX,
    "all that has come since the last plaintext, some of it in the same read, and what is read before that is counted"
);
const _: () = assert!(2 * RECORD_WIRE_BYTES >= 2 * HELLO_BYTES_MAX + OFFERED_BYTES);
const _: () = assert!(
    BARREN_BYTES_MAX >= RECORD_WIRE_BYTES + READ_STEP_BYTES,
    "a whole record is received before its plaintext counts"
);
