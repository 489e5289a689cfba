//! Whom a bookie knows: the users of a JAAS file, as BookKeeper's bookie reads it, and those of a file of users.
//!
//! ```text
//! # file of users: a name, its roles, and what its secret is compared with
//! hd         writer,reader  digest-md5:2a9c...
//! tierer     tier,reader    digest-md5:7e01... pbkdf2-sha256:120000:9f...:c3...
//! ```
//!
//! # Invariants
//! 1. A user of a JAAS file has the roles of [`Roles::of_clients`], which is what Java's bookie lets every user do. A user who is in both
//!    files keeps a bookie from starting; in files that changed later, that is the user of the file of users, with a warning.
//! 2. A file of users that everybody on the machine may read is refused. No error quotes a part of a file but names.
//! 3. A file of users without users keeps a bookie from starting. One that lost them later means that nobody of it may log in, with an
//!    alarm: it says so as clearly as it says anything.
//!
//! # Limits     a file: [`FILE_BYTES_MAX`]; a name: [`NAME_BYTES_MAX`]

use super::rights::Roles;
use super::verifier::Verifier;
use super::{AuthError, JaasConfig};
use bindery_sasl::jaas;
use bindery_tls::file;
use regex::Regex;
use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A larger file is refused, in bytes.
pub const FILE_BYTES_MAX: u64 = jaas::FILE_BYTES_MAX as u64;
/// A longer name of a user is refused, in bytes.
pub const NAME_BYTES_MAX: usize = 255;
/// Permissions of others than owner and group.
const OF_OTHERS: u32 = 0o007;

/// The keys of the two files, for errors.
pub(super) const JAAS_KEY: &str = "jaasFile";
pub(super) const USERS_KEY: &str = "usersFile";

/// Somebody who may connect.
#[derive(Debug, PartialEq)]
pub struct User {
    pub(super) name: String,
    pub(super) roles: Roles,
    pub(super) verifier: Verifier,
}

impl User {
    /// Whether a secret is that of this user of `users`. Computes for as long as a verifier wants.
    #[cfg(test)]
    fn has(&self, secret: &str) -> bool {
        Verifier::matches(Some(&self.verifier), &self.name, &bindery_sasl::Secret::new(secret), 0)
    }
}

/// The contents of both files at one moment.
#[derive(PartialEq, Eq, Default)]
pub(super) struct Contents {
    jaas: Option<String>,
    users: Option<String>,
}

impl Contents {
    /// Reads the files. Blocks.
    pub(super) fn read(jaas: Option<&JaasConfig>, users: Option<&Path>) -> Result<Contents, AuthError> {
        let jaas = jaas.map(|jaas| read(JAAS_KEY, &jaas.file, false)).transpose()?;
        let users = users.map(|file| read(USERS_KEY, file, true)).transpose()?;
        Ok(Contents { jaas, users })
    }
}

fn read(key: &'static str, path: &Path, is_private: bool) -> Result<String, AuthError> {
    let content = |why: String| AuthError::Content { key, path: path.to_owned(), why };
    let failed = |source| AuthError::Read { key, path: path.to_owned(), source };
    let file = file::open(path).map_err(failed)?;
    // Of what was opened.
    let mode = file.metadata().map_err(failed)?.mode();
    if is_private && mode & OF_OTHERS != 0 {
        return Err(content(format!(
            "its mode is {:o}, so that every user of this machine may use it: take that away with chmod o= {}",
            mode & 0o777,
            path.display()
        )));
    }
    let bytes = file::read_at_most(file, FILE_BYTES_MAX).map_err(failed)?;
    let bytes = bytes.ok_or_else(|| content(format!("it has more than {FILE_BYTES_MAX} bytes")))?;
    String::from_utf8(bytes).map_err(|_| content("it is not text in UTF-8".to_owned()))
}

