//! The start-up checks, over every combination of stored cookie, directory cookies, contents and expansion.

use bindery_metadata::cookie::{Cookie, CookieProblem, Directory, StartKind, validate, validate_with_losses};
use bindery_types::BookieId;

fn dirs(names: &[&str]) -> Vec<String> {
    names.iter().map(ToString::to_string).collect()
}

fn cookie(
    id: &str,
    journal: &[&str],
    ledger: &[&str],
    index: Option<&[&str]>,
    instance: Option<&str>,
) -> Cookie {
    let index = index.map(dirs);
    Cookie::new(
        &BookieId::new(id).expect("valid in this test"),
        &dirs(journal),
        &dirs(ledger),
        index.as_deref(),
        instance,
    )
}

/// Journal /j, ledgers in /a and /b.
fn expected() -> Cookie {
    cookie("b:1", &["/j"], &["/a", "/b"], None, Some("i"))
}

fn directory(path: &str, cookie: Option<Cookie>, is_empty: bool) -> Directory {
    Directory { path: path.into(), cookie, is_empty }
}

/// The table of section 5.3, as a function of its own: all combinations of cookies that match or are missing.
#[test]
fn every_combination_of_matching_and_missing_cookies_follows_the_table() {
    let paths = ["/j", "/a", "/b"];
    let mut cases = 0;
    for stored in [false, true] {
        for allow_expansion in [false, true] {
            for bits in 0..1u32 << 6 {
                let has_cookie = |index: usize| bits >> index & 1 == 1;
                let is_empty = |index: usize| bits >> (index + 3) & 1 == 1;
                let directories: Vec<Directory> = (0..3)
                    .map(|at| directory(paths[at], has_cookie(at).then(expected), is_empty(at)))
                    .collect();
                let stored_cookies: Vec<Cookie> = stored.then(expected).into_iter().collect();
                let outcome = validate(&expected(), &stored_cookies, &directories, allow_expansion);
                let all_empty = (0..3).all(is_empty);
                let none_missing = (0..3).all(has_cookie);
                // All three paths are known to the stored cookie, so a missing one is never a new one.
                match (stored, all_empty, none_missing) {
                    (false, true, _) => assert_eq!(outcome, Ok(StartKind::New)),
                    (false, false, _) => {
                        assert!(matches!(outcome, Err(CookieProblem::NotInStore { .. })), "{bits:b}")
                    }
                    (true, _, true) => assert_eq!(outcome, Ok(StartKind::Restart)),
                    (true, _, false) => {
                        let missing: Vec<String> =
                            (0..3).filter(|at| !has_cookie(*at)).map(|at| paths[at].into()).collect();
                        let problem =
                            CookieProblem::DirectoryLost { bookie_id: "b:1".into(), directories: missing };
                        assert_eq!(outcome, Err(problem), "{bits:b} {allow_expansion}");
                    }
                }
                cases += 1;
            }
        }
    }
    assert_eq!(cases, 256);
}

#[test]
fn each_field_that_differs_is_named_wherever_the_cookie_lies() {
    let others = [
        ("bookie id", cookie("other:1", &["/j"], &["/a", "/b"], None, Some("i"))),
        ("journal directories", cookie("b:1", &["/k"], &["/a", "/b"], None, Some("i"))),
        ("ledger directories", cookie("b:1", &["/j"], &["/a", "/c"], None, Some("i"))),
        ("ledger directories", cookie("b:1", &["/j"], &["/a", "/b", "/c"], None, Some("i"))),
        ("index directories", cookie("b:1", &["/j"], &["/a", "/b"], Some(&["/x"]), Some("i"))),
        ("cluster instance id", cookie("b:1", &["/j"], &["/a", "/b"], None, Some("k"))),
        ("cluster instance id", cookie("b:1", &["/j"], &["/a", "/b"], None, None)),
    ];
    let whole = || ["/j", "/a", "/b"].map(|path| directory(path, Some(expected()), false)).to_vec();
    for (field, other) in others {
        for allow_expansion in [false, true] {
            let stored = validate(&expected(), &[expected(), other.clone()], &whole(), allow_expansion);
            let Err(CookieProblem::StoredMismatch { mismatch, .. }) = &stored else {
                panic!("{field}: {stored:?}")
            };
            assert_eq!(mismatch.what, field);
            let text = stored.unwrap_err().to_string();
            assert!(text.contains("bindery cluster cookie show"), "{text}");
            assert!(text.contains("bindery cluster cookie delete"), "{text}");
            for at in 0..3 {
                let mut directories = whole();
                directories[at].cookie = Some(other.clone());
                let outcome = validate(&expected(), &[expected()], &directories, allow_expansion);
                let Err(CookieProblem::DirectoryMismatch { directory, mismatch }) = outcome else {
                    panic!("{field}: {outcome:?}")
                };
                assert_eq!((directory.as_str(), mismatch.what), (directories[at].path.as_str(), field));
            }
        }
    }
    let same = cookie("b:1", &["/j"], &["/a", "/b"], Some(&["/a", "/b"]), Some("i"));
    assert_eq!(
        validate(&expected(), &[same], &whole(), false),
        Ok(StartKind::Restart),
        "absent = ledger directories"
    );
}

