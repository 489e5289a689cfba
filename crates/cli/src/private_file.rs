//! A file of the user's that holds secrets: only its owner may read it, and it gets its name only when it is whole.
//!
//! # Data flow
//! ```text
//! create FILE.partial (0600, locked) -> the caller writes -> sync -> FILE.partial becomes FILE, unless FILE is there
//! ```
//!
//! # Invariants
//! 1. The file is made by the process that writes it, with mode 0600. No link is followed in the place of its last component, and
//!    nothing that was there is written to.
//! 2. Whoever removes or renames FILE.partial holds its lock: it names the file that the lock is on. So what a killed process left goes
//!    by itself, and of two that write at once one is refused.
//! 3. FILE is never replaced.

use rustix::fs::{AtFlags, CWD, FileType, FlockOperation, Mode, OFlags, RenameFlags};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

/// A file that is being written.
#[derive(Debug)]
pub struct PrivateFile {
    file: File,
    partial: PathBuf,
    path: PathBuf,
    is_named: bool,
}

/// How often others may take the place of what was just removed.
const ATTEMPTS_MAX: usize = 8;

impl PrivateFile {
    /// Begins a file that will be called `path`.
    ///
    /// # Errors
    /// What keeps it from being made, and what to do.
    pub fn create(path: &Path) -> Result<PrivateFile, String> {
        // A directory, a pipe or a link to nowhere, too.
        if path.symlink_metadata().is_ok() {
            return Err(exists(path));
        }
        let mut partial = path.as_os_str().to_owned();
        partial.push(".partial");
        let partial = PathBuf::from(partial);
        let cannot =
            |errno: Errno| format!("cannot create {}: {}", partial.display(), io::Error::from(errno));
        for _ in 0..ATTEMPTS_MAX {
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            match rustix::fs::open(&partial, flags, Mode::RUSR | Mode::WUSR) {
                Ok(file) => {
                    lock(&file, &partial)?;
                    let (file, path) = (File::from(file), path.to_owned());
                    return Ok(PrivateFile { file, partial, path, is_named: false });
                }
                Err(Errno::EXIST) => remove_remains(&partial)?,
                Err(errno) => return Err(cannot(errno)),
            }
        }
        Err(cannot(Errno::EXIST))
    }

    /// Where its bytes go.
    ///
    /// # Errors
    /// The system has no place for another descriptor.
    pub fn writer(&self) -> io::Result<File> {
        self.file.try_clone()
    }

    /// Makes the content durable and gives the file its name.
    ///
    /// # Errors
    /// The content cannot be made durable, or something else has the name by now.
    pub fn publish(mut self) -> Result<(), String> {
        let path = self.path.display();
        self.file.sync_all().map_err(|error| format!("cannot write {}: {error}", self.partial.display()))?;
        match rename_to_new(&self.partial, &self.path) {
            Ok(()) => self.is_named = true,
            Err(Errno::EXIST) => return Err(exists(&self.path)),
            Err(errno) => return Err(format!("cannot create {path}: {}", io::Error::from(errno))),
        }
        Ok(())
    }
}

impl Drop for PrivateFile {
    fn drop(&mut self) {
        if !self.is_named {
            // The next one of this name removes it otherwise.
            let _ = rustix::fs::unlink(&self.partial);
        }
    }
}

fn exists(path: &Path) -> String {
    format!("{} exists; choose another file or remove it", path.display())
}

fn lock(file: impl AsFd, partial: &Path) -> Result<(), String> {
    match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(()),
        Err(Errno::WOULDBLOCK) => Err(format!(
            "another process writes {}: wait for its end, or choose another file",
            partial.display()
        )),
        Err(errno) => Err(format!("cannot lock {}: {}", partial.display(), io::Error::from(errno))),
    }
}

