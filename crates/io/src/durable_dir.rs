//! Directories whose names survive a power cut.

use crate::{Disk, Overwrites};
use std::io::{self, ErrorKind};
use std::path::Path;

/// Makes a directory and those above it that are missing, so that no power cut takes them with what is put there. What
/// was made by a start that was killed on the way is found empty, and is made durable then; a directory with something in
/// it was made durable before that came. What is made, or found empty, gets its files written over in place where the file system can be
/// told: a full one that copies on write takes no change any more, not even one that would make room. Blocks.
///
/// # Errors
/// Of the disk. A directory that was there may be closed to this user or on a medium that is not written to: only of
/// those that hold a new one must the sync succeed.
pub fn create_durable_dir(disk: &dyn Disk, dir: &Path) -> io::Result<()> {
    let names = || dir.ancestors().filter(|name| !name.as_os_str().is_empty());
    let made = names().take_while(|name| matches!(disk.exists(name), Ok(false))).count();
    if made == 0 && !disk.list(dir)?.is_empty() {
        return Ok(());
    }
    disk.create_dir_all(dir)?;
    // A wish: who depends on it asks afterwards, also of directories that were there before.
    let _ = disk.prefer_in_place(dir);
    for (at, name) in names().enumerate() {
        let parent = match name.parent() {
            None => break,
            Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
            Some(parent) => parent,
        };
        match disk.sync_dir(parent) {
            Err(error) if at >= made && is_none_of_ours(&error) => {}
            done => done?,
        }
    }
    Ok(())
}

/// What is wrong with the file system of `dir` when files there are not written over in place, and what to do; `None` when they are, or when
/// it cannot be told. Blocks.
pub fn why_full_stays_full(disk: &dyn Disk, dir: &Path) -> Option<String> {
    let name = dir.display();
    match disk.overwrites(dir).ok()? {
        Overwrites::InPlace => None,
        Overwrites::CopiedUnlessMarked => Some(format!(
            "{name} is on a file system that copies on write (btrfs), and its files are not written in place: once the volume is full, \
             deleting does not make room, because noting that takes room. Stop, and copy the directory into one that is marked: \
             mkdir NEW && chattr +C NEW && cp -a --reflink=never {name}/. NEW, then put it in place of the old one"
        )),
        Overwrites::Copied => Some(format!(
            "{name} is on a file system that always copies on write: once the volume is full, deleting does not make room, because \
             noting that takes room. Use ext4, XFS or btrfs, or see to it that something else keeps space free there (a quota, a \
             reservation)"
        )),
    }
}

/// A directory that this user cannot have made anything in, or whose file system has no sync of directories.
fn is_none_of_ours(error: &io::Error) -> bool {
    use ErrorKind::{InvalidInput, PermissionDenied, ReadOnlyFilesystem, Unsupported};
    [PermissionDenied, ReadOnlyFilesystem, InvalidInput, Unsupported].contains(&error.kind())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DiskLayer, RealDisk};
    use parking_lot::Mutex;
    use std::path::PathBuf;

    /// Notes which directories are synced, and refuses some of that.
    #[derive(Default)]
    struct Watched {
        disk: RealDisk,
        synced: Mutex<Vec<PathBuf>>,
        refused: Mutex<Vec<(PathBuf, ErrorKind)>>,
    }

    impl DiskLayer for Watched {
        fn beneath(&self) -> &dyn Disk {
            &self.disk
        }
        fn sync_dir(&self, dir: &Path) -> io::Result<()> {
            if let Some((_, kind)) = self.refused.lock().iter().find(|(refused, _)| refused == dir) {
                return Err((*kind).into());
            }
            self.synced.lock().push(dir.to_owned());
            self.disk.sync_dir(dir)
        }
    }

    impl Watched {
        fn make(&self, dir: &Path) -> io::Result<Vec<PathBuf>> {
            create_durable_dir(self, dir).map(|()| std::mem::take(&mut *self.synced.lock()))
        }
    }

    /// Notes what is to be written in place.
    #[derive(Default)]
    struct Marked(RealDisk, Mutex<Vec<PathBuf>>);

    impl DiskLayer for Marked {
        fn beneath(&self) -> &dyn Disk {
            &self.0
        }
        fn overwrites(&self, _: &Path) -> io::Result<Overwrites> {
            Ok(Overwrites::CopiedUnlessMarked)
        }
        fn prefer_in_place(&self, dir: &Path) -> io::Result<()> {
            self.1.lock().push(dir.to_owned());
            Err(ErrorKind::InvalidInput.into())
        }
    }

    #[test]
    fn what_is_made_or_empty_is_to_be_written_in_place_and_nothing_else() {
        let root = tempfile::tempdir().unwrap();
        let (disk, dir) = (Marked::default(), root.path().join("a/b"));
        create_durable_dir(&disk, &dir).unwrap();
        create_durable_dir(&disk, &dir).unwrap();
        std::fs::write(dir.join("file"), "x").unwrap();
        create_durable_dir(&disk, &dir).unwrap();
        assert_eq!(*disk.1.lock(), [dir.clone(), dir.clone()]);
        let why = why_full_stays_full(&disk, &dir).unwrap();
        assert!(why.contains("chattr +C") && why.contains(&dir.display().to_string()), "{why}");
        assert_eq!(
            why_full_stays_full(&disk.0, &dir).is_none(),
            Disk::overwrites(&disk.0, &dir).unwrap() == Overwrites::InPlace
        );
    }

    #[test]
    fn what_may_be_new_is_synced_and_what_has_something_in_it_is_left_alone() {
        let root = tempfile::tempdir().unwrap();
        let disk = Watched::default();
        let deep = root.path().join("a/b/c/d/e");
        let holders: Vec<PathBuf> = deep.ancestors().skip(1).map(Path::to_owned).collect();
        assert_eq!(disk.make(&deep).unwrap(), holders, "all of them");
        // A start that was killed may have come to here, and may not have.
        assert_eq!(disk.make(&deep).unwrap(), holders);
        assert_eq!(disk.make(&deep.join("f")).unwrap().first(), Some(&deep));
        assert_eq!(disk.make(&deep).unwrap(), Vec::<PathBuf>::new(), "something is in it");
    }

    #[test]
    fn only_what_holds_a_new_directory_must_be_synced() {
        let root = tempfile::tempdir().unwrap();
        let (disk, dir) = (Watched::default(), root.path().join("a/b"));
        let above = root.path().parent().unwrap().to_owned();
        for kind in [ErrorKind::PermissionDenied, ErrorKind::ReadOnlyFilesystem] {
            *disk.refused.lock() = vec![(above.clone(), kind)];
            let synced = disk.make(&dir).unwrap();
            assert!(synced.contains(&root.path().to_owned()) && !synced.contains(&above), "{kind}");
            std::fs::remove_dir_all(root.path().join("a")).unwrap();
        }
        *disk.refused.lock() = vec![(above, ErrorKind::StorageFull)];
        assert_eq!(disk.make(&dir).unwrap_err().kind(), ErrorKind::StorageFull);
        std::fs::remove_dir_all(root.path().join("a")).unwrap();
        *disk.refused.lock() = vec![(root.path().to_owned(), ErrorKind::PermissionDenied)];
        assert_eq!(disk.make(&dir).unwrap_err().kind(), ErrorKind::PermissionDenied);
    }

    #[test]
    fn a_file_in_the_way_is_an_error() {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join("f");
        std::fs::write(&file, "x").unwrap();
        for dir in [file.clone(), file.join("a")] {
            assert_eq!(Watched::default().make(&dir).unwrap_err().kind(), ErrorKind::NotADirectory);
        }
    }
}