/// Everybody who may connect, by name.
#[derive(Default)]
pub(super) struct Users {
    by_name: HashMap<String, Arc<User>>,
    /// The most rounds of a derivation among them.
    pub(super) work: u32,
    /// The file of users has none (invariant 3).
    pub(super) has_empty_file: bool,
    /// Names that both files have (invariant 1).
    pub(super) twice: Vec<String>,
}

impl Users {
    /// From the contents of the files.
    pub(super) fn load(
        jaas: Option<&JaasConfig>,
        users: Option<&Path>,
        contents: &Contents,
    ) -> Result<Users, AuthError> {
        let mut found = Vec::new();
        let (mut has_empty_file, mut twice) = (false, Vec::new());
        if let (Some(config), Some(text)) = (jaas, &contents.jaas) {
            found.extend(of_jaas(config, text)?);
        }
        if let (Some(path), Some(text)) = (users, &contents.users) {
            let why = |why| AuthError::Content { key: USERS_KEY, path: path.to_owned(), why };
            let of_file = of_text(text).map_err(why)?;
            has_empty_file = of_file.is_empty();
            let in_both =
                found.iter().filter(|known: &&User| of_file.iter().any(|user| user.name == known.name));
            twice = in_both.map(|user| user.name.clone()).collect();
            found.extend(of_file);
        }
        let work = found.iter().map(|user| user.verifier.iterations()).max().unwrap_or(0);
        let by_name = found.into_iter().map(|user| (user.name.clone(), Arc::new(user))).collect();
        Ok(Users { by_name, work, has_empty_file, twice })
    }

    /// Keeps those of `before` that are as they were.
    pub(super) fn keep(&mut self, before: &Users) {
        for user in self.by_name.values_mut() {
            if let Some(known) = before.get(&user.name).filter(|known| *known == user) {
                *user = known.clone();
            }
        }
    }

    pub(super) fn get(&self, name: &str) -> Option<&Arc<User>> {
        self.by_name.get(name)
    }

    pub(super) fn len(&self) -> usize {
        self.by_name.len()
    }
}

/// The users of a section of a JAAS file who are allowed to connect.
fn of_jaas(config: &JaasConfig, text: &str) -> Result<Vec<User>, AuthError> {
    let JaasConfig { file, section: name, allowed_ids } = config;
    let content = |why: String| AuthError::Content { key: JAAS_KEY, path: file.clone(), why };
    let allowed = allowed(allowed_ids)?;
    let parsed = jaas::Configuration::parse(text).map_err(|error| content(error.to_string()))?;
    let Some(section) = parsed.section(name) else {
        let names: Vec<&str> = parsed.sections().iter().map(|section| &*section.name).collect();
        return Err(content(format!(
            "it has no section {name} (saslJaasBookieSectionName), but {}",
            if names.is_empty() { "none at all".to_owned() } else { names.join(", ") }
        )));
    };
    let users = section.users();
    if users.is_empty() {
        let is_kerberos = section.modules.iter().any(|module| module.class.ends_with("Krb5LoginModule"));
        return Err(content(match is_kerberos {
            true => format!(
                "section {name} asks for Kerberos, which is not spoken here: give users with DigestLoginModule, or certificates"
            ),
            false => format!("section {name} has no user: write options like user_NAME=\"password\""),
        }));
    }
    let allowed: Vec<User> = users
        .into_iter()
        .filter(|known| allowed.is_match(&known.user))
        .map(|known| User {
            verifier: Verifier::of_password(&known.user, &known.secret),
            roles: Roles::of_clients(),
            name: known.user,
        })
        .collect();
    if allowed.is_empty() {
        return Err(content(format!(
            "none of the users of section {name} matches saslJaasClientAllowedIds={allowed_ids}, so that nobody could log in"
        )));
    }
    Ok(allowed)
}

/// The whole name must match, as with `Matcher.matches` of Java.
fn allowed(pattern: &str) -> Result<Regex, AuthError> {
    Regex::new(&format!(r"\A(?:{pattern})\z")).map_err(|error| {
        AuthError::Settings(format!(
            "saslJaasClientAllowedIds={pattern} is no regular expression that is understood here (look-around and \
             back-references of Java are not): {error}"
        ))
    })
}

