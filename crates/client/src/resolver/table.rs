//! A map from hosts to racks, as Hadoop's `TableMapping` reads it: two columns, a host and its rack.
//!
//! # Limits     [`MAP_BYTES_MAX`] of file

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bindery_io::{Disk, OpenMode};

use super::{NetworkResolver, Resolution, ResolveError};
use crate::location::Location;

/// Half a million hosts.
const MAP_BYTES_MAX: u64 = 16 << 20;

/// Looks hosts up in a map. One that came from a file is read again at each look-up, so that an edited file counts without
/// a restart, within minutes.
pub struct TableResolver {
    racks: HashMap<String, Location>,
    file: Option<(Arc<dyn Disk>, PathBuf)>,
}

impl TableResolver {
    /// Takes the text of a map. Empty lines and those that begin with `#` do not count.
    ///
    /// # Errors
    /// [`ResolveError::InvalidLine`] for a line that is not two words of which the second is a rack.
    pub fn parse(text: &str) -> Result<TableResolver, ResolveError> {
        Ok(TableResolver { racks: parse(text, None)?, file: None })
    }

    /// Reads a map file; blocks, as the disk does.
    ///
    /// # Errors
    /// [`ResolveError::CannotRead`], and those of [`parse`](Self::parse).
    pub fn open(disk: Arc<dyn Disk>, path: &Path) -> Result<TableResolver, ResolveError> {
        let racks = load(&*disk, path)?;
        Ok(TableResolver { racks, file: Some((disk, path.into())) })
    }
}

fn load(disk: &dyn Disk, path: &Path) -> Result<HashMap<String, Location>, ResolveError> {
    let failed = |error: &dyn std::fmt::Display| ResolveError::CannotRead {
        path: path.into(),
        error: error.to_string(),
    };
    let file = disk.open(path, OpenMode::Read).map_err(|error| failed(&error))?;
    let len = file.len().map_err(|error| failed(&error))?;
    if len > MAP_BYTES_MAX {
        return Err(failed(&format_args!("it has {len} bytes, more than {MAP_BYTES_MAX}")));
    }
    let mut bytes = vec![0; len as usize];
    file.read_exact_at(&mut bytes, 0).map_err(|error| failed(&error))?;
    let text = String::from_utf8(bytes).map_err(|error| failed(&error))?;
    parse(&text, Some(path))
}

fn parse(text: &str, path: Option<&Path>) -> Result<HashMap<String, Location>, ResolveError> {
    let mut racks = HashMap::new();
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let invalid =
            |error| ResolveError::InvalidLine { path: path.map(Into::into), line: index + 1, error };
        let words: Vec<&str> = line.split_whitespace().collect();
        let [host, rack] = words[..] else {
            return Err(invalid(format!("it has {} words; a host and its rack are wanted", words.len())));
        };
        let location = Location::new(rack).map_err(|error| invalid(error.to_string()))?;
        racks.insert(host.to_owned(), location);
    }
    Ok(racks)
}

fn look_up(racks: &HashMap<String, Location>, hosts: &[String]) -> Vec<Option<Location>> {
    hosts.iter().map(|host| racks.get(host).cloned()).collect()
}

impl NetworkResolver for TableResolver {
    fn resolve<'a>(&'a self, hosts: &'a [String]) -> Resolution<'a> {
        Box::pin(async move {
            let Some((disk, path)) = &self.file else { return Ok(look_up(&self.racks, hosts)) };
            let (disk, path) = (disk.clone(), path.clone());
            let racks = tokio::task::spawn_blocking(move || load(&*disk, &path)).await;
            match racks {
                Ok(racks) => Ok(look_up(&racks?, hosts)),
                Err(error) => Err(ResolveError::Other(error.to_string())),
            }
        })
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "the files of an operator")]
mod tests {
    use super::*;
    use bindery_io::RealDisk;

    fn hosts(names: &str) -> Vec<String> {
        names.split(' ').map(Into::into).collect()
    }

    fn rack(path: &str) -> Option<Location> {
        Some(Location::new(path).unwrap())
    }

    #[tokio::test]
    async fn a_map_gives_each_host_its_rack() {
        let text = "# hosts\n\n10.0.0.1\t/eu/r1\n  bookie-2   /r2/ \n";
        let table = TableResolver::parse(text).unwrap();
        let found = table.resolve(&hosts("bookie-2 unknown 10.0.0.1")).await.unwrap();
        assert_eq!(found, [rack("/r2"), None, rack("/eu/r1")]);
    }

    #[test]
    fn a_line_that_is_no_host_and_rack_is_named() {
        for (text, line) in [("a /r1\nb", 2), ("a /r1 x", 1), ("# x\n\na r1", 3)] {
            let error = TableResolver::parse(text).err().unwrap();
            assert!(
                matches!(error, ResolveError::InvalidLine { line: found, .. } if found == line),
                "{error}"
            );
        }
        let message = TableResolver::parse("a r1").err().unwrap().to_string();
        assert!(message.starts_with("line 1 of the rack map: \"r1\" is no rack"), "{message}");
    }

    #[tokio::test]
    async fn an_edited_file_counts_without_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("racks");
        let open = || TableResolver::open(Arc::new(RealDisk::new()), &path);
        let missing = open().err().unwrap().to_string();
        assert!(missing.starts_with("cannot read the rack map") && missing.contains("racks"), "{missing}");
        std::fs::write(&path, "a /r1\n").unwrap();
        let table = open().unwrap();
        assert_eq!(table.resolve(&hosts("a")).await.unwrap(), [rack("/r1")]);
        std::fs::write(&path, "a /r2\n").unwrap();
        assert_eq!(table.resolve(&hosts("a")).await.unwrap(), [rack("/r2")]);
        std::fs::write(&path, "a\n").unwrap();
        let error = table.resolve(&hosts("a")).await.unwrap_err().to_string();
        assert!(error.contains("line 1") && error.contains("racks"), "{error}");
    }
}
