//! Where a bookie stands: a path such as `/region/rack`.

use std::fmt;
use std::sync::Arc;

/// What a resolver that knows nothing of a bookie would say, as BookKeeper does.
const DEFAULT: &str = "/default-region/default-rack";
/// The same without a region.
const DEFAULT_RACK: &str = "/default-rack";

/// The place of a bookie in the network: `/rack` or `/region/rack`, as scripts and map files of BookKeeper and Hadoop
/// have it. The whole path is the rack; its first part is the region.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Location(Arc<str>);

/// How far two places are apart, as far as their paths tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub(crate) enum Distance {
    /// In the same rack.
    Rack = 0,
    /// In the same region.
    Region = 1,
    /// Anywhere else, or unknown.
    Far = 2,
}

/// Text that is no location.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no rack: it begins with a slash and has a name behind it, as /rack-1 or /region-a/rack-1")]
pub struct InvalidLocation(pub String);

impl Location {
    /// Takes `/rack` or `/region/rack`. A slash at the end does not matter.
    ///
    /// # Errors
    /// When it does not begin with a slash, has an empty part, or has blanks in it.
    pub fn new(path: &str) -> Result<Location, InvalidLocation> {
        let trimmed = path.strip_suffix('/').unwrap_or(path);
        let parts = trimmed.strip_prefix('/').ok_or_else(|| InvalidLocation(path.into()))?;
        let is_sound = parts.split('/').all(|part| !part.is_empty())
            && !parts.contains(|letter: char| letter.is_whitespace() || letter.is_control());
        if is_sound { Ok(Location(trimmed.into())) } else { Err(InvalidLocation(path.into())) }
    }

    /// The rack: the whole path.
    pub fn rack(&self) -> &str {
        &self.0
    }

    /// The region: the first part of the path.
    pub fn region(&self) -> &str {
        let path = &self.0[1..];
        path.split_once('/').map_or(path, |(region, _)| region)
    }

    /// How far away that is. A place that is not known is far.
    pub(crate) fn distance(&self, other: Option<&Location>) -> Distance {
        match other {
            Some(other) if other == self => Distance::Rack,
            Some(other) if other.region() == self.region() => Distance::Region,
            _ => Distance::Far,
        }
    }

    /// Whether it says that nothing is known.
    pub fn is_default(&self) -> bool {
        matches!(&*self.0, DEFAULT | DEFAULT_RACK)
    }
}

impl Default for Location {
    /// `/default-region/default-rack`.
    fn default() -> Location {
        Location(DEFAULT.into())
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_has_a_region_and_a_rack() {
        for (path, rack, region) in
            [("/r1", "/r1", "r1"), ("/eu/r1", "/eu/r1", "eu"), ("/eu/hall/r1/", "/eu/hall/r1", "eu")]
        {
            let location = Location::new(path).unwrap();
            assert_eq!((location.rack(), location.region()), (rack, region));
        }
        for path in ["", "/", "r1", "//", "/eu//r1", "/a b", "/a\n"] {
            assert_eq!(Location::new(path), Err(InvalidLocation(path.into())));
        }
        let here = Location::new("/eu/r1").unwrap();
        let distance = |path: &str| here.distance(Some(&Location::new(path).unwrap()));
        let paths = ["/eu/r1", "/eu/r2", "/eu/hall/r1", "/us/r1", "/r1"];
        let far = [Distance::Rack, Distance::Region, Distance::Region, Distance::Far, Distance::Far];
        assert_eq!(paths.map(distance), far);
        assert_eq!(here.distance(None), Distance::Far);
        assert!(Location::default().is_default() && Location::new("/default-rack").unwrap().is_default());
        assert!(!Location::new("/default-region/r1").unwrap().is_default());
    }
}
