//! The scripts, by subject. Each works below a node of its own name and leaves it behind.

mod access;
mod frames;
mod multi;
mod nodes;
mod sequence;
mod session;
mod watch;
mod words;

use super::script::{Done, Script};

/// A script's name and body.
pub(super) type Entry = (&'static str, fn(&mut Script) -> Done);

/// All scripts. `root` comes first: it looks at a fresh server.
pub(super) const ALL: &[Entry] = &[
    ("root", nodes::root),
    ("nodes", nodes::nodes),
    ("reads", nodes::reads),
    ("versions", nodes::versions),
    ("create-modes", nodes::create_modes),
    ("containers-and-ttl", nodes::containers_and_ttl),
    ("bad-paths", nodes::bad_paths),
    ("large-values", nodes::large_values),
    ("pipeline", nodes::pipeline),
    ("sequence", sequence::sequence),
    ("ephemerals", sequence::ephemerals),
    ("acl", access::acl),
    ("acl-digest", access::digest),
    ("acl-invalid", access::invalid),
    ("acl-kinds", access::kinds),
    ("auth", access::auth),
    ("multi", multi::success),
    ("multi-failure", multi::failure),
    ("multi-sequence", multi::sequence),
    ("multi-watches", multi::watches),
    ("multi-read", multi::reads),
    ("watch-data", watch::data),
    ("watch-children", watch::children),
    ("watch-once", watch::once),
    ("watch-order", watch::order),
    ("watch-persistent", watch::persistent),
    ("watch-recursive", watch::recursive),
    ("watch-remove", watch::remove),
    ("watch-set", watch::set_watches),
    ("watch-set-persistent", watch::set_persistent),
    ("watch-other-session", watch::other_session),
    ("connect", session::connect),
    ("resume", session::resume),
    ("resume-refused", session::resume_refused),
    ("close", session::close),
    ("moved", session::moved),
    ("expiry", session::expiry),
    ("who-am-i", session::who_am_i),
    ("unsupported", frames::unsupported),
    ("opcodes", frames::opcodes),
    ("frames", frames::frames),
    ("records", frames::records),
    ("words", words::words),
];