/// Removes what a process left that was killed.
fn remove_remains(partial: &Path) -> Result<(), String> {
    let shown = partial.display();
    let foreign = || format!("{shown} is there, and no file of ours: remove it, or choose another file");
    let failed = |errno: Errno| format!("cannot look at {shown}: {}", io::Error::from(errno));
    // NONBLOCK: opening a pipe must not hang.
    let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = match rustix::fs::open(partial, flags, Mode::empty()) {
        Ok(file) => file,
        Err(Errno::NOENT) => return Ok(()),
        Err(Errno::LOOP | Errno::ISDIR | Errno::NXIO) => return Err(foreign()),
        Err(errno) => return Err(failed(errno)),
    };
    let opened = rustix::fs::fstat(&file).map_err(failed)?;
    if FileType::from_raw_mode(opened.st_mode) != FileType::RegularFile {
        return Err(foreign());
    }
    lock(&file, partial)?;
    match rustix::fs::lstat(partial) {
        // Its owner gave it its name, or removed it, before the lock was ours.
        Ok(named) if (named.st_dev, named.st_ino) != (opened.st_dev, opened.st_ino) => Ok(()),
        Ok(_) => rustix::fs::unlink(partial).map_err(failed),
        Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(failed(errno)),
    }
}

/// Renames a file unless something has the new name. Some file systems have no such rename, but links.
fn rename_to_new(from: &Path, to: &Path) -> Result<(), Errno> {
    match rustix::fs::renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        Err(Errno::INVAL | Errno::NOSYS) => {
            rustix::fs::linkat(CWD, from, CWD, to, AtFlags::empty())?;
            rustix::fs::unlink(from)
        }
        other => other,
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "files of the test's")]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn mode_of(path: &Path) -> u32 {
        std::fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn nobody_else_may_read_it_at_any_time() {
        let dir = tempfile::tempdir().unwrap();
        let (path, partial) = (dir.path().join("dump"), dir.path().join("dump.partial"));
        let file = PrivateFile::create(&path).unwrap();
        assert_eq!(mode_of(&partial), 0o600);
        file.writer().unwrap().write_all(b"secret").unwrap();
        assert!(!path.exists());
        file.publish().unwrap();
        assert_eq!((mode_of(&path), partial.exists()), (0o600, false));
        assert_eq!(std::fs::read(&path).unwrap(), b"secret");
    }

    #[test]
    fn nothing_that_was_there_is_written_to() {
        let dir = tempfile::tempdir().unwrap();
        let (path, partial) = (dir.path().join("dump"), dir.path().join("dump.partial"));
        let target = dir.path().join("target");
        std::fs::write(&target, "keep").unwrap();
        symlink(&target, &partial).unwrap();
        assert!(PrivateFile::create(&path).unwrap_err().contains("no file of ours"));
        std::fs::remove_file(&partial).unwrap();
        std::fs::create_dir(&partial).unwrap();
        assert!(PrivateFile::create(&path).unwrap_err().contains("no file of ours"));
        std::fs::remove_dir(&partial).unwrap();
        symlink(dir.path().join("nowhere"), &path).unwrap();
        assert!(PrivateFile::create(&path).unwrap_err().contains("exists"));
        std::fs::remove_file(&path).unwrap();
        // It comes into being meanwhile.
        let file = PrivateFile::create(&path).unwrap();
        std::fs::write(&path, "other").unwrap();
        assert!(file.publish().unwrap_err().contains("exists"));
        assert_eq!(std::fs::read(&path).unwrap(), b"other");
        assert_eq!((std::fs::read(&target).unwrap(), partial.exists()), (b"keep".to_vec(), false));
    }

    #[test]
    fn what_a_killed_process_left_goes_and_what_another_writes_stays() {
        let dir = tempfile::tempdir().unwrap();
        let (path, partial) = (dir.path().join("dump"), dir.path().join("dump.partial"));
        std::fs::write(&partial, "half").unwrap();
        std::fs::set_permissions(&partial, PermissionsExt::from_mode(0o644)).unwrap();
        let file = PrivateFile::create(&path).unwrap();
        assert_eq!((mode_of(&partial), std::fs::metadata(&partial).unwrap().len()), (0o600, 0));
        assert!(PrivateFile::create(&path).unwrap_err().contains("another process writes"));
        drop(file);
        assert!(!partial.exists());
        PrivateFile::create(&path).unwrap().publish().unwrap();
        assert!(PrivateFile::create(&path).unwrap_err().contains("exists"));
    }
}