/// The users of a file of users, possibly none.
fn of_text(text: &str) -> Result<Vec<User>, String> {
    let mut users: Vec<User> = Vec::new();
    let lines = text.lines().map(str::trim).zip(1..);
    for (line, number) in lines.filter(|(line, _)| !line.is_empty() && !line.starts_with('#')) {
        let user = of_line(line).map_err(|why| format!("line {number}: {why}"))?;
        if users.iter().any(|known| known.name == user.name) {
            return Err(format!("line {number}: the user {} has a line already", user.name));
        }
        users.push(user);
    }
    Ok(users)
}

fn of_line(line: &str) -> Result<User, String> {
    let mut words = line.split_whitespace();
    let (Some(name), Some(roles)) = (words.next(), words.next()) else {
        return Err("a user has a name, roles and a verifier, with blanks between them".to_owned());
    };
    if name.len() > NAME_BYTES_MAX {
        return Err(format!("a name has at most {NAME_BYTES_MAX} bytes"));
    }
    let roles = roles.parse().map_err(|error: super::rights::UnknownRole| error.to_string())?;
    let mut verifier = Verifier::default();
    words.try_for_each(|word| verifier.read(word))?;
    if verifier.is_empty() {
        return Err("the verifier is missing: bindery user hash writes it".to_owned());
    }
    Ok(User { name: name.to_owned(), roles, verifier })
}

/// The path of a file, for configuration.
pub(super) fn shown(path: Option<&PathBuf>) -> String {
    path.map_or_else(String::new, |path| path.display().to_string())
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "what an operator puts there")]
mod tests {
    use super::*;
    use crate::auth::verifier::digest_md5_of;
    use bindery_sasl::Secret;
    use std::os::unix::fs::PermissionsExt;

    const JAAS: &str = "Bookie { a.DigestLoginModule required user_hd=\"tiger\" user_bookkeeper=\"lion\"; };\n\
                        Kerberos { com.sun.security.auth.module.Krb5LoginModule required; };\nEmpty {};\n";

    fn config(section: &str, allowed_ids: &str) -> JaasConfig {
        JaasConfig {
            file: "/etc/jaas.conf".into(),
            section: section.to_owned(),
            allowed_ids: allowed_ids.to_owned(),
        }
    }

    fn names(users: &[User]) -> Vec<&str> {
        users.iter().map(|user| &*user.name).collect()
    }