#[test]
fn without_an_instance_id_cookies_have_none() {
    let none = cookie("b:1", &["/j"], &["/a"], None, None);
    let directories = ["/j", "/a"].map(|path| directory(path, Some(none.clone()), false));
    assert_eq!(validate(&none, std::slice::from_ref(&none), &directories, false), Ok(StartKind::Restart));
}

#[test]
fn expansion_stamps_new_directories_first_and_only_when_empty_and_unknown() {
    let former = cookie("b:1", &["/j"], &["/a"], None, Some("i"));
    let known = |path| directory(path, Some(former.clone()), false);
    let grown = |is_empty| vec![known("/j"), known("/a"), directory("/b", None, is_empty)];
    let stored = [former.clone()];
    let stamp = Ok(StartKind::Expansion { stamp: dirs(&["/b", "/j", "/a"]) });
    assert_eq!(validate(&expected(), &stored, &grown(true), true), stamp);
    let off = validate(&expected(), &stored, &grown(true), false);
    assert!(matches!(off, Err(CookieProblem::StoredMismatch { .. })), "{off:?}");
    let filled = validate(&expected(), &stored, &grown(false), true);
    assert_eq!(
        filled,
        Err(CookieProblem::ExpansionNotEmpty { bookie_id: "b:1".into(), directories: dirs(&["/b"]) })
    );
    // A wiped disk beside the new one, a ledger directory or the journal: never taken for new.
    for wiped in [0, 1] {
        let mut directories = grown(true);
        directories[wiped] = directory(&directories[wiped].path.clone(), None, true);
        let lost = validate(&expected(), &stored, &directories, true);
        let Err(CookieProblem::DirectoryLost { directories: lost, .. }) = lost else { panic!("{lost:?}") };
        assert_eq!(lost, [directories[wiped].path.clone()]);
    }
}

/// Cookies are written in the order of `stamp`, then the store's: a crash after any of them must start again.
#[test]
fn an_expansion_that_stops_anywhere_is_finished_by_the_next_start() {
    let former = cookie("b:1", &["/j"], &["/a"], None, Some("i"));
    let stamp = dirs(&["/b", "/c", "/j", "/a"]);
    let target = cookie("b:1", &["/j"], &["/a", "/b", "/c"], None, Some("i"));
    for stamped in 0..=stamp.len() {
        let directories: Vec<Directory> = ["/j", "/a", "/b", "/c"]
            .into_iter()
            .map(|path| {
                let position = stamp.iter().position(|stamp| stamp == path).unwrap();
                let old = ["/j", "/a"].contains(&path).then(|| former.clone());
                directory(
                    path,
                    if position < stamped { Some(target.clone()) } else { old },
                    path > "/a" && path != "/j",
                )
            })
            .collect();
        let outcome = validate(&target, std::slice::from_ref(&former), &directories, true);
        assert!(matches!(outcome, Ok(StartKind::Expansion { .. })), "after {stamped}: {outcome:?}");
    }
    let directories = ["/j", "/a", "/b", "/c"].map(|path| directory(path, Some(target.clone()), false));
    assert_eq!(validate(&target, std::slice::from_ref(&target), &directories, true), Ok(StartKind::Restart));
}

