//! Directories whose names survive a power cut.

use crate::Disk;
use std::io::{self, ErrorKind};
use std::path::Path;

/// Makes a directory and those above it that are missing, so that no power cut takes them with what is put there. What
/// was made by a start that was killed on the way is found empty, and is made durable then; a directory with something in
/// it was made durable before that came. Blocks.
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