    #[test]
    fn users_of_a_jaas_file_are_those_whose_whole_name_is_allowed() {
        for (allowed, expected) in [
            (".*", &["hd", "bookkeeper"][..]),
            ("hd", &["hd"]),
            ("h", &[]),
            (".*bookkeeper.*", &["bookkeeper"]),
            ("x|hd", &["hd"]),
        ] {
            match of_jaas(&config("Bookie", allowed), JAAS) {
                Ok(users) => {
                    assert_eq!(names(&users), expected, "{allowed}");
                    assert!(users.iter().all(|user| user.roles == Roles::of_clients()));
                }
                Err(error) => {
                    assert!(
                        expected.is_empty() && error.to_string().contains("nobody could log in"),
                        "{error}"
                    );
                }
            }
        }
        assert!(of_jaas(&config("Bookie", "hd"), JAAS).unwrap()[0].has("tiger"));
        for (section, allowed, why) in [
            ("Other", ".*", "no section Other (saslJaasBookieSectionName), but Bookie, Kerberos, Empty"),
            ("Kerberos", ".*", "asks for Kerberos"),
            ("Empty", ".*", "has no user"),
            ("Bookie", "(", "no regular expression"),
            ("Bookie", "(?=hd)", "no regular expression"),
        ] {
            let error = of_jaas(&config(section, allowed), JAAS).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
        let error = of_jaas(&config("Bookie", ".*"), "Bookie {\n oops").unwrap_err().to_string();
        assert!(error.contains("/etc/jaas.conf: line 2: "), "{error}");
    }

    #[test]
    fn lines_of_a_file_of_users_are_read() {
        let of = |name: &str, secret: &str| digest_md5_of(name, &Secret::new(secret));
        let text = format!(
            "# ours\n\n  hd\twriter,reader  {}\ntierer tier,reader {} pbkdf2-sha256:1000:{}:{}\n",
            of("hd", "tiger"),
            of("tierer", "eagle"),
            "00".repeat(16),
            "11".repeat(32)
        );
        let users = of_text(&text).unwrap();
        assert_eq!(names(&users), ["hd", "tierer"]);
        assert_eq!(
            (users[0].roles.to_string(), users[1].roles.to_string()),
            ("writer,reader".into(), "reader,tier".into())
        );
        assert!(users[0].has("tiger") && !users[0].has("eagle"));
        assert_eq!((users[0].verifier.iterations(), users[1].verifier.iterations()), (0, 1000));
        let line = format!("hd writer {}", of("hd", "tiger"));
        for (text, why) in [
            ("hd".to_owned(), "line 1: a user has a name"),
            ("hd writer".to_owned(), "line 1: the verifier is missing"),
            ("\nhd writers x".to_owned(), "line 2: not a role"),
            ("hd writer tiger".to_owned(), "line 1: a verifier begins with"),
            (format!("{line}\n{line}"), "line 2: the user hd has a line already"),
            (format!("{} {line}", "n".repeat(256)), "line 1: a name has at most"),
        ] {
            let error = of_text(&text).unwrap_err();
            assert!(error.contains(why) && !error.contains("tiger"), "{error}");
        }
    }

    /// Invariants 1 and 2.
    #[test]
    fn files_are_read_together_and_not_if_everybody_may() {
        let dir = tempfile::tempdir().unwrap();
        let (jaas_file, users_file) = (dir.path().join("jaas"), dir.path().join("users"));
        std::fs::write(&jaas_file, JAAS).unwrap();
        let line = format!("hd reader {}", digest_md5_of("hd", &Secret::new("other")));
        std::fs::write(&users_file, line).unwrap();
        let set = |mode| std::fs::set_permissions(&users_file, PermissionsExt::from_mode(mode)).unwrap();
        let jaas = JaasConfig { file: jaas_file.clone(), ..config("Bookie", ".*") };
        let load = || {
            let contents = Contents::read(Some(&jaas), Some(&users_file))?;
            Users::load(Some(&jaas), Some(&users_file), &contents)
        };
        for mode in [0o644, 0o602, 0o601] {
            set(mode);
            let error = load().err().unwrap().to_string();
            assert!(error.contains(&format!("{mode:o}")) && error.contains("chmod"), "{error}");
        }
        set(0o640);
        let users = load().unwrap();
        assert_eq!((users.len(), &*users.twice), (2, &["hd".to_owned()][..]));
        let hd = users.get("hd").unwrap();
        assert!(hd.has("other") && !hd.has("tiger") && hd.roles.to_string() == "reader");
        let mut again = load().unwrap();
        assert!(!Arc::ptr_eq(again.get("hd").unwrap(), hd));
        again.keep(&users);
        assert!(Arc::ptr_eq(again.get("hd").unwrap(), hd));
        std::fs::write(&users_file, vec![b'#'; FILE_BYTES_MAX as usize + 1]).unwrap();
        assert!(load().err().unwrap().to_string().contains("more than"));
        std::fs::write(&users_file, [0xff]).unwrap();
        assert!(load().err().unwrap().to_string().contains("UTF-8"));
        std::fs::remove_file(&users_file).unwrap();
        assert!(load().err().unwrap().to_string().contains("usersFile="));
        assert!(read("k", dir.path(), false).unwrap_err().to_string().contains("not a regular file"));
    }
}