/// A journal is known by its place in the list: more may come behind the last, and the last may go.
#[test]
fn journals_come_and_go_at_the_end_of_the_list() {
    let of = |journals: &[&str]| cookie("b:1", journals, &["/a"], None, Some("i"));
    let (one, two) = (of(&["/j"]), of(&["/j", "/k"]));
    let with = |journals: &[(&str, Option<&Cookie>, bool)], ledgers: &Cookie| -> Vec<Directory> {
        let journals = journals.iter().map(|(path, cookie, empty)| directory(path, cookie.cloned(), *empty));
        journals.chain([directory("/a", Some(ledgers.clone()), false)]).collect()
    };
    let stored = |cookie: &Cookie| std::slice::from_ref(cookie).to_vec();

    let grown = with(&[("/j", Some(&one), false), ("/k", None, true)], &one);
    let stamp = dirs(&["/k", "/j", "/a"]);
    assert_eq!(validate(&two, &stored(&one), &grown, true), Ok(StartKind::Expansion { stamp }));
    assert!(matches!(
        validate(&two, &stored(&one), &grown, false),
        Err(CookieProblem::StoredMismatch { mismatch, .. }) if mismatch.what == "journal directories"
    ));
    let filled = with(&[("/j", Some(&one), false), ("/k", None, false)], &one);
    let refused = validate(&two, &stored(&one), &filled, true);
    assert!(matches!(refused, Err(CookieProblem::ExpansionNotEmpty { .. })), "{refused:?}");

    let fewer = with(&[("/j", Some(&two), false)], &two);
    let removed = StartKind::JournalsRemoved { former: dirs(&["/k"]), stamp: dirs(&["/j", "/a"]) };
    assert_eq!(validate(&one, &stored(&two), &fewer, true), Ok(removed.clone()));
    assert!(validate(&one, &stored(&two), &fewer, false).is_err());
    // A crash between the stamps: the store's cookie is the last.
    let half = with(&[("/j", Some(&one), false)], &two);
    assert_eq!(validate(&one, &stored(&two), &half, true), Ok(removed));

    for other in [of(&["/k", "/j"]), of(&["/k"]), of(&["/j", "/x"])] {
        let refused = validate(&other, &stored(&two), &fewer, true);
        assert!(matches!(refused, Err(CookieProblem::StoredMismatch { .. })), "{other:?}: {refused:?}");
    }
    let both = with(&[("/j", Some(&two), false)], &two).into_iter().chain([directory("/b", None, true)]);
    let expected = cookie("b:1", &["/j"], &["/a", "/b"], None, Some("i"));
    let refused = validate(&expected, &stored(&two), &both.collect::<Vec<_>>(), true);
    assert!(matches!(refused, Err(CookieProblem::AddedAndRemoved { .. })), "{refused:?}");
}

/// Invariant 2 for each kind of directory, also where the index has directories of its own: with expansion allowed, a directory
/// without a cookie that the store's cookie knows is lost, not new.
#[test]
fn a_directory_of_any_kind_that_the_store_knows_is_lost_without_its_cookie() {
    let expected = || cookie("b:1", &["/j"], &["/a"], Some(&["/i"]), Some("i"));
    let paths = ["/j", "/a", "/i"];
    for missing in paths {
        let directories = paths.map(|path| directory(path, (path != missing).then(expected), true));
        let outcome = validate(&expected(), &[expected()], &directories, true);
        let lost = CookieProblem::DirectoryLost { bookie_id: "b:1".into(), directories: dirs(&[missing]) };
        assert_eq!(outcome, Err(lost));
    }
}

/// An operator's word brings back empty directories alone: one with contents and no cookie is another bookie's, perhaps.
#[test]
fn accepted_losses_are_of_directories_that_come_back_empty() {
    let all = |is_empty| {
        [
            directory("/j", Some(expected()), false),
            directory("/a", None, is_empty),
            directory("/b", Some(expected()), false),
        ]
    };
    let outcome = validate_with_losses(&expected(), &[expected()], &all(true), false);
    assert_eq!(outcome, Ok(StartKind::Lost { stamp: dirs(&["/a", "/j", "/b"]) }));
    let outcome = validate_with_losses(&expected(), &[expected()], &all(false), false);
    assert!(matches!(outcome, Err(CookieProblem::DirectoryLost { .. })), "{outcome:?}");
}
