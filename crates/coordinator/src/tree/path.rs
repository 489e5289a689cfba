//! Paths: which are valid, and what lies above them.

/// ZooKeeper's rules: absolute, no empty, `.` or `..` component, no trailing slash, no control character, surrogate,
/// private-use or special character. Java sees UTF-16, so characters beyond U+FFFF are surrogates.
pub(crate) fn is_valid(path: &str) -> bool {
    let Some(rest) = path.strip_prefix('/') else { return false };
    if rest.is_empty() {
        return true;
    }
    let allowed = |c: char| !matches!(c, '\0'..='\u{1f}' | '\u{7f}'..='\u{9f}' | '\u{e000}'..='\u{f8ff}' | '\u{fff0}'..='\u{10ffff}');
    rest.split('/').all(|name| !matches!(name, "" | "." | "..") && name.chars().all(allowed))
}

/// Parent and last component; the parent of a node below the root is empty, as in ZooKeeper. `None` without a slash or
/// with a NUL: then there is no parent to look up.
pub(crate) fn split(path: &str) -> Option<(&str, &str)> {
    if path.contains('\0') { None } else { path.rsplit_once('/') }
}

/// The key of the root for both of its names.
pub(crate) fn key(path: &str) -> &str {
    if path.is_empty() { "/" } else { path }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_judged_as_zookeeper_does() {
        for valid in
            ["/", "/a", "/a/b", "/a.b", "/...", "/.a", "/a..", "/ä/ö", "/ ", "/a b", "/\u{f900}", "/\u{ffef}"]
        {
            assert!(is_valid(valid), "{valid:?}");
        }
        for invalid in [
            "",
            "a",
            "//",
            "/a/",
            "/a//b",
            "/.",
            "/..",
            "/a/./b",
            "/a/..",
            "/a\0",
            "/\u{1}",
            "/\u{1f}",
            "/\u{7f}",
            "/\u{9f}",
            "/\u{e000}",
            "/\u{f8ff}",
            "/\u{fff0}",
            "/\u{ffff}",
            "/\u{1f600}",
        ] {
            assert!(!is_valid(invalid), "{invalid:?}");
        }
        assert_eq!(split("/a"), Some(("", "a")));
        assert_eq!(split("/a/b"), Some(("/a", "b")));
        assert_eq!(split("a"), None);
        assert_eq!(split("/a\0"), None);
        assert_eq!(key(split("/a").unwrap().0), "/");
    }
}
