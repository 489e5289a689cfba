//! The captures in `tests/golden`: what went over one connection in one direction, from its first byte to its last.

use std::path::Path;

use bindery_wire::{FrameLimit, frame};

/// Which side wrote a capture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// `<name>.c2s.bin`
    ClientToServer,
    /// `<name>.s2c.bin`
    ServerToClient,
}

pub struct Capture {
    pub name: String,
    pub direction: Direction,
    pub bytes: Vec<u8>,
}

impl Capture {
    /// The payloads of its frames. Panics when it does not consist of whole frames.
    pub fn payloads(&self) -> Vec<&[u8]> {
        let (mut rest, mut payloads) = (&self.bytes[..], Vec::new());
        while !rest.is_empty() {
            match frame::split(rest, FrameLimit::DEFAULT) {
                Ok(frame::Split::Frame(range)) => {
                    payloads.push(&rest[range.clone()]);
                    rest = &rest[range.end..];
                }
                other => panic!("{}: frame {} is {other:?}", self.name, payloads.len()),
            }
        }
        payloads
    }
}

/// All captures, by name, `client-<version>` folders included. Panics when there is none: a test over nothing proves
/// nothing.
pub fn captures() -> Vec<Capture> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let mut captures = Vec::new();
    collect(&directory, "", &mut captures);
    assert!(!captures.is_empty(), "no capture in {}", directory.display());
    captures.sort_by(|a, b| a.name.cmp(&b.name));
    captures
}

#[allow(clippy::disallowed_methods, reason = "a test reads its own fixtures")]
fn collect(directory: &Path, prefix: &str, captures: &mut Vec<Capture>) {
    for file in std::fs::read_dir(directory).expect("the directory of captures exists") {
        let path = file.expect("the directory of captures is readable").path();
        let file_name = path.file_name().expect("a listed file has a name").to_string_lossy();
        let name = format!("{prefix}{file_name}");
        if path.is_dir() {
            collect(&path, &format!("{name}/"), captures);
            continue;
        }
        let direction = match name {
            _ if name.ends_with(".c2s.bin") => Direction::ClientToServer,
            _ if name.ends_with(".s2c.bin") => Direction::ServerToClient,
            _ if name.ends_with(".bin") => panic!("{name} says no direction"),
            _ => continue,
        };
        let bytes = std::fs::read(&path).expect("a listed capture is readable");
        captures.push(Capture { name, direction, bytes });
    }
}
